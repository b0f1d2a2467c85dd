"""The models of a fleet: what their requests wait for, how much capacity they need, whose users wait longest."""

from __future__ import annotations

from kvwatch.mixin.dashboards.colours import BLUE, LOOK, ORANGE, REGIME
from kvwatch.mixin.dashboards.common import threshold_step, threshold_text
from kvwatch.mixin.dashboards.elements import Panel, PanelRow, graph, ratio_panel, stacked
from kvwatch.mixin.dashboards.queries import MODEL, QueryScope, regime_share, total


def waiting(scope: QueryScope) -> PanelRow:
    return PanelRow(
        "Which models wait, and for what?",
        (
            stacked(
                "Time by regime: $model_name",
                {"{{regime}}": regime_share(scope, model=True)},
                "Share of time of this model's engines in each regime. kv_limited: shorter requests, more"
                " replicas or a larger cache help. sequence_limited: more slots. prefill_limited: prefix reuse"
                " or more replicas. down, unknown: no data.",
                unit="percentunit",
                size=(24, 7),
                colours=REGIME,
                high=1,
                absent="Not watched at this time",
                repeat="model_name",
            ),
        ),
    )


def capacity(scope: QueryScope) -> PanelRow:
    demand, tokens = scope("kv_cache_demand_ratio"), scope("kv_cache_capacity_tokens")
    hits, lookups = (
        scope.rate("prefix_cache_hit_tokens_total"),
        scope.rate("prefix_cache_queried_tokens_total"),
    )
    trusted = f"({scope('prefix_cache_hit_ratio_trusted')} == 1)"
    needed, available = f"{demand} * {tokens}", f"{tokens} and {demand}"
    model = "model_name"
    return PanelRow(
        "How much capacity do models need?",
        (
            graph(
                "Demand / capacity",
                {"{{model_name}}": f"{total(needed, model)}\n/\n{total(available, model)}"},
                "KV cache tokens that all running and waiting requests need / capacity, over engines that"
                " export both. 1.5: the model needs 1.5 times as many engines. Well below 1 all day: it has too"
                " many. Use it for autoscaling.",
                steps=(threshold_step("regime.demand"),),
                decimals=1,
            ),
            graph(
                "Tokens needed and available",
                {"needed": total(needed), "available": total(available)},
                "Demand and capacity in tokens, over all selected models.",
                unit="short",
                colours={"needed": ORANGE, "available": BLUE},
            ),
            graph(
                "Engines",
                {"{{model_name}}": f"count by (model_name) ({scope('requests_running')})"},
                "Reachable engines, by model.",
            ),
            ratio_panel(
                "Prefix cache hit rate",
                {
                    "{{model_name}}": f"{total(f'{hits} and {trusted}', model)}\n/\n"
                    f"{total(f'{lookups} and {trusted}', model)}"
                },
                "Tokens found / tokens looked up, over engines whose hit rate can be trusted. If it falls on"
                " many servers at once, prompts or routing have changed.",
            ),
            graph(
                "Preemptions per finished request",
                {"{{model_name}}": scope.rate_ratio("preemptions_total", "requests_finished_total", model)},
                "A preempted request loses its blocks and is recomputed. At"
                f" {threshold_text('kv_thrashing.per_request')} and above, an engine thrashes: that costs more"
                " than a longer queue.",
                steps=(threshold_step("kv_thrashing.per_request"),),
                decimals=2,
            ),
            graph(
                "Generated tokens per second",
                {"{{model_name}}": total(scope.rate("generation_tokens_total"), model)},
                "Throughput of the fleet, by model.",
                unit="short",
            ),
        ),
    )


def latency(scope: QueryScope) -> PanelRow:
    def slowest(name: str, title: str, text: str, threshold: str) -> Panel:
        return graph(
            f"{title}, slowest servers",
            {"{{target}} {{model_name}}": f"topk(5,\n{scope.quantile(0.95, name, by=MODEL)})"},
            f"p95 of the five slowest servers at each moment. {text} {threshold_text(threshold, ' s')}. Servers"
            " are not merged, because buckets differ between vLLM releases.",
            unit="s",
            size=(12, 7),
            steps=(threshold_step(threshold, LOOK),),
        )

    return PanelRow(
        "Whose users wait longest?",
        (
            slowest(
                "time_to_first_token_seconds", "Time to first token", "High if at least", "ttft_high.seconds"
            ),
            slowest(
                "inter_token_latency_seconds", "Inter-token latency", "Slow if above", "ttft_high.inter_token"
            ),
        ),
    )
