"""Starts that fail for memory before it runs out: the KV cache is too small, or other processes hold the GPU."""

from __future__ import annotations

from kvwatch.logs.causes.row import Action, Cause, VerdictGroup
from kvwatch.logs.log_patterns import NUMBER, up_to
from kvwatch.logs.stages import StartStage

FEWER_WEIGHTS = (
    "put fewer weights on each GPU: a quantized or smaller model, or more GPUs (--tensor-parallel-size)"
)
FP8 = Action(
    "halve the bytes per token with --kv-cache-dtype fp8[options_known?| (unless it is set already: vLLM counts it)]."
    " Check first that GPU and attention backend support it, then scales and answer quality on long contexts",
    ("not reduced_cache",),
)
_SMALLER_BATCH = (
    "[chunked?|turn on chunked prefill and ]set --max-num-batched-tokens, for example to 2048 (8192 on a large GPU):"
    " if it follows --max-model-len, the profiling batch takes memory from the cache[ (up to {peak_gib} here)]"
)
_PIPELINE = (
    "vLLM's estimated length is too low: it charges all layers[ ({bytes_per_token:,.0f} bytes per token)] to the rank"
    " with the least memory, which holds only some of them. Move layers off that rank (VLLM_PP_LAYER_PARTITION), or"
    " set --max-model-len by that rank's own share in a release that checks it so"
)
_MORE_SHARE = (
    "give vLLM a larger share of the GPU with --gpu-memory-utilization[ ({util} now)][counts_other_processes?; 0.6.4"
    " counts the memory of other processes as vLLM's own: add their share there, or use a later release]"
)
_OTHER_PROCESS = (
    "ind the process that holds [{others_gib}|it] (nvidia-smi; it may be a worker left from an earlier start) and end"
    " it, or choose another GPU"
)
_LOWER = "[set --gpu-memory-utilization to {free_share:.2f} or less|lower --gpu-memory-utilization]"

ROWS = (
    Cause(
        "kv_pool_smaller_than_max_len",
        VerdictGroup.POOL,
        "One request of the longest allowed length does not fit in the KV cache[: --max-model-len is"
        " {max_model_len:,.0f} tokens, and {fitting_tokens:,.0f} fit by vLLM's estimate][ ({needed_gib} needed,"
        " {available_gib} available)].[ The size of the cache is fixed by {pinned_by}.]",
        (
            Action(
                "remove --num-gpu-blocks-override[, or set it to {blocks_needed} or more]: it fixes the number of"
                " blocks, so --gpu-memory-utilization, which vLLM's message names, has no effect",
                ("pinned_blocks",),
            ),
            Action(
                "raise --kv-cache-memory-bytes[ to {needed_gib} or more] if that much is free next to weights and"
                " activations, or remove it: while it is set, --gpu-memory-utilization has no effect. What a model"
                " needs for its cache can differ between releases of vLLM: compute it again after an upgrade",
                ("pinned_bytes",),
            ),
            Action(_SMALLER_BATCH, ("not pinned_by", "batch_matters", "batch_suffices")),
            Action(f"with pipeline parallelism, {_PIPELINE}", ("not pinned_by", "pipelined")),
            "set --max-model-len to [{fitting_tokens:.0f} or less: |]the longest request that you serve",
            Action(
                f"if it runs with pipeline parallelism: {_PIPELINE}", ("not pinned_by", "maybe_pipelined")
            ),
            Action(_SMALLER_BATCH, ("not pinned_by", "batch_matters", "not batch_suffices")),
            Action(
                "do not expect it from --gpu-memory-utilization: the cache would have to be {far_too_small:.1f} times"
                " as large",
                ("not pinned_by",),
            ),
            Action(
                "--gpu-memory-utilization can't provide what is missing: it is {util} already",
                ("not pinned_by", "a_little_too_small", "util_too_high"),
            ),
            Action(
                "or set --gpu-memory-utilization to {needed_util}, if nothing else uses the GPU",
                ("not pinned_by", "a_little_too_small"),
            ),
            Action(
                "or give the cache more with --gpu-memory-utilization, if nothing else uses the GPU[: {missing_gib}"
                " more are needed]",
                ("not pinned_by", "a_little_too_small", "not util_too_high", "not needed_util"),
            ),
            FP8,
            Action(FEWER_WEIGHTS, ("not pinned_by",)),
        ),
        words=(
            "To serve at least one request",
            "max seq len",
            "KV cache is needed",
            "estimated maximum model length",
        ),
        signs=(
            r"To serve at least one request",
            # a console wraps the line, or it is cut
            r"models?'s max seq len \(|KV cache is needed, which|estimated maximum model length is",
            r"max seq len \(\d+\) is larger than the maximum number of tokens",
        ),
        facts=(
            r"max seq len \((?P<max_model_len>\d+)\)",
            r"stored in KV cache \((?P<kv_tokens>\d+)\)",
            rf"\((?P<needed_gib>{NUMBER}) Gi?B KV cache is needed",
            rf"available KV cache memory \((?P<available_gib>{NUMBER}) Gi?B\)",
            r"estimated maximum model length is (?P<estimated_max_len>\d+)\D",
        ),
        evidence=("kv_cache_memory_bytes_gib", "num_gpu_blocks_override"),
        stops_after=(StartStage.PROFILED, "kv_cache_memory_bytes_gib"),
    ),
    Cause(
        "no_room_for_any_block",
        VerdictGroup.POOL,
        "No memory is left for the KV cache: weights, activations and other processes use all of vLLM's budget"
        "[ (--gpu-memory-utilization is {util})][; the weights take {weights_gib}].",
        (
            Action(_MORE_SHARE, ("low_util",)),
            "find other processes that hold memory of this GPU (nvidia-smi); end them, or choose another GPU",
            Action(_MORE_SHARE, ("not low_util",)),
            Action(
                f"if the log shows that the model takes most of that: {FEWER_WEIGHTS}",
                ("not weights_share",),
            ),
            Action(FEWER_WEIGHTS, ("heavy_weights",)),
            "make the profiling batch smaller (--max-num-batched-tokens)",
            "leave --max-model-len as it is: no length fits in a cache without blocks",
        ),
        words=("No available memory for", "memory for the cache blocks"),
        signs=(r"No available memory for the cache|available memory for the cache blocks",),
        hints=(r"in raise_if_cache_size_invalid",),
    ),
    Cause(
        "state_blocks_below_max_num_seqs",
        VerdictGroup.POOL,
        "This model keeps a state per sequence, and the cache has too few blocks for them[: --max-num-seqs is"
        " {max_num_seqs}, {state_blocks} blocks are available].",
        (
            "[set --max-num-seqs to {state_blocks} or less|lower --max-num-seqs]",
            "or give the cache more memory, if you serve that many requests at once; their length does not matter",
        ),
        words=("exceeds available Mamba cache",),
        signs=(r"exceeds available Mamba cache",),
        facts=(
            r"max_num_seqs \((?P<max_num_seqs>\d+)\) exceeds available Mamba cache blocks \((?P<state_blocks>\d+)\)",
        ),
    ),
    Cause(
        "free_memory_below_budget",
        VerdictGroup.GPU,
        "Less GPU memory is free at start-up than vLLM is set to use[: {free_gib} of {total_gib} are free, other"
        " processes hold {others_gib}][; --gpu-memory-utilization {util} requires {desired_gib}].",
        (
            Action(
                "free the GPU: no --gpu-memory-utilization helps while {free_gib} are free. F"
                + _OTHER_PROCESS,
                ("gpu_is_full",),
            ),
            Action(
                "if several engines start on one GPU, start them one after the other with shares that add up to less"
                " than 1, or place them on different GPUs",
                ("gpu_is_full",),
            ),
            Action(
                f"{_LOWER}: other processes (a desktop, for example) keep the rest",
                ("not gpu_is_full", "desktop"),
            ),
            Action(f"or f{_OTHER_PROCESS}", ("not gpu_is_full", "desktop")),
            Action(f"f{_OTHER_PROCESS}", ("not gpu_is_full", "not desktop")),
            Action(f"else {_LOWER}: other processes keep the rest", ("not gpu_is_full", "not desktop")),
        ),
        words=(
            "Free memory on device",
            "on kv cache allocation is less than",
            "less than desired GPU memory",
        ),
        signs=(
            r"\A(?>.*Free memory on device)(?!.*Desired GPU)",
            r"less than desired GPU memory",
            up_to("Available memory on node") + ".*is less than requested",
        ),
        facts=(
            rf"Free memory on device(?: [^\s(]+)? \((?P<free_gib>{NUMBER})/(?P<total_gib>{NUMBER}) GiB\) on startup",
            (
                r"(?:desired GPU memory utilization|process's weights)"
                rf" \((?P<util>{NUMBER}), (?P<desired_gib>{NUMBER}) GiB\)"
            ),
            rf"Available memory on node \S+ \((?P<free_gib>{NUMBER})/(?P<total_gib>{NUMBER}) GiB\)",
            rf"requested memory for kv \((?P<desired_gib>{NUMBER})/",
        ),
        oom_functions=r"_?allocate_kv_cache\w*|initialize_kv_cache|initialize_from_config|_init_cache_engine",
        oom_stages=(StartStage.PROFILED,),
    ),
    Cause(
        "free_memory_grew_during_profiling",
        VerdictGroup.GPU,
        "Another process freed GPU memory[ ({freed_gib})] while vLLM measured its own use, so the measurement is"
        " invalid.",
        (
            "start it again: more memory is free now",
            "start servers that share a GPU one after the other, and wait until an ended one has freed its memory",
            "or fix the size of the cache with --kv-cache-memory-bytes: then nothing is measured",
        ),
        words=("Error in memory profiling",),
        signs=(r"Error in memory profiling",),
        facts=(
            rf"Initial free memory (?P<initial_free_gib>{NUMBER})",
            rf"current free memory\s+(?P<current_free_gib>{NUMBER})",
        ),
    ),
)
