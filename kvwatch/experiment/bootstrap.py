"""Standard errors of the numbers of one run, by the circular block bootstrap.

Requests in a server share its queue, so the seconds of a run are not independent, and an error that ignores this
is too small. The bootstrap cuts the run into blocks of time and draws as many blocks as fit in the run, with
replacement; a block that passes the end continues at the start (Politis and Romano, 1992). The standard deviation of
a number over many draws is its standard error. It is multiplied by the root of k / (k - 1), k the blocks that fit in
the run, because blocks of one run differ less from their own mean than from the true one.

A block is a tenth of the run, or twice the optimal length for the error of a mean (Politis and White, 2004, corrected
2009) if that is longer: the optimum is too short for an interval, and few long blocks cost little (Schmeiser, 1982).
A block is at most an eighth of the run. If it should be longer, the run counts as fewer independent blocks, at least
3, and its intervals are wide.

The seed is fixed: the same recordings give the same report.
"""

from __future__ import annotations

import random
from collections.abc import Mapping
from dataclasses import dataclass
from math import ceil, log10, sqrt

import numpy as np

from kvwatch.experiment.series import RUNNING, USAGE_LEVELS, WAITING, Array, RunSeries, column

DRAWS = 1000
"""Draws of a bootstrap: the error itself is then known to about 2 %."""
SEED = 20_240_601
_MIN_BLOCKS = 8
"""A block is at most this part of a run."""
_USUAL_BLOCKS = 10
_MIN_INDEPENDENT = 3.0
_MIN_STEPS = 24
"""Three steps per block."""
_OPTIMAL_LENGTHS = 2.0
"""Length of a block, in optimal lengths."""


@dataclass(frozen=True, slots=True)
class Resampled:
    """Sums of columns over each draw of a run. `blocks` is the number of independent blocks in the run, `block_s` the
    length of one in seconds."""

    sums: Mapping[str, Array]
    blocks: float
    block_s: float

    def sum(self, name: str) -> Array:
        return self.sums.get(name, np.zeros(DRAWS))

    def ratio(self, numerator: Array, denominator: Array) -> Array:
        """Element by element; NaN where the denominator is 0."""
        found: Array = np.divide(numerator, denominator, out=np.full(DRAWS, np.nan), where=denominator > 0)
        return found

    def usage(self, q: float) -> Array:
        """The q-quantile of KV usage over time in each draw."""
        levels = [i for i in range(USAGE_LEVELS + 1) if column("usage", i) in self.sums]
        if not levels:
            return np.full(DRAWS, np.nan)
        reached = np.cumsum([self.sums[column("usage", i)] for i in levels], axis=0)
        first = (reached >= q * reached[-1]).argmax(axis=0)
        found: Array = np.where(reached[-1] > 0, np.array(levels)[first] / USAGE_LEVELS, np.nan)
        return found

    def error(self, drawn: Array) -> float | None:
        """The standard error of a number, from its value in each draw; None if more than 5 % have no value."""
        known = drawn[~np.isnan(drawn)]
        if len(known) < 0.95 * len(drawn):
            return None
        return float(known.std(ddof=1)) * sqrt(self.blocks / (self.blocks - 1))


def resample(series: RunSeries) -> Resampled | None:
    """Draws of a run; None if it has fewer than 24 steps."""
    steps = len(series.ends)
    if steps < _MIN_STEPS:
        return None
    wanted = block_length(series)
    length = min(ceil(wanted), steps // _MIN_BLOCKS)
    generator = random.Random(SEED)  # noqa: S311 - a simulation
    starts = np.array(
        [[generator.randrange(steps) for _ in range(ceil(steps / length))] for _ in range(DRAWS)]
    )
    return Resampled(
        {
            name: _block_sums(values, length)[starts].sum(axis=1)
            for name, values in series.columns.items()
            if values.any()
        },
        blocks=max(steps / max(wanted, length), _MIN_INDEPENDENT),
        block_s=float(series.ends[-1] - series.ends[0]) * length / (steps - 1),
    )


def _block_sums(values: Array, length: int) -> Array:
    """The sum of the block that starts at each step; the run continues at its start."""
    reached = np.cumsum(np.concatenate([[0.0], values, values[:length]]))
    found: Array = (reached[length:] - reached[:-length])[: len(values)]
    return found


def block_length(series: RunSeries) -> float:
    """Steps that a block should have; can be more than `resample` uses."""
    examined = (
        series.per_second(RUNNING) + series.per_second(WAITING),
        series.per_second("generation_tokens_total"),
        series.per_second(column("time_to_first_token_seconds", "sum")),
    )
    return max(_OPTIMAL_LENGTHS * max(map(optimal_length, examined)), len(series.ends) / _USUAL_BLOCKS)


def optimal_length(values: Array) -> float:
    """The optimal block length for the error of a mean, in steps (Politis and White); 1 without autocorrelation."""
    n = len(values)
    if values.min() == values.max():
        return 1.0
    most = min(ceil(3 * sqrt(n)), n // 3)
    near = max(5, ceil(sqrt(log10(n))))
    lags = min(most + near, n - 1) + 1
    deviation = values - values.mean()
    covariance = np.correlate(deviation, deviation, "full")[n - 1 : n - 1 + lags] / n
    small = np.abs(covariance) < 2 * sqrt(log10(n) / n) * covariance[0]
    width = 2 * next((lag for lag in range(1, most + 1) if small[lag + 1 : lag + 1 + near].all()), most)
    lag = np.arange(1, min(width, lags - 1) + 1)
    weighted = np.minimum(1.0, 2 * (1 - lag / width)) * covariance[lag]
    variance = float(covariance[0] + 2 * weighted.sum())
    if variance <= 0:
        return 1.0
    slope = 2 * float((lag * weighted).sum())
    return float(min(max((1.5 * (slope / variance) ** 2 * n) ** (1 / 3), 1.0), most))
