"""Why vLLM did not start: one row per verdict, with everything that belongs to it.

A new cause is one row of `CAUSES` and one case in `CASES` of tests/logs/test_starts.py. A number that no pattern
reads yet is one row in `log_patterns`, one that follows from others in `derived_facts`. tests/logs/test_rows.py
reports what a row lacks.

Rows may look alike and need opposite changes, so each has its own actions. A line is compared with the rows in their
order.
"""

from __future__ import annotations

from typing import NamedTuple

from kvwatch.logs.cause_row import Cause, VerdictGroup
from kvwatch.logs.log_patterns import NUMBER, up_to
from kvwatch.logs.stages import StartStage

_NO_BACKEND = up_to("No valid attention backend|is not valid for this configuration")
_SIZES = ("kv_tokens", "gpu_blocks", "max_concurrency", "available_kv_gib")

CAUSES: tuple[Cause, ...] = (
    Cause(
        "kv_pool_smaller_than_max_len",
        VerdictGroup.POOL,
        """
        One request of full length (--max-model-len) does not fit in the KV cache[: it has
        {max_model_len:,.0f} tokens, and {fitting_tokens:,.0f} fit by vLLM's estimate][ ({needed_gib} needed,
        {available_gib} available)].[ The size of the cache is fixed by {pinned_by}.]
        - (pinned_blocks) remove --num-gpu-blocks-override[, or set it to {blocks_needed} or more]: it fixes
          the number of blocks, so --gpu-memory-utilization, which vLLM's message names, has no effect
        - (pinned_bytes) raise --kv-cache-memory-bytes[ to {needed_gib} or more] if that much is free next to
          weights and activations, or remove it: while it is set, --gpu-memory-utilization has no effect. What
          a model needs for its cache can differ between releases of vLLM: compute it again after an upgrade
        - (not pinned_by, batch_matters, batch_suffices) <smaller_batch>
        - (not pinned_by, pipelined) with pipeline parallelism, <pipeline>
        - set --max-model-len to [{fitting_tokens:.0f} or less: |]the longest request that you serve
        - (not pinned_by, maybe_pipelined) if it runs with pipeline parallelism: <pipeline>
        - (not pinned_by, batch_matters, not batch_suffices) <smaller_batch>
        - (not pinned_by, far_too_small) do not raise --gpu-memory-utilization for this: the cache
          would have to be {times:.1f} times as large
        - (not pinned_by, times, not far_too_small, util_too_high) --gpu-memory-utilization can't provide what is
          missing: it is {util} already
        - (not pinned_by, times, not far_too_small, not util_too_high) or set --gpu-memory-utilization to
          {needed_util}, if nothing else uses the GPU
        - (not pinned_by, times, not far_too_small, not needed_util) or give the cache more with
          --gpu-memory-utilization, if nothing else uses the GPU[: {missing_gib} more are needed]
        - (not reduced_cache) <fp8>
        - (not pinned_by) <fewer_weights>
        """,
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
        """
        No memory is left for the KV cache: weights, activations and other processes use all of vLLM's budget[
        (--gpu-memory-utilization is {util})][; the weights take {weights_gib}].
        - (low_util) <larger_share>
        - find other processes that hold memory of this GPU (nvidia-smi); end them, or choose another GPU
        - (not low_util) <larger_share>
        - (not weights_share) if the log shows that the model takes most of that: <fewer_weights>
        - (heavy_weights) <fewer_weights>
        - make the profiling batch smaller (--max-num-batched-tokens)
        - do not lower --max-model-len: no length fits in a cache without blocks
        """,
        words=("No available memory for", "memory for the cache blocks"),
        signs=(r"No available memory for the cache|available memory for the cache blocks",),
        hints=(r"in raise_if_cache_size_invalid",),
    ),
    Cause(
        "state_blocks_below_max_num_seqs",
        VerdictGroup.POOL,
        """
        This model keeps a state per sequence, and the cache has too few blocks for them[: --max-num-seqs is
        {max_num_seqs}, {state_blocks} blocks are available].
        - [set --max-num-seqs to {state_blocks} or less|lower --max-num-seqs]
        - or give the cache more memory, if you serve that many requests at once; their length does not matter
        """,
        words=("exceeds available Mamba cache",),
        signs=(r"exceeds available Mamba cache",),
        facts=(
            r"max_num_seqs \((?P<max_num_seqs>\d+)\) exceeds available Mamba cache blocks \((?P<state_blocks>\d+)\)",
        ),
    ),
    Cause(
        "free_memory_below_budget",
        VerdictGroup.GPU,
        """
        At start-up, less GPU memory is free than --gpu-memory-utilization requires[: {free_gib} of {total_gib} are
        free, other processes hold {others_gib}][; --gpu-memory-utilization {util} requires {desired_gib}].
        - (gpu_is_full) free the GPU: no --gpu-memory-utilization helps while {free_gib} are free. Then
          <find_process>
        - (gpu_is_full) if several engines start on one GPU, start them one after the other with shares that
          add up to less than 1, or place them on different GPUs
        - (not gpu_is_full, desktop) <lower_to_free_share>: other processes (a desktop, for example) keep the
          rest
        - (not gpu_is_full, desktop) or <find_process>
        - (not gpu_is_full, not desktop) <find_process>
        - (not gpu_is_full, not desktop) else <lower_to_free_share>: other processes keep the rest
        """,
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
        """
        Another process freed GPU memory[ ({freed_gib})] while vLLM measured its own use, so the measurement is
        invalid.
        - start it again: more memory is free now
        - start servers that share a GPU one after the other, and wait until an ended one has freed its memory
        - or fix the size of the cache with --kv-cache-memory-bytes: then nothing is measured
        """,
        words=("Error in memory profiling",),
        signs=(r"Error in memory profiling",),
        facts=(
            rf"Initial free memory (?P<initial_free_gib>{NUMBER})",
            rf"current free memory\s+(?P<current_free_gib>{NUMBER})",
        ),
    ),
    Cause(
        "oom_loading_weights",
        VerdictGroup.OUT_OF_MEMORY,
        """
        GPU memory ran out while vLLM loaded the weights, before it created the KV cache<tried>.
        - <check_gpu>
        - <fewer_weights>
        - or keep some weights in CPU memory with --cpu-offload-gb, which is slow
        - do not change options of the KV cache (--max-model-len, --kv-cache-dtype): vLLM has not created it yet
        """,
        oom_functions=r"load_model|load_weights|initialize_model|_initialize_model|create_weights"
        r"|process_weights_after_loading",
        oom_stages=(StartStage.LOADING,),
    ),
    Cause(
        "oom_profiling",
        VerdictGroup.OUT_OF_MEMORY,
        """
        GPU memory ran out in the profiling batch, which measures activations before vLLM creates the KV cache<tried>.
        - make the profiling batch smaller: lower --max-num-batched-tokens (for example to 2048), then
          --max-num-seqs
        - for models with images or video: allow fewer of them per request (--limit-mm-per-prompt)
        - <check_gpu>
        - <fewer_weights>
        """,
        oom_functions=r"profile_run|determine_available_memory|determine_num_available_blocks",
        oom_stages=(StartStage.LOADED,),
    ),
    Cause(
        "oom_graph_capture",
        VerdictGroup.OUT_OF_MEMORY,
        """
        vLLM created the KV cache, and GPU memory ran out while it captured CUDA graphs<tried>.
        - <lower_util>
        - or capture fewer graphs: --max-cudagraph-capture-size, or a smaller --max-num-seqs
        - or capture none with --enforce-eager, which makes decoding slower
        """,
        oom_functions=r"capture_model|_?capture_cudagraphs?|capture_graphs?|profile_cudagraph_memory|(?>\w*?cudagraph)\w*",
        oom_stages=(StartStage.SIZED, StartStage.CAPTURING),
    ),
    Cause(
        "oom_sampler_warmup",
        VerdictGroup.OUT_OF_MEMORY,
        """
        vLLM created the KV cache, and GPU memory ran out while the sampler warmed up[ with {dummy_requests}
        requests]<tried>.
        - <lower_util>
        - or [set --max-num-seqs to {half_the_seqs}|lower --max-num-seqs]: the sampler needs memory per
          request
        """,
        words=("out of memory occurred when warming up",),
        signs=(r"out of memory occurred when warming up (?:sampler|pooler)",),
        facts=(r"warming up (?:sampler|pooler) with (?P<dummy_requests>\d+) dummy requests",),
        oom_functions=r"_dummy_sampler_run|_dummy_pooler_run",
        oom_stages=(StartStage.CAPTURED,),
    ),
    Cause(
        "oom_kernel_warmup",
        VerdictGroup.OUT_OF_MEMORY,
        """
        vLLM created the KV cache, and GPU memory ran out while kernels warmed up<tried>.
        - <lower_util>
        - or lower --max-num-batched-tokens: the warm-up runs that many tokens
        - or skip the warm-up of DeepGEMM with VLLM_DEEP_GEMM_WARMUP=skip, if it is the one that failed
        """,
        words=("warmup",),
        hints=(r"\bdeep_gemm_warmup\(", r"in (?:kernel_warmup|deep_gemm_warmup)$"),
        oom_functions=r"\w*kernel_warmup|deep_gemm_warmup|flashinfer_autotune|\w+_autotune|warmup_kernels",
    ),
    Cause(
        "oom_at_runtime_activation",
        VerdictGroup.OUT_OF_MEMORY,
        """
        The server ran, and GPU memory ran out for the activations of a step<tried>.
        - <lower_util>
        - or make steps smaller: lower --max-num-batched-tokens
        - PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True may recover up to {reclaimable_gib} that PyTorch
          has reserved and does not use
        - check whether another process took memory after the start (nvidia-smi)
        """,
        oom_functions=r"run_busy_loop|_process_engine_step|execute_model|step_async|run_engine_loop",
        oom_stages=(StartStage.UP,),
        oom_from=StartStage.UP,  # the same functions run the profiling batch
    ),
    Cause(
        "kv_spec_page_mismatch",
        VerdictGroup.INCOMPATIBLE,
        """
        The layers of this model need KV cache pages of different sizes, and with this cache format no size is a
        multiple of the others. <not_memory>
        - use --kv-cache-dtype auto (the model's own format) or plain fp8[ instead of {kv_cache_dtype}]:
          formats with scales per token break the ratio of the pages
        - or check whether a later release of vLLM pads the pages of this model
        """,
        words=("page size", "unify_kv_cache"),
        signs=(
            up_to("page size ") + ".*is not divisible by the",
            up_to("[Cc]annot unify") + ".*page size",
            r"in unify_kv_cache_spec_page_size",
        ),
    ),
    Cause(
        "block_size_unsupported",
        VerdictGroup.INCOMPATIBLE,
        """
        The attention backend does not support [--block-size {block_size}|this --block-size][: it requires
        multiples of {block_size_multiple}]. <not_memory>
        - remove --block-size: vLLM then chooses one that fits
        - or set it to [a multiple of {block_size_multiple}|a size that the message names]
        """,
        words=("block size", "block_size", "block-size"),
        signs=(
            r"No common block size for",
            r"share no supported KV cache block size",
            r"KV cache block size \d+ is not supported by",
            r"argument --block-size: invalid choice",
            _NO_BACKEND + ".*block_size not supported",
        ),
        facts=(
            r"(?:block size for|KV cache block size) (?P<block_size>\d+)",
            r"MultipleOf\((?P<block_size_multiple>\d+)\)",
            r"--block-size: invalid choice: '?(?P<block_size>\d+)",
        ),
    ),
    Cause(
        "kv_dtype_unsupported",
        VerdictGroup.INCOMPATIBLE,
        """
        This GPU or attention backend does not support [--kv-cache-dtype {kv_cache_dtype}|this format of the KV
        cache]. <not_memory>
        - use --kv-cache-dtype auto
        - or a format that this GPU has: fp8_e4m3 requires compute capability 8.9 (Ada, Hopper), some backends
          support fp8_e5m2 on older GPUs
        - or another attention backend: --attention-backend, in earlier releases VLLM_ATTENTION_BACKEND
        """,
        words=("fp8", "FP8", "kv_cache_dtype", "kv-cache-dtype", "KV cache is not supported", "KV cache not"),
        signs=(
            r"type fp8e4nv not supported in this architecture",
            r"fp8e4nv data type is not supported",
            r"(?i)\b(?:fp8|bfloat16|quantized|nvfp4)\w*(?: with)? kv[- ]?cache(?: is)? not (?:yet )?supported",
            r"FlashAttention (?:V1 )?with FP8 KV cache not",
            r"FP8 kv is not supported",
            _NO_BACKEND + ".*kv_cache_dtype not supported",
            r"does not support (?:fp8|quantized) kv[- ]cache",
            r"is not supported with --kv-cache-dtype",
            r"argument --kv-cache-dtype: invalid choice",
            r"(?:Unknown|Unsupported|Invalid|Unrecognized) (?:(?:KV|kv)[ _]cache|FP8)[ _](?:data type|dtype)",
        ),
        facts=(r"--kv-cache-dtype: invalid choice: '?(?P<kv_cache_dtype>[\w-]+)",),
    ),
    Cause(
        "ok",
        VerdictGroup.NO_FAILURE,
        """
        The log shows no failed start[: the KV cache holds {kv_tokens:,.0f} tokens, enough for {max_concurrency:g}
        requests of full length].
        """,
        evidence=_SIZES,
    ),
    Cause(
        "ok_but_tight",
        VerdictGroup.NO_FAILURE,
        """
        vLLM created the KV cache, but it is small[small_share?: {pool_gib} of a budget of {all_gib} are left for
        it|graphs_exceed_cache?: CUDA graphs take {cuda_graphs_gib}, the cache has {pool_gib}|much_padding?:
        padding of unlike layers may waste {padding_waste_percent} % of it|few_requests?: it holds
        {max_concurrency:g} requests of the full length].
        - (graphs_exceed_half) capture fewer CUDA graphs: --max-cudagraph-capture-size, or a smaller --max-num-seqs
        - (much_padding) try without the draft model (speculative decoding): its layers are padded to those of
          the model
        - set --gpu-memory-utilization to {suggested_util}, as the log suggests, if nothing else uses the GPU
        - expect few long requests at once; set --max-model-len and --max-num-seqs to what you serve
        - (not reduced_cache) <fp8>
        - <fewer_weights>
        """,
        evidence=_SIZES,
    ),
    Cause(
        "unknown_root_cause_above",
        VerdictGroup.NO_FAILURE,
        """
        [The start failed with an error that is no known cause: {other_error}|The log shows that the engine
        failed, but not why: the cause is above the lines that are here.]
        - (other_error) start with that error: it is the first in the log, and the others follow from it
        - (not other_error) get the lines above: the first error of a worker or of the engine core (kubectl
          logs --previous)
        - (not other_error) if there are none, start the server once with VLLM_LOGGING_LEVEL=DEBUG
        """,
    ),
    Cause(
        "no_vllm_log",
        VerdictGroup.NO_FAILURE,
        """
        No line of this log is from vLLM.
        """,
    ),
)
BY_VERDICT = {row.verdict: row for row in CAUSES}

WORDS: tuple[str, ...] = tuple(dict.fromkeys(word for row in CAUSES for word in row.words if row.signs))
"""Words of lines that may show a cause. Such a message may continue in the next lines."""
HINT_WORDS: tuple[str, ...] = tuple(
    dict.fromkeys(word for row in CAUSES for word in row.words if not row.signs)
)


class StartVerdict(NamedTuple):
    """A verdict as the documentation lists it, with the texts for a log without numbers."""

    id: str
    group: VerdictGroup
    meaning: str
    actions: tuple[str, ...]


VERDICTS = tuple(StartVerdict(row.verdict, row.group, row.meaning({}), row.actions({})) for row in CAUSES)
"""The closed set of verdicts, by group."""
