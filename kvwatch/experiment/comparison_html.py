"""A comparison as one HTML file, with plots as SVG: no script, font or picture from elsewhere.

The template escapes whatever a recording says (names of models, labels), and its Content-Security-Policy forbids the
rest. This module computes the coordinates of the plots, in units of the SVG.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from math import ceil, floor, log2, log10
from typing import Any

import numpy as np
from jinja2 import Environment, PackageLoader, StrictUndefined

from kvwatch import __version__
from kvwatch.core.history.regimes import Regime
from kvwatch.experiment.comparison import Candidate, Comparison
from kvwatch.experiment.comparison_rows import (
    caution_words,
    method,
    not_judged,
    reasons,
    rows,
    run_line,
    verdict_word,
    within_words,
)
from kvwatch.experiment.configuration import DERIVED
from kvwatch.experiment.estimate import Side
from kvwatch.experiment.measures import MEASURES, Scale
from kvwatch.experiment.series import ENGINE_SECONDS, RUNNING, USAGE_LEVELS, WAITING, Array, column
from kvwatch.text.numbers import NOTHING, format_number

_LEFT, _RIGHT, _TOP, _BOTTOM = 52, 620, 12, 190
_MAX_POINTS = 300
_GAUGES = (
    ("Requests waiting", WAITING),
    ("Requests running", RUNNING),
    ("Generated tokens/s", "generation_tokens_total"),
)
_LATENCIES = (
    ("time_to_first_token_seconds", "Time to first token"),
    ("inter_token_latency_seconds", "Inter-token latency"),
    ("e2e_request_latency_seconds", "End-to-end latency"),
)
Ticks = Iterable[tuple[float, str]]


@dataclass(frozen=True, slots=True)
class Plot:
    """Lines of runs by index, each a list of SVG points, and the labels of the axes by coordinate."""

    caption: str
    lines: list[tuple[int, str]]
    x_ticks: list[tuple[float, str]]
    y_ticks: list[tuple[float, str]]


def as_html(comparison: Comparison) -> str:
    environment = Environment(
        loader=PackageLoader("kvwatch.experiment"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters |= {"css": lambda text: text.replace(" ", "-"), "caution": caution_words}
    sides = comparison.sides
    return environment.get_template("report.html.j2").render(
        version=__version__,
        names=[side.run.name for side in sides],
        candidates=[
            {
                "name": one.side.run.name,
                "verdict": verdict_word(one),
                "within": within_words(one),
                "reasons": reasons(one),
                "cautions": one.cautions,
                "bars": list(_bars(one)),
            }
            for one in comparison.candidates
        ],
        band=[_ratio_x(1 / (1 + comparison.margin)), _ratio_x(1 + comparison.margin)],
        ratio_ticks=[(_ratio_x(at), label) for at, label in _RATIO_TICKS],
        cautions=comparison.cautions,
        runs=list(map(run_line, sides)),
        rows=rows(comparison),
        not_judged=not_judged(comparison),
        over_time=list(_over_time(sides)),
        latencies=list(_latency_plots(sides)),
        regimes=[(side.run.name, _regime_shares(side)) for side in sides],
        configuration=_configuration(sides),
        method=method(comparison),
    )


# -- intervals ----------------------------------------------------------------------------------------------------

_RATIO_TICKS = ((0.25, "÷4"), (0.5, "÷2"), (1.0, "same"), (2.0, "×2"), (4.0, "×4"))


def _ratio_x(ratio: float) -> float:
    """From a quarter to four times, on a logarithmic scale; clipped."""
    return 409 + 219 * min(max(log2(max(ratio, 1e-9)) / 2, -1.0), 1.0)


def _bars(candidate: Candidate) -> Iterator[dict[str, Any]]:
    """The intervals of differences that are shares of the baseline."""
    for measure in MEASURES:
        found = candidate.differences[measure.id]
        if measure.scale is not Scale.RATIO or found.low is None or found.high is None or found.value is None:
            continue
        ends = (1 + found.low, 1 + found.high)
        yield {
            "title": measure.title + ("*" if measure.headline else ""),
            "verdict": found.verdict,
            "ends": list(map(_ratio_x, ends)),
            "value": _ratio_x(1 + found.value) if 0.25 <= 1 + found.value <= 4 else None,
            "arrows": [(190, 199)] * (ends[0] < 0.25) + [(628, 619)] * (ends[1] > 4),
        }


# -- lines --------------------------------------------------------------------------------------------------------


def _plot(caption: str, lines: Iterable[tuple[int, Array, Array]], x_ticks: Ticks, y_ticks: Ticks) -> Plot:
    """A plot of lines and ticks whose coordinates are shares (0-1) of the axes."""

    def x(share: float) -> float:
        return _LEFT + (_RIGHT - _LEFT) * share

    def y(share: float) -> float:
        return _BOTTOM - (_BOTTOM - _TOP) * share

    drawn = [
        (run, " ".join(f"{x(across):.1f},{y(up):.1f}" for across, up in zip(xs, ys, strict=True)))
        for run, xs, ys in lines
    ]
    return Plot(
        caption, drawn, [(x(at), text) for at, text in x_ticks], [(y(at), text) for at, text in y_ticks]
    )


def _over_time(sides: Sequence[Side]) -> Iterator[Plot]:
    gauges = [(title, "", [side.run.series.per_second(name) for side in sides]) for title, name in _GAUGES]
    usage = [_usage(side) for side in sides]
    end = max(float(side.run.series.ends.max(initial=0.0)) for side in sides) or 1.0
    per, unit = (60, "min") if end >= 300 else (1, "s")
    for title, suffix, values in (("KV cache usage", " %", usage), *gauges):
        top = 100.0 if suffix else max(float(one.max(initial=0.0)) for one in values) or 1.0
        yield _plot(
            title,
            [
                (run, ends / end, thinned / top)
                for run, (side, one) in enumerate(zip(sides, values, strict=True))
                if one.any() or not suffix
                for ends, thinned in [_thin(side.run.series.ends, one)]
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


def _thin(ends: Array, values: Array) -> tuple[Array, Array]:
    """Means of several steps, so that a line has at most 300 points."""
    every = ceil(len(ends) / _MAX_POINTS) or 1
    starts = range(0, len(ends), every)
    return (
        np.array([ends[i : i + every][-1] for i in starts]),
        np.array([values[i : i + every].mean() for i in starts]),
    )


def _round_numbers(high: float) -> list[float]:
    """About four round numbers from 0 to `high`."""
    size = 10.0 ** floor(log10(high / 4))
    step = next(size * times for times in (1, 2, 5, 10) if size * times * 4.5 >= high)
    return [step * i for i in range(floor(high / step + 1e-9) + 1)]


def _latency_plots(sides: Sequence[Side]) -> Iterator[Plot]:
    """Shares of observations up to a number of seconds, on a logarithmic scale."""
    for signal, title in _LATENCIES:
        lines = [
            (run, np.array(seen.bounds), np.array(seen.counts) / seen.count)
            for run, side in enumerate(sides)
            if (seen := side.totals.histogram(signal)).count > 0 and signal not in side.run.missing
        ]
        if not lines:
            continue
        inner = [x for _, xs, ys in lines for x, y in zip(xs, ys, strict=True) if 0.001 < y < 0.9995] or [
            0.1,
            1.0,
        ]
        low, high = floor(log10(min(inner)) - 1e-9), ceil(log10(max(inner)) + 1e-9)
        span = max(high - low, 1)
        yield _plot(
            title,
            [(run, np.clip((np.log10(xs[xs > 0]) - low) / span, 0, 1), ys[xs > 0]) for run, xs, ys in lines],
            [(i / span, f"{format_number(10.0 ** (low + i))} s") for i in range(span + 1)],
            [(share, f"{100 * share:.0f} %") for share in (0, 0.25, 0.5, 0.75, 0.95)],
        )


# -- the rest -----------------------------------------------------------------------------------------------------


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
