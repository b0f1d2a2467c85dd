"""What kvwatch saw of an engine's earlier processes. Shown to people; never judged.

A restart ends an engine's windows, because numbers of the old process say nothing about the new one. A person who
looks at an incident wants both, with the restart between them.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from kvwatch.core.history.window import TRACKED, HistogramTotals, Sample, Windows
from kvwatch.core.model.timed_rows import History

_MIN_HISTOGRAMS = 2
"""An increase needs two histograms of one process."""


@dataclass(frozen=True, slots=True)
class BeforeRestart:
    """The earlier processes of one engine.

    `samples` are of all of them, oldest first; each process continues the counter totals of the one before. `totals`
    are the totals at the end, in the order of `TRACKED`. `histograms` has one history per process.
    """

    samples: History[Sample] = field(default_factory=History)
    histograms: tuple[History[HistogramTotals], ...] = ()
    totals: tuple[float, ...] = (0.0,) * len(TRACKED)

    def with_process(self, windows: Windows, keep_s: float) -> BeforeRestart:
        """The earlier processes including one that ended, whose histories are `windows`."""
        samples, last = self.samples, windows.samples.last
        if last is None:
            return self
        for row in self._add_totals(windows.samples.rows()):
            samples = samples.append(row, keep_s)
        histograms = self.histograms
        if len(windows.histograms) >= _MIN_HISTOGRAMS:
            histograms = (*histograms, windows.histograms)
        newest = _newest_totals(windows.samples.rows())
        return BeforeRestart(
            samples, histograms, tuple([a + b for a, b in zip(self.totals, newest, strict=True)])
        )

    def without_before(self, start: float) -> BeforeRestart:
        """The earlier processes without what is wholly older than `start`."""
        if not self.samples and not self.histograms:
            return self
        kept = [one for one in self.histograms if one.last is not None and one.last.t >= start]
        return BeforeRestart(self.samples.without_before(start), tuple(kept), self.totals)

    def with_current(self, windows: Windows, start: float) -> list[Sample]:
        """All samples from `start` on, oldest first, including those of the current process."""
        rows = [*self.samples.since(start), *self._add_totals(windows.samples.since(start))]
        return [row for row in rows if row.t >= start]

    def _add_totals(self, rows: Sequence[Sample]) -> Iterator[Sample]:
        """Samples of the next process, with the totals of the earlier ones added."""
        if not any(self.totals):
            yield from rows
            return
        for row in rows:
            totals = [
                None if total is None else base + total
                for base, total in zip(self.totals, row.totals, strict=True)
            ]
            yield row._replace(totals=tuple(totals))


def _newest_totals(rows: Sequence[Sample]) -> list[float]:
    """The newest total of each counter; 0 for a counter that was never exposed."""
    found: list[float] = []
    for index in range(len(TRACKED)):
        totals = (row.totals[index] for row in reversed(rows))
        found.append(next((total for total in totals if total is not None), 0.0))
    return found
