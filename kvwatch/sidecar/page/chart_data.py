"""The last minutes of one engine: the regime ribbon, a sentence for each chart, and a table by minute."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby, pairwise
from math import ceil
from statistics import fmean, median
from typing import Any

from kvwatch.core.history.regimes import MEANING, Regime
from kvwatch.core.history.window import Sample, increase
from kvwatch.core.judgement.derive import MINUTE
from kvwatch.core.judgement.state import EngineState, State
from kvwatch.sidecar.page.filters import age, number, percent
from kvwatch.text.numbers import NOTHING

SHOWN_S = 600.0
"""How far back the charts go, seconds."""
_GAP = 4.0
"""Scrape intervals without a sample that make a gap."""
_RESTARTED = "vLLM restarted"
_UNKNOWN = "unknown"


@dataclass(slots=True)
class RegimeRun:
    """A regime that lasted from `start` to `end`, in seconds before now."""

    regime: str
    start: float
    end: float

    @property
    def seconds(self) -> float:
        return self.start - self.end


@dataclass(frozen=True, slots=True)
class RecentSamples:
    """The samples of one engine in the last `SHOWN_S`, oldest first, at `now` (monotonic seconds)."""

    rows: Sequence[Sample]
    now: float
    gap_s: float
    """Time between two samples from which it is a gap, in which nothing is known."""
    full: float
    """Usage from which the cache counts as full."""
    restarts: Sequence[float] = ()
    """Times of the first samples of new vLLM processes."""

    @property
    def span_s(self) -> float:
        """The time that the charts cover, in whole minutes, so that they have no empty part after a start."""
        seen = self.now - self.rows[0].t if self.rows else 0.0
        return min(max(ceil(seen / MINUTE), 1) * MINUTE, SHOWN_S)

    def runs(self) -> list[RegimeRun]:
        """The regimes, oldest first. A sample lasts until the next one, or for one interval before a gap. A restart
        ends a run."""
        found: list[RegimeRun] = []
        ends = [row.t for row in self.rows[1:]] + [self.now]
        for row, end in zip(self.rows, ends, strict=False):
            until = end if end - row.t < self.gap_s else row.t + self.gap_s / _GAP
            start, stop = self.now - row.t, self.now - until
            last = found[-1] if found else None
            same = last and last.regime == row.regime and abs(last.end - start) < 1e-6
            if last and same and row.t not in self.restarts:
                last.end = stop
            else:
                found.append(RegimeRun(row.regime, start, stop))
        return found

    def ribbon(self) -> dict[str, Any]:
        """The regimes as bands and the restarts as marks, at 0 to 100 from left to right; `legend` is by duration."""
        runs = self.runs()
        seconds: defaultdict[str, float] = defaultdict(float)
        for run in runs:
            seconds[run.regime] += run.seconds
        legend = sorted(seconds.items(), key=lambda item: -item[1])
        marks = [(self.now - at, f"{_RESTARTED} {age(self.now - at)} ago") for at in self.restarts]
        durations = ", ".join(f"{regime} {age(lasted)}" for regime, lasted in legend) or "no samples"
        return {
            "summary": "; ".join([durations, *(title for _, title in marks)]),
            "bands": [
                {
                    "regime": run.regime,
                    "left": f"{max(self._position(run.start), 0):.2f}",
                    "width": f"{100 * run.seconds / self.span_s:.2f}",
                    "title": f"{run.regime} for {age(run.seconds)}, until {age(run.end)} ago",
                }
                for run in runs
            ],
            "marks": [(f"{self._position(ago):.2f}", title) for ago, title in marks],
            "legend": [(regime, age(lasted), MEANING[Regime(regime)]) for regime, lasted in legend],
        }

    def _position(self, ago: float) -> float:
        return 100 * (1 - ago / self.span_s)

    def usage(self) -> str:
        seen = [row.usage for row in self.rows if row.usage is not None]
        if not seen:
            return _UNKNOWN
        full_s = sum(
            after.t - row.t
            for row, after in pairwise(self.rows)
            if row.usage is not None and row.usage >= self.full and after.t - row.t < self.gap_s
        )
        return (
            f"median {percent(median(seen))}, max {percent(max(seen))}, "
            f"at or above {percent(self.full)} for {age(full_s)}"
        )

    def queue(self) -> str:
        columns = {
            "running": [row.running for row in self.rows if row.running is not None],
            "waiting": [row.waiting for row in self.rows if row.waiting is not None],
        }
        if not all(columns.values()):
            return _UNKNOWN
        return "; ".join(
            f"{name}: median {number(median(seen))}, max {number(max(seen))}"
            for name, seen in columns.items()
        )

    def preemptions(self) -> str:
        total = increase(self.rows, "preemptions_total")
        if total is None:
            return _UNKNOWN
        last = increase([row for row in self.rows if row.t >= self.now - MINUTE], "preemptions_total")
        in_last = "" if last is None else f", {number(last)} in the last minute"
        return f"{number(total)} in total{in_last}"

    def by_minute(self) -> Iterator[tuple[str, tuple[str, ...]]]:
        """Newest first: how long ago, the most frequent regime, mean usage, running, waiting, and preemptions."""

        def minutes_ago(t: float) -> int:
            return int(max(self.now - t, 0.0) // MINUTE)

        seen = 0
        for ago, group in groupby(reversed(self.rows), key=lambda row: minutes_ago(row.t)):
            rows = list(group)
            seen += len(rows)
            before = self.rows[max(len(self.rows) - seen - 1, 0)]
            regimes = [row.regime for row in rows]
            when = "the last minute" if ago == 0 else f"{ago} to {ago + 1} min ago"
            yield (
                f"{when}, {_RESTARTED}" if ago in map(minutes_ago, self.restarts) else when,
                (
                    max(set(regimes), key=regimes.count),
                    _mean([row.usage for row in rows], percent),
                    _mean([row.running for row in rows], number),
                    _mean([row.waiting for row in rows], number),
                    number(increase([before, rows[0]], "preemptions_total")),
                ),
            )


def recent_samples(state: State, engine: EngineState, now: float) -> RecentSamples:
    interval = state.last.interval_s if state.last else 1.0
    rows = engine.before_restart.with_current(engine.windows, now - SHOWN_S)
    since = rows[0].t if rows else now
    restarts = [one.t for one in state.events if one.kind == "restart" and one.t > since]
    return RecentSamples(rows, now, _GAP * max(interval, 1.0), state.limits["regime.full_usage"], restarts)


def _mean(seen: Sequence[float | None], words: Callable[[float], str]) -> str:
    known = [value for value in seen if value is not None]
    return words(fmean(known)) if known else NOTHING
