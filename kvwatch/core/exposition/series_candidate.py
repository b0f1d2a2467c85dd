"""One alias of one signal as exposed for one engine: where its numbers are on a page, and how they are read.

A candidate gives a value or says why it gives none. Series that should say the same (``pid`` of multi-process
mode, copies of a relay) must agree; otherwise nobody can say which one is alive.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from operator import itemgetter

from kvwatch.core.dialect.vllm import Alias, Part, Unit
from kvwatch.core.model.signals import Signal, SignalKind
from kvwatch.core.model.snapshot import CacheConfig, Histogram, Value

Ladder = tuple[
    tuple[float, ...],
    Callable[[Sequence[float]], tuple[float, ...]],
    int | None,
    tuple[tuple[int, int], ...],
]


@dataclass(slots=True)
class SeriesCandidate:
    """One alias as exposed for one signal of one engine: where its numbers are in the list of values."""

    alias: Alias
    single: list[int] = field(default_factory=list)
    by_label: dict[str, list[int]] = field(default_factory=dict)
    sums: list[int] = field(default_factory=list)
    counts: list[int] = field(default_factory=list)
    buckets: dict[float, list[int]] = field(default_factory=dict)
    _ladder: Ladder | None = None

    def add(self, part: Part, label: str | None, le: float | None, index: int) -> None:
        if part is Part.SUM:
            self.sums.append(index)
        elif part is Part.COUNT:
            self.counts.append(index)
        elif part is Part.BUCKET:
            if le is not None:
                self.buckets.setdefault(le, []).append(index)
        elif label is not None:
            self.by_label.setdefault(label, []).append(index)
        else:
            self.single.append(index)

    def read(self, values: Sequence[float], signal: Signal, scale: float) -> Value | str:
        """The value, or why there is none."""
        if signal.kind is SignalKind.HISTOGRAM:
            return self._histogram(values)
        if signal.dimension:
            found: dict[str, float] = {}
            for label, indexes in self.by_label.items():
                one = _agreed(values, indexes, signal, scale)
                if isinstance(one, str):
                    return one
                found[label] = one
            return found or f"exposed without the label '{self.alias.label}'"
        return _agreed(values, self.single, signal, scale)

    def _histogram(self, values: Sequence[float]) -> Value | str:
        if not self.sums or not self.counts:
            return "the histogram's sum or count is not exposed"
        if self._ladder is None:
            self._ladder = self._climb()
        bounds, at, infinite, copies = self._ladder
        if copies and any(values[one] != values[other] for one, other in copies):
            return "several series of one engine disagree"
        total, count = values[self.sums[0]], values[self.counts[0]]
        if infinite is not None:
            count = values[infinite]  # taken with the buckets; `_count` may be a moment younger
        counts = at(values)
        rising = [0.0, *counts, count]
        if not math.isfinite(sum(rising) + total):
            return "not a number"
        if rising != sorted(rising):
            return "the buckets are not cumulative"
        return Histogram(total, count, bounds, counts)

    def _climb(self) -> Ladder:
        """Finite bounds ascending, what picks their counts, where the last one is, and which must agree."""
        finite = sorted(le for le in self.buckets if not math.isinf(le))
        infinite = self.buckets.get(math.inf)
        copies = tuple(
            (found[0], other)
            for found in (self.sums, self.counts, *self.buckets.values())
            for other in found[1:]
        )
        return (
            tuple(finite),
            _picker([self.buckets[le][0] for le in finite]),
            infinite[0] if infinite else None,
            copies,
        )


def _picker(indexes: Sequence[int]) -> Callable[[Sequence[float]], tuple[float, ...]]:
    """What picks the values at some indexes."""
    if len(indexes) > 1:
        return itemgetter(*indexes)
    return lambda values: tuple(values[i] for i in indexes)


def _agreed(values: Sequence[float], indexes: Sequence[int], signal: Signal, scale: float) -> float | str:
    value = values[indexes[0]] if indexes else math.nan
    if not indexes:
        return "exposed with labels that kvwatch does not expect"
    if len(indexes) > 1 and any(values[i] != value for i in indexes[1:]):
        return "several processes or copies report different values, and nothing says which one is alive"
    if not math.isfinite(value):
        return f"vLLM reports {value}"
    if value < signal.low:
        if value == -1 and signal.name == "prefix_cache_lifetime_hit_ratio":
            return "vLLM reports -1: prefix caching is off, or nothing was looked up yet"
        return f"vLLM reports {value:g}, below {signal.low:g}"
    value *= scale
    if value > signal.high:
        if value <= signal.high * 1.0001:
            return signal.high
        return f"vLLM reports {value:g}, above {signal.high:g}: dead processes may be counted"
    return value


def scale_of(alias: Alias, config: CacheConfig) -> float | str:
    if alias.unit is Unit.SAME:
        return 1.0
    if alias.unit is Unit.BLOCKS:
        return config.block_size or "counted in blocks, and the block size is not exposed"
    return "blocks or tokens: its HELP text, which would say which, is not on the page"
