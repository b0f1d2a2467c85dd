"""One alias of one signal as exposed for one engine: where its numbers are on a page, and how to read them.

A candidate gives a value, or the reason why it gives none. Series that should be equal (one per ``pid`` in
multi-process mode, copies from a relay) must agree; otherwise nothing shows which one is alive.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from operator import itemgetter
from typing import NamedTuple

from kvwatch.core.dialect.vllm import Alias, Part, Unit
from kvwatch.core.model.signals import Signal, SignalKind
from kvwatch.core.model.snapshot import CacheConfig, Histogram, Value

_TOLERANCE = 1.0001
"""A value this much above the highest possible one is a rounding error."""


class _BucketLayout(NamedTuple):
    """Finite bounds ascending, a function that picks their counts, the index of the +Inf bucket, and pairs of indexes
    whose values must be equal."""

    bounds: tuple[float, ...]
    counts: Callable[[Sequence[float]], tuple[float, ...]]
    infinite: int | None
    copies: tuple[tuple[int, int], ...]


@dataclass(slots=True)
class SeriesCandidate:
    """One alias of one signal of one engine: the indexes of its numbers in the list of values."""

    alias: Alias
    single: list[int] = field(default_factory=list)
    by_label: dict[str, list[int]] = field(default_factory=dict)
    sums: list[int] = field(default_factory=list)
    counts: list[int] = field(default_factory=list)
    buckets: dict[float, list[int]] = field(default_factory=dict)
    _layout: _BucketLayout | None = None

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
        """The value, or the reason why it is missing."""
        if signal.kind is SignalKind.HISTOGRAM:
            return self._histogram(values)
        if signal.dimension:
            found: dict[str, float] = {}
            for label, indexes in self.by_label.items():
                one = _single_value(values, indexes, signal, scale)
                if isinstance(one, str):
                    return one
                found[label] = one
            return found or f"exposed without the label '{self.alias.label}'"
        return _single_value(values, self.single, signal, scale)

    def _histogram(self, values: Sequence[float]) -> Value | str:
        if not self.sums or not self.counts:
            return "the histogram's sum or count is not exposed"
        if self._layout is None:
            self._layout = self._bucket_layout()
        bounds, pick, infinite, copies = self._layout
        if copies and any(values[one] != values[other] for one, other in copies):
            return "several series of one engine disagree"
        total, count = values[self.sums[0]], values[self.counts[0]]
        if infinite is not None:
            count = values[infinite]  # of the same moment as the buckets; `_count` may be newer
        counts = pick(values)
        cumulative = [0.0, *counts, count]
        if not math.isfinite(sum(cumulative) + total):
            return "not a number"
        if cumulative != sorted(cumulative):
            return "the buckets are not cumulative"
        return Histogram(total, count, bounds, counts)

    def _bucket_layout(self) -> _BucketLayout:
        finite = sorted(le for le in self.buckets if not math.isinf(le))
        infinite = self.buckets.get(math.inf)
        copies = tuple(
            (found[0], other)
            for found in (self.sums, self.counts, *self.buckets.values())
            for other in found[1:]
        )
        pick = _picker([self.buckets[le][0] for le in finite])
        return _BucketLayout(tuple(finite), pick, infinite[0] if infinite else None, copies)


def _picker(indexes: Sequence[int]) -> Callable[[Sequence[float]], tuple[float, ...]]:
    """A function that picks the values at `indexes`."""
    if len(indexes) > 1:
        return itemgetter(*indexes)
    return lambda values: tuple(values[i] for i in indexes)


def _single_value(
    values: Sequence[float], indexes: Sequence[int], signal: Signal, scale: float
) -> float | str:
    value = values[indexes[0]] if indexes else math.nan
    if not indexes:
        return "exposed with labels that kvwatch does not expect"
    if len(indexes) > 1 and any(values[i] != value for i in indexes[1:]):
        return "several processes or copies report different values, and nothing shows which one is alive"
    if not math.isfinite(value):
        return f"vLLM reports {value}"
    if value < signal.low:
        if value == -1 and signal.name == "prefix_cache_lifetime_hit_ratio":
            return "vLLM reports -1: prefix caching is off, or nothing was looked up yet"
        return f"vLLM reports {value:g}, below {signal.low:g}"
    value *= scale
    if value > signal.high:
        if value <= signal.high * _TOLERANCE:
            return signal.high
        return f"vLLM reports {value:g}, above {signal.high:g}: it may count processes that died"
    return value


def scale_of(alias: Alias, config: CacheConfig) -> float | str:
    """The factor from the exposed unit to the signal's, or the reason why it is unknown."""
    if alias.unit is Unit.SAME:
        return 1.0
    if alias.unit is Unit.BLOCKS:
        return config.block_size or "counted in blocks, and the block size is not exposed"
    return "counted in blocks or tokens: the HELP text that says which is not on the page"
