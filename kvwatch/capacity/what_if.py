"""What one change of an option would do: other cache types, lengths and numbers of GPUs, side by side."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

from kvwatch.capacity.caches import CacheKind
from kvwatch.capacity.errors import PlanError
from kvwatch.capacity.sizing import Flags, Layout, Sizing, layout_of, sizing_of

_EIGHT_BITS = 16
"""Sixteenths of a byte in a value of 8 bits."""


@dataclass(frozen=True, slots=True)
class Variant:
    """A change of one option and its result. `sizing` is None without memory."""

    change: str
    layout: Layout
    sizing: Sizing | None


def variants(now: Layout, memory_with: Callable[[Flags], int | None]) -> list[Variant]:
    """The plan, and each change alone. `memory_with` gives the KV memory of a GPU under other options.

    Where the plan does not start and neither change helps, the last row is the longest length that does start.
    """
    found = [
        one
        for change, flags in (("as planned", now.flags), *_changes(now))
        if (one := _variant(now, change, flags, memory_with))
    ]
    sizing, length = found[0].sizing if found else None, now.flags.max_model_len or now.model.max_len
    if sizing is not None and length and not sizing.fits and (longest := sizing.longest(length)):
        shorter = _variant(
            now, f"--max-model-len {longest}", replace(now.flags, max_model_len=longest), memory_with
        )
        found += [shorter] if shorter else []
    return found


def _variant(
    now: Layout, change: str, flags: Flags, memory_with: Callable[[Flags], int | None]
) -> Variant | None:
    try:
        layout, memory = layout_of(now.model, flags), memory_with(flags)
    except PlanError:
        return None  # vLLM would reject it
    return Variant(change, layout, None if memory is None else sizing_of(layout, memory))


def _changes(now: Layout) -> Iterator[tuple[str, Flags]]:
    flags, length = now.flags, now.flags.max_model_len or now.model.max_len
    eight_bit = now.dtype.sixteenths is not None and now.dtype.sixteenths <= _EIGHT_BITS
    other = "bfloat16" if eight_bit else "fp8"
    yield f"--kv-cache-dtype {other}", replace(flags, kv_cache_dtype=other)
    if length and length > 1:
        yield f"--max-model-len {length // 2}", replace(flags, max_model_len=length // 2)
    yield f"--tensor-parallel-size {flags.tensor * 2}", replace(flags, tensor=flags.tensor * 2)
    if flags.tensor % 2 == 0:
        yield f"--tensor-parallel-size {flags.tensor // 2}", replace(flags, tensor=flags.tensor // 2)
    if flags.tensor > flags.context and now.model.has(CacheKind.LATENT):
        # Ranks repeat a latent vector; sharing the tokens instead is what makes room.
        yield f"--decode-context-parallel-size {flags.tensor}", replace(flags, context=flags.tensor)
