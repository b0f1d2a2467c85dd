"""What a run gained, step by step: everything that a comparison is made of, as sums that can be added up again.

A *column* is one thing that adds up over time: the tokens generated, the observations in one bucket of a histogram,
the seconds spent at one level of KV usage. Any number of a run (a quantile, a rate, a share) is worked out from the
sums of columns over some steps; over all of them for the number itself, over resampled ones for its error.

Increments are those of `kvwatch.core.history.window`: a counter that falls was reset, and neither the time
in a gap nor what
happened in it belongs to any step. **Over the engines of a server** requests, tokens and observations are added up;
seconds of usage and of regimes are those of all engines together.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise

from kvwatch.core.history.window import TRACKED, Sample, add_to_total
from kvwatch.core.judgement.percentiles import LATENCIES, LENGTHS
from kvwatch.core.judgement.state import EngineState, State
from kvwatch.core.model.snapshot import EngineKey, Histogram

#: Histograms that are compared.
HISTOGRAMS: tuple[str, ...] = (*LATENCIES, *LENGTHS)
#: Parts of the columns of usage: its seconds are kept at levels this fine.
USAGE_LEVELS = 200
#: Seconds watched, and those of all engines together.
SECONDS, ENGINE_SECONDS = "seconds", "engine_seconds"
#: Integrals of gauges over time, of which means are made.
RUNNING, WAITING = "running x seconds", "waiting x seconds"
#: Seconds of the fullest mark.
FULL_MARK, FULL_SECONDS = 0.95, "seconds of usage >= 0.95"
_MOST_STEPS = 1200


def bucket(signal: str, index: int) -> str:
    """The column of observations up to one bound."""
    return f"{signal} <= {index}"


def count(signal: str) -> str:
    return f"{signal} count"


def total(signal: str) -> str:
    return f"{signal} sum"


def level(index: int) -> str:
    """The column of seconds at one level of usage."""
    return f"usage {index}"


def in_regime(regime: str) -> str:
    return f"regime {regime}"


@dataclass(frozen=True, slots=True)
class RunSeries:
    """Steps of about equal length, oldest first: `columns` hold what each step gained, zero where nothing.

    `ends` are seconds since the begin of the run; `bounds` are those of the histograms.
    """

    ends: tuple[float, ...] = ()
    columns: Mapping[str, tuple[float, ...]] = field(default_factory=dict)
    bounds: Mapping[str, tuple[float, ...]] = field(default_factory=dict)

    def sums(self) -> dict[str, float]:
        """Each column over the whole run."""
        return {name: sum(values) for name, values in self.columns.items()}


class Increments:
    """Collects a `Series` from states, one after each scrape. The number of steps stays bounded: when they become too
    many, each two become one."""

    def __init__(self) -> None:
        self._last: dict[EngineKey, tuple[Sample, Mapping[str, Histogram]]] = {}
        self._steps: list[tuple[float, dict[str, float]]] = []
        self._width, self._in_newest = 1, 0
        self._bounds: dict[str, tuple[float, ...]] = {}

    def take(self, state: State, *, counts: bool) -> None:
        """Takes the state after a scrape; unless it `counts`, as in a warm-up, only to know where others begin."""
        gained: dict[str, float] = {}
        longest = 0.0
        for key, engine in state.engines.items():
            sample = engine.windows.samples.last
            if not state.up or sample is None or engine.seen_at != state.now:
                continue
            ladders = _ladders(engine)
            before = self._last.get(key)
            self._last[key] = sample, ladders
            seconds = sample.covered - before[0].covered if before else 0.0
            if before is None or seconds <= 0 or not counts:
                continue  # a gap, a restart, or a page of the same moment
            longest = max(longest, seconds)
            _add_sample(gained, before[0], sample, seconds)
            for signal, now in ladders.items():
                self._add_ladder(gained, signal, before[1].get(signal), now)
        if longest > 0:
            gained[SECONDS] = longest
            self._append(state.now or 0.0, gained)

    def series(self, start: float) -> RunSeries:
        """What was collected; times are since `start`."""
        names = sorted({name for _, gained in self._steps for name in gained})
        return RunSeries(
            tuple([end - start for end, _ in self._steps]),
            {name: tuple([gained.get(name, 0.0) for _, gained in self._steps]) for name in names},
            dict(self._bounds),
        )

    def _append(self, end: float, gained: dict[str, float]) -> None:
        if self._steps and self._in_newest < self._width:
            self._steps[-1] = end, _added(self._steps[-1][1], gained)
            self._in_newest += 1
            return
        if len(self._steps) >= _MOST_STEPS:
            pairs = zip(self._steps[::2], self._steps[1::2], strict=True)
            self._steps = [(after[0], _added(before[1], after[1])) for before, after in pairs]
            self._width *= 2
        self._steps.append((end, gained))
        self._in_newest = 1

    def _add_ladder(
        self, gained: dict[str, float], signal: str, before: Histogram | None, now: Histogram
    ) -> None:
        """Adds what a histogram gained; one with other bounds than the first can't be added to it."""
        if before is None or self._bounds.setdefault(signal, now.bounds) != now.bounds:
            return
        rise = add_to_total(before, Histogram(0.0, 0.0, now.bounds, (0.0,) * len(now.bounds)), now)
        if rise.count > 0:
            _add(gained, count(signal), rise.count)
            _add(gained, total(signal), rise.sum)
            for index, some in enumerate(rise.counts):
                if some:
                    _add(gained, bucket(signal, index), some)


def _ladders(engine: EngineState) -> dict[str, Histogram]:
    found = ((name, engine.snapshot.histogram(name)) for name in HISTOGRAMS)
    return {name: one for name, one in found if one is not None and one.bounds}


def _add_sample(gained: dict[str, float], before: Sample, now: Sample, seconds: float) -> None:
    """Adds counters and gauges: of the time between two samples half belongs to each."""
    _add(gained, ENGINE_SECONDS, seconds)
    for name, old, new in zip(TRACKED, before.totals, now.totals, strict=True):
        if old is not None and new is not None and new > old:
            _add(gained, name, new - old)
    for sample in (before, now):
        half = seconds / 2
        _add(gained, in_regime(sample.regime), half)
        if sample.usage is not None:
            _add(gained, level(round(sample.usage * USAGE_LEVELS)), half)
            _add(gained, FULL_SECONDS, half * (sample.usage >= FULL_MARK))
        _add(gained, RUNNING, half * (sample.running or 0.0))
        _add(gained, WAITING, half * (sample.waiting or 0.0))


def _add(gained: dict[str, float], name: str, some: float) -> None:
    gained[name] = gained.get(name, 0.0) + some


def _added(first: Mapping[str, float], second: Mapping[str, float]) -> dict[str, float]:
    both = dict(first)
    for name, some in second.items():
        _add(both, name, some)
    return both


def per_second(series: RunSeries, name: str) -> list[float]:
    """A column of each step per second watched."""
    watched = series.columns.get(SECONDS, ())
    values: Sequence[float] = series.columns.get(name) or (0.0,) * len(watched)
    return [value / seconds for value, seconds in zip(values, watched, strict=True)]


def mean_spacing(ends: Sequence[float]) -> float:
    """Mean seconds between steps."""
    apart = [after - before for before, after in pairwise(ends)]
    return sum(apart) / len(apart) if apart else 0.0
