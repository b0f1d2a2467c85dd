"""A server's requests: queue, outcomes, lengths, throughput."""

from __future__ import annotations

from kvwatch.mixin.dashboards.colours import ACT, BLUE, GREEN, LOOK, ORANGE, PURPLE, SKY, VERMILLION
from kvwatch.mixin.dashboards.common import threshold_step, threshold_text
from kvwatch.mixin.dashboards.elements import Panel, PanelRow, graph, ratio_panel, stacked, stat
from kvwatch.mixin.dashboards.queries import QueryScope, highest, total

_REASONS = {"stop": GREEN, "length": SKY, "abort": ORANGE, "error": VERMILLION, "repetition": PURPLE}


def queue(scope: QueryScope) -> PanelRow:
    finished = scope.rate("requests_finished_total")

    def share(reason: str) -> str:
        """0 if no request ended so, as long as requests ended in other ways."""
        count = total(scope.rate("requests_finished_total", f'reason="{reason}"'))
        return f"({count} or 0 * {total(finished)})\n/\n{total(finished)}"

    return PanelRow(
        "Which requests run, wait and fail?",
        (
            graph(
                "Running and waiting",
                {
                    "running": total(scope("requests_running")),
                    "waiting": total(scope("requests_waiting")),
                    "waiting, peak of 1 min": total(scope("requests_waiting_peak_1m")),
                },
                "Requests in the batch and in the queue. If running stays at --max-num-seqs with a queue, batch"
                " slots are the limit. If running falls while waiting grows, the cache is the limit.",
                colours={"running": BLUE, "waiting": VERMILLION, "waiting, peak of 1 min": ORANGE},
            ),
            stacked(
                "Waiting by reason",
                {"{{reason}}": total(scope("requests_waiting_by_reason"), "reason")},
                "Waiting requests by the reason that vLLM reports. capacity: for blocks, slots or token budget."
                " deferred: for a LoRA slot, a KV transfer or a grammar; more cache does not help.",
                colours={"capacity": VERMILLION, "deferred": PURPLE},
            ),
            graph(
                "Preemptions per finished request",
                {"preemptions / finished": scope.rate_ratio("preemptions_total", "requests_finished_total")},
                "A preempted request loses its blocks and is recomputed. At"
                f" {threshold_text('kv_thrashing.per_request')} and above, the cache thrashes: cap max_tokens,"
                " add a replica, or lower --max-num-seqs to the number of requests that fit. vLLM counts a"
                " preemption only at the request's next output.",
                steps=(threshold_step("kv_thrashing.per_request"),),
                decimals=2,
            ),
            stacked(
                "Finished requests by reason",
                {"{{reason}}": total(finished, "reason")},
                "Finished requests per second by reason. Latencies do not include aborted requests.",
                unit="reqps",
                colours=_REASONS,
            ),
            graph(
                "Errors and aborts",
                {"aborted": share("abort"), "failed": share("error")},
                "Share of finished requests. requests_failing fires above"
                f" {threshold_text('requests_failing.errors')} errors or"
                f" {threshold_text('requests_failing.aborts')} aborts. Most aborts are clients that gave up waiting.",
                unit="percentunit",
                steps=(
                    threshold_step("requests_failing.errors", LOOK),
                    threshold_step("requests_failing.aborts", ACT),
                ),
                colours={"aborted": ORANGE, "failed": VERMILLION},
            ),
            graph(
                "Rejected requests",
                {"{{reason}}": total(scope.rate("admission_rejections_total"), "reason")},
                "Requests per second that vLLM rejects with 503 because its queue is at a limit"
                " (--max-num-queued-reqs, --max-num-queued-tokens). No latency includes them.",
                unit="reqps",
            ),
        ),
    )


def lengths(scope: QueryScope) -> PanelRow:
    max_model_len = f"max({scope('max_model_len_tokens')})"
    total_p99 = scope("request_total_tokens_percentile", 'percentile="99"')

    def percentiles(name: str, title: str, text: str) -> Panel:
        values = highest(scope(f"request_{name}_tokens_percentile"), "percentile")
        return graph(
            title,
            {"p{{percentile}}": values, "max_model_len": max_model_len},
            f"{text} Percentiles of the requests that finished in the last hour, engine with the highest value,"
            " and --max-model-len if kvwatch can read it.",
            unit="short",
            size=(6, 7),
            colours={"p50": SKY, "p95": BLUE, "p99": ORANGE, "max_model_len": VERMILLION},
            absent="Unknown: too few requests finished within 1 h",
        )

    return PanelRow(
        "How long are requests, compared with the limit?",
        (
            percentiles("prompt", "Prompt tokens", "Tokens that clients send."),
            percentiles("generation", "Generated tokens", "Tokens that clients receive."),
            percentiles("total", "Prompt and generated tokens", "Tokens in the cache when a request ends."),
            stat(
                "Limit / longest requests",
                {"max_model_len / p99": f"{max_model_len} / max({total_p99})"},
                f"--max-model-len / p99 of total length. At {threshold_text('max_model_len_oversized.times')}"
                " and above, the limit is far longer than the served requests. A lower --max-model-len frees no"
                " blocks, but stops runaway requests.",
                size=(6, 7),
                steps=(threshold_step("max_model_len_oversized.times", LOOK),),
                decimals=1,
                absent="Unknown: --max-model-len is not readable, or too few requests",
            ),
        ),
    )


def throughput(scope: QueryScope) -> PanelRow:
    return PanelRow(
        "What is the throughput?",
        (
            graph(
                "Tokens per second",
                {
                    "prompt": total(scope.rate("prompt_tokens_total")),
                    "generated": total(scope.rate("generation_tokens_total")),
                },
                "vLLM counts prompt tokens at a request's first output, so they rise in bursts. If generation"
                " falls"
                " while the queue grows, the cache thrashes or the engine stalls.",
                unit="short",
                colours={"prompt": ORANGE, "generated": BLUE},
            ),
            graph(
                "Finished requests per second",
                {"finished": total(scope.rate("requests_finished_total"))},
                "Finished requests of all reasons. Use it with the tokens per request for capacity planning.",
                unit="reqps",
            ),
            graph(
                "Tokens per step",
                {"tokens per step": scope.mean("iteration_tokens")},
                "Mean tokens in one engine step. If it is small under load, slots or cache limit the batch. If"
                " it is near --max-num-batched-tokens, prefill is the limit.",
                unit="short",
                size=(4, 7),
            ),
            ratio_panel(
                "Speculative tokens accepted",
                {
                    "accepted / drafted": scope.rate_ratio(
                        "spec_decode_accepted_tokens_total", "spec_decode_draft_tokens_total"
                    )
                },
                "Share of draft tokens that the model accepted. If it is low, drafting costs more than it"
                " saves.",
                size=(4, 7),
                absent="Not exposed: no speculative decoding",
            ),
        ),
    )
