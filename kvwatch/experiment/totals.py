"""Sums of columns, and the numbers that are made of them."""

from __future__ import annotations

from collections.abc import Mapping

from kvwatch.core.history.window import Quantile, quantile, weighted_quantile
from kvwatch.core.model.snapshot import Histogram
from kvwatch.experiment.series import USAGE_LEVELS, bucket, count, level, total

_LEVELS = tuple([(i / USAGE_LEVELS, level(i)) for i in range(USAGE_LEVELS + 1)])


class Totals:
    """What columns came to over some steps of a run. A number that can't be told is None."""

    def __init__(self, sums: Mapping[str, float], bounds: Mapping[str, tuple[float, ...]]) -> None:
        self._sums = sums
        self._bounds = bounds
        self._histograms: dict[str, Histogram] = {}

    def sum(self, column: str) -> float:
        return self._sums.get(column, 0.0)

    def ratio(self, column: str, *by: str) -> float | None:
        """One column by the sum of others."""
        below = sum(self.sum(name) for name in by)
        return self.sum(column) / below if below > 0 else None

    def histogram(self, signal: str) -> Histogram:
        """What was observed; empty where nothing was."""
        if signal not in self._histograms:
            bounds = self._bounds.get(signal, ())
            counts = tuple([self.sum(bucket(signal, index)) for index in range(len(bounds))])
            self._histograms[signal] = Histogram(
                self.sum(total(signal)), self.sum(count(signal)), bounds, counts
            )
        return self._histograms[signal]

    def quantile(self, signal: str, q: float) -> Quantile | None:
        return quantile(self.histogram(signal), q)

    def mean(self, signal: str) -> float | None:
        return self.ratio(total(signal), count(signal))

    def usage(self, q: float) -> float | None:
        """The usage that held or was not reached for the share `q` of the time."""
        levels = [(usage, self._sums[name]) for usage, name in _LEVELS if name in self._sums]
        return weighted_quantile(levels, q)
