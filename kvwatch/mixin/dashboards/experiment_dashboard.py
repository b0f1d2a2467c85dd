"""Before and after, or one server beside another: A on the left, B on the right, the same panels.

B has its own server and model, and lies earlier by what is chosen at the head: Grafana shifts the time range of its
panels, which works for every kind of query and without plugins. With the same server in both it is before and after
a change; with no shift it is two servers at the same time.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from kvwatch.mixin.dashboards import now_panels
from kvwatch.mixin.dashboards.colours import BLUE, ORANGE, SKY, VERMILLION
from kvwatch.mixin.dashboards.common import EXPERIMENT_UID, about, job, marks, step, variables
from kvwatch.mixin.dashboards.elements import Dashboard, Panel, PanelKind, PanelRow, Query, Variable
from kvwatch.mixin.dashboards.queries import RANGE, QueryScope, highest, mean, quantile, ratio, total
from kvwatch.mixin.render_options import Options

_EARLIER = "b_earlier_by"
_SHIFTS = ("1h", "0s", "5m", "15m", "30m", "2h", "3h", "6h", "12h", "1d", "2d", "7d", "14d", "28d")


def dashboard(options: Options) -> Dashboard:
    a, b = (QueryScope(options.selector, suffix, engines=False) for suffix in ("_a", "_b"))
    rows = (
        ("What does it come to over the whole range?", _sums),
        ("Was the load the same?", _load),
        ("Why did requests wait?", _waiting),
        ("What did users see?", _latency),
        ("What did the cache do?", _cache),
    )
    shift = Variable(
        _EARLIER,
        "B is earlier by",
        "How much earlier the time range of B lies: 0s for the same time, to compare two servers.",
        choices={("the same time" if one == "0s" else one): one for one in _SHIFTS},
    )
    return Dashboard(
        EXPERIMENT_UID,
        "kvwatch / Experiment",
        "A on the left, B on the right: the same server before and after a change, or two servers side by"
        " side. Change one thing at a time, and compare only what carried the same load.",
        tuple(_paired(title, make, a, b) for title, make in rows),
        (
            job(options),
            *variables(options, "_a", "A", engines=False),
            *variables(options, "_b", "B", engines=False),
            shift,
        ),
        marks(a),
        since="now-30m",
    )


def _paired(
    title: str, make: Callable[[QueryScope], tuple[Panel, ...]], a: QueryScope, b: QueryScope
) -> PanelRow:
    """The panels of A and of B, half a line each."""
    panels = []
    for left, right in zip(make(a), make(b), strict=True):
        panels += [
            replace(left, title=f"A: {left.title}"),
            replace(right, title=f"B: {right.title}", shift=_EARLIER),
        ]
    return PanelRow(title, tuple(panels))


def _sums(scope: QueryScope) -> tuple[Panel, ...]:
    """Figures over the whole shown range, not of its end."""

    def rate(name: str, *matchers: str) -> str:
        return scope.rate(name, *matchers, window=RANGE)

    finished = rate("requests_finished_total")
    return (
        Panel(
            "Latency, p95 of the range",
            PanelKind.STAT,
            "s",
            tuple(
                Query(quantile(0.95, scope, name, by="", window=RANGE), legend)
                for name, legend in (
                    ("time_to_first_token_seconds", "first token"),
                    ("inter_token_latency_seconds", "between tokens"),
                    ("request_queue_time_seconds", "queue"),
                )
            ),
            "p95 over all requests of the shown time, not of its last minute. Interpolated within vLLM's"
            " buckets: do not read a difference into what lies in one bucket.",
            width=12,
            height=4,
            base=SKY,
            names=True,
        ),
        Panel(
            "Work, mean of the range",
            PanelKind.STAT,
            "short",
            (
                Query(total(rate("generation_tokens_total")), "generated tokens/s"),
                Query(total(finished), "requests/s"),
                Query(mean(scope, "request_generation_tokens", window=RANGE), "tokens per answer"),
                Query(ratio(rate("preemptions_total"), finished), "preemptions per request"),
            ),
            "What was done per second over the shown time, the mean length of answers, and preemptions per"
            " finished request. Unlike lengths make all other numbers unlike.",
            width=12,
            height=4,
            base=SKY,
            names=True,
        ),
        Panel(
            "Cache over the range",
            PanelKind.STAT,
            "percentunit",
            (
                Query(
                    ratio(rate("prefix_cache_hit_tokens_total"), rate("prefix_cache_queried_tokens_total")),
                    "hit ratio",
                ),
                Query(
                    ratio(
                        rate("kv_cache_usage_above_seconds_total", 'threshold="0.95"'),
                        rate("regime_seconds_total"),
                    ),
                    "time nearly full",
                ),
            ),
            "Prefix cache tokens found / looked up, and the share of the"
            " time with usage ≥ 0.95, over the shown time.",
            width=12,
            height=4,
            base=SKY,
            names=True,
        ),
    )


def _load(scope: QueryScope) -> tuple[Panel, ...]:
    return (
        Panel(
            "Finished requests per second",
            PanelKind.LINES,
            "reqps",
            (Query(total(scope.rate("requests_finished_total")), "finished"),),
            "However they ended. If A and B differ here, differences further down may be the load's.",
            width=12,
            height=6,
            colours={"finished": BLUE},
        ),
        Panel(
            "Mean tokens per request",
            PanelKind.LINES,
            "short",
            (
                Query(mean(scope, "request_prompt_tokens"), "prompt"),
                Query(mean(scope, "request_generation_tokens"), "generated"),
            ),
            "Mean lengths of the requests that finished. Longer ones take more cache and more time, whatever"
            " was changed.",
            width=12,
            height=6,
            colours={"prompt": ORANGE, "generated": BLUE},
        ),
    )


def _waiting(scope: QueryScope) -> tuple[Panel, ...]:
    return (
        now_panels.regimes(scope, width=12),
        Panel(
            "Running and waiting",
            PanelKind.LINES,
            "none",
            (
                Query(total(scope("requests_running")), "running"),
                Query(total(scope("requests_waiting")), "waiting"),
            ),
            "Requests in the batch and in the queue.",
            width=12,
            height=6,
            colours={"running": BLUE, "waiting": VERMILLION},
        ),
    )


def _latency(scope: QueryScope) -> tuple[Panel, ...]:
    def both(name: str, title: str, text: str, threshold: str) -> Panel:
        return Panel(
            title,
            PanelKind.LINES,
            "s",
            tuple(Query(quantile(q, scope, name, by=""), f"p{q * 100:g}") for q in (0.5, 0.95)),
            f"{text} The line is at {about(threshold)} s.",
            width=12,
            height=6,
            steps=(step(threshold),),
            colours={"p50": SKY, "p95": BLUE},
        )

    return (
        both("time_to_first_token_seconds", "Time to first token", "Queue and prefill.", "ttft_high.seconds"),
        both(
            "inter_token_latency_seconds",
            "Time between tokens",
            "What more slots cost: watch it when --max-num-seqs was raised.",
            "ttft_high.inter_token",
        ),
    )


def _cache(scope: QueryScope) -> tuple[Panel, ...]:
    return (
        Panel(
            "KV usage, peaks of a minute",
            PanelKind.LINES,
            "percentunit",
            (Query(highest(scope("kv_cache_usage_peak_1m_ratio")), "peak"),),
            f"Fullest engine, every scrape of kvwatch counted. Full from {about('regime.full_usage')} on.",
            width=12,
            height=6,
            steps=(step("regime.full_usage"),),
            high=1,
            colours={"peak": BLUE},
        ),
        Panel(
            "Demand on the cache",
            PanelKind.LINES,
            "none",
            (Query(highest(scope("kv_cache_demand_ratio")), "demand"),),
            "1 is exactly full. A larger cache, shorter requests or a smaller KV precision bring it down.",
            width=12,
            height=6,
            steps=(step("regime.demand"),),
            colours={"demand": BLUE},
            decimals=1,
        ),
        Panel(
            "Prefix cache hit ratio",
            PanelKind.LINES,
            "percentunit",
            (
                Query(
                    ratio(
                        scope.rate("prefix_cache_hit_tokens_total"),
                        scope.rate("prefix_cache_queried_tokens_total"),
                    ),
                    "hit ratio",
                ),
            ),
            "Tokens found / tokens looked up.",
            width=12,
            height=6,
            high=1,
            colours={"hit ratio": BLUE},
        ),
    )
