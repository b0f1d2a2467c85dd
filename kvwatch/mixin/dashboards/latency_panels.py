"""How long users of a server wait, and for what."""

from __future__ import annotations

from kvwatch.mixin.dashboards.colours import BLUE, GREEN, LOOK, ORANGE, SKY
from kvwatch.mixin.dashboards.common import about, step
from kvwatch.mixin.dashboards.elements import Panel, PanelKind, PanelRow, Query, ThresholdStep
from kvwatch.mixin.dashboards.queries import QueryScope, mean, quantile, total

_QUANTILES = ((0.5, "p50", SKY), (0.95, "p95", BLUE), (0.99, "p99", ORANGE))


def quantiles(
    scope: QueryScope, name: str, title: str, text: str, steps: tuple[ThresholdStep, ...] = ()
) -> Panel:
    """p50, p95 and p99 of a histogram over the chosen engines."""
    return Panel(
        title,
        PanelKind.LINES,
        "s",
        tuple(Query(quantile(q, scope, name, by=""), legend) for q, legend, _ in _QUANTILES),
        f"{text} Interpolated within vLLM's buckets, so no finer than they are; choose servers of one vLLM"
        " release, since others may have other buckets. Requests that clients aborted are not in it.",
        width=6,
        steps=steps,
        colours={legend: colour for _, legend, colour in _QUANTILES},
    )


def row(scope: QueryScope) -> PanelRow:
    buckets = scope.increase("time_to_first_token_seconds_bucket")
    return PanelRow(
        "How long do users wait?",
        (
            quantiles(
                scope,
                "time_to_first_token_seconds",
                "Time to first token",
                f"Queue and prefill together. High from {about('ttft_high.seconds')} s at p95.",
                (step("ttft_high.seconds", LOOK),),
            ),
            quantiles(
                scope,
                "inter_token_latency_seconds",
                "Time between tokens",
                f"What a reader sees while text comes. Slow from {about('ttft_high.inter_token')} s: the batch"
                " is too large for the GPU, or prefill of others cuts in.",
                (step("ttft_high.inter_token", LOOK),),
            ),
            quantiles(
                scope,
                "request_queue_time_seconds",
                "Time in the queue",
                "Before a request is first scheduled. Long: look at the regimes.",
            ),
            quantiles(
                scope,
                "request_prefill_time_seconds",
                "Prefill time",
                "From the first scheduling to the first token. Long: prompts are long and share too little.",
            ),
            Panel(
                "Time to first token, all of them",
                PanelKind.HEATMAP,
                "s",
                (Query(total(buckets, "le"), "{{le}}"),),
                "How many first tokens came within each of vLLM's buckets. Two bands are two kinds of"
                " requests, or two servers; a quantile hides that.",
                width=12,
            ),
            Panel(
                "What the mean time to first token is made of",
                PanelKind.STACK,
                "s",
                (
                    Query(mean(scope, "request_queue_time_seconds"), "queue"),
                    Query(mean(scope, "request_prefill_time_seconds"), "prefill"),
                ),
                "Mean seconds in the queue and in prefill: the larger part says where to begin. Queue: more"
                " capacity of whatever the regime names. Prefill: shorter prompts, reuse of prefixes.",
                width=6,
                colours={"queue": ORANGE, "prefill": BLUE},
            ),
            Panel(
                "Whole request, mean",
                PanelKind.LINES,
                "s",
                (
                    Query(mean(scope, "e2e_request_latency_seconds"), "whole request"),
                    Query(mean(scope, "request_decode_time_seconds"), "of that decode"),
                ),
                "From arrival to the last token, and the part in which tokens came. It grows with the length"
                " of answers, so compare it only under the same load.",
                width=6,
                colours={"whole request": BLUE, "of that decode": GREEN},
            ),
        ),
    )
