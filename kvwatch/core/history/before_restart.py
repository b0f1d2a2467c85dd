"""What was seen of an engine before other processes of vLLM took over: kept to be shown, judged by nobody.

A restart ends an engine's windows, since what the old process did says nothing of the new one. Who looks at what
happened wants to see both, the restart between them.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from kvwatch.core.history.window import TRACKED, HistogramTotals, Sample, Windows
from kvwatch.core.model.timed_rows import History

_ENOUGH = 2
"""Fewer histograms of one process have no increase between them."""


@dataclass(frozen=True, slots=True)
class BeforeRestart:
    """The earlier processes of one engine.

    `samples` of all of them, oldest first, each counter going on from where the process before left it, as
    `risen` (by the order of `TRACKED`) says of the newest; `ladders` are those of each process.
    """

    samples: History[Sample] = field(default_factory=History)
    ladders: tuple[History[HistogramTotals], ...] = ()
    risen: tuple[float, ...] = (0.0,) * len(TRACKED)

    def ended(self, windows: Windows, keep_s: float) -> BeforeRestart:
        """With what was seen of a process that is no more."""
        samples, last = self.samples, windows.samples.last
        if last is None:
            return self
        for row in self.continued(windows.samples.rows()):
            samples = samples.append(row, keep_s)
        ladders = (*self.ladders, windows.ladders) if len(windows.ladders) >= _ENOUGH else self.ladders
        climbed = _newest(windows.samples.rows())
        return BeforeRestart(
            samples, ladders, tuple([a + b for a, b in zip(self.risen, climbed, strict=True)])
        )

    def kept(self, start: float) -> BeforeRestart:
        """Without what is wholly older than `start`."""
        if not self.samples and not self.ladders:
            return self
        left = [one for one in self.ladders if one.last is not None and one.last.t >= start]
        return BeforeRestart(self.samples.kept(start), tuple(left), self.risen)

    def continued(self, rows: Sequence[Sample]) -> Iterator[Sample]:
        """Samples of the process that came after, counted on from where this ended."""
        if not any(self.risen):
            yield from rows
            return
        for row in rows:
            climbs = [
                None if climb is None else base + climb
                for base, climb in zip(self.risen, row.climbs, strict=True)
            ]
            yield row._replace(climbs=tuple(climbs))

    def with_now(self, windows: Windows, start: float) -> list[Sample]:
        """All samples from `start` on, those of the present process too, oldest first."""
        rows = [*self.samples.since(start), *self.continued(windows.samples.since(start))]
        return [row for row in rows if row.t >= start]


def _newest(rows: Sequence[Sample]) -> list[float]:
    """Of each counter its newest climb; 0 for one that was never there."""
    found: list[float] = []
    for index in range(len(TRACKED)):
        climbs = (row.climbs[index] for row in reversed(rows))
        found.append(next((climb for climb in climbs if climb is not None), 0.0))
    return found
