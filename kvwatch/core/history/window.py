"""What an engine did lately: counters that survive resets, time that survives gaps, and looks back at both.

Theory of operation
    **Counters** are turned into *climbs*: the sum of increases seen since kvwatch first saw the counter. A
    counter that falls was reset, and its new value is the increase since. So an increase over a window is the
    difference of two climbs, never negative, whatever happened in between.

    **Gaps.** Two good samples further apart than `gap_s` have a gap between them. Neither the time in it nor
    what the counters did in it belongs to any window: the climbs and the covered time stand still across it.
    A rate is an increase over covered time, so there is no rate across a gap.

    **Time.** Between two samples half of the time belongs to each: the weight of a `Sample` is half of the time
    to its neighbours. A late poll then favours neither side. Shares of time and time-weighted quantiles are
    over those weights.

Histogram quantiles are Prometheus' `histogram_quantile`: linear inside a bucket, from zero in the first.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import NamedTuple

from kvwatch.core.model.snapshot import Histogram
from kvwatch.core.model.timed_rows import History


class Sample(NamedTuple):
    """What one good scrape said of an engine, as far as windows need it.

    `covered` is the seconds watched so far, gaps left out. `climbs` are counters without resets, by the order
    of `TRACKED`; None where the counter was missing. `demand` and the gauges are None where unknown.
    """

    t: float
    covered: float
    usage: float | None
    running: float | None
    waiting: float | None
    """Everything that waits, swapped out requests included."""
    deferred: float
    demand: float | None
    regime: str
    climbs: tuple[float | None, ...]


#: Counters that windows look at, by signal; a labelled one as the sum over its label, or one label's value. Those
#: of the server are seen by each of its engines.
TRACKED: tuple[str, ...] = (
    "preemptions_total",
    "requests_finished_total",
    "requests_finished_total/error",
    "requests_finished_total/abort",
    "prompt_tokens_total",
    "generation_tokens_total",
    "prefix_cache_queried_tokens_total",
    "prefix_cache_hit_tokens_total",
    "external_prefix_cache_queried_tokens_total",
    "external_prefix_cache_hit_tokens_total",
    "prompt_tokens_by_source_total",
    "prompt_tokens_by_source_total/local_cache_hit",
    "prompt_tokens_by_source_total/external_kv_transfer",
    "iteration_tokens",
    "request_prompt_tokens",
    "request_prompt_tokens/sum",
    "admission_rejections_total",
    "http_responses_total",
)
_INDEX = {name: i for i, name in enumerate(TRACKED)}


@dataclass(frozen=True, slots=True)
class CounterTotal:
    """A counter without its resets: `raw` as last exposed, `total` the increase seen so far."""

    raw: float
    total: float = 0.0

    def step(self, raw: float, *, gap: bool) -> CounterTotal:
        """After `raw` was seen; an increase across a gap is nobody's."""
        if gap or raw == self.raw:
            return self if raw == self.raw else CounterTotal(raw, self.total)
        return CounterTotal(raw, self.total + (raw - self.raw if raw >= self.raw else raw))

    def fell(self, raw: float) -> bool:
        return raw < self.raw


class HistogramTotals(NamedTuple):
    """Histograms at one instant, as climbs: by signal, counts at each bound and in all."""

    t: float
    by_signal: Mapping[str, Histogram]


class Minute(NamedTuple):
    """What is kept of each minute for an hour: histograms and counters as climbs, and the 95th percentile of the
    time to first token over the 5 minutes before it, seconds."""

    t: float
    by_signal: Mapping[str, Histogram]
    climbs: tuple[float | None, ...]
    ttft_p95: float | None


def add_to_total(before: Histogram | None, climbed: Histogram | None, now: Histogram) -> Histogram:
    """The climb of a histogram: `climbed` plus what `now` has more than `before`.

    Bounds that changed, as after a restart with other settings, start a new climb.
    """
    if before is None or climbed is None or before.bounds != now.bounds:
        return Histogram(0.0, 0.0, now.bounds, (0.0,) * len(now.bounds))
    base = before if now.count >= before.count else Histogram(0.0, 0.0, now.bounds, (0.0,) * len(now.bounds))
    return Histogram(
        climbed.sum + max(now.sum - base.sum, 0.0),
        climbed.count + now.count - base.count,
        now.bounds,
        tuple([c + max(n - b, 0.0) for c, n, b in zip(climbed.counts, now.counts, base.counts, strict=True)]),
    )


@dataclass(frozen=True, slots=True)
class Quantile:
    """A quantile of a histogram. `at_least`: it lies beyond the last finite bound, which is `value`."""

    value: float
    at_least: bool = False


def quantile(increase: Histogram, q: float) -> Quantile | None:
    """The q-quantile (0-1) of observations counted in buckets; None without any."""
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
    """How many observations were above a value, linear inside a bucket; those beyond the last bound are."""
    low, below = 0.0, 0.0
    for bound, count in zip(increase.bounds, increase.counts, strict=True):
        if value < bound:
            share = (value - low) / (bound - low) if bound > low else 0.0
            return increase.count - below - (count - below) * max(share, 0.0)
        low, below = bound, count
    return increase.count - below


def histogram_increase(rows: Sequence[HistogramTotals | Minute], signal: str) -> Histogram | None:
    """What a histogram counted from the first to the last of `rows`; None without two of the same bounds."""
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
    """How much a tracked counter rose over the rows; None if it was missing or there is but one row."""
    index = _INDEX[counter]
    last = rows[-1].climbs[index] if rows else None
    if last is None:
        return None
    for row in rows[:-1]:
        first = row.climbs[index]
        if first is not None:
            return max(last - first, 0.0)
    return None


def rate(rows: Sequence[Sample], counter: str) -> float | None:
    """Increase per covered second; None if missing or nothing is covered."""
    index = _INDEX[counter]
    last = rows[-1].climbs[index] if rows else None
    first = next((row for row in rows[:-1] if row.climbs[index] is not None), None)
    if last is None or first is None or rows[-1].covered <= first.covered:
        return None
    return max(last - (first.climbs[index] or 0.0), 0.0) / (rows[-1].covered - first.covered)


def covered(rows: Sequence[Sample]) -> float:
    """Seconds watched from the first row to the last."""
    return rows[-1].covered - rows[0].covered if rows else 0.0


def weights(rows: Sequence[Sample], start: float) -> list[tuple[Sample, float]]:
    """Each row with the seconds it stands for, within the window that begins at `start`.

    Between two samples nobody looked: half of the time goes to each.
    """
    halves = [(after.covered - row.covered) / 2 for row, after in pairwise(rows)]
    seconds = [before + after for before, after in zip([0.0, *halves], [*halves, 0.0], strict=True)]
    for i, half in enumerate(halves):
        if rows[i].t >= start:
            break
        inside = min(max(rows[i + 1].t - start, 0.0), 2 * half)
        seconds[i] += min(max(inside - half, 0.0), half) - half
        seconds[i + 1] += min(inside, half) - half
    return [(row, held) for row, held in zip(rows, seconds, strict=True) if held > 0]


def seconds_where(held: Sequence[tuple[Sample, float]], true: Callable[[Sample], bool]) -> float:
    """Seconds in which a condition held."""
    return sum(seconds for row, seconds in held if true(row))


def weighted_quantile(pairs: Sequence[tuple[float, float]], q: float) -> float | None:
    """The smallest value such that values up to it held for at least the share `q` of the time."""
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
    """An engine's histories.

    `samples` at full resolution, `ladders` of the last five minutes, and `minutes` of the last hour, sparser.
    """

    samples: History[Sample] = field(default_factory=History)
    ladders: History[HistogramTotals] = field(default_factory=History)
    minutes: History[Minute] = field(default_factory=History)
