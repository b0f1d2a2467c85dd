"""Starts that did not fail, and logs that do not show why."""

from __future__ import annotations

from kvwatch.logs.causes.memory import FEWER_WEIGHTS, FP8
from kvwatch.logs.causes.row import Action, Cause, VerdictGroup

_SIZE = ("kv_tokens", "gpu_blocks", "max_concurrency", "available_kv_gib")

ROWS = (
    Cause(
        "ok",
        VerdictGroup.NO_FAILURE,
        "The log shows no failure of the start[: the KV cache holds {kv_tokens:,.0f} tokens, {max_concurrency:g}"
        " requests of the full length].",
        evidence=_SIZE,
    ),
    Cause(
        "ok_but_tight",
        VerdictGroup.NO_FAILURE,
        "The KV cache was made, but it is small[small_share?: {pool_gib} of a budget of {all_gib} are left for"
        " it|large_graphs?: CUDA graphs take {cuda_graphs_gib}, the cache has {pool_gib}|much_padding?: padding of"
        " unlike layers may waste {padding_waste_percent} % of it|few_requests?: it holds {max_concurrency:g}"
        " requests of the full length].",
        (
            Action(
                "capture fewer CUDA graphs: --max-cudagraph-capture-size, or a smaller --max-num-seqs",
                ("many_graphs",),
            ),
            Action(
                "try without the draft model (speculative decoding): its layers are padded to those of the model",
                ("much_padding",),
            ),
            "set --gpu-memory-utilization to {suggested_util}, as the log suggests, if nothing else uses the GPU",
            "expect few long requests at once; set --max-model-len and --max-num-seqs to what you serve",
            FP8,
            FEWER_WEIGHTS,
        ),
        evidence=_SIZE,
    ),
    Cause(
        "unknown_root_cause_above",
        VerdictGroup.NO_FAILURE,
        "[The start failed with an error that is no known cause: {other_error}|The log shows that the engine failed,"
        " but not why: the cause is above the lines that are here.]",
        (
            Action(
                "start with that error: it is the first in the log, and the others follow from it",
                ("other_error",),
            ),
            Action(
                "get the lines above: the first error of a worker or of the engine core (kubectl logs --previous)",
                ("not other_error",),
            ),
            Action(
                "if there are none, start the server once with VLLM_LOGGING_LEVEL=DEBUG", ("not other_error",)
            ),
        ),
    ),
    Cause("no_vllm_log", VerdictGroup.NO_FAILURE, "vLLM wrote no line of it."),
)
