"""How far a start came, and in which step memory ran out.

"Out of memory" is one sentence for six causes with different remedies: what tells them apart is what vLLM was doing.
The functions in the traceback say it best; without one it is the last step that the log shows.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from enum import IntEnum

from kvwatch.logs.lines import LogLine


class StartStage(IntEnum):
    """The steps of a start, in their order."""

    NONE = 0
    BEGUN = 1
    LOADING = 2
    LOADED = 3
    PROFILED = 4
    """The memory that is left for the cache is known."""
    SIZED = 5
    """The cache has its blocks."""
    CAPTURING = 6
    CAPTURED = 7
    UP = 8
    """It takes requests."""


#: What a line says of the step that is reached, by a word in it.
_STEPS: tuple[tuple[str, StartStage], ...] = (
    ("vLLM API server version", StartStage.BEGUN),
    ("non-default args", StartStage.BEGUN),
    ("LLM engine (v", StartStage.BEGUN),
    ("Starting to load model", StartStage.LOADING),
    ("Loading safetensors checkpoint shards", StartStage.LOADING),
    ("Loading weights took", StartStage.LOADED),
    ("Model loading took", StartStage.LOADED),
    ("Loading model weights took", StartStage.LOADED),
    ("Available KV cache memory:", StartStage.PROFILED),
    ("Memory profiling results", StartStage.PROFILED),
    ("reserved for KV Cache is", StartStage.PROFILED),
    ("as specified by kv_cache_memory_bytes", StartStage.PROFILED),
    ("GiB for KV cache on node", StartStage.PROFILED),
    (" blocks: ", StartStage.SIZED),
    ("KV cache size:", StartStage.SIZED),
    ("Maximum concurrency for", StartStage.SIZED),
    ("Capturing CUDA graph", StartStage.CAPTURING),
    ("Capturing cudagraphs", StartStage.CAPTURING),
    ("Graph capturing finished", StartStage.CAPTURED),
    ("init engine (profile", StartStage.CAPTURED),
    ("Starting vLLM API server", StartStage.UP),
    ("Starting vLLM server on", StartStage.UP),
    ("Application startup complete", StartStage.UP),
    ("Uvicorn running on", StartStage.UP),
)
WORDS: tuple[str, ...] = tuple(word for word, _ in _STEPS)

#: In which step memory ran out, by functions of the traceback; the innermost that says it counts.
_OOM_FRAMES: tuple[tuple[str, str], ...] = (
    ("oom_sampler_warmup", r"_dummy_sampler_run|_dummy_pooler_run"),
    (
        "oom_kernel_warmup",
        r"\w*kernel_warmup|deep_gemm_warmup|flashinfer_autotune|\w+_autotune|warmup_kernels",
    ),
    (
        "oom_graph_capture",
        r"capture_model|_?capture_cudagraphs?|capture_graphs?|profile_cudagraph_memory|(?>\w*?cudagraph)\w*",
    ),
    (
        "free_memory_below_budget",
        r"_?allocate_kv_cache\w*|initialize_kv_cache|initialize_from_config|_init_cache_engine",
    ),
    ("oom_profiling", r"profile_run|determine_available_memory|determine_num_available_blocks"),
    (
        "oom_loading_weights",
        r"load_model|load_weights|initialize_model|_initialize_model|create_weights|process_weights_after_loading",
    ),
    (
        "oom_at_runtime_activation",
        r"run_busy_loop|_process_engine_step|execute_model|step_async|run_engine_loop",
    ),
)
_BY_FRAME = tuple((verdict, re.compile(rf"(?:{names})$")) for verdict, names in _OOM_FRAMES)

_OOM_STEPS: dict[StartStage, str] = {
    StartStage.LOADING: "oom_loading_weights",
    StartStage.LOADED: "oom_profiling",
    StartStage.PROFILED: "free_memory_below_budget",
    StartStage.SIZED: "oom_graph_capture",
    StartStage.CAPTURING: "oom_graph_capture",
    StartStage.CAPTURED: "oom_sampler_warmup",
    StartStage.UP: "oom_at_runtime_activation",
}


def step_of(line: LogLine) -> StartStage:
    """The step that a line says was reached."""
    return max((stage for word, stage in _STEPS if word in line.text), default=StartStage.NONE)


def oom_verdict(frames: Sequence[str], reached: StartStage) -> tuple[str, str]:
    """In which step memory ran out, and how sure that is: by the traceback's functions (outermost first), else by
    the step that was reached; a bare message is what a server prints that runs."""
    for frame in reversed(frames):
        for verdict, names in _BY_FRAME:
            if not names.match(frame):
                continue
            if verdict == "oom_at_runtime_activation" and reached < StartStage.UP:
                continue  # the same functions run the trial batch
            return verdict, "high"
    if reached in _OOM_STEPS:
        return _OOM_STEPS[reached], "high" if reached is StartStage.UP else "medium"
    return "oom_at_runtime_activation", "low"
