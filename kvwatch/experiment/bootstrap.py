"""The error of a number of one run: the circular block bootstrap.

Requests that are in a server together share its queue, so the seconds of a run are not independent, and an error
that takes them so is too small. Here the run is cut into blocks of time; blocks are drawn with replacement, a run's
worth of them, with the begin of the run following its end (Politis and Romano, 1992); the number is worked out anew;
and the standard deviation over many such draws is its standard error. It is widened by the root of k / (k - 1), k the
blocks that fit in the run, since within one run blocks differ less from their mean than from the truth.

A block is a tenth of the run, as long as that is twice what Politis and White (2004, corrected 2009) find best for
the error of a mean, from how long what the run did still resembles itself; otherwise it is that long. (What is best
for an error is too short for an interval, and few long blocks cost little: Student's t of 9 degrees of freedom is
2.26, that of very many 1.96. Schmeiser, 1982.) A run that resembles itself for more than an eighth of its length is
drawn in eighths, and counted as the few blocks that it has, down to 3: its intervals are wide.

The seed is fixed, so the same recordings give the same report.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import accumulate
from math import ceil, log10, sqrt
from operator import add, itemgetter, mul
from statistics import fmean, stdev

from kvwatch.experiment.series import RUNNING, WAITING, RunSeries, per_second, total
from kvwatch.experiment.totals import Totals

DRAWS = 1000
"""Draws of a bootstrap: an error is then itself known within some 2 %."""
SEED = 20_240_601
FEWEST_BLOCKS = 8
"""A block is at most this part of a run."""
LONGER = 2.0
"""How many times the length that is best for an error a block is."""
_USUAL_BLOCKS = 10
_FEWEST_INDEPENDENT = 3.0
"""A run counts as so many blocks at least: with less there would be no error to tell."""
_FEWEST_STEPS = 24
"""Three steps a block, at least."""


@dataclass(frozen=True, slots=True)
class Resampled:
    """Draws of one run. `blocks` is how many blocks fit in it, `block_s` how long one is."""

    draws: tuple[Totals, ...]
    blocks: float
    block_s: float

    def error(self, of: Callable[[Totals], float | None]) -> float | None:
        """The standard error of a number; None if too many draws can't tell it."""
        found = [value for draw in self.draws if (value := of(draw)) is not None]
        if len(found) < max(0.95 * len(self.draws), 2):
            return None
        return stdev(found) * sqrt(self.blocks / (self.blocks - 1))


def resample(series: RunSeries, *, draws: int = DRAWS, seed: int = SEED) -> Resampled | None:
    """Draws of a run; None if it is too short for any."""
    steps = len(series.ends)
    if steps < _FEWEST_STEPS:
        return None
    wanted = block_length(series)
    length = min(ceil(wanted), steps // FEWEST_BLOCKS)
    blocks = max(steps / max(wanted, length), _FEWEST_INDEPENDENT)
    chance = random.Random(seed)  # noqa: S311 - a simulation
    picks = [
        itemgetter(*[chance.randrange(steps) for _ in range(ceil(steps / length))]) for _ in range(draws)
    ]
    drawn: list[dict[str, float]] = [{} for _ in range(draws)]
    for name, values in series.columns.items():
        if not any(values):
            continue
        ahead = _block_sums(values, length)
        for pick, sums in zip(picks, drawn, strict=True):
            sums[name] = sum(pick(ahead))
    duration = series.ends[-1] - series.ends[0]
    return Resampled(
        tuple([Totals(sums, series.bounds) for sums in drawn]), blocks, duration * length / max(steps - 1, 1)
    )


def _block_sums(values: Sequence[float], length: int) -> list[float]:
    """The sum of each block, by where it begins; after the end of the run comes its begin."""
    reached = [0.0, *accumulate([*values, *values[:length]])]
    return [end - begin for begin, end in zip(reached, reached[length:], strict=False)][: len(values)]


def block_length(series: RunSeries) -> float:
    """Steps that a block should have: more than a run of a few blocks can give."""
    steps = len(series.ends)
    present = list(map(add, per_second(series, RUNNING), per_second(series, WAITING)))
    looked_at = (
        present,
        per_second(series, "generation_tokens_total"),
        per_second(series, total("time_to_first_token_seconds")),
    )
    return max(LONGER * max(map(politis_white, looked_at)), steps / _USUAL_BLOCKS)


def politis_white(values: Sequence[float]) -> float:
    """The best length of blocks for the error of a mean, in steps; 1 for what does not resemble itself."""
    n = len(values)
    mean = fmean(values)
    off = [value - mean for value in values]
    most = min(ceil(3 * sqrt(n)), n // 3)
    near = max(5, ceil(sqrt(log10(n))))
    covariances = [sum(map(mul, off, off[lag:])) / n for lag in range(min(most + near, n - 1) + 1)]
    if covariances[0] <= 0:
        return 1.0
    noise = 2 * sqrt(log10(n) / n) * covariances[0]
    width = 2 * next(
        (
            lag
            for lag in range(1, most + 1)
            if all(abs(one) < noise for one in covariances[lag + 1 : lag + 1 + near])
        ),
        most,
    )
    weighed = [
        (lag, min(1.0, 2 * (1 - lag / width)) * covariances[lag])
        for lag in range(1, min(width, len(covariances) - 1) + 1)
    ]
    whole = covariances[0] + 2 * sum(one for _, one in weighed)
    slope = 2 * sum(lag * one for lag, one in weighed)
    if whole <= 0:
        return 1.0
    found: float = (1.5 * (slope / whole) ** 2 * n) ** (1 / 3)
    return min(max(found, 1.0), float(most))
