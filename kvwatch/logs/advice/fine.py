"""No failure, or none that can be told."""

from __future__ import annotations

from kvwatch.logs.advice.wording import FEWER_WEIGHTS, UTIL, fp8, gib
from kvwatch.logs.log_patterns import LogFacts, one

_SMALL = 0.1
"""A cache that is less than this share of the budget."""
_TIGHT = 1.5
"""Below this concurrency at the full length not even two such requests fit."""


def ok(facts: LogFacts) -> str:
    tokens, times = one(facts, "kv_tokens"), one(facts, "max_concurrency")
    said = "Nothing in the log says that the start failed"
    if tokens and times:
        return f"{said}: the cache holds {tokens:,.0f} tokens, {times:g} requests of the full length."
    return said + "."


def tightness(facts: LogFacts) -> str:
    """Why a cache that was made is small for its server; empty if it is not."""
    times, waste = one(facts, "max_concurrency"), one(facts, "padding_waste_percent")
    pool = one(facts, "available_kv_gib", "kv_cache_memory_bytes_gib")
    budget, graphs = one(facts, "budget_gib", "desired_gib"), one(facts, "graphs_gib", "estimated_graphs_gib")
    if budget and pool and pool < _SMALL * budget:
        return f"of a budget of {gib(budget)} only {gib(pool)} are left for the cache"
    if graphs and pool and graphs >= pool:
        return f"CUDA graphs take {gib(graphs)}, the cache has {gib(pool)}"
    if waste and waste >= 25:
        return f"padding of unlike layers may waste {waste:g} % of the cache"
    if times is not None and times < _TIGHT:
        return f"it holds {times:g} requests of the full length"
    return ""


def tight(facts: LogFacts) -> str:
    return f"The cache was made, but it is tight: {tightness(facts)}."


def for_tight(facts: LogFacts) -> list[str]:
    found = []
    graphs, pool = one(facts, "graphs_gib", "estimated_graphs_gib"), one(facts, "available_kv_gib")
    if graphs and pool and graphs >= pool / 2:
        found.append("capture fewer CUDA graphs: --max-cudagraph-capture-size, or a smaller --max-num-seqs")
    if (one(facts, "padding_waste_percent") or 0) >= 25:
        found.append(
            "try without the draft model (speculative decoding): its layers are padded to those of the model"
        )
    if suggested := one(facts, "suggested_util"):
        found.append(f"set {UTIL} to {suggested:g}, as the log proposes, if nothing else uses the GPU")
    found.append(
        "expect few long requests at once; --max-model-len and --max-num-seqs to what is really served"
    )
    return [*found, fp8(facts), FEWER_WEIGHTS] if fp8(facts) else [*found, FEWER_WEIGHTS]


def unknown(facts: LogFacts) -> str:
    if error := facts.get("other_error"):
        return f"The start failed with an error that is none of the causes round the KV cache: {error}"
    return "The log says that the engine failed, but not why: the cause stands above the lines that are here."


def for_unknown(facts: LogFacts) -> list[str]:
    if facts.get("other_error"):
        return ["go by that error: it is the first that the log shows, what follows are its effects"]
    return [
        "get the lines above: the first error of a worker or of the engine core (kubectl logs --previous)",
        "if there are none, start it once with VLLM_LOGGING_LEVEL=DEBUG",
    ]


def no_log(_facts: LogFacts) -> str:
    return "Nothing in it was written by vLLM."
