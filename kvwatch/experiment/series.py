"""A run as columns of increments per step, and their sums.

A *column* is one quantity that adds up over time: generated tokens, observations in one bucket of a histogram,
seconds at one level of KV usage. Every number of a run is computed from sums of columns: over all steps for its
value, over resampled steps for its error.

Increments are those of `kvwatch.core.history.window`: a counter that falls was reset, and a gap belongs to no step.
Over the engines of a server, requests, tokens, observations and engine seconds are added up.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from kvwatch.core.history.window import (
    TRACKED,
    Quantile,
    Sample,
    add_to_total,
    quantile,
    weighted_quantile,
)
from kvwatch.core.judgement.percentiles import LATENCIES, LENGTHS
from kvwatch.core.judgement.state import EngineState, State
from kvwatch.core.model.snapshot import EngineKey, Histogram

Array = NDArray[np.float64]
HISTOGRAMS = (*LATENCIES, *LENGTHS)
"""Histograms that are compared."""
USAGE_LEVELS = 200
"""KV usage is counted in seconds at this many levels."""
SECONDS, ENGINE_SECONDS = "seconds", "engine_seconds"
"""Columns of the seconds watched: of the server, and summed over its engines."""
RUNNING, WAITING = "running x seconds", "waiting x seconds"
"""Columns of gauges integrated over time."""
FULL_USAGE, FULL_SECONDS = 0.95, "seconds of usage >= 0.95"
_MAX_STEPS = 1200


def column(of: str, part: str | int) -> str:
    """The column of a histogram (its ``count``, its ``sum``, or the index of a bucket), of a ``usage`` level, or of a
    ``regime``."""
    return f"{of} {part}"


@dataclass(frozen=True, slots=True, eq=False)
class RunSeries:
    """Steps of about equal length, oldest first. `ends` are seconds since the start of the run; `columns` hold the
    increment of each step; `bounds` are those of the histograms."""

    ends: Array
    columns: Mapping[str, Array]
    bounds: Mapping[str, tuple[float, ...]] = field(default_factory=dict)

    def per_second(self, name: str) -> Array:
        """The increment of each step per second watched."""
        return self.columns.get(name, np.zeros(len(self.ends))) / self.columns.get(SECONDS, self.ends)

    def totals(self) -> Totals:
        return Totals({name: float(values.sum()) for name, values in self.columns.items()}, self.bounds)


@dataclass(frozen=True, slots=True)
class Totals:
    """Sums of columns over a run. A number without data is None."""

    sums: Mapping[str, float]
    bounds: Mapping[str, tuple[float, ...]]

    def sum(self, name: str) -> float:
        return self.sums.get(name, 0.0)

    def ratio(self, numerator: str, denominator: str) -> float | None:
        below = self.sum(denominator)
        return self.sum(numerator) / below if below > 0 else None

    def histogram(self, signal: str) -> Histogram:
        """The observations of a run; empty if there are none."""
        bounds = self.bounds.get(signal, ())
        counts = tuple([self.sum(column(signal, index)) for index in range(len(bounds))])
        return Histogram(self.sum(column(signal, "sum")), self.sum(column(signal, "count")), bounds, counts)

    def quantile(self, signal: str, q: float) -> Quantile | None:
        return quantile(self.histogram(signal), q)

    def usage(self, q: float) -> float | None:
        """The q-quantile (0-1) of KV usage over time."""
        levels = ((i / USAGE_LEVELS, column("usage", i)) for i in range(USAGE_LEVELS + 1))
        return weighted_quantile([(usage, self.sums[name]) for usage, name in levels if name in self.sums], q)


class SeriesBuilder:
    """Builds a `RunSeries` from the states after each scrape. From 1,200 steps on, each two become one."""

    def __init__(self) -> None:
        self._last: dict[EngineKey, tuple[Sample, Mapping[str, Histogram]]] = {}
        self._steps: list[tuple[float, dict[str, float]]] = []
        self._width, self._in_newest = 1, 0
        self._bounds: dict[str, tuple[float, ...]] = {}

    def add(self, state: State, *, counts: bool) -> None:
        """Adds the state after a scrape. If it does not count, as in a warm-up, it only sets where others start."""
        gained: defaultdict[str, float] = defaultdict(float)
        longest = 0.0
        for key, engine in state.engines.items():
            sample = engine.windows.samples.last
            if not state.up or sample is None or engine.seen_at != state.now:
                continue
            before, now = self._last.get(key), (sample, _histograms(engine))
            self._last[key] = now
            seconds = sample.covered - before[0].covered if before else 0.0
            if before is None or seconds <= 0 or not counts:
                continue  # a gap, a restart, or a page of the same moment
            longest = max(longest, seconds)
            _add_sample(gained, before[0], sample, seconds)
            for signal, histogram in now[1].items():
                self._add_histogram(gained, signal, before[1].get(signal), histogram)
        if longest > 0:
            gained[SECONDS] = longest
            self._append(state.now or 0.0, gained)

    def series(self, start: float) -> RunSeries:
        """The steps so far; times are since `start`."""
        names = sorted({name for _, gained in self._steps for name in gained})
        return RunSeries(
            np.array([end - start for end, _ in self._steps]),
            {name: np.array([gained.get(name, 0.0) for _, gained in self._steps]) for name in names},
            dict(self._bounds),
        )

    def _append(self, end: float, gained: dict[str, float]) -> None:
        if self._steps and self._in_newest < self._width:
            self._steps[-1] = _merged(self._steps[-1], (end, gained))
            self._in_newest += 1
            return
        if len(self._steps) >= _MAX_STEPS:
            self._steps = list(map(_merged, self._steps[::2], self._steps[1::2]))
            self._width *= 2
        self._steps.append((end, gained))
        self._in_newest = 1

    def _add_histogram(
        self, gained: dict[str, float], signal: str, before: Histogram | None, now: Histogram
    ) -> None:
        """Adds the increase of a histogram, unless its bounds are not those of the first."""
        if before is None or self._bounds.setdefault(signal, now.bounds) != now.bounds:
            return
        rise = add_to_total(before, Histogram(0.0, 0.0, now.bounds, (0.0,) * len(now.bounds)), now)
        if rise.count > 0:
            gained[column(signal, "count")] += rise.count
            gained[column(signal, "sum")] += rise.sum
            for index, observations in enumerate(rise.counts):
                gained[column(signal, index)] += observations


def _histograms(engine: EngineState) -> dict[str, Histogram]:
    found = ((name, engine.snapshot.histogram(name)) for name in HISTOGRAMS)
    return {name: one for name, one in found if one is not None and one.bounds}


def _add_sample(gained: dict[str, float], before: Sample, now: Sample, seconds: float) -> None:
    """Adds counters and gauges. Half of the time between two samples belongs to each."""
    gained[ENGINE_SECONDS] += seconds
    for name, old, new in zip(TRACKED, before.totals, now.totals, strict=True):
        if old is not None and new is not None and new > old:
            gained[name] += new - old
    half = seconds / 2
    for sample in (before, now):
        gained[column("regime", sample.regime)] += half
        if sample.usage is not None:
            gained[column("usage", round(sample.usage * USAGE_LEVELS))] += half
            gained[FULL_SECONDS] += half * (sample.usage >= FULL_USAGE)
        gained[RUNNING] += half * (sample.running or 0.0)
        gained[WAITING] += half * (sample.waiting or 0.0)


def _merged(
    first: tuple[float, dict[str, float]], second: tuple[float, dict[str, float]]
) -> tuple[float, dict[str, float]]:
    both = defaultdict(float, first[1])
    for name, value in second[1].items():
        both[name] += value
    return second[0], both
