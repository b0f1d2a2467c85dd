"""How long to record so that runs of which no difference is shown are called the same, or different."""

from __future__ import annotations

from collections.abc import Mapping
from math import ceil, log1p

from kvwatch.experiment.caution import Caution, Side, Weight
from kvwatch.experiment.differences import Difference, DifferenceVerdict
from kvwatch.experiment.measures import HEADLINES, Measure, Scale

_OFF = 2.0
"""The middle of an interval lies off by chance, 19 times out of 20 by less than half of the interval: twice that half
must fit in the margin."""
_MOST_S = 4 * 3600.0
"""That anybody records."""


def how_long(
    baseline: Side, candidate: Side, differences: Mapping[str, Difference], margin: float
) -> Caution | None:
    """What to say of runs too short to tell, by the headline measure that needs most; None if that is no matter of
    length. Errors fall with the root of the time that is watched, so the time rises with their square."""
    shorter = min(baseline.run.duration_s, candidate.run.duration_s)
    needed = {
        measure.title: shorter * (_OFF * share) ** 2
        for measure in HEADLINES
        if (share := _half_width(measure, differences[measure.id], margin)) is not None
    }
    if not needed:
        return None
    title = max(needed, key=lambda name: needed[name])
    within = f"the same within {margin:.0%}, or different"
    if needed[title] > _MOST_S:
        text = f"not even hours of this load would call {title} {within}: a steadier one would"
    else:
        minutes = ceil(needed[title] / 60)
        text = f"too short to call such runs {within}: {title} takes some {minutes} min of this load each"
    return Caution("too_short_to_tell", Weight.NOTE, text)


def _half_width(measure: Measure, found: Difference, margin: float) -> float | None:
    """How many times the margin the interval is to either side, where nothing is shown."""
    if (
        found.verdict is not DifferenceVerdict.NOT_SHOWN
        or found.low is None
        or found.high is None
        or found.low == found.high
    ):
        return None
    if measure.scale is Scale.DIFFERENCE:
        return (found.high - found.low) / 2 / measure.margin
    return None if found.low <= -1 else (log1p(found.high) - log1p(found.low)) / 2 / log1p(margin)
