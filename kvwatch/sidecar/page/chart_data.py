"""What an engine did in the last minutes, as the page tells it beside each chart: in a sentence, and by minute."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby, pairwise
from math import ceil
from statistics import fmean, median

from kvwatch.core.history.window import Sample, increase
from kvwatch.core.judgement.derive import MINUTE
from kvwatch.core.judgement.state import EngineState, State
from kvwatch.sidecar.page.markup import number, percent
from kvwatch.text.numbers import NOTHING, format_duration

SHOWN_S = 600.0
"""How far back the charts go, seconds."""
_GAP = 4.0
"""Intervals without a sample that make a gap."""
RESTARTED = "vLLM restarted"


@dataclass(frozen=True, slots=True)
class ChartRun:
    """A regime that lasted, `start` to `end` in seconds before now."""

    regime: str
    start: float
    end: float

    @property
    def seconds(self) -> float:
        return self.start - self.end


@dataclass(frozen=True, slots=True)
class Lately:
    """The samples of one engine in the last `SHOWN_S`, oldest first, at `now` (monotonic seconds).

    `gap_s` is from where on the time between two samples is a gap, in which nobody knows what was. `restarts` are
    when another process of vLLM than before was first seen, the time of its first sample.
    """

    rows: Sequence[Sample]
    now: float
    gap_s: float
    full: float
    """Usage from which the cache counts as full."""
    restarts: Sequence[float] = ()

    @property
    def span_s(self) -> float:
        """How far back there is something to show, in whole minutes: charts of a server that was just started fill
        their width."""
        seen = self.now - self.rows[0].t if self.rows else 0.0
        return min(max(ceil(seen / MINUTE), 1) * MINUTE, SHOWN_S)

    def runs(self) -> list[ChartRun]:
        """The regimes one after another. Each sample holds until the next; what is in a gap is left out, and a
        restart ends what was before it."""
        found: list[ChartRun] = []
        ends = [row.t for row in self.rows[1:]] + [self.now]
        for row, end in zip(self.rows, ends, strict=False):
            held = end if end - row.t < self.gap_s else row.t + self.gap_s / _GAP
            start, stop = self.now - row.t, self.now - held
            goes_on = found and found[-1].regime == row.regime and abs(found[-1].end - start) < 1e-6
            if goes_on and row.t not in self.restarts:
                found[-1] = ChartRun(row.regime, found[-1].start, stop)
            else:
                found.append(ChartRun(row.regime, start, stop))
        return found

    def usage(self) -> str:
        values = [row.usage for row in self.rows if row.usage is not None]
        if not values:
            return "not known"
        full = sum(
            after.t - row.t
            for row, after in pairwise(self.rows)
            if row.usage is not None and row.usage >= self.full and after.t - row.t < self.gap_s
        )
        return (
            f"median {percent(median(values))}, highest {percent(max(values))}, "
            f"at or above {100 * self.full:g} % for {format_duration(full)}"
        )

    def queue(self) -> str:
        running = [row.running for row in self.rows if row.running is not None]
        waiting = [row.waiting for row in self.rows if row.waiting is not None]
        if not running or not waiting:
            return "not known"
        return (
            f"running: median {number(median(running))}, most {number(max(running))}; "
            f"waiting: median {number(median(waiting))}, most {number(max(waiting))}"
        )

    def preemptions(self) -> str:
        some = increase(self.rows, "preemptions_total")
        if some is None:
            return "not known"
        last = increase([row for row in self.rows if row.t >= self.now - MINUTE], "preemptions_total")
        return f"{number(some)} in all, {number(last)} in the last minute"

    def by_minute(self) -> Iterator[tuple[str, ...]]:
        """Newest first: how long ago, the regime that lasted longest, usage, running, waiting, preemptions."""
        seen = 0
        for ago, rows in groupby(
            reversed(self.rows), key=lambda row: int(max(self.now - row.t, 0.0) // MINUTE)
        ):
            held = list(rows)
            seen += len(held)
            before = self.rows[max(len(self.rows) - seen - 1, 0)]
            regimes = [row.regime for row in held]
            began = [at for at in self.restarts if int(max(self.now - at, 0.0) // MINUTE) == ago]
            when = "the last minute" if ago == 0 else f"{ago} to {ago + 1} min ago"
            yield (
                f"{when}, {RESTARTED}" if began else when,
                max(set(regimes), key=regimes.count),
                _mean_of([row.usage for row in held], percent),
                _mean_of([row.running for row in held], number),
                _mean_of([row.waiting for row in held], number),
                number(increase([before, held[0]], "preemptions_total")),
            )


def lately(state: State, engine: EngineState, now: float) -> Lately:
    """The last minutes of one engine."""
    interval = state.last.interval_s if state.last else 1.0
    rows = engine.before_restart.with_current(engine.windows, now - SHOWN_S)
    since = rows[0].t if rows else now
    restarts = [one.t for one in state.events if one.kind == "restart" and one.t > since]
    return Lately(rows, now, _GAP * max(interval, 1.0), state.limits["regime.full_usage"], restarts)


def _mean_of(values: Sequence[float | None], word: Callable[[float], str]) -> str:
    there = [value for value in values if value is not None]
    return word(fmean(there)) if there else NOTHING
