"""What a difference between two runs means: better, worse, the same, not shown, or not enough data to say."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from math import ceil, exp, hypot, log

from kvwatch.experiment.estimate import Estimate
from kvwatch.experiment.measures import Better, Measure, Scale
from kvwatch.experiment.student import critical, two_sided, welch
from kvwatch.text.numbers import format_number

LEVEL = 0.05
"""The chance of a difference where there is none that is put up with: intervals hold 95 %."""
_WIDEST = 0.5
"""A margin that says little: half of the baseline."""


class DifferenceVerdict(StrEnum):
    """SAME only where the whole interval lies within the margin; where it does not and holds 0, nothing is shown.
    HIGHER and LOWER are differences of measures of which neither is good in itself."""

    BETTER = "better"
    WORSE = "worse"
    HIGHER = "higher"
    LOWER = "lower"
    SAME = "same"
    NOT_SHOWN = "no difference shown"
    NOT_ENOUGH = "not enough data"
    UNKNOWN = "not exposed"


_AMONG = (
    "by itself it would be called a difference; among the measures marked * one of this size may be chance"
)
SHOWN = frozenset(
    {DifferenceVerdict.BETTER, DifferenceVerdict.WORSE, DifferenceVerdict.HIGHER, DifferenceVerdict.LOWER}
)


@dataclass(frozen=True, slots=True)
class Difference:
    """A candidate against the baseline: candidate / baseline - 1 for a RATIO, candidate - baseline for a DIFFERENCE,
    with the interval that holds it in 95 of 100 cases. `p` is the chance of one as large where there is none."""

    verdict: DifferenceVerdict
    value: float | None = None
    low: float | None = None
    high: float | None = None
    p: float | None = None
    reason: str = ""


def differences(
    measures: Sequence[Measure],
    baseline: Mapping[str, Estimate],
    candidate: Mapping[str, Estimate],
    *,
    margin: float,
) -> dict[str, Difference]:
    """All differences, by measure. `margin` is what matters to nobody, as a share of the baseline.

    The headline measures share the level between them (Holm, 1979): with all of them alike, one in twenty comparisons
    calls any of them different. Others have the level each.
    """
    found = {one.id: _difference(one, baseline[one.id], candidate[one.id]) for one in measures}
    headlines = {one.id for one in measures if one.headline}
    kept = _holm({name: d.p for name, d in found.items() if name in headlines and d.p is not None})
    return {
        one.id: _judged(
            one, found[one.id], margin, found[one.id].p if one.id not in headlines else kept.get(one.id)
        )
        for one in measures
    }


def _difference(measure: Measure, before: Estimate, after: Estimate) -> Difference:
    """The difference and its interval, not yet judged."""
    if before.missing or after.missing:
        reasons = {side.missing for side in (before, after) if side.missing}
        return Difference(DifferenceVerdict.UNKNOWN, reason="; ".join(sorted(reasons)))
    if before.within is not None and before.within == after.within and before.within[0] == 0:
        reason = f"both lie below {format_number(before.within[1])} s, the first bound of vLLM's buckets"
        return Difference(DifferenceVerdict.NOT_SHOWN, reason=reason)
    told = _told(measure, before.value, after.value)
    lacking = before.reason or after.reason
    if told is None or lacking or before.error is None or after.error is None:
        value = None if told is None else _back(measure, told)
        return Difference(
            DifferenceVerdict.NOT_ENOUGH, value, reason=lacking or "nothing to compare happened"
        )
    error = hypot(before.error, after.error)
    if error == 0:
        whole = _back(measure, told)
        return Difference(DifferenceVerdict.NOT_SHOWN, whole, whole, whole, 1.0 if told == 0 else 0.0)
    df = welch((before.error, before.df), (after.error, after.df))
    reach = critical(LEVEL, df) * error
    low, value, high = (_back(measure, one) for one in (told - reach, told, told + reach))
    return Difference(DifferenceVerdict.NOT_SHOWN, value, low, high, two_sided(told / error, df))


def _told(measure: Measure, before: float | None, after: float | None) -> float | None:
    """The difference as its error is told: of logarithms for a RATIO."""
    if before is None or after is None:
        return None
    if measure.scale is Scale.DIFFERENCE:
        return after - before
    return log(after / before) if before > 0 and after > 0 else None


def _back(measure: Measure, told: float) -> float:
    return told if measure.scale is Scale.DIFFERENCE else exp(min(told, 100.0)) - 1.0


def _holm(chances: Mapping[str, float]) -> dict[str, float]:
    """Chances, each made as large as testing all of them asks for."""
    found, least = {}, 0.0
    for rank, (name, p) in enumerate(sorted(chances.items(), key=lambda item: item[1])):
        least = max(least, min((len(chances) - rank) * p, 1.0))
        found[name] = least
    return found


def _judged(measure: Measure, found: Difference, margin: float, p: float | None) -> Difference:
    if found.verdict is not DifferenceVerdict.NOT_SHOWN or found.value is None or p is None:
        return found
    within = measure.margin if measure.scale is Scale.DIFFERENCE else margin
    low = within if measure.scale is Scale.DIFFERENCE else 1 - 1 / (1 + within)
    if found.low is not None and found.high is not None and -low <= found.low and found.high <= within:
        return replace(found, verdict=DifferenceVerdict.SAME, p=p)
    if p > LEVEL:
        alone = found.p is not None and found.p <= LEVEL
        return replace(found, p=p, reason=_AMONG if alone else "")
    if measure.better is Better.NEITHER:
        return replace(
            found, verdict=DifferenceVerdict.HIGHER if found.value > 0 else DifferenceVerdict.LOWER, p=p
        )
    good = (found.value > 0) is (measure.better is Better.HIGHER)
    return replace(found, verdict=DifferenceVerdict.BETTER if good else DifferenceVerdict.WORSE, p=p)


def same_within(measures: Sequence[Measure], found: Mapping[str, Difference]) -> float | None:
    """The least margin, in whole per cent as a share, with which all these would be the same: no difference that they
    could hide is larger. None where no margin up to a half would do, or one of them is not told at all; what a server
    does not expose is left out."""
    least = 0.0
    for measure in measures:
        one = found[measure.id]
        if one.verdict in {DifferenceVerdict.UNKNOWN, DifferenceVerdict.SAME}:
            continue
        if measure.scale is Scale.DIFFERENCE or one.low is None or one.high is None or one.low <= -_WIDEST:
            return None
        least = max(least, one.high, 1 / (1 + one.low) - 1)
    within = ceil(100 * least - 1e-9) / 100
    return within if within <= _WIDEST else None


def overall(headlines: Sequence[Difference]) -> DifferenceVerdict | None:
    """The verdict on the whole; None where some are better and others worse."""
    said = {one.verdict for one in headlines} - {DifferenceVerdict.UNKNOWN}
    if {DifferenceVerdict.BETTER, DifferenceVerdict.WORSE} <= said:
        return None
    for verdict in (
        DifferenceVerdict.BETTER,
        DifferenceVerdict.WORSE,
        DifferenceVerdict.NOT_SHOWN,
        DifferenceVerdict.SAME,
    ):
        if verdict in said:
            return verdict
    return DifferenceVerdict.NOT_ENOUGH
