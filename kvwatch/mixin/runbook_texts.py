"""What runbooks say beside the symptom table: what users notice, what to ask, how to tell that it worked."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from kvwatch.mixin.promql import select

#: Stands in the queries for the alert's label `target`.
TARGET = 'target="TARGET"'


def _t(name: str, *matchers: str) -> str:
    return select(name, TARGET, *matchers)


def _percentile(name: str, of: str = "95") -> str:
    return _t(name, f'percentile="{of}"')


_SPENT = f"increase({_t('regime_seconds_total')}[1h])"
_BY_REGIME = f"sum by (model_name, engine, regime) ({_SPENT})"
_IN_ALL = f"sum by (model_name, engine) ({_SPENT})"
_QUEUE, _PREFILL = "request_queue_time_percentile_seconds", "request_prefill_time_percentile_seconds"
_FINISHED, _REFUSED = _t("requests_finished_total"), _t("admission_rejections_total")
_HIT, _ASKED = _t("prefix_cache_hit_tokens_total"), _t("prefix_cache_queried_tokens_total")
_FAILED = _t("scrapes_total", 'outcome!="ok"')
_ABOVE = _t("kv_cache_usage_above_seconds_total")

#: Name -> what it tells, and the query.
QUERIES: Mapping[str, tuple[str, str]] = {
    "regimes": (
        "Why requests waited over the last hour, as shares of the time",
        f"{_BY_REGIME}\n/ on (model_name, engine) group_left ()\n{_IN_ALL} > 0",
    ),
    "usage": ("KV cache usage now", _t("kv_cache_usage_ratio")),
    "above": ("Share of the last 10 minutes with usage at or above each mark", f"rate({_ABOVE}[10m])"),
    "running": ("Requests in the batch", _t("requests_running")),
    "waiting": ("Requests in the queue", _t("requests_waiting")),
    "reasons": ("What they wait for, where vLLM says so", _t("requests_waiting_by_reason")),
    "demand": ("Demand on the cache: 1 is exactly full", _t("kv_cache_demand_ratio")),
    "preemptions": ("Preemptions per finished request", _t("preemptions_per_finished_request")),
    "capacity": ("Tokens that the cache holds", _t("kv_cache_capacity_tokens")),
    "lengths": (
        "99th percentile of tokens that requests took in the end",
        _percentile("request_total_tokens_percentile", "99"),
    ),
    "longest": ("The longest request that the server takes", _t("max_model_len_tokens")),
    "prompts": ("Median length of prompts", _percentile("request_prompt_tokens_percentile", "50")),
    "ttft": (
        "95th percentile of the time to first token",
        _percentile("time_to_first_token_percentile_seconds"),
    ),
    "queue": ("How much of it is the queue", _percentile(_QUEUE)),
    "prefill": ("How much of it is prefill", _percentile(_PREFILL)),
    "itl": (
        "95th percentile of the time between two tokens",
        _percentile("inter_token_latency_percentile_seconds"),
    ),
    "hits": ("Prefix cache: share of tokens found", f"rate({_HIT}[5m]) / (rate({_ASKED}[5m]) > 0)"),
    "trusted": ("Whether that ratio can be trusted", _t("prefix_cache_hit_ratio_trusted")),
    "progress": ("How long nothing has moved", _t("last_progress_age_seconds")),
    "up": ("Whether the newest scrape succeeded", _t("up")),
    "outcomes": ("Kinds of failure of the last 15 minutes", f"increase({_FAILED}[15m]) > 0"),
    "restarts": ("Restarts of the last hour", f"increase({_t('engine_restarts_total')}[1h])"),
    "started": ("How long ago the server started", f"time() - {_t('engine_start_time_seconds')}"),
    "pressure": ("Cache pressure over the last hour", f"max_over_time({_t('cache_pressure_score')}[1h])"),
    "missing": ("What is missing", f"{_t('core_signal_missing')} == 1"),
    "strange": ("Families that kvwatch does not know", _t("unknown_families")),
    "config": ("The cache's configuration", _t("cache_config_info")),
    "finished": (
        "How requests ended in the last 5 minutes",
        f"sum by (reason) (increase({_FINISHED}[5m])) > 0",
    ),
    "refused": ("Requests refused, by limit", f"increase({_REFUSED}[5m]) > 0"),
    "gpu": ("Share of time in which the GPU did anything", _t("gpu_utilization_ratio")),
    "unknown": ("Which symptoms are unknown", _t("symptom_state", 'state="unknown"') + " == 1"),
    "age": ("Age of the newest data", _t("data_age_seconds")),
    "interval": ("Present interval between scrapes", _t("scrape_interval_seconds")),
    "duration": ("How long the newest scrape took", _t("scrape_duration_seconds")),
    "errors": (
        "Errors of kvwatch itself in the last hour",
        f"increase({_t('poll_errors_total')}[1h]) > 0",
    ),
    "missed": (
        "Polls left out because the one before was not over",
        f"increase({_t('polls_missed_total')}[15m])",
    ),
    "reloads": (
        "Reloads of the last hour, by outcome",
        f"increase({select('config_reloads_total')}[1h]) > 0",
    ),
    "settings": (
        "How old the settings in force are, in seconds",
        f"time() - {select('config_last_reload_success_timestamp_seconds')}",
    ),
    "seen": ("Servers that are watched", f"count by (job, instance) ({select('up')})"),
    "jobs": ("Which kvwatch Prometheus knows", 'count by (job) (up{job=~".*kvwatch.*"})'),
}


@dataclass(frozen=True, slots=True)
class RunbookText:
    """What a runbook says beside what the tables have."""

    impact: str
    queries: tuple[str, ...]
    worked: str


@dataclass(frozen=True, slots=True)
class OwnRunbookText:
    """The rest of a runbook of an alert that is no symptom's."""

    meaning: str
    mitigation: tuple[str, ...]
    page: RunbookText


SYMPTOM_PAGES: Mapping[str, RunbookText] = {
    "target_down": RunbookText(
        "The server most likely answers nobody: all its users are affected. If only its metrics are unreachable,"
        " users notice nothing, and nothing watches over them.",
        ("up", "outcomes", "restarts"),
        "the newest scrapes succeed",
    ),
    "startup_kv_failure": RunbookText(
        "The server serves nobody until it is up; capacity that was counted on is not there.",
        ("up", "outcomes"),
        "the first scrape succeeds",
    ),
    "engine_restarted": RunbookText(
        "All requests that were in the server were lost, and the next ones meet a cold cache.",
        ("restarts", "started", "pressure"),
        "the start time stays where it is",
    ),
    "signals_missing": RunbookText(
        "Users notice nothing. Whatever happens to the cache of this server, no other alert can tell.",
        ("missing", "strange", "config"),
        "no core signal is missing",
    ),
    "engine_stalled": RunbookText(
        "Requests hang until their clients give up, while health checks stay green and routers send more.",
        ("progress", "running", "waiting", "usage"),
        "counters move again: the age of the newest progress stays near 0",
    ),
    "kv_usage_stuck": RunbookText(
        "The cache has less room than it should, and routers that go by usage avoid this server.",
        ("usage", "running", "waiting", "progress"),
        "usage falls to 0 while nothing runs or waits",
    ),
    "kv_thrashing": RunbookText(
        "Throughput falls while the GPU works hard: answers pause in the middle, and every latency grows.",
        ("preemptions", "demand", "usage", "lengths", "capacity", "ttft", "itl"),
        "preemptions per finished request go to 0 at the same load, and demand stays below 1",
    ),
    "kv_exhausted": RunbookText(
        "Requests wait before their first token; how long grows with the load.",
        ("regimes", "demand", "usage", "waiting", "lengths", "capacity", "ttft"),
        "demand falls below 1 and the time in regime kv_limited to 0 at the same load",
    ),
    "kv_near_full": RunbookText(
        "None yet. With a little more load requests will wait, or be preempted.",
        ("above", "usage", "demand", "waiting"),
        "usage stays below 0.95 at the same load",
    ),
    "request_never_fits": RunbookText(
        "Nobody is served: every request waits behind one that can never run.",
        ("waiting", "running", "usage", "longest", "capacity"),
        "requests run again, and the longest request that is taken is shorter than the capacity",
    ),
    "long_request_hogs_cache": RunbookText(
        "Short requests wait for as long as a few long ones take.",
        ("running", "waiting", "usage", "lengths", "capacity", "ttft"),
        "requests no longer wait while few run",
    ),
    "max_model_len_oversized": RunbookText(
        "None now. One runaway request can take the whole cache from all others.",
        ("longest", "lengths", "capacity"),
        "the longest request that is taken is near what requests take in the end",
    ),
    "sequence_limited": RunbookText(
        "Requests wait before their first token although the cache has room for them.",
        ("regimes", "running", "waiting", "demand", "usage", "itl"),
        "more requests run than before, the queue is empty, and the time between tokens is still good",
    ),
    "prefill_limited": RunbookText(
        "Requests wait before their first token; those that run may go on unharmed.",
        ("regimes", "waiting", "prefill", "queue", "prompts", "hits", "usage"),
        "the time in regime prefill_limited falls to 0 at the same load",
    ),
    "requests_deferred": RunbookText(
        "Some requests wait much longer than others, most often those of one adapter, one grammar or one connector.",
        ("reasons", "waiting", "running", "usage"),
        "next to nothing waits for the reason deferred",
    ),
    "ttft_high": RunbookText(
        "Users wait for the first word; once it has come, the rest flows.",
        ("ttft", "queue", "prefill", "itl", "prompts", "hits"),
        "the 95th percentile of the time to first token is back where it was",
    ),
    "cold_start": RunbookText(
        "The first users after a start waited; nobody else does.",
        ("started", "ttft"),
        "after the next start the first requests of users are as fast as later ones",
    ),
    "shared_prefix_slow": RunbookText(
        "Users wait for the first word, and the GPU computes again what it computed a moment ago.",
        ("prompts", "hits", "trusted", "ttft", "prefill", "config"),
        "the share of tokens found rises, and the time to first token falls, for prompts as long as before",
    ),
    "prefix_cache_off": RunbookText(
        "First tokens may come later than they need to, and prefill takes GPU time that could serve others.",
        ("config", "prompts", "prefill"),
        "tokens are looked up and found in the prefix cache",
    ),
    "prefix_cache_thrash": RunbookText(
        "Each turn of a conversation waits for its whole history to be computed again.",
        ("hits", "trusted", "usage", "capacity", "prompts", "prefill"),
        "the share of tokens found is back where it was, for prompts as long as before",
    ),
    "prefix_cache_ineffective": RunbookText(
        "First tokens come as late as without a prefix cache.",
        ("hits", "trusted", "prompts", "config"),
        "the share of tokens found rises",
    ),
    "requests_failing": RunbookText(
        "Users get errors, or give up.",
        ("finished", "refused", "regimes"),
        "requests end with stop or length, and none is refused",
    ),
    "gpu_underused": RunbookText(
        "None for users: hardware is paid for and not used.",
        ("gpu", "usage", "running", "waiting"),
        "the GPU is busier at the same or a higher load, or fewer replicas serve the same",
    ),
    "engine_imbalance": RunbookText(
        "Requests at one engine wait while another has room.",
        ("usage", "running", "waiting", "regimes"),
        "the engines' usage and queues are alike at the same load",
    ),
}

_LATE = RunbookText(
    "Users wait for the first word more often than was promised.",
    ("ttft", "queue", "prefill", "regimes"),
    "the share of late first tokens in the short window falls below the limit; the long window follows",
)
_LATE_ACTIONS = (
    "see which symptoms of the server fire, and act on the one that accounts for the others",
    "if none fires: see whether queue or prefill is the larger part. Queue: add a replica; prefill: shorten prompts",
    "if the objective is not what the service promises, change it in the file for `kvwatch render`",
)

OWN_PAGES: Mapping[str, OwnRunbookText] = {
    "Down": OwnRunbookText(
        "Prometheus knows this kvwatch and can't scrape it.",
        (
            "see whether its process or container runs, and read the end of its log",
            "ask its /healthz and /metrics from where Prometheus runs: address, port, token, TLS, network policy",
            "start it again",
        ),
        RunbookText(
            "Users notice nothing. No symptom of its servers can fire.", ("jobs", "seen"), "`up` is 1 again"
        ),
    ),
    "Vanished": OwnRunbookText(
        "Of a job's kvwatch some are no longer discovered. `up` tells nothing about what is not discovered.",
        (
            "if servers were taken away on purpose, nothing: the alert is over a quarter of an hour later",
            "see whether the discovery still finds all (Prometheus: Status, Service Discovery), and its labels",
            "see whether pods are pending or were evicted",
        ),
        RunbookText(
            "Users notice nothing. Servers may be without a watch, or gone.",
            ("jobs", "seen"),
            "as many are known as should be",
        ),
    ),
    "Absent": OwnRunbookText(
        "Prometheus has no series of kvwatch at all.",
        (
            "see whether Prometheus has a job for kvwatch, and what it finds",
            "see whether the `selector` in the file for `kvwatch render` matches the labels of its series",
        ),
        RunbookText(
            "Users notice nothing. Nothing is watched.",
            ("jobs", "seen"),
            "series of kvwatch are there",
        ),
    ),
    "ScrapesFailing": OwnRunbookText(
        "More than a tenth of kvwatch's scrapes of the server failed within 15 minutes, and not all.",
        (
            "see the kind of failure. Timeouts: the server's event loop is busy, and its users may feel it too",
            "see the last bad answers at kvwatch's /debug/last-failures",
            "lengthen kvwatch's --timeout or --interval if answers are large and come late",
        ),
        RunbookText(
            "What happens between two good scrapes is not seen. Where they time out, requests of users may too.",
            ("outcomes", "duration", "interval", "up"),
            "no more failures are counted",
        ),
    ),
    "DataStale": OwnRunbookText(
        "The newest data is much older than the interval between scrapes, and the last scrape succeeded.",
        (
            "read the end of kvwatch's log",
            "see whether it gets CPU time: limits, throttling, a suspended machine",
            "start kvwatch again, and report it",
        ),
        RunbookText(
            "Users notice nothing. What kvwatch shows and judges is of the past.",
            ("age", "interval", "missed", "errors"),
            "the age stays below a few intervals",
        ),
    ),
    "PollErrors": OwnRunbookText(
        "kvwatch met an error that it did not expect, went on, and counted it.",
        (
            "find the error in kvwatch's log",
            "record the server (see Diagnosis) and report both: each is a bug",
        ),
        RunbookText(
            "Users notice nothing. Samples may be missing.", ("errors", "missed", "up"), "no more are counted"
        ),
    ),
    "ReloadFailed": OwnRunbookText(
        "kvwatch was told to read its settings anew (SIGHUP), and something in them is wrong. They are taken whole or"
        " not at all: it goes on with those before.",
        (
            "read what its log says (`the settings can't be reloaded`): every problem, with its place and remedy",
            "mend the settings, or the file that they name, until `kvwatch run --show-config` takes them there",
            "send SIGHUP again; or put the file back as it was before, and send it too",
        ),
        RunbookText(
            "Users notice nothing. Servers that were added are not watched, changed thresholds don't count, and after"
            " the next start of kvwatch nothing is watched.",
            ("reloads", "settings"),
            "the newest reload is a good one, and the settings in force are young",
        ),
    ),
    "SymptomsUnknown": OwnRunbookText(
        "The server is scraped, and signals that some symptoms need have been missing for half an hour. Some releases"
        " never have them.",
        (
            "see which signals are missing, with the reasons (the page of kvwatch, or `kvwatch check`)",
            "if this vLLM calls them something else, tell kvwatch: KVWATCH_ALIASES, KVWATCH_SPELLINGS",
            "if this release does not have them, upgrade it, or disable this alert",
        ),
        RunbookText(
            "Users notice nothing. The symptoms that are unknown can't fire.",
            ("unknown", "missing", "strange"),
            "no symptom is unknown",
        ),
    ),
    "TtftBudgetFastBurn": OwnRunbookText(
        "First tokens come late so often, over the last hour and still over the last 5 minutes, that the error budget"
        " of a month is gone within about two days.",
        _LATE_ACTIONS,
        _LATE,
    ),
    "TtftBudgetSlowBurn": OwnRunbookText(
        "First tokens come late so often, over the last 6 hours and still over the last half hour, that the error"
        " budget of a month is gone within about five days.",
        _LATE_ACTIONS,
        _LATE,
    ),
}
