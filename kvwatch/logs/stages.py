"""The steps of a start, and the log lines that show them.

A new step is one row of `StartStage`, with what a log shows that ends there, and its lines in `_LINES`.
"""

from __future__ import annotations

from enum import IntEnum

from kvwatch.logs.lines import LogLine


class StartStage(IntEnum):
    """The steps of a start, in order."""

    NONE = 0
    BEGUN = 1
    LOADING = 2
    LOADED = 3
    PROFILED = 4
    """The memory for the KV cache is known."""
    SIZED = 5
    """The KV cache has its blocks."""
    CAPTURING = 6
    CAPTURED = 7
    UP = 8
    """The server accepts requests."""


IF_IT_ENDS = {
    StartStage.BEGUN: "right after the start began",
    StartStage.LOADING: "while the model is loaded",
    StartStage.LOADED: "after the model is loaded, before the memory for the KV cache is known",
    StartStage.PROFILED: "before the KV cache is made",
    StartStage.SIZED: "after the KV cache is made, before CUDA graphs are captured",
    StartStage.CAPTURING: "while CUDA graphs are captured",
}
"""Where a log ends that shows no later step. After these a start is complete."""

_LINES: tuple[tuple[str, StartStage], ...] = (
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
WORDS: tuple[str, ...] = tuple(word for word, _ in _LINES)


def stage_of(line: LogLine) -> StartStage:
    """The step that a line shows."""
    return max((stage for word, stage in _LINES if word in line.text), default=StartStage.NONE)
