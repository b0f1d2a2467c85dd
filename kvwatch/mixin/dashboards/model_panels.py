"""The models of a fleet: which wait and for what, how much capacity they need, whose users wait longest."""

from __future__ import annotations

from kvwatch.mixin.dashboards.colours import BLUE, LOOK, ORANGE, REGIME
from kvwatch.mixin.dashboards.common import about, step
from kvwatch.mixin.dashboards.elements import Panel, PanelKind, PanelRow, Query, ThresholdStep
from kvwatch.mixin.dashboards.queries import QueryScope, quantile, ratio, regime_share, total


def waiting(scope: QueryScope) -> PanelRow:
    return PanelRow(
        "Which models wait, and for what?",
        (
            Panel(
                "Why do requests of $model_name wait?",
                PanelKind.STACK,
                "percentunit",
                (Query(regime_share(scope, model=True), "{{regime}}"),),
                "Share of the time of this model's engines in each regime. kv_limited: more cache or shorter"
                " requests; sequence_limited: more slots; prefill_limited: prefix reuse or replicas; down and"
                " unknown: not known.",
                width=24,
                colours=REGIME,
                high=1,
                absent="No kvwatch watched this model then",
                repeat="model_name",
            ),
        ),
    )


def capacity(scope: QueryScope) -> PanelRow:
    demand, there = scope("kv_cache_demand_ratio"), scope("kv_cache_capacity_tokens")
    told = f"{there} and {demand}"
    hit, asked = scope.rate("prefix_cache_hit_tokens_total"), scope.rate("prefix_cache_queried_tokens_total")
    trusted = f"({scope('prefix_cache_hit_ratio_trusted')} == 1)"
    model = "model_name"
    return PanelRow(
        "How much capacity do models need?",
        (
            Panel(
                "Demand / capacity",
                PanelKind.LINES,
                "none",
                (Query(f"{total(f'{demand} * {there}', model)}\n/\n{total(told, model)}", "{{model_name}}"),),
                "Tokens of cache that all who run and wait would need / tokens that there are, over all"
                " engines that tell both. 1.5: half as many engines again. Well below 1 all day: there are"
                " too many. It grows with the load, so it is fit to scale by.",
                steps=(step("regime.demand"),),
                decimals=1,
            ),
            Panel(
                "Tokens needed and tokens there",
                PanelKind.LINES,
                "short",
                (
                    Query(total(f"{demand} * {there}"), "needed"),
                    Query(total(told), "there"),
                ),
                "The same in tokens, over all chosen models.",
                colours={"needed": ORANGE, "there": BLUE},
            ),
            Panel(
                "Engines",
                PanelKind.LINES,
                "none",
                (Query(f"count by (model_name) ({scope('requests_running')})", "{{model_name}}"),),
                "Engines that answer, by model. One that is unreachable is not among them.",
            ),
            Panel(
                "Prefix cache hit ratio",
                PanelKind.LINES,
                "percentunit",
                (
                    Query(
                        f"{total(f'{hit} and {trusted}', model)}\n/\n{total(f'{asked} and {trusted}', model)}",
                        "{{model_name}}",
                    ),
                ),
                "Tokens found / tokens looked up, over all engines of a model whose ratio can be trusted. A"
                " fall over many servers at once is a change of prompts or of routing.",
                high=1,
            ),
            Panel(
                "Preemptions per finished request",
                PanelKind.LINES,
                "none",
                (
                    Query(
                        ratio(scope.rate("preemptions_total"), scope.rate("requests_finished_total"), model),
                        "{{model_name}}",
                    ),
                ),
                f"Work thrown away and done again. From {about('kv_thrashing.per_request')} on an engine"
                " thrashes: it is beyond what a longer queue would cost.",
                steps=(step("kv_thrashing.per_request"),),
                decimals=2,
            ),
            Panel(
                "Generated tokens per second",
                PanelKind.LINES,
                "short",
                (Query(total(scope.rate("generation_tokens_total"), model), "{{model_name}}"),),
                "What the fleet brings forth, by model.",
            ),
        ),
    )


def latency(scope: QueryScope) -> PanelRow:
    def worst(name: str, title: str, text: str, *steps: ThresholdStep) -> Panel:
        return Panel(
            title,
            PanelKind.LINES,
            "s",
            (Query(f"topk(5,\n{quantile(0.95, scope, name)})", "{{target}} {{model_name}}"),),
            f"{text} p95 of the five slowest servers at each moment. Each server by itself: unlike releases of"
            " vLLM have unlike buckets, which can't be merged.",
            width=12,
            steps=steps,
        )

    return PanelRow(
        "Whose users wait longest?",
        (
            worst(
                "time_to_first_token_seconds",
                "Time to first token, slowest servers",
                f"High from {about('ttft_high.seconds')} s.",
                step("ttft_high.seconds", LOOK),
            ),
            worst(
                "inter_token_latency_seconds",
                "Time between tokens, slowest servers",
                f"Slow from {about('ttft_high.inter_token')} s.",
                step("ttft_high.inter_token", LOOK),
            ),
        ),
    )
