"""Words that several causes share."""

from __future__ import annotations

from math import floor

from kvwatch.logs.log_patterns import LogFacts, one

UTIL = "--gpu-memory-utilization"
BATCH = "--max-num-batched-tokens"
FEWER_WEIGHTS = (
    "have fewer weights on each GPU: a quantised or smaller model, or more GPUs (--tensor-parallel-size)"
)
_FP8 = (
    "halve the bytes per token with --kv-cache-dtype fp8{}, after checking that the GPU and the attention backend"
    " take it, and scales and quality on long contexts"
)


def gib(value: float) -> str:
    return f"{value:.4g} GiB"


def fp8(facts: LogFacts) -> str:
    """Nothing where the cache is FP8 already: vLLM counts that in. A log without options does not say."""
    if str(facts.get("kv_cache_dtype", "")).startswith(("fp8", "int8", "int4", "nvfp4")):
        return ""
    return _FP8.format("" if "model" in facts else " (if it is not that already: vLLM has counted it in)")


def lower_util(facts: LogFacts) -> str:
    """For a step that ran out of memory because the cache took too much."""
    util = one(facts, "util")
    to = f" to {floor((util - 0.05) * 100 + 1e-9) / 100:g}" if util and util > 0.1 else " by 0.03 to 0.05"
    return f"LOWER {UTIL}{to}: the cache took what this step needs"
