"""The recent history of an engine: counter totals without resets, covered time without gaps, and functions over both.

Theory of operation
    **Counters** become *totals*: the sum of the increases since kvwatch first saw the counter. A counter that falls
    was reset, and its new value is the increase since. So the increase over a window is the difference of two totals,
    never negative.

    **Gaps.** Two good samples further apart than `gap_s` have a gap between them. Neither the time nor the increases
    in it belong to any window: totals and covered time stay the same across it. A rate is an increase divided by
    covered time, so there is no rate across a gap.

    **Time.** Of the time between two samples half belongs to each: a `Sample` has the weight of half the time to its
    neighbours, so a late poll favours neither side. Shares of time and time-weighted quantiles use these weights.

Histogram quantiles follow Prometheus' `histogram_quantile`: linear inside a bucket, from zero in the first.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import NamedTuple

from kvwatch.core.model.named_rows import NamedRows
from kvwatch.core.model.signals import WINDOWED
from kvwatch.core.model.snapshot import Histogram
from kvwatch.core.model.timed_rows import History

TRACKED: tuple[str, ...] = tuple(counter.name for counter in WINDOWED)
"""The windowed counters by name (`kvwatch.core.model.signals`). A server's counter is kept for each of its
engines."""
_INDEX = NamedRows(
    {name: i for i, name in enumerate(TRACKED)},
    "add windowed=(...) to the signal's row in kvwatch/core/model/signals.py",
)


class Sample(NamedTuple):
    """One good scrape of an engine, as windows need it.

    `covered` is the seconds watched so far, without gaps. `totals` are counter totals in the order of `TRACKED`, None
    for a missing counter. `demand` and the gauges are None if unknown.
    """

    t: float
    covered: float
    usage: float | None
    running: float | None
    waiting: float | None
    """All waiting requests, swapped out ones included."""
    deferred: float
    demand: float | None
    regime: str
    totals: tuple[float | None, ...]

    def total(self, counter: str) -> float | None:
        """The total of a windowed counter; None if missing."""
        return self.totals[_INDEX[counter]]


@dataclass(frozen=True, slots=True)
class CounterTotal:
    """A counter without resets: `raw` is its last exposed value, `total` the increase seen so far."""

    raw: float
    total: float = 0.0

    def add(self, raw: float, *, gap: bool) -> CounterTotal:
        """The total after `raw` was exposed. An increase across a gap is not counted."""
        if gap or raw == self.raw:
            return self if raw == self.raw else CounterTotal(raw, self.total)
        return CounterTotal(raw, self.total + (raw - self.raw if raw >= self.raw else raw))

    def is_reset(self, raw: float) -> bool:
        return raw < self.raw


class HistogramTotals(NamedTuple):
    """The histogram totals at one moment, by signal."""

    t: float
    by_signal: Mapping[str, Histogram]


class Minute(NamedTuple):
    """Kept once a minute for an hour: histogram and counter totals, and the 95th percentile of the time to first
    token over the 5 minutes before, in seconds."""

    t: float
    by_signal: Mapping[str, Histogram]
    totals: tuple[float | None, ...]
    ttft_p95: float | None


def add_to_total(before: Histogram | None, total: Histogram | None, now: Histogram) -> Histogram:
    """The total of a histogram: `total` plus the increase from `before` to `now`.

    If the bounds changed, as after a restart with other settings, a new total starts.
    """
    if before is None or total is None or before.bounds != now.bounds:
        return Histogram(0.0, 0.0, now.bounds, (0.0,) * len(now.bounds))
    base = before if now.count >= before.count else Histogram(0.0, 0.0, now.bounds, (0.0,) * len(now.bounds))
    return Histogram(
        total.sum + max(now.sum - base.sum, 0.0),
        total.count + now.count - base.count,
        now.bounds,
        tuple([c + max(n - b, 0.0) for c, n, b in zip(total.counts, now.counts, base.counts, strict=True)]),
    )


@dataclass(frozen=True, slots=True)
class Quantile:
    """A quantile of a histogram. `at_least`: it lies above the last finite bound, which is `value`."""

    value: float
    at_least: bool = False


def quantile(increase: Histogram, q: float) -> Quantile | None:
    """The q-quantile (q is 0-1) of the observations in the buckets; None without observations."""
    if increase.count <= 0 or not increase.bounds:
        return None
    rank = q * increase.count
    if rank > increase.counts[-1]:
        return Quantile(increase.bounds[-1], at_least=True)
    i = next(i for i, count in enumerate(increase.counts) if count >= rank)
    low, below = (
        (increase.bounds[i - 1], increase.counts[i - 1]) if i else (min(0.0, increase.bounds[0]), 0.0)
    )
    inside = increase.counts[i] - below
    if inside <= 0:
        return Quantile(low)
    return Quantile(low + (increase.bounds[i] - low) * (rank - below) / inside)


def above(increase: Histogram, value: float) -> float:
    """The number of observations above a value, linear inside a bucket; those above the last bound count."""
    low, below = 0.0, 0.0
    for bound, count in zip(increase.bounds, increase.counts, strict=True):
        if value < bound:
            share = (value - low) / (bound - low) if bound > low else 0.0
            return increase.count - below - (count - below) * max(share, 0.0)
        low, below = bound, count
    return increase.count - below


def histogram_increase(rows: Sequence[HistogramTotals | Minute], signal: str) -> Histogram | None:
    """The increase of a histogram from the first to the last of `rows`; None without two of the same bounds."""
    last = next((row.by_signal[signal] for row in reversed(rows) if signal in row.by_signal), None)
    if last is None:
        return None
    first = next(
        (h for row in rows if (h := row.by_signal.get(signal)) is not None and h.bounds == last.bounds), last
    )
    if first is last or first.count > last.count:
        return None
    return Histogram(
        last.sum - first.sum,
        last.count - first.count,
        last.bounds,
        tuple([b - a for a, b in zip(first.counts, last.counts, strict=True)]),
    )


def increase(rows: Sequence[Sample | Minute], counter: str) -> float | None:
    """The increase of a windowed counter over the rows; None if it is missing or there is only one row."""
    index = _INDEX[counter]
    last = rows[-1].totals[index] if rows else None
    if last is None:
        return None
    for row in rows[:-1]:
        first = row.totals[index]
        if first is not None:
            return max(last - first, 0.0)
    return None


def rate(rows: Sequence[Sample], counter: str) -> float | None:
    """The increase per covered second; None if the counter is missing or no time is covered."""
    index = _INDEX[counter]
    last = rows[-1].totals[index] if rows else None
    first = next((row for row in rows[:-1] if row.totals[index] is not None), None)
    if last is None or first is None or rows[-1].covered <= first.covered:
        return None
    return max(last - (first.totals[index] or 0.0), 0.0) / (rows[-1].covered - first.covered)


def covered(rows: Sequence[Sample]) -> float:
    """Seconds watched from the first row to the last."""
    return rows[-1].covered - rows[0].covered if rows else 0.0


def weights(rows: Sequence[Sample], start: float) -> list[tuple[Sample, float]]:
    """Each row with the seconds that it stands for, within the window that begins at `start`."""
    halves = [(after.covered - row.covered) / 2 for row, after in pairwise(rows)]
    seconds = [before + after for before, after in zip([0.0, *halves], [*halves, 0.0], strict=True)]
    for i, half in enumerate(halves):
        if rows[i].t >= start:
            break
        inside = min(max(rows[i + 1].t - start, 0.0), 2 * half)
        seconds[i] += min(max(inside - half, 0.0), half) - half
        seconds[i + 1] += min(inside, half) - half
    return [(row, weight) for row, weight in zip(rows, seconds, strict=True) if weight > 0]


def seconds_where(weighted: Sequence[tuple[Sample, float]], true: Callable[[Sample], bool]) -> float:
    """Seconds in which a condition was true."""
    return sum(seconds for row, seconds in weighted if true(row))


def weighted_quantile(pairs: Sequence[tuple[float, float]], q: float) -> float | None:
    """The smallest value such that values up to it have at least the share `q` (0-1) of the weight."""
    total = sum(weight for _, weight in pairs)
    if total <= 0:
        return None
    reached = 0.0
    for value, weight in sorted(pairs):
        reached += weight
        if reached >= q * total:
            return value
    return max(value for value, _ in pairs)


@dataclass(frozen=True, slots=True)
class Windows:
    """An engine's histories: `samples` at full resolution, `histograms` of the last five minutes, `minutes` of the
    last hour."""

    samples: History[Sample] = field(default_factory=History)
    histograms: History[HistogramTotals] = field(default_factory=History)
    minutes: History[Minute] = field(default_factory=History)
