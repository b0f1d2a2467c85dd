"""What runbooks have besides the symptom table: the queries, and the texts of alerts that are no symptom.

The texts of a symptom are in its row (`Symptom.runbook`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from kvwatch.core.judgement.symptoms import Runbook
from kvwatch.mixin.promql import select

TARGET = 'target="TARGET"'
"""Placeholder in the queries for the alert's label `target`."""


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
        "Share of the last hour in each regime (why requests waited)",
        f"{_BY_REGIME}\n/ on (model_name, engine) group_left ()\n{_IN_ALL} > 0",
    ),
    "usage": ("KV cache usage now", _t("kv_cache_usage_ratio")),
    "above": ("Share of the last 10 minutes at or above each usage", f"rate({_ABOVE}[10m])"),
    "running": ("Running requests", _t("requests_running")),
    "waiting": ("Waiting requests", _t("requests_waiting")),
    "reasons": ("Waiting requests by reason, if vLLM exposes it", _t("requests_waiting_by_reason")),
    "demand": ("KV demand ratio (1: the cache is exactly full)", _t("kv_cache_demand_ratio")),
    "preemptions": ("Preemptions per finished request", _t("preemptions_per_finished_request")),
    "capacity": ("Capacity of the KV cache in tokens", _t("kv_cache_capacity_tokens")),
    "lengths": ("p99 of total tokens per request", _percentile("request_total_tokens_percentile", "99")),
    "longest": ("Longest request that the server accepts, in tokens", _t("max_model_len_tokens")),
    "prompts": ("Median prompt length", _percentile("request_prompt_tokens_percentile", "50")),
    "ttft": ("TTFT p95", _percentile("time_to_first_token_percentile_seconds")),
    "queue": ("Queue part of TTFT, p95", _percentile(_QUEUE)),
    "prefill": ("Prefill part of TTFT, p95", _percentile(_PREFILL)),
    "itl": ("Inter-token latency p95", _percentile("inter_token_latency_percentile_seconds")),
    "hits": ("Prefix cache hit rate", f"rate({_HIT}[5m]) / (rate({_LOOKUPS}[5m]) > 0)"),
    "trusted": ("1 if that hit rate can be trusted", _t("prefix_cache_hit_ratio_trusted")),
    "progress": ("Seconds without progress", _t("last_progress_age_seconds")),
    "up": ("1 if the newest scrape succeeded", _t("up")),
    "outcomes": ("Failed scrapes of the last 15 minutes by kind", f"increase({_FAILED}[15m]) > 0"),
    "restarts": ("Restarts in the last hour", f"increase({_t('engine_restarts_total')}[1h])"),
    "started": ("Seconds since the server started", f"time() - {_t('engine_start_time_seconds')}"),
    "pressure": ("Highest cache pressure in an hour", f"max_over_time({_t('cache_pressure_score')}[1h])"),
    "missing": ("Missing signals that the regime requires", f"{_t('core_signal_missing')} == 1"),
    "strange": ("Metric families that kvwatch does not know", _t("unknown_families")),
    "config": ("Cache configuration", _t("cache_config_info")),
    "finished": ("Finished requests in 5 min by reason", f"sum by (reason) (increase({_FINISHED}[5m])) > 0"),
    "refused": ("Rejected requests by limit", f"increase({_REJECTED}[5m]) > 0"),
    "gpu": ("Share of time with any GPU activity", _t("gpu_utilization_ratio")),
    "unknown": ("Unknown symptoms", _t("symptom_state", 'state="unknown"') + " == 1"),
    "age": ("Age of the newest data", _t("data_age_seconds")),
    "interval": ("Current interval between scrapes", _t("scrape_interval_seconds")),
    "duration": ("Duration of the newest scrape", _t("scrape_duration_seconds")),
    "errors": ("Internal errors of kvwatch in the last hour", f"increase({_t('poll_errors_total')}[1h]) > 0"),
    "missed": (
        "Polls skipped because the previous one had not finished",
        f"increase({_t('polls_missed_total')}[15m])",
    ),
    "reloads": ("Reloads of the last hour by outcome", f"increase({select('config_reloads_total')}[1h]) > 0"),
    "settings": ("Age of the settings in seconds", f"time() - {_SETTINGS_AT}"),
    "seen": ("Servers watched by each kvwatch", f"count by (job, instance) ({select('up')})"),
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
    "First tokens are late more often than the objective allows.",
    ("ttft", "queue", "prefill", "regimes"),
    "the share of late first tokens falls below the limit, first in the short window, then in the long one",
)
_LATE_ACTIONS = (
    "Check which symptoms of the server fire, and fix the one that covers the others.",
    (
        "If none fires, find the larger part of TTFT (see Diagnosis). If it is the queue, add a replica. If it is"
        " prefill, shorten prompts."
    ),
    "If the objective does not match your SLO, change `ttft` in the file for `kvwatch render`.",
)

OWN_PAGES: Mapping[str, OwnRunbookText] = {
    "Down": OwnRunbookText(
        "Prometheus knows this kvwatch but can't scrape it.",
        (
            "Check that kvwatch's process or container runs, and read the end of its log.",
            (
                "Request kvwatch's /healthz and /metrics from the host of Prometheus. Check address, port, token,"
                " TLS and network policy."
            ),
            "Restart kvwatch.",
        ),
        Runbook(
            "Users notice nothing. No symptom of the servers that it watches can fire.",
            ("jobs", "seen"),
            "`up` is 1 again",
        ),
    ),
    "Vanished": OwnRunbookText(
        "Prometheus discovers fewer kvwatch instances of a job than before. A target that is not discovered has"
        " no `up` series, so KVWatchDown can't fire for it.",
        (
            "If you removed servers on purpose, do nothing: the alert resolves within 15 min.",
            (
                "Check that service discovery still finds all instances, with the right labels (in Prometheus:"
                " Status, Service Discovery)."
            ),
            "Check whether pods are pending or were evicted.",
        ),
        Runbook(
            "Users notice nothing. Some servers may no longer be watched, or no longer exist.",
            ("jobs", "seen"),
            "Prometheus discovers every kvwatch instance again",
        ),
    ),
    "Absent": OwnRunbookText(
        "Prometheus has no series of kvwatch at all.",
        (
            "Check that Prometheus has a scrape job for kvwatch, and that the job has targets.",
            "Check that the `selector` in the file for `kvwatch render` matches the labels of the series.",
        ),
        Runbook(
            "Users notice nothing. Nothing is watched.", ("jobs", "seen"), "Prometheus has series of kvwatch"
        ),
    ),
    "ScrapesFailing": OwnRunbookText(
        "More than 10 % of kvwatch's scrapes of the server failed within 15 minutes, but not all.",
        (
            (
                "Check the kind of failure. Timeouts mean that the server's event loop is busy; users may notice"
                " that, too."
            ),
            "Read the latest failed scrapes at kvwatch's /debug/last-failures.",
            "Raise kvwatch's --interval and --timeout if responses are large and slow.",
        ),
        Runbook(
            "kvwatch misses what happens between two successful scrapes. If scrapes time out, users' requests"
            " may, too.",
            ("outcomes", "duration", "interval", "up"),
            "the number of failures no longer rises",
        ),
    ),
    "DataStale": OwnRunbookText(
        "The last scrape succeeded, but the newest data is much older than the scrape interval.",
        (
            "Read the end of kvwatch's log.",
            "Check that kvwatch gets CPU time: CPU limits, throttling, a suspended machine.",
            "Restart kvwatch and report the bug.",
        ),
        Runbook(
            "Users notice nothing. kvwatch shows and judges old data.",
            ("age", "interval", "missed", "errors"),
            "the age of the newest data stays below a few intervals",
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
        "kvwatch received SIGHUP, and the new settings have an error. It applies all of them or none, so the"
        " old settings stay in force.",
        (
            (
                "Find `settings reload failed` in kvwatch's log. The line lists every problem, with its place and"
                " its fix."
            ),
            (
                "Fix the settings, or the file that they name, until `kvwatch run --show-config` accepts them on"
                " that host."
            ),
            "Send SIGHUP again. Or restore the old file and send SIGHUP.",
        ),
        Runbook(
            "Users notice nothing. New servers are not watched, and changed thresholds have no effect. If"
            " kvwatch restarts, it does not start, and nothing is watched.",
            ("reloads", "settings"),
            "the newest reload succeeded, and the age of the settings is small",
        ),
    ),
    "SymptomsUnknown": OwnRunbookText(
        "Scrapes succeed, but signals that some symptoms need have been missing for half an hour. Some releases never"
        " expose them.",
        (
            "Check which signals are missing and why (kvwatch's page, or `kvwatch check`).",
            "If this vLLM exposes them under other names, set KVWATCH_ALIASES or KVWATCH_SPELLINGS.",
            "If this release does not expose them, upgrade vLLM or disable this alert.",
        ),
        Runbook(
            "Users notice nothing. The unknown symptoms can't fire.",
            ("unknown", "missing", "strange"),
            "no symptom is unknown",
        ),
    ),
    "TtftBudgetFastBurn": OwnRunbookText(
        "First tokens are late so often, over both 1 h and 5 min, that the error budget of a month lasts about"
        " two days.",
        _LATE_ACTIONS,
        _LATE,
    ),
    "TtftBudgetSlowBurn": OwnRunbookText(
        "First tokens are late so often, over both 6 h and 30 min, that the error budget of a month lasts about"
        " five days.",
        _LATE_ACTIONS,
        _LATE,
    ),
}
