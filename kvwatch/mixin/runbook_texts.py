"""What runbooks have besides the symptom table: the queries, and the texts of alerts that are no symptom.

The texts of a symptom are in its row (`Symptom.runbook`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from kvwatch.core.judgement.symptoms import Runbook
from kvwatch.mixin.promql import select

TARGET = 'target="TARGET"'
"""Stands in the queries for the alert's label `target`."""


def _t(name: str, *matchers: str) -> str:
    return select(name, TARGET, *matchers)


def _percentile(name: str, percentile: str = "95") -> str:
    return _t(name, f'percentile="{percentile}"')


_SPENT = f"increase({_t('regime_seconds_total')}[1h])"
_BY_REGIME = f"sum by (model_name, engine, regime) ({_SPENT})"
_IN_ALL = f"sum by (model_name, engine) ({_SPENT})"
_QUEUE, _PREFILL = "request_queue_time_percentile_seconds", "request_prefill_time_percentile_seconds"
_FINISHED, _REJECTED = _t("requests_finished_total"), _t("admission_rejections_total")
_HIT, _LOOKUPS = _t("prefix_cache_hit_tokens_total"), _t("prefix_cache_queried_tokens_total")
_SETTINGS_AT = select("config_last_reload_success_timestamp_seconds")
_FAILED = _t("scrapes_total", 'outcome!="ok"')
_ABOVE = _t("kv_cache_usage_above_seconds_total")

QUERIES: Mapping[str, tuple[str, str]] = {
    "regimes": (
        "Share of the last hour in each regime: why requests waited",
        f"{_BY_REGIME}\n/ on (model_name, engine) group_left ()\n{_IN_ALL} > 0",
    ),
    "usage": ("KV cache usage now", _t("kv_cache_usage_ratio")),
    "above": ("Share of the last 10 minutes at or above each usage", f"rate({_ABOVE}[10m])"),
    "running": ("Running requests", _t("requests_running")),
    "waiting": ("Waiting requests", _t("requests_waiting")),
    "reasons": ("Waiting requests by reason, if vLLM exposes it", _t("requests_waiting_by_reason")),
    "demand": ("KV demand ratio (1 is exactly full)", _t("kv_cache_demand_ratio")),
    "preemptions": ("Preemptions per finished request", _t("preemptions_per_finished_request")),
    "capacity": ("Capacity of the cache in tokens", _t("kv_cache_capacity_tokens")),
    "lengths": ("p99 of total tokens per request", _percentile("request_total_tokens_percentile", "99")),
    "longest": ("The longest request that the server accepts", _t("max_model_len_tokens")),
    "prompts": ("Median prompt length", _percentile("request_prompt_tokens_percentile", "50")),
    "ttft": ("TTFT p95", _percentile("time_to_first_token_percentile_seconds")),
    "queue": ("Queue part of TTFT, p95", _percentile(_QUEUE)),
    "prefill": ("Prefill part of TTFT, p95", _percentile(_PREFILL)),
    "itl": ("Inter-token latency p95", _percentile("inter_token_latency_percentile_seconds")),
    "hits": ("Prefix cache hit ratio", f"rate({_HIT}[5m]) / (rate({_LOOKUPS}[5m]) > 0)"),
    "trusted": ("Whether that ratio is trusted", _t("prefix_cache_hit_ratio_trusted")),
    "progress": ("Seconds without progress", _t("last_progress_age_seconds")),
    "up": ("Whether the newest scrape succeeded", _t("up")),
    "outcomes": ("Failed scrapes of the last 15 minutes by kind", f"increase({_FAILED}[15m]) > 0"),
    "restarts": ("Restarts in the last hour", f"increase({_t('engine_restarts_total')}[1h])"),
    "started": ("Seconds since the server started", f"time() - {_t('engine_start_time_seconds')}"),
    "pressure": ("Highest cache pressure in an hour", f"max_over_time({_t('cache_pressure_score')}[1h])"),
    "missing": ("Missing signals", f"{_t('core_signal_missing')} == 1"),
    "strange": ("Metric families that kvwatch does not know", _t("unknown_families")),
    "config": ("Configuration of the cache", _t("cache_config_info")),
    "finished": ("Finished requests in 5 min by reason", f"sum by (reason) (increase({_FINISHED}[5m])) > 0"),
    "refused": ("Rejected requests by limit", f"increase({_REJECTED}[5m]) > 0"),
    "gpu": ("Share of time with any GPU activity", _t("gpu_utilization_ratio")),
    "unknown": ("Unknown symptoms", _t("symptom_state", 'state="unknown"') + " == 1"),
    "age": ("Age of the newest data", _t("data_age_seconds")),
    "interval": ("Current interval between scrapes", _t("scrape_interval_seconds")),
    "duration": ("Duration of the newest scrape", _t("scrape_duration_seconds")),
    "errors": ("Errors of kvwatch in the last hour", f"increase({_t('poll_errors_total')}[1h]) > 0"),
    "missed": ("Polls skipped: the one before still ran", f"increase({_t('polls_missed_total')}[15m])"),
    "reloads": ("Reloads of the last hour by outcome", f"increase({select('config_reloads_total')}[1h]) > 0"),
    "settings": ("Age of the settings in seconds", f"time() - {_SETTINGS_AT}"),
    "seen": ("Watched servers", f"count by (job, instance) ({select('up')})"),
    "jobs": ("Instances of kvwatch that Prometheus knows", 'count by (job) (up{job=~".*kvwatch.*"})'),
}
"""Name -> what it shows, and the query."""


@dataclass(frozen=True, slots=True)
class OwnRunbookText:
    """The texts of an alert that is no symptom."""

    meaning: str
    mitigation: tuple[str, ...]
    runbook: Runbook


_LATE = Runbook(
    "Users wait for the first word more often than the objective allows.",
    ("ttft", "queue", "prefill", "regimes"),
    "the share of late first tokens in the short window falls below the limit; the long window follows",
)
_LATE_ACTIONS = (
    "Check which symptoms of the server fire, and fix the one that explains the others.",
    "If none fires, see which part is larger. Queue: add a replica. Prefill: shorten prompts.",
    "If the objective is not what the service promises, change it in the file for `kvwatch render`.",
)

OWN_PAGES: Mapping[str, OwnRunbookText] = {
    "Down": OwnRunbookText(
        "Prometheus knows this kvwatch but can't scrape it.",
        (
            "Check that its process or container runs, and read the end of its log.",
            "Request its /healthz and /metrics from Prometheus' host: address, port, token, TLS, network policy.",
            "Start it again.",
        ),
        Runbook(
            "Users notice nothing. No symptom of its servers can fire.", ("jobs", "seen"), "`up` is 1 again"
        ),
    ),
    "Vanished": OwnRunbookText(
        "Prometheus no longer discovers some kvwatch of a job. A target that is not discovered has no `up`.",
        (
            "If servers were removed on purpose, do nothing: the alert resolves a quarter of an hour later.",
            "Check that service discovery still finds all (Prometheus: Status, Service Discovery), and their labels.",
            "Check whether pods are pending or were evicted.",
        ),
        Runbook(
            "Users notice nothing. Some servers may be unwatched, or gone.",
            ("jobs", "seen"),
            "Prometheus knows as many kvwatch as there should be",
        ),
    ),
    "Absent": OwnRunbookText(
        "Prometheus has no series of kvwatch at all.",
        (
            "Check that Prometheus has a scrape job for kvwatch, and what it discovers.",
            "Check that the `selector` in the file for `kvwatch render` matches the labels of the series.",
        ),
        Runbook("Users notice nothing. Nothing is watched.", ("jobs", "seen"), "series of kvwatch are there"),
    ),
    "ScrapesFailing": OwnRunbookText(
        "More than a tenth of kvwatch's scrapes of the server failed within 15 minutes, but not all.",
        (
            "Check the kind of failure. Timeouts: the server's event loop is busy, and users may notice it too.",
            "Read the last bad answers at kvwatch's /debug/last-failures.",
            "Raise kvwatch's --timeout or --interval if answers are large and late.",
        ),
        Runbook(
            "kvwatch does not see what happens between two good scrapes. If scrapes time out, requests may too.",
            ("outcomes", "duration", "interval", "up"),
            "the number of failures no longer rises",
        ),
    ),
    "DataStale": OwnRunbookText(
        "The last scrape succeeded, but the newest data is much older than the scrape interval.",
        (
            "Read the end of kvwatch's log.",
            "Check that kvwatch gets CPU time: limits, throttling, a suspended machine.",
            "Restart kvwatch and report the bug.",
        ),
        Runbook(
            "Users notice nothing. kvwatch shows and judges old data.",
            ("age", "interval", "missed", "errors"),
            "the age stays below a few intervals",
        ),
    ),
    "PollErrors": OwnRunbookText(
        "kvwatch had an unexpected error, counted it and continued.",
        (
            "Find the error in kvwatch's log.",
            "Record the server (see Diagnosis) and report both: each error is a bug.",
        ),
        Runbook(
            "Users notice nothing. Samples may be missing.",
            ("errors", "missed", "up"),
            "the number of errors no longer rises",
        ),
    ),
    "ReloadFailed": OwnRunbookText(
        "kvwatch received SIGHUP, and its new settings have an error. It reloads all of them or none, so the old"
        " settings stay in force.",
        (
            "Read its log (`the settings can't be reloaded`): it lists every problem with place and remedy.",
            "Fix the settings, or the file that they name, until `kvwatch run --show-config` accepts them there.",
            "Send SIGHUP again; or restore the old file and send SIGHUP.",
        ),
        Runbook(
            "Users notice nothing. Added servers are not watched and changed thresholds are not in force. After a"
            " restart of kvwatch nothing is watched.",
            ("reloads", "settings"),
            "the newest reload succeeded, and the settings in force are young",
        ),
    ),
    "SymptomsUnknown": OwnRunbookText(
        "Scrapes succeed, but signals that some symptoms need have been missing for half an hour. Some releases never"
        " expose them.",
        (
            "Check which signals are missing and why (kvwatch's page, or `kvwatch check`).",
            "If this vLLM has other names for them, set KVWATCH_ALIASES or KVWATCH_SPELLINGS.",
            "If this release lacks them, upgrade vLLM or disable this alert.",
        ),
        Runbook(
            "Users notice nothing. The unknown symptoms can't fire.",
            ("unknown", "missing", "strange"),
            "no symptom is unknown",
        ),
    ),
    "TtftBudgetFastBurn": OwnRunbookText(
        "First tokens are late so often, over 1 h and 5 min, that a month's error budget lasts about two days.",
        _LATE_ACTIONS,
        _LATE,
    ),
    "TtftBudgetSlowBurn": OwnRunbookText(
        "First tokens are late so often, over 6 h and 30 min, that a month's error budget lasts about five days.",
        _LATE_ACTIONS,
        _LATE,
    ),
}
