"""The verdict on each measure: better, worse, the same, no difference shown, or not enough data."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from math import ceil, exp, hypot, inf, log

from scipy.special import stdtr, stdtrit

from kvwatch.experiment.estimate import Estimate
from kvwatch.experiment.measures import Better, Measure, Scale
from kvwatch.text.numbers import format_number

LEVEL = 0.05
"""Error rate of a verdict where there is no difference: intervals are 95 % intervals."""
_MAX_MARGIN = 0.5
"""A wider margin says little."""
_NOT_AFTER_HOLM = "significant by itself, but not after the correction for all measures marked * (Holm)"


class DifferenceVerdict(StrEnum):
    """SAME: the whole interval lies within the margin. NOT_SHOWN: inconclusive. HIGHER and LOWER: a difference of a
    measure that is neither good nor bad by itself."""

    BETTER = "better"
    WORSE = "worse"
    HIGHER = "higher"
    LOWER = "lower"
    SAME = "same"
    NOT_SHOWN = "no difference shown"
    NOT_ENOUGH = "not enough data"
    UNKNOWN = "not exposed"


DIFFERENT = frozenset(
    {DifferenceVerdict.BETTER, DifferenceVerdict.WORSE, DifferenceVerdict.HIGHER, DifferenceVerdict.LOWER}
)


@dataclass(frozen=True, slots=True)
class Difference:
    """A candidate compared with the baseline: candidate / baseline - 1 for a RATIO, candidate - baseline for a
    DIFFERENCE, with its 95 % interval. `p` is the probability of a difference at least as large by chance alone."""

    verdict: DifferenceVerdict
    value: float | None = None
    low: float | None = None
    high: float | None = None
    p: float | None = None
    reason: str | None = None


def differences(
    measures: Sequence[Measure],
    baseline: Mapping[str, Estimate],
    candidate: Mapping[str, Estimate],
    *,
    margin: float,
) -> dict[str, Difference]:
    """All differences, by measure. `margin` is the share of the baseline that does not matter.

    The headline measures share the error rate (Holm, 1979): with no difference in any, one comparison in twenty calls
    one of them different. Every other measure has the whole rate.
    """
    found = {one.id: _measure(one, baseline[one.id], candidate[one.id]) for one in measures}
    corrected = {name: one.p for name, one in found.items()}
    corrected |= _holm({one.id: p for one in measures if one.headline and (p := found[one.id].p) is not None})
    return {one.id: _judge(one, found[one.id], margin, corrected[one.id]) for one in measures}


def _measure(measure: Measure, before: Estimate, after: Estimate) -> Difference:
    """The difference and its interval, not yet judged."""
    if before.missing or after.missing:
        reasons = {side.missing for side in (before, after) if side.missing}
        return Difference(DifferenceVerdict.UNKNOWN, reason="; ".join(sorted(reasons)))
    if before.within is not None and before.within == after.within and before.within[0] == 0:
        reason = f"both are below {format_number(before.within[1])} s, the first bound of vLLM's buckets"
        return Difference(DifferenceVerdict.NOT_SHOWN, reason=reason)
    effect = _effect(measure, before.value, after.value)
    reason = before.reason or after.reason
    if effect is None or reason or before.error is None or after.error is None:
        value = None if effect is None else _as_difference(measure, effect)
        return Difference(DifferenceVerdict.NOT_ENOUGH, value, reason=reason or "no observations to compare")
    error = hypot(before.error, after.error)
    if error == 0:
        exact = _as_difference(measure, effect)
        return Difference(DifferenceVerdict.NOT_SHOWN, exact, exact, exact, 1.0 if effect == 0 else 0.0)
    df = welch((before.error, before.df), (after.error, after.df))
    reach = critical(LEVEL, df) * error
    low, value, high = (_as_difference(measure, one) for one in (effect - reach, effect, effect + reach))
    return Difference(DifferenceVerdict.NOT_SHOWN, value, low, high, two_sided(effect / error, df))


def _effect(measure: Measure, before: float | None, after: float | None) -> float | None:
    """The difference on the scale of its error: of logarithms for a RATIO."""
    if before is None or after is None:
        return None
    if measure.scale is Scale.DIFFERENCE:
        return after - before
    return log(after / before) if before > 0 and after > 0 else None


def _as_difference(measure: Measure, effect: float) -> float:
    return effect if measure.scale is Scale.DIFFERENCE else exp(min(effect, 100.0)) - 1.0


def two_sided(t: float, df: float) -> float:
    """The probability that Student's t is at least as far from 0 as `t`."""
    return 2 * float(stdtr(df, -abs(t)))


def critical(p: float, df: float) -> float:
    """The t with this two-sided probability."""
    return -float(stdtrit(df, p / 2))


def welch(first: tuple[float, float], second: tuple[float, float]) -> float:
    """Degrees of freedom of a difference of two numbers, each with its standard error and degrees of freedom (Welch
    and Satterthwaite)."""
    spread = sum(error**4 / df for error, df in (first, second))
    return (first[0] ** 2 + second[0] ** 2) ** 2 / spread if spread > 0 else inf


def _holm(found: Mapping[str, float]) -> dict[str, float]:
    """p-values corrected for testing all of them."""
    corrected, least = {}, 0.0
    for rank, (name, p) in enumerate(sorted(found.items(), key=lambda item: item[1])):
        least = max(least, min((len(found) - rank) * p, 1.0))
        corrected[name] = least
    return corrected


def _judge(measure: Measure, found: Difference, margin: float, p: float | None) -> Difference:
    if found.verdict is not DifferenceVerdict.NOT_SHOWN or p is None:
        return found
    value, low, high = found.value or 0.0, found.low or 0.0, found.high or 0.0
    above = measure.margin if measure.scale is Scale.DIFFERENCE else margin
    below = above if measure.scale is Scale.DIFFERENCE else 1 - 1 / (1 + above)
    if -below <= low and high <= above:
        return replace(found, verdict=DifferenceVerdict.SAME, p=p)
    if p > LEVEL:
        alone = found.p is not None and found.p <= LEVEL
        return replace(found, p=p, reason=_NOT_AFTER_HOLM if alone else None)
    if measure.better is Better.NEITHER:
        verdict = DifferenceVerdict.HIGHER if value > 0 else DifferenceVerdict.LOWER
    else:
        good = (value > 0) is (measure.better is Better.HIGHER)
        verdict = DifferenceVerdict.BETTER if good else DifferenceVerdict.WORSE
    return replace(found, verdict=verdict, p=p)


def same_within(measures: Sequence[Measure], found: Mapping[str, Difference]) -> float | None:
    """The smallest margin with which all these measures would be the same, in whole per cent as a share.

    Measures that a server does not expose are ignored. None if no margin up to 50 % is enough, or a measure has no
    interval.
    """
    least = 0.0
    for measure in measures:
        one = found[measure.id]
        if one.verdict in {DifferenceVerdict.UNKNOWN, DifferenceVerdict.SAME}:
            continue
        if (
            measure.scale is Scale.DIFFERENCE
            or one.low is None
            or one.high is None
            or one.low <= -_MAX_MARGIN
        ):
            return None
        least = max(least, one.high, 1 / (1 + one.low) - 1)
    within = ceil(100 * least - 1e-9) / 100
    return within if within <= _MAX_MARGIN else None


def overall(headlines: Sequence[Difference]) -> DifferenceVerdict | None:
    """The overall verdict; None if some measures are better and others worse."""
    found = {one.verdict for one in headlines}
    if {DifferenceVerdict.BETTER, DifferenceVerdict.WORSE} <= found:
        return None
    order = (
        DifferenceVerdict.BETTER,
        DifferenceVerdict.WORSE,
        DifferenceVerdict.NOT_SHOWN,
        DifferenceVerdict.SAME,
    )
    return next((verdict for verdict in order if verdict in found), DifferenceVerdict.NOT_ENOUGH)
