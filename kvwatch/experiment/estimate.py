"""The value of a measure in one run with its standard error, or the reason why it is missing."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import ceil, log

import numpy as np

from kvwatch.core.history.window import above
from kvwatch.core.model.snapshot import Histogram
from kvwatch.experiment.bootstrap import Resampled, resample
from kvwatch.experiment.measured_run import MeasuredRun
from kvwatch.experiment.measures import Measure, Scale
from kvwatch.experiment.series import Array, Totals, column


@dataclass(frozen=True, slots=True)
class Estimate:
    """`error` is the standard error, of the logarithm for a RATIO, and `df` its degrees of freedom. `missing` is why
    the value is not exposed, `reason` why it cannot be judged. `within` are the bounds of the bucket that holds a
    quantile; `at_least` marks a quantile beyond the last bound."""

    value: float | None = None
    error: float | None = None
    df: float = 1.0
    missing: str = ""
    reason: str = ""
    within: tuple[float, float] | None = None
    at_least: bool = False


@dataclass(frozen=True, slots=True)
class Side:
    """A run with its estimates by measure, and the blocks behind their errors; None if the run is too short."""

    run: MeasuredRun
    totals: Totals
    by_id: dict[str, Estimate]
    block_s: float | None = None
    blocks: float | None = None


def estimate_run(run: MeasuredRun, measures: Sequence[Measure]) -> Side:
    """Every measure of a run."""
    totals, drawn = run.series.totals(), resample(run.series)
    by_id = {one.id: _estimate(one, run, totals, drawn) for one in measures}
    return Side(run, totals, by_id, drawn.block_s if drawn else None, drawn.blocks if drawn else None)


def _estimate(measure: Measure, run: MeasuredRun, totals: Totals, drawn: Resampled | None) -> Estimate:
    missing = next((run.missing[signal] for signal in measure.needs if signal in run.missing), "")
    if missing:
        return Estimate(missing=missing)
    within, at_least = None, False
    if measure.histogram:
        found = totals.quantile(measure.histogram, measure.q)
        value, at_least = (found.value, found.at_least) if found else (None, False)
        within = _bucket(totals.histogram(measure.histogram).bounds, value)
    else:
        value = (
            totals.ratio(measure.numerator, measure.denominator)
            if measure.numerator
            else totals.usage(measure.q)
        )
    reason = run.untrusted.get(measure.id) or _too_few(measure, run, totals)
    if drawn is None:
        reason = reason or f"{run.name} has too few scrapes in {run.duration_s:.0f} s to estimate an error"
    error = None
    if value is not None and drawn is not None and not reason:
        error = _error(measure, totals, drawn, value)
        reason = f"too rare in {run.name} to estimate an error" if error is None else ""
    return Estimate(
        value, error, drawn.blocks - 1 if drawn else 1.0, reason=reason, within=within, at_least=at_least
    )


def _too_few(measure: Measure, run: MeasuredRun, totals: Totals) -> str:
    """The reason if there are too few observations, with the recording time that would give enough."""
    seen = totals.sum(measure.events) if measure.events else 0.0
    if seen >= measure.least:
        return ""
    minutes = ceil(run.duration_s * measure.least / seen / 60) if seen else 0
    longer = f". At this rate, record at least {minutes} min" if seen else ""
    return f"{run.name} has {seen:.0f} observations, at least {measure.least:.0f} are required{longer}"


def _error(measure: Measure, totals: Totals, drawn: Resampled, value: float) -> float | None:
    """The standard error, of the logarithm for a RATIO."""
    if measure.histogram:
        return _quantile_error(totals.histogram(measure.histogram), measure, totals, drawn, value)
    values = (
        drawn.ratio(drawn.sum(measure.numerator), drawn.sum(measure.denominator))
        if measure.numerator
        else drawn.usage(measure.q)
    )
    if measure.scale is Scale.DIFFERENCE:
        return drawn.error(values)
    return (
        drawn.error(np.log(values, out=np.full_like(values, np.nan), where=values > 0)) if value > 0 else None
    )


def _quantile_error(
    seen: Histogram, measure: Measure, totals: Totals, drawn: Resampled, value: float
) -> float | None:
    """The standard error of the logarithm of a quantile (Woodruff, 1952): take the error of the share of observations
    above it, compute the quantiles at that share plus and minus the error, and use the farther. Quantiles of draws
    would jump between buckets."""
    counts = drawn.sum(column(measure.histogram, "count"))
    share = drawn.error(drawn.ratio(_above(seen, measure.histogram, drawn, value), counts))
    if share is None:
        return None
    low = totals.quantile(measure.histogram, max(measure.q - share, 0.01 * measure.q))
    high = totals.quantile(measure.histogram, min(measure.q + share, 0.9999))
    if low is None or high is None or low.value <= 0:
        return None
    return max(log(high.value / value), log(value / low.value))


def _above(seen: Histogram, signal: str, drawn: Resampled, value: float) -> Array:
    """The observations above a value in each draw. `above` is linear in the counts, so each count has one weight."""
    found = drawn.sum(column(signal, "count")).copy()
    for index in range(len(seen.bounds)):
        one = tuple([float(i == index) for i in range(len(seen.bounds))])
        found += above(Histogram(0.0, 0.0, seen.bounds, one), value) * drawn.sum(column(signal, index))
    return found


def _bucket(bounds: Sequence[float], value: float | None) -> tuple[float, float] | None:
    """The bounds of the bucket that holds a value; None beyond the last."""
    if value is None:
        return None
    index = next((i for i, bound in enumerate(bounds) if value <= bound), None)
    return None if index is None else (bounds[index - 1] if index else 0.0, bounds[index])
