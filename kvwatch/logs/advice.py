"""What each cause means, and what to do about it in which order: sentences made of the facts of the log.

Where vLLM's own hint is wrong for the case (a pinned pool that `--gpu-memory-utilization` does not change, a card that
is full before the start) the advice says so.
"""

from __future__ import annotations

from math import ceil, floor

from kvwatch.logs.facts import Facts, known, one

_UTIL = "--gpu-memory-utilization"
_FP8 = (
    "halve the bytes per token with --kv-cache-dtype fp8, after checking that the GPU and the attention backend"
    " take it, and scales and quality on long contexts"
)
_FEWER_WEIGHTS = (
    "have fewer weights on each GPU: a quantised or smaller model, or more GPUs (--tensor-parallel-size)"
)
_BATCH = "--max-num-batched-tokens"
_LITTLE = 0.1
"""A card of which less than this share is free holds something else; no utilisation makes room on it."""
_TIGHT = 1.5
"""Below this concurrency at the full length not even two such requests fit."""
_TIMES = 1.3
"""What is missing beyond this factor no change of the utilisation brings."""


def _gib(value: float) -> str:
    return f"{value:.4g} GiB"


def util_below(free: float, total: float) -> float:
    """The largest utilisation, in hundredths and rounded down, whose budget is free."""
    return floor(free / total * 100 + 1e-9) / 100


# -- the pool is smaller than one request ------------------------------------------------------------------------------


def pinned_by(facts: Facts) -> str:
    """The option that fixes the size of the pool, if one does: the utilisation then changes nothing."""
    if facts.get("num_gpu_blocks_override"):
        return "--num-gpu-blocks-override"
    if facts.get("kv_cache_memory_bytes_gib") or facts.get("kv_cache_memory_bytes"):
        return "--kv-cache-memory-bytes"
    return ""


def pool_too_small(facts: Facts) -> str:
    asked = one(facts, "max_model_len")
    fits = one(facts, "estimated_max_len", "kv_tokens")
    said = "One request of the longest allowed length does not fit into the KV cache"
    if asked and fits:
        said += f": --max-model-len is {asked:,.0f} tokens, {fits:,.0f} fit"
    if sizes := known(facts, "needed_gib", "available_gib"):
        said += f" ({_gib(sizes[0])} needed, {_gib(sizes[1])} there)"
    if pin := pinned_by(facts):
        value = facts.get("num_gpu_blocks_override") or facts.get("kv_cache_memory_bytes_gib")
        unit = " GiB" if pin == "--kv-cache-memory-bytes" else ""
        size = f" {value:g}{unit}" if isinstance(value, int | float) else ""
        said += f". The pool is pinned by {pin}{size}"
    return said + "."


def for_pool_too_small(facts: Facts) -> list[str]:
    fits = one(facts, "estimated_max_len", "kv_tokens")
    shorter = (
        f"set --max-model-len to {fits:.0f} or less: to the longest request that is really served"
        if fits
        else "set --max-model-len to the longest request that is really served"
    )
    if pin := pinned_by(facts):
        return [_unpin(facts, pin), shorter, _fp8(facts)]
    found = [shorter]
    if batch := _smaller_batch(facts):
        found.insert(0, batch) if _batch_suffices(facts) else found.append(batch)
    found += [_more_memory(facts), _fp8(facts)]
    if (one(facts, "pipeline_parallel_size") or 1) > 1:
        found.append(
            "with pipeline parallelism the length that vLLM proposes is too careful: it charges all layers to the"
            " rank with the least memory. Even out the layers, or work the length out for each rank"
        )
    found.append(_FEWER_WEIGHTS)
    return [text for text in found if text]


def _unpin(facts: Facts, pin: str) -> str:
    if pin == "--num-gpu-blocks-override":
        need = known(facts, "max_model_len", "block_size")
        enough = f", or set it to {ceil(need[0] / need[1]) + 1} or more" if need and need[1] else ""
        return (
            f"remove {pin}{enough}: it fixes the number of blocks, so the {_UTIL} that vLLM's message names changes"
            " nothing here"
        )
    need_gib = one(facts, "needed_gib")
    enough = f" to {_gib(need_gib)} or more" if need_gib else ""
    return (
        f"give {pin} a larger value{enough}, if that much is free beside weights and activations, or remove it:"
        f" while it is set {_UTIL} has no effect. What a model needs for its cache can differ between releases of"
        " vLLM, so work it out anew after an upgrade"
    )


def _smaller_batch(facts: Facts) -> str:
    """Profiling runs a batch of the largest size; where that follows the length, a longer one leaves less cache."""
    batch, length = one(facts, "max_num_batched_tokens"), one(facts, "max_model_len")
    if batch and length and batch < length:
        return ""
    peak = _activation(facts)
    size = f" (up to {_gib(peak)} here)" if peak else ""
    return (
        f"turn chunked prefill on and pin {_BATCH}, for example to 2048 (8192 on a large GPU): where it follows"
        f" --max-model-len, the trial batch takes memory that the cache then lacks{size}"
    )


def _activation(facts: Facts) -> float | None:
    if direct := one(facts, "activation_gib"):
        return direct
    both = known(facts, "peak_torch_gib", "loaded_gib")
    return both[0] - both[1] if both else None


def _batch_suffices(facts: Facts) -> bool:
    """Whether the activation peak is larger than what is missing, as far as that can be told."""
    peak, there = _activation(facts), one(facts, "available_gib", "available_kv_gib")
    lengths = known(facts, "max_model_len", "kv_tokens")
    needed = one(facts, "needed_gib")
    if needed is None and lengths and there and lengths[1]:
        needed = there * lengths[0] / lengths[1]
    return None not in (peak, there, needed) and (peak or 0.0) > (needed or 0.0) - (there or 0.0)


def _more_memory(facts: Facts) -> str:
    sizes = known(facts, "needed_gib", "available_gib") or known(facts, "max_model_len", "kv_tokens")
    if sizes is None or sizes[1] <= 0:
        return ""
    if sizes[0] / sizes[1] > _TIMES:
        return f"do not expect it of {_UTIL}: the cache would have to be {sizes[0] / sizes[1]:.1f} times as large"
    card = known(facts, "total_gib", "util")
    lacks = known(facts, "needed_gib", "available_gib")
    if card and lacks:
        step = (lacks[0] - lacks[1]) / card[0]
        if card[1] + step > 0.97:
            return f"{_UTIL} cannot give what is missing: it is {card[1]:g} already"
        return f"or set {_UTIL} to {ceil((card[1] + step) * 100) / 100:g}, if nothing else uses the GPU"
    missing = f", {_gib(lacks[0] - lacks[1])} more are needed" if lacks else ""
    return f"or give the cache more with {_UTIL}, if nothing else uses the GPU{missing}"


def _fp8(facts: Facts) -> str:
    """Nothing where the cache is FP8 already: vLLM counts that in."""
    return "" if str(facts.get("kv_cache_dtype", "")).startswith(("fp8", "int8", "int4", "nvfp4")) else _FP8


# -- the budget and the card -------------------------------------------------------------------------------------------


def no_room(facts: Facts) -> str:
    util, weights = one(facts, "util"), one(facts, "weights_gib")
    more = f" ({_UTIL} is {util:g})" if util else ""
    taken = f", of which the weights take {_gib(weights)}" if weights else ""
    return (
        f"Nothing is left of vLLM's memory budget{more} for the KV cache: weights, activations and what other"
        f" processes hold use all of it{taken}."
    )


def for_no_room(facts: Facts) -> list[str]:
    util = one(facts, "util")
    look = "look at who else holds memory of this GPU (nvidia-smi), and free it or choose another"
    if str(facts.get("version", "")).startswith("0.6.4"):
        look += (
            "; 0.6.4 counts what others hold against vLLM's own budget, so a later release may do as it is"
        )
    more = f"give vLLM a larger share with {_UTIL}"
    if util:
        more += f" ({util:g} now)"
    found = [more, look] if util is not None and util < 0.3 else [look, more]
    return [
        *found,
        _FEWER_WEIGHTS,
        f"make the trial batch smaller ({_BATCH})",
        "leave --max-model-len as it is: no length fits into a cache of no blocks",
    ]


def below_budget(facts: Facts) -> str:
    said = "Less of the GPU's memory is free at the start than vLLM is to use"
    if both := known(facts, "free_gib", "total_gib"):
        said += f": {_gib(both[0])} of {_gib(both[1])} are free, so others hold {_gib(both[1] - both[0])}"
    wants, util = one(facts, "desired_gib"), one(facts, "util")
    if wants and util:
        said += f"; {_UTIL} {util:g} asks for {_gib(wants)}"
    return said + "."


def for_below_budget(facts: Facts) -> list[str]:
    both = known(facts, "free_gib", "total_gib")
    held = f" {_gib(both[1] - both[0])}" if both else " it"
    free = (
        f"find what holds{held} (nvidia-smi, or a worker left over from a start before) and end it, or choose"
        " another GPU"
    )
    util, weights = (util_below(*both) if both and both[1] else None), one(facts, "weights_gib")
    if both and util is not None and (util < _LITTLE or (weights and both[0] <= weights)):
        return [
            f"free the GPU: no {_UTIL} helps where {_gib(both[0])} are free. {free[0].upper()}{free[1:]}",
            "if several engines are started on one GPU, start them one after the other with shares that add up to"
            " less than 1, or place them on different GPUs",
        ]
    lower = f"set {_UTIL} to {util:.2f} or less" if util is not None else f"set a smaller {_UTIL}"
    return [free, f"else {lower}: what others hold can't be used"]


def grew(facts: Facts) -> str:
    both = known(facts, "initial_free_gib", "current_free_gib")
    said = "While vLLM measured the memory it uses, another process on the same GPU let memory go"
    return said + (f" ({_gib(both[1] - both[0])})" if both else "") + ", so the measurement is void."


def for_grew(_facts: Facts) -> list[str]:
    return [
        "start it again: there is more room now than before",
        "let servers that share a GPU start one after the other, and wait until an ended one has let go",
        "or give the cache a fixed size with --kv-cache-memory-bytes: then nothing is measured",
    ]


# -- out of memory, by what was being done -----------------------------------------------------------------------------


def _tried(facts: Facts) -> str:
    both = known(facts, "tried_mib", "free_mib")
    return f" ({both[0]:g} MiB wanted, {both[1]:g} MiB free)" if both else ""


def oom_loading(facts: Facts) -> str:
    return f"GPU memory ran out while the weights were loaded, before there is any KV cache{_tried(facts)}."


def for_oom_loading(_facts: Facts) -> list[str]:
    return [
        "see that nothing else holds memory of this GPU (nvidia-smi)",
        _FEWER_WEIGHTS,
        "or keep some weights in CPU memory with --cpu-offload-gb, which is slow",
        "options of the cache (--max-model-len, --kv-cache-dtype) do not help: it has none yet",
    ]


def oom_profiling(facts: Facts) -> str:
    return (
        "GPU memory ran out in the trial batch that vLLM runs to measure activations, before there is any KV"
        f" cache{_tried(facts)}."
    )


def for_oom_profiling(_facts: Facts) -> list[str]:
    return [
        f"make the trial batch smaller: lower {_BATCH} (for example 2048), then --max-num-seqs",
        "for models with images or video: fewer of them per request (--limit-mm-per-prompt)",
        "see that nothing else holds memory of this GPU (nvidia-smi)",
        _FEWER_WEIGHTS,
    ]


def _lower_util(facts: Facts) -> str:
    util = one(facts, "util")
    to = f" to {floor((util - 0.05) * 100 + 1e-9) / 100:g}" if util and util > 0.1 else " by 0.03 to 0.05"
    return f"LOWER {_UTIL}{to}: the cache took what this step needs"


def oom_sampler(facts: Facts) -> str:
    asked = one(facts, "dummy_requests")
    batch = f" with {asked:.0f} requests at once" if asked else ""
    return f"The cache was made, and the trial of the sampler{batch} found no memory left{_tried(facts)}."


def for_oom_sampler(facts: Facts) -> list[str]:
    asked = one(facts, "dummy_requests", "max_num_seqs")
    fewer = f"or set --max-num-seqs to {max(asked // 2, 1):.0f}" if asked else "or lower --max-num-seqs"
    return [_lower_util(facts), f"{fewer}: the sampler needs memory for each of them"]


def oom_graphs(facts: Facts) -> str:
    return f"The cache was made, and capturing CUDA graphs found no memory left{_tried(facts)}."


def for_oom_graphs(facts: Facts) -> list[str]:
    return [
        _lower_util(facts),
        "or capture fewer graphs: --max-cudagraph-capture-size, or a smaller --max-num-seqs",
        "or none at all with --enforce-eager, which costs speed",
    ]


def oom_kernels(facts: Facts) -> str:
    return f"The cache was made, and warming up kernels found no memory left{_tried(facts)}."


def for_oom_kernels(facts: Facts) -> list[str]:
    return [
        _lower_util(facts),
        f"or lower {_BATCH}: it is the size of the warm-up",
        "or leave the warm-up of DeepGEMM out with VLLM_DEEP_GEMM_WARMUP=skip, if it is that",
    ]


def oom_running(facts: Facts) -> str:
    return f"The server ran, and a step found no memory left for its activations{_tried(facts)}."


def for_oom_running(facts: Facts) -> list[str]:
    found = [_lower_util(facts), f"or make steps smaller: lower {_BATCH}"]
    idle, tried = one(facts, "reserved_unallocated_gib"), one(facts, "tried_mib")
    if idle and idle >= (tried or 0.0) / 1024:
        found.append(
            "PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True may win back up to"
            f" {_gib(idle)} that PyTorch has reserved and does not use"
        )
    return [*found, "see whether another process took memory since the start (nvidia-smi)"]


# -- models, layouts, formats ------------------------------------------------------------------------------------------


def state_blocks(facts: Facts) -> str:
    both = known(facts, "max_num_seqs", "state_blocks")
    sizes = f": --max-num-seqs is {both[0]:.0f}, and there are {both[1]:.0f}" if both else ""
    return f"This model keeps a state of constant size per sequence, and the cache has too few blocks for them{sizes}."


def for_state_blocks(facts: Facts) -> list[str]:
    blocks = one(facts, "state_blocks")
    return [
        f"set --max-num-seqs to {blocks:.0f} or less" if blocks else "set a smaller --max-num-seqs",
        "or give the cache more memory, if so many sequences are really served at once: the length of requests does"
        " not matter here",
    ]


def page_mismatch(_facts: Facts) -> str:
    return (
        "The layers of this model need pages of different sizes, and with this format of the KV cache none is a"
        " multiple of the others. It is no matter of how much memory there is."
    )


def for_page_mismatch(facts: Facts) -> list[str]:
    dtype = facts.get("kv_cache_dtype")
    instead = f" instead of {dtype}" if dtype else ""
    return [
        f"use --kv-cache-dtype auto (that of the model, as BF16) or plain fp8{instead}: formats with scales per token"
        " break the ratio of the pages",
        "or see whether a later release of vLLM pads the pages of this model",
    ]


def block_size(facts: Facts) -> str:
    size, step = one(facts, "block_size"), one(facts, "block_size_multiple")
    said = f"--block-size {size:.0f}" if size else "This --block-size"
    takes = f": the attention backend takes multiples of {step:.0f}" if step else " by the attention backend"
    return f"{said} is not supported{takes}. It is no matter of memory."


def for_block_size(facts: Facts) -> list[str]:
    step = one(facts, "block_size_multiple")
    return [
        "leave --block-size out: vLLM then takes one that fits",
        f"or set it to a multiple of {step:.0f}" if step else "or set it to a size that the message names",
    ]


def kv_dtype(facts: Facts) -> str:
    dtype = facts.get("kv_cache_dtype")
    said = f"--kv-cache-dtype {dtype}" if isinstance(dtype, str) else "This format of the KV cache"
    return f"{said} is not supported by this GPU or attention backend. It is no matter of memory."


def for_kv_dtype(_facts: Facts) -> list[str]:
    return [
        "use --kv-cache-dtype auto",
        "or a format that this GPU has: fp8_e4m3 needs compute capability 8.9 (Ada, Hopper), some backends take"
        " fp8_e5m2 before that",
        "or another attention backend (--attention-backend, in earlier releases VLLM_ATTENTION_BACKEND), such as FlashInfer",
    ]


# -- no failure --------------------------------------------------------------------------------------------------------


def ok(facts: Facts) -> str:
    tokens, times = one(facts, "kv_tokens"), one(facts, "max_concurrency")
    said = "Nothing in the log says that the start failed"
    if tokens and times:
        return f"{said}: the cache holds {tokens:,.0f} tokens, {times:g} requests of the full length."
    return said + "."


def tightness(facts: Facts) -> str:
    """Why a cache that was made is small for its server; empty if it is not."""
    times, waste = one(facts, "max_concurrency"), one(facts, "padding_waste_percent")
    pool = one(facts, "available_kv_gib", "kv_cache_memory_bytes_gib")
    budget, graphs = one(facts, "budget_gib", "desired_gib"), one(facts, "graphs_gib", "estimated_graphs_gib")
    if budget and pool and pool < _LITTLE * budget:
        return f"of a budget of {_gib(budget)} only {_gib(pool)} are left for the cache"
    if graphs and pool and graphs >= pool:
        return f"CUDA graphs take {_gib(graphs)}, the cache has {_gib(pool)}"
    if waste and waste >= 25:
        return f"padding of unlike layers may waste {waste:g} % of the cache"
    if times is not None and times < _TIGHT:
        return f"it holds {times:g} requests of the full length"
    return ""


def tight(facts: Facts) -> str:
    return f"The cache was made, but it is tight: {tightness(facts)}."


def for_tight(facts: Facts) -> list[str]:
    found = []
    graphs, pool = one(facts, "graphs_gib", "estimated_graphs_gib"), one(facts, "available_kv_gib")
    if graphs and pool and graphs >= pool / 2:
        found.append("capture fewer CUDA graphs: --max-cudagraph-capture-size, or a smaller --max-num-seqs")
    if (one(facts, "padding_waste_percent") or 0) >= 25:
        found.append(
            "try without the draft model (speculative decoding): its layers are padded to those of the model"
        )
    if suggested := one(facts, "suggested_util"):
        found.append(f"set {_UTIL} to {suggested:g}, as the log proposes, if nothing else uses the GPU")
    found.append(
        "expect few long requests at once; --max-model-len and --max-num-seqs to what is really served"
    )
    return [*found, _fp8(facts), _FEWER_WEIGHTS] if _fp8(facts) else [*found, _FEWER_WEIGHTS]


def unknown(facts: Facts) -> str:
    if error := facts.get("other_error"):
        return f"The start failed with an error that is none of the causes round the KV cache: {error}"
    return "The log says that the engine failed, but not why: the cause stands above the lines that are here."


def for_unknown(facts: Facts) -> list[str]:
    if facts.get("other_error"):
        return ["go by that error: it is the first that the log shows, what follows are its effects"]
    return [
        "get the lines above: the first error of a worker or of the engine core (kubectl logs --previous)",
        "if there are none, start it once with VLLM_LOGGING_LEVEL=DEBUG",
    ]


def no_log(_facts: Facts) -> str:
    return "Nothing in it was written by vLLM."
