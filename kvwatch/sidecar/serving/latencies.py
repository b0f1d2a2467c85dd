"""The time to first token lately: a point for every few seconds, each over the minute before it, or since kvwatch
first saw the engine."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator, Sequence

from kvwatch.core.export import report
from kvwatch.core.history.window import HistogramTotals, histogram_increase, quantile
from kvwatch.core.judgement.derive import MINUTE
from kvwatch.core.judgement.state import EngineState, State

_SIGNAL = "time_to_first_token_seconds"
_QUANTILES = {"time_to_first_token_p50_seconds": 0.5, "time_to_first_token_p95_seconds": 0.95}
_APART_S = 10.0
"""Points are at least so far apart: a minute does not change in a second."""
_ENOUGH = 5
"""Fewer first tokens in a minute are no quantile. Less than findings ask for: a line shows its own noise."""


def latencies(state: State, engine: EngineState, seconds: float) -> dict[str, list[float | None]]:
    """The quantiles of the last `seconds`, as far as histograms are kept: times as unix seconds, oldest first."""
    found: dict[str, list[float | None]] = {"at": [], **{name: [] for name in _QUANTILES}}
    offset = report.wall_offset(state)
    if state.now is None or offset is None:
        return found
    for life in (*engine.before_restart.histograms, engine.windows.histograms):
        for before, after in _points(life.rows(), state.now - seconds):
            found["at"].append(round(after.t + offset, 3))
            for name, value in _quantiles(before, after).items():
                found[name].append(value)
    return found


def _points(
    ladders: Sequence[HistogramTotals], start: float
) -> Iterator[tuple[HistogramTotals, HistogramTotals]]:
    """The histograms of one process that are told, each with that of a minute before it."""
    times = [row.t for row in ladders]
    last = float("-inf")
    for newest, row in enumerate(ladders):
        oldest = max(bisect_right(times, row.t - MINUTE) - 1, 0)
        if row.t < start or row.t - last < _APART_S or newest == oldest:
            continue
        last = row.t
        yield ladders[oldest], row


def _quantiles(before: HistogramTotals, after: HistogramTotals) -> dict[str, float | None]:
    seen = histogram_increase([before, after], _SIGNAL)
    told = {
        name: quantile(seen, q) if seen and seen.count >= _ENOUGH else None for name, q in _QUANTILES.items()
    }
    return {name: one.value if one else None for name, one in told.items()}
