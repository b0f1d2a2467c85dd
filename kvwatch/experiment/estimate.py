"""A number of one run with its error, or why there is none."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import ceil, log

from kvwatch.core.history.window import above
from kvwatch.experiment.bootstrap import DRAWS, Resampled, resample
from kvwatch.experiment.measured_run import MeasuredRun
from kvwatch.experiment.measures import Measure, Scale
from kvwatch.experiment.totals import Totals

_MOST_Q = 0.9999


@dataclass(frozen=True, slots=True)
class Estimate:
    """`error` is the standard error, of the logarithm for a RATIO, and `df` its degrees of freedom. `missing` says
    why the number is not exposed, `reason` why it can't be judged; `within` are the bounds of the bucket that a
    quantile is in, and `at_least` says that it lies beyond the last of them."""

    value: float | None = None
    error: float | None = None
    df: float = 1.0
    missing: str = ""
    reason: str = ""
    within: tuple[float, float] | None = None
    at_least: bool = False


@dataclass(frozen=True, slots=True)
class Estimates:
    """All numbers of a run, and how long the blocks were that their errors are of; None if it is too short."""

    by_id: dict[str, Estimate]
    totals: Totals
    block_s: float | None
    blocks: float | None


def estimates_of(run: MeasuredRun, measures: Sequence[Measure], *, draws: int = DRAWS) -> Estimates:
    """Every measure of a run, with an error from so many draws."""
    totals = Totals(run.series.sums(), run.series.bounds)
    resampled = resample(run.series, draws=draws)
    return Estimates(
        {one.id: _estimate(one, run, totals, resampled) for one in measures},
        totals,
        resampled.block_s if resampled else None,
        resampled.blocks if resampled else None,
    )


def _estimate(measure: Measure, run: MeasuredRun, totals: Totals, resampled: Resampled | None) -> Estimate:
    missing = next((run.missing[signal] for signal in measure.needs if signal in run.missing), "")
    if missing:
        return Estimate(missing=missing)
    value = measure.of(totals)
    found = totals.quantile(measure.histogram, measure.q) if measure.histogram else None
    reason = run.untrusted.get(measure.id, "") or _too_few(measure, run, totals)
    if resampled is None:
        reason = reason or f"{run.name} is {run.duration_s:.0f} s long, in too few steps to tell an error"
    error = None
    if value is not None and resampled is not None and not reason:
        error = _error(measure, totals, resampled, value)
        if error is None:
            reason = f"it happened too seldom in {run.name} to tell an error"
    return Estimate(
        value,
        error,
        resampled.blocks - 1 if resampled else 1.0,
        reason=reason,
        within=_bucket(totals.histogram(measure.histogram).bounds, value) if measure.histogram else None,
        at_least=bool(found and found.at_least),
    )


def _too_few(measure: Measure, run: MeasuredRun, totals: Totals) -> str:
    """Why there is too little to judge by, and for how long to record instead."""
    seen = totals.sum(measure.events) if measure.events else 0.0
    if seen >= measure.least:
        return ""
    longer = ""
    if seen > 0:
        seconds = run.duration_s * measure.least / seen
        longer = f"; at this pace record {ceil(seconds / 60)} min or more"
    return f"{run.name} has {seen:.0f} of the {measure.least:.0f} observations that it needs{longer}"


def _error(measure: Measure, totals: Totals, resampled: Resampled, value: float) -> float | None:
    """The standard error, of the logarithm for a RATIO.

    Of a quantile: the error of the share of observations beyond it, and what the quantile is where that share is an
    error larger and smaller (Woodruff, 1952), the farther of the two. Quantiles of draws would jump between buckets.
    """
    if measure.histogram:
        return _quantile_error(measure, totals, resampled, value)
    if measure.scale is Scale.DIFFERENCE:
        return resampled.error(measure.of)

    def logarithm(draw: Totals) -> float | None:
        drawn = measure.of(draw)
        return log(drawn) if drawn else None

    return resampled.error(logarithm) if value > 0 else None


def _quantile_error(measure: Measure, totals: Totals, resampled: Resampled, value: float) -> float | None:
    def beyond(draw: Totals) -> float | None:
        seen = draw.histogram(measure.histogram)
        return above(seen, value) / seen.count if seen.count > 0 else None

    share = resampled.error(beyond)
    if share is None:
        return None
    low = totals.quantile(measure.histogram, max(measure.q - share, 0.01 * measure.q))
    high = totals.quantile(measure.histogram, min(measure.q + share, _MOST_Q))
    if low is None or high is None or low.value <= 0:
        return None
    return max(log(high.value / value), log(value / low.value))


def _bucket(bounds: Sequence[float], value: float | None) -> tuple[float, float] | None:
    """The bounds of the bucket that a value is in; None beyond the last."""
    if value is None:
        return None
    above_it = next((i for i, bound in enumerate(bounds) if value <= bound), None)
    if above_it is None:
        return None
    return (bounds[above_it - 1] if above_it else 0.0), bounds[above_it]
