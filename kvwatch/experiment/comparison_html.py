"""A comparison as one HTML file, with plots as SVG: no script, font or picture from elsewhere.

The template escapes whatever a recording says (names of models, labels), and its Content-Security-Policy forbids the
rest. This module computes the coordinates of the plots, in units of the SVG.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from math import ceil, floor, log2, log10
from typing import Any

import numpy as np
from jinja2 import Environment, PackageLoader, StrictUndefined

from kvwatch import __version__
from kvwatch.core.history.regimes import Regime
from kvwatch.experiment import comparison_rows
from kvwatch.experiment.comparison import Candidate, Comparison
from kvwatch.experiment.configuration import DERIVED
from kvwatch.experiment.estimate import Side
from kvwatch.experiment.measures import MEASURES, Scale
from kvwatch.experiment.series import ENGINE_SECONDS, RUNNING, USAGE_LEVELS, WAITING, Array, column
from kvwatch.text.numbers import NOTHING, format_number

_LEFT, _RIGHT, _TOP, _BOTTOM = 52, 620, 12, 190
_MAX_POINTS = 300
_RATIO_TICKS = ((0.25, "÷4"), (0.5, "÷2"), (1.0, "same"), (2.0, "×2"), (4.0, "×4"))
_RATES = {
    "Requests waiting": WAITING,
    "Requests running": RUNNING,
    "Generated tokens/s": "generation_tokens_total",
}
_LATENCIES = {
    "Time to first token": "time_to_first_token_seconds",
    "Inter-token latency": "inter_token_latency_seconds",
    "End-to-end latency": "e2e_request_latency_seconds",
}


def as_html(comparison: Comparison) -> str:
    environment = Environment(
        loader=PackageLoader("kvwatch.experiment"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters["css"] = lambda text: text.replace(" ", "-")
    sides, margin = comparison.sides, comparison.margin
    return environment.get_template("report.html.j2").render(
        version=__version__,
        words=comparison_rows,
        comparison=comparison,
        names=[side.run.name for side in sides],
        bars=[(one.side.run.name, list(_bars(one))) for one in comparison.candidates],
        band=[_ratio_x(1 / (1 + margin)), _ratio_x(1 + margin)],
        ratio_ticks=[(_ratio_x(at), label) for at, label in _RATIO_TICKS],
        over_time=list(_over_time(sides)),
        latencies=list(_latency_plots(sides)),
        regimes=[(side.run.name, _regime_shares(side)) for side in sides],
        configuration=_configuration(sides),
    )


def _bars(candidate: Candidate) -> Iterator[dict[str, Any]]:
    """The intervals of differences that are shares of the baseline; an arrow where one leaves the plot."""
    for measure in MEASURES:
        found = candidate.differences[measure.id]
        if measure.scale is not Scale.RATIO or found.low is None or found.high is None or found.value is None:
            continue
        low, middle, high = 1 + found.low, 1 + found.value, 1 + found.high
        yield {
            "title": measure.title + ("*" if measure.headline else ""),
            "verdict": found.verdict,
            "ends": [_ratio_x(low), _ratio_x(high)],
            "value": _ratio_x(middle) if 0.25 <= middle <= 4 else None,
            "arrows": [(190, 199)] * (low < 0.25) + [(628, 619)] * (high > 4),
        }


def _ratio_x(ratio: float) -> float:
    """From a quarter to four times, on a logarithmic scale; clipped."""
    return 409 + 219 * min(max(log2(max(ratio, 1e-9)) / 2, -1.0), 1.0)


def _plot(
    caption: str,
    lines: Iterable[tuple[int, Array, Array]],
    x_ticks: Iterable[tuple[float, str]],
    y_ticks: Iterable[tuple[float, str]],
) -> dict[str, Any]:
    """A plot of lines, by the index of their run, and ticks, from coordinates that are shares (0-1) of the axes."""

    def across(x: Any) -> Any:
        return _LEFT + (_RIGHT - _LEFT) * x

    def up(y: Any) -> Any:
        return _BOTTOM - (_BOTTOM - _TOP) * y

    return {
        "caption": caption,
        "lines": [
            (run, " ".join(f"{x:.1f},{y:.1f}" for x, y in zip(across(xs), up(ys), strict=True)))
            for run, xs, ys in lines
        ],
        "x_ticks": [(across(at), text) for at, text in x_ticks],
        "y_ticks": [(up(at), text) for at, text in y_ticks],
    }


def _over_time(sides: Sequence[Side]) -> Iterator[dict[str, Any]]:
    end = max(float(side.run.series.ends.max(initial=0.0)) for side in sides) or 1.0
    per, unit = (60, "min") if end >= 300 else (1, "s")
    plots = [("KV cache usage", [_usage(side) for side in sides], " %", 100.0)]
    for title, name in _RATES.items():
        values = [side.run.series.per_second(name) for side in sides]
        plots.append((title, values, "", max(float(one.max(initial=0.0)) for one in values) or 1.0))
    for title, values, suffix, top in plots:
        yield _plot(
            title,
            [
                (run, _chunks(side.run.series.ends, np.max) / end, _chunks(one, np.mean) / top)
                for run, (side, one) in enumerate(zip(sides, values, strict=True))
                if one.any() or not suffix
            ],
            [(mark * per / end, f"{format_number(mark)} {unit}") for mark in _round_numbers(end / per)],
            [(mark / top, f"{format_number(mark)}{suffix}") for mark in _round_numbers(top)],
        )


def _usage(side: Side) -> Array:
    """Mean KV usage of each step, per cent."""
    columns = side.run.series.columns
    found = np.zeros(len(side.run.series.ends))
    for i in range(1, USAGE_LEVELS + 1):
        found += 100 * i / USAGE_LEVELS * columns.get(column("usage", i), 0.0)
    return found / columns.get(ENGINE_SECONDS, 1.0)


def _chunks(values: Array, reduce: Any) -> Array:
    """One number for several steps, so that a line has at most 300 points."""
    every = ceil(len(values) / _MAX_POINTS) or 1
    return np.array([reduce(values[i : i + every]) for i in range(0, len(values), every)])


def _round_numbers(high: float) -> list[float]:
    """About four round numbers from 0 to `high`."""
    size = 10.0 ** floor(log10(high / 4))
    step = next(size * times for times in (1, 2, 5, 10) if size * times * 4.5 >= high)
    return [step * i for i in range(floor(high / step + 1e-9) + 1)]


def _latency_plots(sides: Sequence[Side]) -> Iterator[dict[str, Any]]:
    """Shares of observations up to a number of seconds, on a logarithmic scale."""
    for title, signal in _LATENCIES.items():
        lines = []
        for run, side in enumerate(sides):
            seen = side.totals.histogram(signal)
            if seen.count > 0 and signal not in side.run.missing:
                bounds, shares = np.array(seen.bounds), np.array(seen.counts) / seen.count
                lines.append((run, np.log10(bounds[bounds > 0]), shares[bounds > 0]))
        if not lines:
            continue
        inner = np.concatenate([xs[(ys > 0.001) & (ys < 0.9995)] for _, xs, ys in lines])
        low, high = (floor(inner.min() - 1e-9), ceil(inner.max() + 1e-9)) if len(inner) else (-1, 0)
        span = max(high - low, 1)
        yield _plot(
            title,
            [(run, np.clip((xs - low) / span, 0, 1), ys) for run, xs, ys in lines],
            [(i / span, f"{format_number(10.0 ** (low + i))} s") for i in range(span + 1)],
            [(share, f"{100 * share:.0f} %") for share in (0, 0.25, 0.5, 0.75, 0.95)],
        )


def _regime_shares(side: Side) -> list[tuple[str, float]]:
    """The share of time (0-1) in each regime."""
    shares = ((str(one), side.totals.ratio(column("regime", one), ENGINE_SECONDS) or 0.0) for one in Regime)
    return [(name, share) for name, share in shares if share > 0]


def _configuration(sides: Sequence[Side]) -> list[tuple[str, list[str]]]:
    """Every visible option, those that differ first."""
    names = dict.fromkeys(name for side in sides for name in side.run.configuration)
    found = [
        (DERIVED.get(name, name), [side.run.configuration.get(name, NOTHING) for side in sides])
        for name in names
    ]
    return sorted(found, key=lambda row: len(set(row[1])) == 1)
