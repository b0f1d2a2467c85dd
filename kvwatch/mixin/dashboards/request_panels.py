"""A server's requests: who waits and runs, how they end, how long they are, how much gets done."""

from __future__ import annotations

from kvwatch.mixin.dashboards.colours import ACT, BLUE, GREEN, LOOK, ORANGE, PURPLE, SKY, VERMILLION
from kvwatch.mixin.dashboards.common import LIMITS, about, step
from kvwatch.mixin.dashboards.elements import Panel, PanelKind, PanelRow, Query, ThresholdStep
from kvwatch.mixin.dashboards.queries import QueryScope, highest, mean, ratio, total

_ENDS = {"stop": GREEN, "length": SKY, "abort": ORANGE, "error": VERMILLION, "repetition": PURPLE}


def queue(scope: QueryScope) -> PanelRow:
    finished = scope.rate("requests_finished_total")

    def ended(how: str) -> str:
        """Nothing of a kind is 0, as long as there are counts of others."""
        of_kind = total(scope.rate("requests_finished_total", f'reason="{how}"'))
        return f"({of_kind} or 0 * {total(finished)})\n/\n{total(finished)}"

    return PanelRow(
        "Who waits, who runs?",
        (
            Panel(
                "Running and waiting",
                PanelKind.LINES,
                "none",
                (
                    Query(total(scope("requests_running")), "running"),
                    Query(total(scope("requests_waiting")), "waiting"),
                    Query(total(scope("requests_waiting_peak_1m")), "waiting, peak of a minute"),
                ),
                "Requests in the batch and in the queue. Running flat at --max-num-seqs with a queue: slots"
                " are the limit. Running falls while waiting grows: the cache is.",
                colours={"running": BLUE, "waiting": VERMILLION, "waiting, peak of a minute": ORANGE},
            ),
            Panel(
                "Waiting by reason",
                PanelKind.STACK,
                "none",
                (Query(total(scope("requests_waiting_by_reason"), "reason"), "{{reason}}"),),
                "What vLLM itself says of its queue. capacity: for blocks, slots or budget; deferred: for a"
                " LoRA slot, a KV transfer or a grammar, for which no amount of cache helps.",
                colours={"capacity": VERMILLION, "deferred": PURPLE},
            ),
            Panel(
                "Preemptions per finished request",
                PanelKind.LINES,
                "none",
                (Query(ratio(scope.rate("preemptions_total"), finished), "preemptions / finished"),),
                "A preempted request gives up its blocks and is computed again. One is no storm; from"
                f" {about('kv_thrashing.per_request')} on the engine works for nothing: lower --max-num-seqs"
                " to what fits, shorten requests. vLLM counts one at the request's next output, late.",
                steps=(step("kv_thrashing.per_request"),),
                decimals=2,
            ),
            Panel(
                "How requests end",
                PanelKind.STACK,
                "reqps",
                (Query(total(finished, "reason"), "{{reason}}"),),
                "Requests finished per second by reason. Those that clients abort are missing from latencies.",
                colours=_ENDS,
            ),
            Panel(
                "Errors and aborts",
                PanelKind.LINES,
                "percentunit",
                (Query(ended("abort"), "aborted"), Query(ended("error"), "failed")),
                f"Share of the finished requests. Told of from {about('requests_failing.errors')} failed or"
                f" {about('requests_failing.aborts')} aborted: aborts are mostly clients that would not wait"
                " any longer.",
                steps=(step("requests_failing.errors", LOOK), step("requests_failing.aborts", ACT)),
                colours={"aborted": ORANGE, "failed": VERMILLION},
            ),
            Panel(
                "Refused at the door",
                PanelKind.LINES,
                "reqps",
                (Query(total(scope.rate("admission_rejections_total"), "reason"), "{{reason}}"),),
                "Requests per second that vLLM refuses with 503 because its queue is at a limit"
                " (--max-num-queued-reqs, --max-num-queued-tokens). They appear in no latency.",
            ),
        ),
    )


def lengths(scope: QueryScope) -> PanelRow:
    longest = scope("max_model_len_tokens")
    total_p99 = scope("request_total_tokens_percentile", 'percentile="99"')

    def percentiles(name: str, title: str, text: str) -> Panel:
        return Panel(
            title,
            PanelKind.LINES,
            "short",
            (
                Query(highest(scope(f"request_{name}_tokens_percentile"), "percentile"), "p{{percentile}}"),
                Query(f"max({longest})", "longest the server takes"),
            ),
            f"{text} Percentiles of the requests that finished within the last hour, highest over engines, and"
            " --max-model-len where kvwatch may read it.",
            width=6,
            colours={"p50": SKY, "p95": BLUE, "p99": ORANGE, "longest the server takes": VERMILLION},
            absent="Not known: too few requests finished within the hour",
        )

    return PanelRow(
        "How long are requests, against what the server takes?",
        (
            percentiles("prompt", "Prompt tokens", "What clients send."),
            percentiles("generation", "Generated tokens", "What they get."),
            percentiles(
                "total", "Prompt and generated tokens", "What a request takes of the cache in the end."
            ),
            Panel(
                "Longest allowed / longest seen",
                PanelKind.STAT,
                "none",
                (Query(f"max({longest}) / max({total_p99})", "max_model_len / p99"),),
                "--max-model-len over the 99th percentile of total length. From"
                f" {about('max_model_len_oversized.times')} on the server reserves itself for requests that"
                " never come: lower --max-model-len to the served length.",
                width=6,
                steps=(ThresholdStep(LIMITS["max_model_len_oversized.times"], LOOK),),
                decimals=1,
                absent="Not known: kvwatch could not read --max-model-len, or too few requests",
            ),
        ),
    )


def throughput(scope: QueryScope) -> PanelRow:
    return PanelRow(
        "How much gets done?",
        (
            Panel(
                "Tokens per second",
                PanelKind.LINES,
                "short",
                (
                    Query(total(scope.rate("prompt_tokens_total")), "prompt"),
                    Query(total(scope.rate("generation_tokens_total")), "generated"),
                ),
                "Prompt tokens count at a request's first output, so they come in lumps. Generation that"
                " falls while the queue grows is a cache that thrashes or an engine that stalls.",
                colours={"prompt": ORANGE, "generated": BLUE},
            ),
            Panel(
                "Finished requests per second",
                PanelKind.LINES,
                "reqps",
                (Query(total(scope.rate("requests_finished_total")), "finished"),),
                "However they ended. With tokens per request it is what capacity is planned by.",
            ),
            Panel(
                "Tokens per step",
                PanelKind.LINES,
                "short",
                (Query(mean(scope, "iteration_tokens"), "tokens per step"),),
                "Mean tokens in one step of the engine. Small under load: the batch is not filled, for want"
                " of slots or of cache; near --max-num-batched-tokens: prefill is the limit.",
                width=4,
            ),
            Panel(
                "Speculative tokens accepted",
                PanelKind.LINES,
                "percentunit",
                (
                    Query(
                        ratio(
                            scope.rate("spec_decode_accepted_tokens_total"),
                            scope.rate("spec_decode_draft_tokens_total"),
                        ),
                        "accepted / drafted",
                    ),
                ),
                "Share of the drafted tokens that the model kept. Low: the drafts cost more than they bring.",
                width=4,
                high=1,
                absent="Not exposed: no speculative decoding",
            ),
        ),
    )
