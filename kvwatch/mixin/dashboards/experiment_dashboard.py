"""Before and after a change, or two servers: A on the left, B on the right, the same panels.

B has its own server and model. Its panels are shifted back in time by the offset chosen at the top, which Grafana
does for every kind of query and without plugins. The same server on both sides compares before and after; no offset
compares two servers at the same time.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from kvwatch.mixin.dashboards.colours import BLUE, ORANGE, SKY, VERMILLION
from kvwatch.mixin.dashboards.common import (
    EXPERIMENT_UID,
    graph_annotations,
    job_variable,
    threshold_step,
    threshold_text,
    time_by_regime,
    variables,
)
from kvwatch.mixin.dashboards.elements import Dashboard, Panel, PanelRow, Variable, graph, ratio_panel, stat
from kvwatch.mixin.dashboards.queries import RANGE, QueryScope, highest, ratio, total
from kvwatch.mixin.render_options import Options

_OFFSET = "b_earlier_by"
_OFFSETS = ("1h", "0s", "5m", "15m", "30m", "2h", "3h", "6h", "12h", "1d", "2d", "7d", "14d", "28d")


def dashboard(options: Options) -> Dashboard:
    a, b = (QueryScope(options.selector, suffix, engines=False) for suffix in ("_a", "_b"))
    rows = (
        ("What is the result over the whole range?", _totals),
        ("Was the load the same?", _load),
        ("Why did requests wait?", _waiting),
        ("What did users see?", _latency),
        ("What did the cache do?", _cache),
    )
    offset = Variable(
        _OFFSET,
        "B is earlier by",
        "Offset of B's time range. Choose the same time to compare two servers.",
        choices={("the same time" if one == "0s" else one): one for one in _OFFSETS},
    )
    return Dashboard(
        EXPERIMENT_UID,
        "kvwatch / Experiment",
        "A on the left, B on the right: one server before and after a change, or two servers. Change one thing at"
        " a time, and compare only under the same load.",
        tuple(_paired(title, panels, a, b) for title, panels in rows),
        (
            job_variable(options),
            *variables(options, "_a", "A", engines=False),
            *variables(options, "_b", "B", engines=False),
            offset,
        ),
        graph_annotations(a),
        since="now-30m",
    )


def _paired(
    title: str, panels: Callable[[QueryScope], tuple[Panel, ...]], a: QueryScope, b: QueryScope
) -> PanelRow:
    """The panels of A and B side by side."""
    found = []
    for left, right in zip(panels(a), panels(b), strict=True):
        found += [
            replace(left, title=f"A: {left.title}"),
            replace(right, title=f"B: {right.title}", shift=_OFFSET),
        ]
    return PanelRow(title, tuple(found))


def _totals(scope: QueryScope) -> tuple[Panel, ...]:
    """Figures over the whole shown range."""

    def rate(name: str, *matchers: str) -> str:
        return scope.rate(name, *matchers, window=RANGE)

    latencies = {
        "first token": "time_to_first_token_seconds",
        "between tokens": "inter_token_latency_seconds",
        "queue": "request_queue_time_seconds",
    }
    nearly_full = rate("kv_cache_usage_above_seconds_total", 'threshold="0.95"')
    return (
        stat(
            "Latency, p95 of the range",
            {legend: scope.quantile(0.95, name, window=RANGE) for legend, name in latencies.items()},
            "p95 over all requests of the shown time range, interpolated within vLLM's buckets. Differences"
            " within one bucket mean nothing.",
            unit="s",
            size=(12, 4),
            base=SKY,
            names=True,
        ),
        stat(
            "Work, mean of the range",
            {
                "generated tokens/s": total(rate("generation_tokens_total")),
                "requests/s": total(rate("requests_finished_total")),
                "tokens per output": scope.mean("request_generation_tokens", window=RANGE),
                "preemptions per request": scope.rate_ratio(
                    "preemptions_total", "requests_finished_total", window=RANGE
                ),
            },
            "Throughput, mean output length and preemptions per finished request over the shown time range. If"
            " lengths differ, the other numbers are not comparable.",
            unit="short",
            size=(12, 4),
            base=SKY,
            names=True,
        ),
        stat(
            "Cache over the range",
            {
                "hit rate": scope.hit_ratio(window=RANGE),
                "time at ≥ 95 % usage": ratio(nearly_full, rate("regime_seconds_total")),
            },
            "Prefix cache hit rate (tokens found / looked up), and share of time with KV cache usage of at"
            " least 95 %, over the shown time range.",
            unit="percentunit",
            size=(12, 4),
            base=SKY,
            names=True,
        ),
    )


def _load(scope: QueryScope) -> tuple[Panel, ...]:
    return (
        graph(
            "Finished requests per second",
            {"finished": total(scope.rate("requests_finished_total"))},
            "Finished requests of all reasons. If A and B differ here, the load may be the cause of the"
            " differences below.",
            unit="reqps",
            size=(12, 6),
            colours={"finished": BLUE},
        ),
        graph(
            "Mean tokens per request",
            {
                "prompt": scope.mean("request_prompt_tokens"),
                "generated": scope.mean("request_generation_tokens"),
            },
            "Mean lengths of finished requests. Longer requests need more cache and more time, whichever option"
            " changed.",
            unit="short",
            size=(12, 6),
            colours={"prompt": ORANGE, "generated": BLUE},
        ),
    )


def _waiting(scope: QueryScope) -> tuple[Panel, ...]:
    return (
        time_by_regime(scope, size=(12, 7)),
        graph(
            "Running and waiting",
            {"running": total(scope("requests_running")), "waiting": total(scope("requests_waiting"))},
            "Requests in the batch and in the queue.",
            size=(12, 6),
            colours={"running": BLUE, "waiting": VERMILLION},
        ),
    )


def _latency(scope: QueryScope) -> tuple[Panel, ...]:
    def quantiles(name: str, title: str, text: str, threshold: str) -> Panel:
        return graph(
            title,
            {f"p{q * 100:g}": scope.quantile(q, name) for q in (0.5, 0.95)},
            f"{text} The line marks the threshold {threshold_text(threshold, ' s')}.",
            unit="s",
            size=(12, 6),
            steps=(threshold_step(threshold),),
            colours={"p50": SKY, "p95": BLUE},
        )

    return (
        quantiles(
            "time_to_first_token_seconds", "Time to first token", "Queue plus prefill.", "ttft_high.seconds"
        ),
        quantiles(
            "inter_token_latency_seconds",
            "Inter-token latency",
            "It grows with the batch: watch it after raising --max-num-seqs.",
            "ttft_high.inter_token",
        ),
    )


def _cache(scope: QueryScope) -> tuple[Panel, ...]:
    return (
        ratio_panel(
            "KV cache usage, peaks of 1 min",
            {"peak": highest(scope("kv_cache_usage_peak_1m_ratio"))},
            "Fullest engine, from every scrape of kvwatch. The cache counts as full at"
            f" {threshold_text('regime.full_usage')} and above.",
            size=(12, 6),
            steps=(threshold_step("regime.full_usage"),),
            colours={"peak": BLUE},
        ),
        graph(
            "KV cache demand",
            {"demand": highest(scope("kv_cache_demand_ratio"))},
            "1: the running and waiting requests exactly fill the cache. A larger cache, shorter requests or a"
            " smaller KV dtype lower it.",
            size=(12, 6),
            steps=(threshold_step("regime.demand"),),
            colours={"demand": BLUE},
            decimals=1,
        ),
        ratio_panel(
            "Prefix cache hit rate",
            {"hit rate": scope.hit_ratio()},
            "Tokens found / tokens looked up.",
            size=(12, 6),
            colours={"hit rate": BLUE},
        ),
    )
