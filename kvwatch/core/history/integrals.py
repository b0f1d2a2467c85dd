"""Running integrals over covered time, so that no window is summed up again.

Theory of operation
    Of the time between two samples half belongs to each (`kvwatch.core.history.window`). So at every sample an
    integral grows by half of the time since the one before, times that sample's value, and as much times this
    sample's. Over a window it is the difference of two integrals, less the part of the first step that lies before
    the window. A window of five minutes costs as much as one of ten seconds.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from kvwatch.core.history.regimes import Regime
from kvwatch.core.history.window import Sample
from kvwatch.core.model.timed_rows import History

USAGE, USAGE_KNOWN, RUNNING, WAITING = "usage", "usage_known", "running", "waiting"
"""KV usage ratio x seconds; seconds in which it was known, in which requests ran, and in which requests waited."""

_NAMES = (*(regime.value for regime in Regime), USAGE, USAGE_KNOWN, RUNNING, WAITING)
_REGIME_FLAGS = {regime.value: tuple(float(one is regime) for one in Regime) for regime in Regime}
_ZERO = (0.0,) * len(_NAMES)
_KEPT_S = 310.0
"""Longer than any window."""
_DIGITS = 9
"""Decimal places of a second that are kept; further digits are floating-point noise."""


class Integral(NamedTuple):
    """The value of each name at a sample, and the integrals up to it."""

    t: float
    covered: float
    values: tuple[float, ...]
    sums: tuple[float, ...]


def integrate(history: History[Integral], row: Sample) -> History[Integral]:
    """The integrals, continued to a sample."""
    known = row.usage is not None
    flags = (float(known), float(bool(row.running)), float(bool(row.waiting)))
    values = (*_REGIME_FLAGS[row.regime], row.usage or 0.0, *flags)
    before, sums = history.last, _ZERO
    if before is not None:
        half = (row.covered - before.covered) / 2
        steps = zip(before.sums, before.values, values, strict=True)
        sums = tuple([sum_ + half * (a + b) if a or b else sum_ for sum_, a, b in steps])
    return history.append(Integral(row.t, row.covered, values, sums), _KEPT_S)


def integral_over(history: History[Integral], start: float) -> Mapping[str, float]:
    """The integrals from `start` to the newest sample, by name: those above, and the seconds in each regime."""
    rows = history.since(start)
    if len(rows) < 2:
        return dict.fromkeys(_NAMES, 0.0)
    first, second = rows[0], rows[1]
    step = second.covered - first.covered
    outside = step - min(max(second.t - start, 0.0), step) if first.t < start else 0.0
    early, late = min(outside, step / 2), max(outside - step / 2, 0.0)
    ends = zip(_NAMES, rows[-1].sums, first.sums, first.values, second.values, strict=True)
    return {name: round(z - a - early * one - late * two, _DIGITS) for name, z, a, one, two in ends}
