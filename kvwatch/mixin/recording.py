"""Recording rules: what a fleet's dashboards and alerts ask for, named ``level:metric:operations``.

A level says what a series is of: an `engine`, a model on one `target`, a `model` on all of them, or a `job`. Ratios
are of sums over the same engines, so that one whose signals are missing counts neither above nor below the line.
Histograms are merged only within one server, whose engines have the same buckets; over servers only the share of
first tokens that came too late is taken, which needs one bound that all of them have.

`kv_cache_demand_in_servers` is what autoscaling asks for: how many servers like the present ones all that is admitted
and waiting would fill. It does not change while one more server loads its model, as the ratio to a target would be
multiplied by the replicas that are not ready yet.
"""

from __future__ import annotations

from dataclasses import dataclass

from kvwatch.core.export.catalogue import PREFIX
from kvwatch.mixin.promql import bound, select
from kvwatch.mixin.render_options import Options

#: What tells apart the servers of one model.
_SERVERS = "instance, pod, target, engine"
WINDOWS = ("5m", "30m", "1h", "6h")


@dataclass(frozen=True, slots=True)
class Recording:
    """One recording rule."""

    name: str
    expr: str


def late(window: str) -> str:
    """The rule that records which share of first tokens came later than the objective."""
    return f"target:{PREFIX}time_to_first_token_late:ratio_rate{window}"


def recordings(options: Options) -> tuple[Recording, ...]:
    """Every recording rule, in an order in which each uses only those before it."""

    def q(name: str, *matchers: str) -> str:
        return select(name, *matchers, options.selector)

    def rate(name: str, *matchers: str, window: str = "5m") -> str:
        return f"rate({q(name, *matchers)}[{window}])"

    def model(what: str, how: str = "sum") -> str:
        return f"{how} without ({_SERVERS}) ({what})"

    regime = rate("regime_seconds_total")
    demand, capacity = q("kv_cache_demand_ratio"), q("kv_cache_capacity_tokens")
    trusted = f"{q('prefix_cache_hit_ratio_trusted')} == 1"
    hits, queried = rate("prefix_cache_hit_tokens_total"), rate("prefix_cache_queried_tokens_total")
    score = q("cache_pressure_score")
    within, count = "time_to_first_token_seconds_bucket", "time_to_first_token_seconds_count"
    soon = bound(options.ttft.seconds)
    late_rate = f"target:{PREFIX}time_to_first_token_late:rate5m"
    demanded = f"model:{PREFIX}kv_cache_demand_tokens:sum"
    held = f"model:{PREFIX}kv_cache_capacity_tokens:sum"
    full = f"model:{PREFIX}kv_cache_demand_per_capacity:ratio"
    servers = f"model:{PREFIX}kv_cache_demand_servers:count"
    return (
        Recording(
            f"engine:{PREFIX}regime_seconds:ratio_rate5m",
            f"{regime}\n/ ignoring (regime) group_left ()\n(sum without (regime) ({regime}) > 0)",
        ),
        Recording(
            f"model:{PREFIX}regime_seconds:ratio_rate5m",
            f"{model(regime)}\n/ ignoring (regime) group_left ()\n"
            f"(sum without ({_SERVERS}, regime) ({regime}) > 0)",
        ),
        Recording(demanded, model(f"{demand} * {capacity}")),
        Recording(held, model(f"{capacity} and {demand}")),
        Recording(full, f"{demanded} / ({held} > 0)"),
        Recording(servers, f"count without (instance, pod, target) (max without (engine) ({demand}))"),
        Recording(f"model:{PREFIX}kv_cache_demand_in_servers:sum", f"{full} * {servers}"),
        Recording(f"model:{PREFIX}kv_cache_demand_ratio:max", model(demand, "max")),
        Recording(
            f"model:{PREFIX}prefix_cache_hit_tokens_per_queried_token:ratio_rate5m",
            f"{model(f'{hits} and {trusted}')}\n/\n({model(f'{queried} and {trusted}')} > 0)",
        ),
        Recording(f"model:{PREFIX}cache_pressure_score:p50", f"quantile without ({_SERVERS}) (0.5, {score})"),
        Recording(f"model:{PREFIX}cache_pressure_score:p90", f"quantile without ({_SERVERS}) (0.9, {score})"),
        Recording(f"model:{PREFIX}cache_pressure_score:max", model(score, "max")),
        Recording(f"engine:{PREFIX}cache_pressure_score:topk1", f"topk without ({_SERVERS}) (1, {score})"),
        Recording(f"model:{PREFIX}engines:count", model(q("requests_running"), "count")),
        Recording(f"job:{PREFIX}up:avg", f"avg without (instance, pod, target) ({q('up')})"),
        Recording(
            f"target:{PREFIX}time_to_first_token_seconds:p95_rate5m",
            f"histogram_quantile(0.95, sum without (engine) ({rate(within)}))",
        ),
        Recording(
            late_rate,
            f"sum without (engine) ({rate(count)})\n-\nsum without (engine, le) ({rate(within, soon)})",
        ),
        Recording(
            f"model:{PREFIX}time_to_first_token_late:ratio_rate5m",
            f"sum without (instance, pod, target) ({late_rate})\n/\n"
            f"(sum without (instance, pod, target) (sum without (engine) ({rate(count)}) and {late_rate}) > 0)",
        ),
        *(
            Recording(
                late(window),
                f"1 - sum without (engine, le) ({rate(within, soon, window=window)})\n/\n"
                f"(sum without (engine) ({rate(count, window=window)}) > 0)",
            )
            for window in WINDOWS
        ),
    )
