"""Integrals over watched time that go on with every sample, so that no window is summed up anew.

Theory of operation
    Between two samples half of the time belongs to each (`kvwatch.core.window`). So an integral grows at every
    sample by half of the time since the one before, times what that one showed, and as much times what this one
    shows. Over a window it is the difference of two, less the part of its first step that lies before the window:
    a window of five minutes costs what one of ten seconds costs.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from kvwatch.core.regimes import Regime
from kvwatch.core.window import Sample

USAGE, USAGE_KNOWN, RUNNING, WAITING = "usage", "usage_known", "running", "waiting"
"""KV usage ratio x seconds, seconds in which it was known, in which anything ran, and in which anything waited."""

_NAMES = (*(regime.value for regime in Regime), USAGE, USAGE_KNOWN, RUNNING, WAITING)
_IN = {regime.value: tuple(float(one is regime) for one in Regime) for regime in Regime}
_NOTHING = (0.0,) * len(_NAMES)
_DIGITS = 9
"""Of a second that are told: differences of large numbers have some that mean nothing."""


def integrated(before: Sample | None, row: Sample) -> Sample:
    """A sample with the integrals up to it; `before` is the one before it, if any."""
    if before is None:
        return row._replace(integrals=_NOTHING)
    half = (row.covered - before.covered) / 2
    steps = zip(before.integrals, _shown(before), _shown(row), strict=True)
    return row._replace(integrals=tuple([sum_ + half * (a + b) for sum_, a, b in steps]))


def over(rows: Sequence[Sample], start: float) -> Mapping[str, float]:
    """The integrals over a window that begins at `start`, by name: those above, and for each regime its seconds.
    At most one of `rows` is older than the window."""
    if len(rows) < 2:
        return dict.fromkeys(_NAMES, 0.0)
    first, second = rows[0], rows[1]
    step = second.covered - first.covered
    outside = step - min(max(second.t - start, 0.0), step) if first.t < start else 0.0
    early, late = min(outside, step / 2), max(outside - step / 2, 0.0)
    ends = zip(_NAMES, rows[-1].integrals, first.integrals, _shown(first), _shown(second), strict=True)
    return {name: round(z - a - early * one - late * two, _DIGITS) for name, z, a, one, two in ends}


def _shown(row: Sample) -> tuple[float, ...]:
    """What a sample shows of each."""
    known = row.usage is not None
    return (
        *_IN[row.regime],
        row.usage or 0.0,
        float(known),
        float(bool(row.running)),
        float(bool(row.waiting)),
    )
