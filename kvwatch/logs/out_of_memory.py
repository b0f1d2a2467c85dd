"""PyTorch's "out of memory": which verdict it is, and the numbers in its message."""

from __future__ import annotations

import re
from collections.abc import Sequence

from kvwatch.logs.causes import CAUSES
from kvwatch.logs.stages import StartStage

OOM = re.compile(
    r"(?:CUDA|HIP|XPU|NPU) out of memory\. Tried to allocate|OutOfMemoryError|CUDA error: out of memory"
)
"""PyTorch's message, in every wording that it has had."""
OOM_WORDS = ("out of memory", "OutOfMemoryError")

_RUNNING = "oom_at_runtime_activation"

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


def oom_verdict(functions: Sequence[str], stage: StartStage) -> tuple[str, str]:
    """The verdict on memory that ran out, and the confidence in it.

    "Out of memory" is one message for causes with different remedies; they differ in what vLLM was doing. The
    functions of the traceback (outermost first) show it best. Without one it is the last step that the log shows. A
    bare message is what a running server prints.
    """
    for name in reversed(functions):
        for row in CAUSES:
            if row.oom_functions and stage >= row.oom_from and re.fullmatch(row.oom_functions, name):
                return row.verdict, "high"
    for row in CAUSES:
        if stage in row.oom_stages:
            return row.verdict, "high" if stage is StartStage.UP else "medium"
    return _RUNNING, "low"
