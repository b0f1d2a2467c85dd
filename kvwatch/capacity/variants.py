"""What another type, length or number of GPUs would change, side by side."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

from kvwatch.capacity.errors import PlanError
from kvwatch.capacity.sizing import Flags, Layout, Sizing, laid_out, sized

_EIGHT_BITS = 16
_HALF = 2


@dataclass(frozen=True, slots=True)
class Variant:
    """A change of one flag and what it comes to. `sizing` None: no memory was given."""

    change: str
    layout: Layout
    sizing: Sizing | None


def variants(now: Layout, memory_of: Callable[[Flags], int | None]) -> list[Variant]:
    """What is planned, and each change alone. `memory_of` says the KV memory of a GPU under other flags."""
    found = []
    for change, flags in (("as planned", now.flags), *_changes(now)):
        try:
            layout, memory = laid_out(now.model, flags), memory_of(flags)
        except PlanError:
            continue  # vLLM would not take it
        found.append(Variant(change, layout, None if memory is None else sized(layout, memory)))
    return found


def _changes(now: Layout) -> Iterator[tuple[str, Flags]]:
    flags, length = now.flags, now.flags.max_model_len or now.model.max_len
    if now.dtype.sixteenths is None or now.dtype.sixteenths > _EIGHT_BITS:
        yield "--kv-cache-dtype fp8", replace(flags, kv_cache_dtype="fp8")
    else:
        yield "--kv-cache-dtype bfloat16", replace(flags, kv_cache_dtype="bfloat16")
    if length and length > 1:
        yield f"--max-model-len {length // _HALF}", replace(flags, max_model_len=length // _HALF)
    yield f"--tensor-parallel-size {flags.tensor * 2}", replace(flags, tensor=flags.tensor * 2)
    if flags.tensor % _HALF == 0:
        yield f"--tensor-parallel-size {flags.tensor // 2}", replace(flags, tensor=flags.tensor // 2)
