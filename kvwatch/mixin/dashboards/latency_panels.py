"""How long users of a server wait, and for what."""

from __future__ import annotations

from kvwatch.mixin.dashboards.colours import BLUE, GREEN, LOOK, ORANGE, SKY
from kvwatch.mixin.dashboards.common import threshold_step, threshold_text
from kvwatch.mixin.dashboards.elements import Panel, PanelRow, graph, heatmap, stacked
from kvwatch.mixin.dashboards.queries import QueryScope, total

_QUANTILES = ((0.5, "p50", SKY), (0.95, "p95", BLUE), (0.99, "p99", ORANGE))


def row(scope: QueryScope) -> PanelRow:
    def quantiles(name: str, title: str, text: str, threshold: str = "") -> Panel:
        return graph(
            title,
            {legend: scope.quantile(q, name) for q, legend, _ in _QUANTILES},
            f"{text} Interpolated within vLLM's buckets. Select servers of one vLLM release: buckets differ"
            " between releases. Requests that clients aborted are not included.",
            unit="s",
            size=(6, 7),
            steps=(threshold_step(threshold, LOOK),) if threshold else (),
            colours={legend: colour for _, legend, colour in _QUANTILES},
        )

    return PanelRow(
        "How long do users wait?",
        (
            quantiles(
                "time_to_first_token_seconds",
                "Time to first token",
                f"Queue plus prefill. High if p95 is at least {threshold_text('ttft_high.seconds', ' s')}.",
                "ttft_high.seconds",
            ),
            quantiles(
                "inter_token_latency_seconds",
                "Inter-token latency",
                f"Above {threshold_text('ttft_high.inter_token', ' s')}, the batch is too large for the GPU, or"
                " prefill of other requests slows decoding.",
                "ttft_high.inter_token",
            ),
            quantiles(
                "request_queue_time_seconds",
                "Queue time",
                "From arrival until a request is first scheduled. If it is long, check the regimes.",
            ),
            quantiles(
                "request_prefill_time_seconds",
                "Prefill time",
                "From the first scheduling to the first token. If it is long, prompts are long and few of their"
                " tokens are cached.",
            ),
            heatmap(
                "Distribution of the time to first token",
                {"{{le}}": total(scope.increase("time_to_first_token_seconds_bucket"), "le")},
                "First tokens by vLLM's buckets. Two bands are two kinds of requests, or two servers. A"
                " quantile hides them.",
                unit="s",
                size=(12, 7),
            ),
            stacked(
                "Mean time to first token by part",
                {
                    "queue": scope.mean("request_queue_time_seconds"),
                    "prefill": scope.mean("request_prefill_time_seconds"),
                },
                "Mean seconds in queue and prefill. Start with the longer part. Queue: add the resource that"
                " the regime names. Prefill: shorten prompts, or reuse prefixes.",
                unit="s",
                size=(6, 7),
                colours={"queue": ORANGE, "prefill": BLUE},
            ),
            graph(
                "Mean end-to-end latency",
                {
                    "end to end": scope.mean("e2e_request_latency_seconds"),
                    "decode": scope.mean("request_decode_time_seconds"),
                },
                "From arrival to the last token, and its decode part. Both grow with the output length, so"
                " compare them only under the same load.",
                unit="s",
                size=(6, 7),
                colours={"end to end": BLUE, "decode": GREEN},
            ),
        ),
    )
