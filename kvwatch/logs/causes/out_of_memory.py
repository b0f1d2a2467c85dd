"""Memory that ran out, by what vLLM was doing."""

from __future__ import annotations

import re

from kvwatch.logs.causes.memory import FEWER_WEIGHTS
from kvwatch.logs.causes.row import Cause, VerdictGroup
from kvwatch.logs.stages import StartStage

OOM = re.compile(
    r"(?:CUDA|HIP|XPU|NPU) out of memory\. Tried to allocate|OutOfMemoryError|CUDA error: out of memory"
)
"""PyTorch's message, in every wording that it has had."""
OOM_WORDS = ("out of memory", "OutOfMemoryError")

_TRIED = "[ (tried to allocate {tried_mib}, {free_mib} free)]"
_LOWER_UTIL = (
    "lower --gpu-memory-utilization[ to {lowered_util}| by 0.03 to 0.05]: the KV cache took the memory that this step"
    " needs"
)
_CHECK_GPU = "check that nothing else holds memory of this GPU (nvidia-smi)"

RUNNING = Cause(
    "oom_at_runtime_activation",
    VerdictGroup.OUT_OF_MEMORY,
    f"The server ran, and GPU memory ran out for the activations of a step{_TRIED}.",
    (
        _LOWER_UTIL,
        "or make steps smaller: lower --max-num-batched-tokens",
        (
            "PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True may recover up to {reclaimable_gib} that PyTorch has"
            " reserved and does not use"
        ),
        "check whether another process took memory after the start (nvidia-smi)",
    ),
    oom_functions=r"run_busy_loop|_process_engine_step|execute_model|step_async|run_engine_loop",
    oom_stages=(StartStage.UP,),
    oom_from=StartStage.UP,  # the same functions run the profiling batch
)

ROWS = (
    Cause(
        "oom_loading_weights",
        VerdictGroup.OUT_OF_MEMORY,
        f"GPU memory ran out while the weights were loaded, before there is a KV cache{_TRIED}.",
        (
            _CHECK_GPU,
            FEWER_WEIGHTS,
            "or keep some weights in CPU memory with --cpu-offload-gb, which is slow",
            "do not change options of the KV cache (--max-model-len, --kv-cache-dtype): there is none yet",
        ),
        oom_functions=(
            r"load_model|load_weights|initialize_model|_initialize_model|create_weights"
            r"|process_weights_after_loading"
        ),
        oom_stages=(StartStage.LOADING,),
    ),
    Cause(
        "oom_profiling",
        VerdictGroup.OUT_OF_MEMORY,
        "GPU memory ran out in the profiling batch, which measures activations before there is a KV cache"
        f"{_TRIED}.",
        (
            (
                "make the profiling batch smaller: lower --max-num-batched-tokens (for example to 2048), then"
                " --max-num-seqs"
            ),
            "for models with images or video: allow fewer of them per request (--limit-mm-per-prompt)",
            _CHECK_GPU,
            FEWER_WEIGHTS,
        ),
        oom_functions=r"profile_run|determine_available_memory|determine_num_available_blocks",
        oom_stages=(StartStage.LOADED,),
    ),
    Cause(
        "oom_graph_capture",
        VerdictGroup.OUT_OF_MEMORY,
        f"The KV cache was made, and GPU memory ran out while CUDA graphs were captured{_TRIED}.",
        (
            _LOWER_UTIL,
            "or capture fewer graphs: --max-cudagraph-capture-size, or a smaller --max-num-seqs",
            "or capture none with --enforce-eager, which makes decoding slower",
        ),
        oom_functions=(
            r"capture_model|_?capture_cudagraphs?|capture_graphs?|profile_cudagraph_memory|(?>\w*?cudagraph)\w*"
        ),
        oom_stages=(StartStage.SIZED, StartStage.CAPTURING),
    ),
    Cause(
        "oom_sampler_warmup",
        VerdictGroup.OUT_OF_MEMORY,
        "The KV cache was made, and GPU memory ran out while the sampler warmed up[ with {dummy_requests} requests]"
        f"{_TRIED}.",
        (
            _LOWER_UTIL,
            "or [set --max-num-seqs to {half_the_seqs}|lower --max-num-seqs]: the sampler needs memory per request",
        ),
        words=("out of memory occurred when warming up",),
        signs=(r"out of memory occurred when warming up (?:sampler|pooler)",),
        facts=(r"warming up (?:sampler|pooler) with (?P<dummy_requests>\d+) dummy requests",),
        oom_functions=r"_dummy_sampler_run|_dummy_pooler_run",
        oom_stages=(StartStage.CAPTURED,),
    ),
    Cause(
        "oom_kernel_warmup",
        VerdictGroup.OUT_OF_MEMORY,
        f"The KV cache was made, and GPU memory ran out while kernels warmed up{_TRIED}.",
        (
            _LOWER_UTIL,
            "or lower --max-num-batched-tokens: the warm-up is that large",
            "or skip the warm-up of DeepGEMM with VLLM_DEEP_GEMM_WARMUP=skip, if it is the one that failed",
        ),
        words=("warmup",),
        hints=(r"\bdeep_gemm_warmup\(", r"in (?:kernel_warmup|deep_gemm_warmup)$"),
        oom_functions=r"\w*kernel_warmup|deep_gemm_warmup|flashinfer_autotune|\w+_autotune|warmup_kernels",
    ),
    RUNNING,
)

# -- the numbers in PyTorch's message ------------------------------------------------------------------------------

_SIZE = r"(?P<{0}>\d{{1,15}}+(?:\.\d{{1,15}}+)?+) (?P<{0}_unit>[KMG]i?B)"
OOM_SIZES = tuple(
    re.compile(pattern)
    for pattern in (
        rf"Tried to allocate {_SIZE.format('tried_mib')}",
        rf"total capacity of {_SIZE.format('total_gib')}|; {_SIZE.format('total_gib_2')} total capacity",
        rf"of which {_SIZE.format('free_mib')} is free|; {_SIZE.format('free_mib_2')} free",
        rf"process has {_SIZE.format('in_use_gib')} memory in use|; {_SIZE.format('in_use_gib_2')} already allocated",
        rf"{_SIZE.format('reserved_unallocated_gib')} is reserved by PyTorch but unallocated",
    )
)
_BYTES = {"K": 1 << 10, "M": 1 << 20, "G": 1 << 30}


def oom_sizes(text: str) -> dict[str, float | str]:
    """The numbers in PyTorch's message, in the units that their names state."""
    found: dict[str, float | str] = {}
    for pattern in OOM_SIZES:
        match = pattern.search(text)
        for name, value in (match.groupdict() if match else {}).items():
            if match is None or value is None or name.endswith("_unit"):
                continue
            amount = float(value) * _BYTES[match[f"{name}_unit"][0]]
            found[name.removesuffix("_2")] = round(amount / _BYTES["G" if "_gib" in name else "M"], 2)
    return found
