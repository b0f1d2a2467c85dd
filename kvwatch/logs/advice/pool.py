"""The pool of the cache holds less than one request of the longest length."""

from __future__ import annotations

from math import ceil

from kvwatch.logs.advice.wording import BATCH, FEWER_WEIGHTS, UTIL, fp8, gib
from kvwatch.logs.log_patterns import LogFacts, known, one

_TIMES = 1.3
"""What is missing beyond this factor no change of the utilisation brings."""


def pinned_by(facts: LogFacts) -> str:
    """The option that fixes the size of the pool, if one does: the utilisation then changes nothing."""
    if facts.get("num_gpu_blocks_override"):
        return "--num-gpu-blocks-override"
    if facts.get("kv_cache_memory_bytes_gib") or facts.get("kv_cache_memory_bytes"):
        return "--kv-cache-memory-bytes"
    return ""


def pool_too_small(facts: LogFacts) -> str:
    asked = one(facts, "max_model_len")
    fits = one(facts, "estimated_max_len", "kv_tokens")
    said = "One request of the longest allowed length does not fit into the KV cache"
    if asked and fits:
        said += f": --max-model-len is {asked:,.0f} tokens, and vLLM reckons that {fits:,.0f} fit"
    if sizes := known(facts, "needed_gib", "available_gib"):
        said += f" ({gib(sizes[0])} needed, {gib(sizes[1])} there)"
    if pin := pinned_by(facts):
        value = facts.get("num_gpu_blocks_override") or facts.get("kv_cache_memory_bytes_gib")
        unit = " GiB" if pin == "--kv-cache-memory-bytes" else ""
        size = f" {value:g}{unit}" if isinstance(value, int | float) else ""
        said += f". The pool is pinned by {pin}{size}"
    return said + "."


def for_pool_too_small(facts: LogFacts) -> list[str]:
    fits = one(facts, "estimated_max_len", "kv_tokens")
    shorter = (
        f"set --max-model-len to {fits:.0f} or less: to the longest request that is really served"
        if fits
        else "set --max-model-len to the longest request that is really served"
    )
    if pin := pinned_by(facts):
        return [_unpin(facts, pin), shorter, fp8(facts)]
    found = [shorter]
    stages = one(facts, "pipeline_parallel_size")
    if stages is None or stages > 1:
        found.insert(0 if stages else 1, _by_rank(facts, sure=bool(stages)))
    if batch := _smaller_batch(facts):
        found.insert(0, batch) if _batch_suffices(facts) else found.append(batch)
    found += [_more_memory(facts), fp8(facts), FEWER_WEIGHTS]
    return [text for text in found if text]


def _by_rank(facts: LogFacts, *, sure: bool) -> str:
    """With pipeline parallelism; `sure`: the log says that there is some. A log without options does not say."""
    if not sure and ("model" in facts or one(facts, "needed_gib") is None):
        return ""
    sizes = known(facts, "needed_gib", "max_model_len")
    token = f" ({sizes[0] * (1 << 30) / sizes[1]:,.0f} bytes a token)" if sizes and sizes[1] else ""
    begin = "with pipeline parallelism" if sure else "if it runs with pipeline parallelism,"
    return (
        f"{begin} the length that vLLM proposes is too careful, for it charges all layers{token} to the rank with the"
        " least memory, which has only some. Move layers away from that rank (VLLM_PP_LAYER_PARTITION), or set"
        " --max-model-len by its own share, in a release that reckons so"
    )


def _unpin(facts: LogFacts, pin: str) -> str:
    if pin == "--num-gpu-blocks-override":
        need = known(facts, "max_model_len", "block_size")
        enough = f", or set it to {ceil(need[0] / need[1]) + 1} or more" if need and need[1] else ""
        return (
            f"remove {pin}{enough}: it fixes the number of blocks, so the {UTIL} that vLLM's message names changes"
            " nothing here"
        )
    need_gib = one(facts, "needed_gib")
    enough = f" to {gib(need_gib)} or more" if need_gib else ""
    return (
        f"give {pin} a larger value{enough}, if that much is free beside weights and activations, or remove it:"
        f" while it is set {UTIL} has no effect. What a model needs for its cache can differ between releases of"
        " vLLM, so work it out anew after an upgrade"
    )


def _smaller_batch(facts: LogFacts) -> str:
    """Profiling runs a batch of the largest size; where that follows the length, a longer one leaves less cache.

    In v1, whose message tells GiB, prefill is chunked unless somebody turned that off, and the batch has a size of
    its own: there it is only told where the log shows that it matters.
    """
    batch, length = one(facts, "max_num_batched_tokens"), one(facts, "max_model_len")
    if batch and length and batch < length:
        return ""
    chunked = one(facts, "needed_gib") is not None and facts.get("enable_chunked_prefill") is not False
    if chunked and not _batch_suffices(facts):
        return ""
    peak = _activation(facts)
    size = f" (up to {gib(peak)} here)" if peak else ""
    begin = "" if chunked else "turn chunked prefill on and "
    return (
        f"{begin}pin {BATCH}, for example to 2048 (8192 on a large GPU): where it follows"
        f" --max-model-len, the trial batch takes memory that the cache then lacks{size}"
    )


def _activation(facts: LogFacts) -> float | None:
    if direct := one(facts, "activation_gib"):
        return direct
    both = known(facts, "peak_torch_gib", "loaded_gib")
    return both[0] - both[1] if both else None


def _batch_suffices(facts: LogFacts) -> bool:
    """Whether the activation peak is larger than what is missing, or another start of the same log had enough, as far
    as that can be told."""
    peak, there = _activation(facts), one(facts, "available_gib", "available_kv_gib")
    before = known(facts, "needed_gib", "available_kv_gib")
    if before and before[1] >= before[0]:
        return True
    lengths = known(facts, "max_model_len", "kv_tokens")
    needed = one(facts, "needed_gib")
    if needed is None and lengths and there and lengths[1]:
        needed = there * lengths[0] / lengths[1]
    return None not in (peak, there, needed) and (peak or 0.0) > (needed or 0.0) - (there or 0.0)


def _more_memory(facts: LogFacts) -> str:
    sizes = known(facts, "needed_gib", "available_gib") or known(facts, "max_model_len", "kv_tokens")
    if sizes is None or sizes[1] <= 0:
        return ""
    if sizes[0] / sizes[1] > _TIMES:
        return (
            f"do not expect it of {UTIL}: the cache would have to be {sizes[0] / sizes[1]:.1f} times as large"
        )
    card = known(facts, "total_gib", "util")
    lacks = known(facts, "needed_gib", "available_gib")
    if card and lacks:
        step = (lacks[0] - lacks[1]) / card[0]
        if card[1] + step > 0.97:
            return f"{UTIL} cannot give what is missing: it is {card[1]:g} already"
        return f"or set {UTIL} to {ceil((card[1] + step) * 100) / 100:g}, if nothing else uses the GPU"
    missing = f", {gib(lacks[0] - lacks[1])} more are needed" if lacks else ""
    return f"or give the cache more with {UTIL}, if nothing else uses the GPU{missing}"
