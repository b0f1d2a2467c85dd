"""Integrals over watched time that go on with every sample, so that no window is summed up anew.

Theory of operation
    Between two samples half of the time belongs to each (`kvwatch.core.history.window`). So an integral grows at
    every sample by half of the time since the one before, times what that one showed, and as much times what this one
    shows. Over a window it is the difference of two, less the part of its first step that lies before the window:
    a window of five minutes costs what one of ten seconds costs.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from kvwatch.core.history.regimes import Regime
from kvwatch.core.history.window import Sample
from kvwatch.core.model.timed_rows import History

USAGE, USAGE_KNOWN, RUNNING, WAITING = "usage", "usage_known", "running", "waiting"
"""KV usage ratio x seconds, seconds in which it was known, in which anything ran, and in which anything waited."""

_NAMES = (*(regime.value for regime in Regime), USAGE, USAGE_KNOWN, RUNNING, WAITING)
_IN = {regime.value: tuple(float(one is regime) for one in Regime) for regime in Regime}
_NOTHING = (0.0,) * len(_NAMES)
_KEPT_S = 310.0
"""Longer than any window."""
_DIGITS = 9
"""Of a second that are told: differences of large numbers have some that mean nothing."""


class Integral(NamedTuple):
    """What a sample showed of each name, and the integrals up to it."""

    t: float
    covered: float
    shown: tuple[float, ...]
    sums: tuple[float, ...]


def integrate(history: History[Integral], row: Sample) -> History[Integral]:
    """The integrals, gone on to a sample."""
    known = row.usage is not None
    flags = (float(known), float(bool(row.running)), float(bool(row.waiting)))
    shown = (*_IN[row.regime], row.usage or 0.0, *flags)
    before, sums = history.last, _NOTHING
    if before is not None:
        half = (row.covered - before.covered) / 2
        steps = zip(before.sums, before.shown, shown, strict=True)
        sums = tuple([sum_ + half * (a + b) if a or b else sum_ for sum_, a, b in steps])
    return history.append(Integral(row.t, row.covered, shown, sums), _KEPT_S)


def integral_over(history: History[Integral], start: float) -> Mapping[str, float]:
    """The integrals over a window that begins at `start`, by name: those above, and for each regime its seconds."""
    rows = history.since(start)
    if len(rows) < 2:
        return dict.fromkeys(_NAMES, 0.0)
    first, second = rows[0], rows[1]
    step = second.covered - first.covered
    outside = step - min(max(second.t - start, 0.0), step) if first.t < start else 0.0
    early, late = min(outside, step / 2), max(outside - step / 2, 0.0)
    ends = zip(_NAMES, rows[-1].sums, first.sums, first.shown, second.shown, strict=True)
    return {name: round(z - a - early * one - late * two, _DIGITS) for name, z, a, one, two in ends}
