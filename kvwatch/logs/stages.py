"""The steps of a start, and the log lines that show them.

A new step is one row of `StartStage`, with the words of its lines in `_WORDS`.
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

_WORDS = {
    StartStage.BEGUN: ("vLLM API server version", "non-default args", "LLM engine (v"),
    StartStage.LOADING: ("Starting to load model", "Loading safetensors checkpoint shards"),
    StartStage.LOADED: ("Loading weights took", "Model loading took", "Loading model weights took"),
    StartStage.PROFILED: (
        "Available KV cache memory:", "Memory profiling results", "reserved for KV Cache is",
        "as specified by kv_cache_memory_bytes", "GiB for KV cache on node",
    ),
    StartStage.SIZED: (" blocks: ", "KV cache size:", "Maximum concurrency for"),
    StartStage.CAPTURING: ("Capturing CUDA graph", "Capturing cudagraphs"),
    StartStage.CAPTURED: ("Graph capturing finished", "init engine (profile"),
    StartStage.UP: (
        "Starting vLLM API server", "Starting vLLM server on", "Application startup complete", "Uvicorn running on",
    ),
}  # fmt: skip
WORDS: tuple[str, ...] = tuple(word for words in _WORDS.values() for word in words)


def stage_of(line: LogLine) -> StartStage:
    """The step that a line shows."""
    found = (stage for stage, words in _WORDS.items() if any(word in line.text for word in words))
    return max(found, default=StartStage.NONE)
