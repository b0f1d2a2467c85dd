"""Recording rules for the dashboards and alerts of a fleet, named ``level:metric:operations``.

The level is what a series belongs to: an `engine`, a model on one `target`, a `model` on all targets, or a `job`.

- Ratios are of sums over the same engines: an engine with a missing signal counts in neither sum.
- Histograms are merged only within one server, whose engines have the same buckets. Across servers, only the share
  of late first tokens is computed, which needs one bucket bound that all have.
- `kv_cache_demand_in_servers` is for autoscaling: the number of servers like the present ones that all running and
  waiting requests would fill. It does not change while another server loads its model. A ratio to a target would be
  multiplied by the replicas that are not ready yet.
"""

from __future__ import annotations

from kvwatch.core.export.catalogue import PREFIX
from kvwatch.mixin.promql import bucket_matcher, select
from kvwatch.mixin.render_options import Options

_SERVERS = "instance, pod, target, engine"
"""Labels that distinguish the servers of one model."""

WINDOWS = ("5m", "30m", "1h", "6h")


def late_share(window: str) -> str:
    """The rule that records the share of first tokens that took longer than the objective."""
    return f"target:{PREFIX}time_to_first_token_late:ratio_rate{window}"


def recordings(options: Options) -> dict[str, str]:
    """Every recording rule, name -> expression. A rule uses only those before it."""

    def q(name: str, *matchers: str) -> str:
        return select(name, *matchers, options.selector)

    def rate(name: str, *matchers: str, window: str = "5m") -> str:
        return f"rate({q(name, *matchers)}[{window}])"

    def by_model(what: str, how: str = "sum") -> str:
        return f"{how} without ({_SERVERS}) ({what})"

    regime = rate("regime_seconds_total")
    demand, capacity = q("kv_cache_demand_ratio"), q("kv_cache_capacity_tokens")
    trusted = f"{q('prefix_cache_hit_ratio_trusted')} == 1"
    hits, queried = rate("prefix_cache_hit_tokens_total"), rate("prefix_cache_queried_tokens_total")
    score = q("cache_pressure_score")
    within, count = "time_to_first_token_seconds_bucket", "time_to_first_token_seconds_count"
    in_time = bucket_matcher(options.ttft.seconds)
    late = f"target:{PREFIX}time_to_first_token_late:rate5m"
    needed = f"model:{PREFIX}kv_cache_demand_tokens:sum"
    available = f"model:{PREFIX}kv_cache_capacity_tokens:sum"
    full = f"model:{PREFIX}kv_cache_demand_per_capacity:ratio"
    servers = f"model:{PREFIX}kv_cache_demand_servers:count"
    return {
        f"engine:{PREFIX}regime_seconds:ratio_rate5m": (
            f"{regime}\n/ ignoring (regime) group_left ()\n(sum without (regime) ({regime}) > 0)"
        ),
        f"model:{PREFIX}regime_seconds:ratio_rate5m": (
            f"{by_model(regime)}\n/ ignoring (regime) group_left ()\n"
            f"(sum without ({_SERVERS}, regime) ({regime}) > 0)"
        ),
        needed: by_model(f"{demand} * {capacity}"),
        available: by_model(f"{capacity} and {demand}"),
        full: f"{needed} / ({available} > 0)",
        servers: f"count without (instance, pod, target) (max without (engine) ({demand}))",
        f"model:{PREFIX}kv_cache_demand_in_servers:sum": f"{full} * {servers}",
        f"model:{PREFIX}kv_cache_demand_ratio:max": by_model(demand, "max"),
        f"model:{PREFIX}prefix_cache_hit_tokens_per_queried_token:ratio_rate5m": (
            f"{by_model(f'{hits} and {trusted}')}\n/\n({by_model(f'{queried} and {trusted}')} > 0)"
        ),
        f"model:{PREFIX}cache_pressure_score:p50": f"quantile without ({_SERVERS}) (0.5, {score})",
        f"model:{PREFIX}cache_pressure_score:p90": f"quantile without ({_SERVERS}) (0.9, {score})",
        f"model:{PREFIX}cache_pressure_score:max": by_model(score, "max"),
        f"engine:{PREFIX}cache_pressure_score:topk1": f"topk without ({_SERVERS}) (1, {score})",
        f"model:{PREFIX}engines:count": by_model(q("requests_running"), "count"),
        f"job:{PREFIX}up:avg": f"avg without (instance, pod, target) ({q('up')})",
        f"target:{PREFIX}time_to_first_token_seconds:p95_rate5m": (
            f"histogram_quantile(0.95, sum without (engine) ({rate(within)}))"
        ),
        late: f"sum without (engine) ({rate(count)})\n-\nsum without (engine, le) ({rate(within, in_time)})",
        f"model:{PREFIX}time_to_first_token_late:ratio_rate5m": (
            f"sum without (instance, pod, target) ({late})\n/\n"
            f"(sum without (instance, pod, target) (sum without (engine) ({rate(count)}) and {late}) > 0)"
        ),
        **{
            late_share(window): (
                f"1 - sum without (engine, le) ({rate(within, in_time, window=window)})\n/\n"
                f"(sum without (engine) ({rate(count, window=window)}) > 0)"
            )
            for window in WINDOWS
        },
    }
