"""Plots as SVG inside a page: no script, no file from elsewhere. Colours and dashes are those of the page's style."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from html import escape
from math import ceil, floor, log10

from kvwatch.text.numbers import format_number

_WIDTH, _HEIGHT = 640, 220
_LEFT, _RIGHT, _TOP, _BOTTOM = 52, 12, 12, 30


@dataclass(frozen=True, slots=True)
class SvgLine:
    """One run's line: `index` says which run's colour and dash it has. Points are in order of x."""

    index: int
    points: Sequence[tuple[float, float]]


@dataclass(frozen=True, slots=True)
class Bar:
    """An interval with its middle, and the class that colours it."""

    title: str
    low: float
    value: float
    high: float
    kind: str


def lines(drawn: Sequence[SvgLine], title: str, unit: str, *, top: float | None = None) -> str:
    """Lines over time, in seconds, from 0 on."""
    right = max((x for line in drawn for x, _ in line.points), default=0.0) or 1.0
    high = top or max((y for line in drawn for _, y in line.points), default=0.0) or 1.0
    along, up = _scale(0.0, right, _LEFT, _WIDTH - _RIGHT), _scale(0.0, high, _HEIGHT - _BOTTOM, _TOP)
    minutes = right >= 300
    marks = _round_marks(right / 60 if minutes else right)
    parts = [
        *_grid_y([(y, up(y)) for y in _round_marks(high)], unit),
        *_grid_x([(x, along(x * 60 if minutes else x)) for x in marks], "min" if minutes else "s"),
        *(_path(line, along, up) for line in drawn),
    ]
    return _svg(title, parts, _HEIGHT)


def distributions(drawn: Sequence[SvgLine], title: str) -> str:
    """Shares of observations (0-1) up to a number of seconds, on a logarithmic scale."""
    xs = [x for line in drawn for x, y in line.points if 0.001 < y < 0.9995] or [0.1, 1.0]
    low, high = floor(log10(min(xs)) - 1e-9), ceil(log10(max(xs)) + 1e-9)
    spread = _scale(float(low), float(max(high, low + 1)), _LEFT, _WIDTH - _RIGHT)
    up = _scale(0.0, 1.0, _HEIGHT - _BOTTOM, _TOP)

    def along(x: float) -> float:
        return spread(min(max(log10(x), low), high))

    parts = [
        *_grid_y([(y, up(y)) for y in (0.0, 0.25, 0.5, 0.75, 0.95)], "%", 100),
        *_grid_x([(10.0**n, along(10.0**n)) for n in range(low, high + 1)], "s"),
        *(_path(SvgLine(line.index, [p for p in line.points if p[0] > 0]), along, up) for line in drawn),
    ]
    return _svg(title, parts, _HEIGHT)


def intervals(bars: Sequence[Bar], title: str, margin: float) -> str:
    """Intervals of candidate / baseline, on a logarithmic scale from a quarter to four times; what lies beyond is cut
    at an arrow. The band is what does not matter."""
    left, step = 190, 22
    height = _TOP + step * len(bars) + _BOTTOM
    spread = _scale(-2.0, 2.0, left, _WIDTH - _RIGHT)

    def along(ratio: float) -> float:
        return spread(min(max(_log2(ratio), -2.0), 2.0))

    bottom = height - _BOTTOM
    inner, outer = along(1 / (1 + margin)), along(1 + margin)
    parts = [
        f'<rect class="band" x="{inner:.1f}" y="{_TOP}" width="{outer - inner:.1f}" height="{bottom - _TOP}"/>'
    ]
    for ratio, said in ((0.25, "÷4"), (0.5, "÷2"), (1.0, "same"), (2.0, "×2"), (4.0, "×4")):
        x = along(ratio)
        parts.append(f'<line class="grid" x1="{x:.1f}" y1="{_TOP}" x2="{x:.1f}" y2="{bottom}"/>')
        parts.append(f'<text x="{x:.1f}" y="{bottom + 16}" text-anchor="middle">{said}</text>')
    for i, bar in enumerate(bars):
        parts += _interval(bar, along, _TOP + step * (i + 0.5), left)
    return _svg(title, parts, height)


def _interval(bar: Bar, along: Callable[[float], float], y: float, left: float) -> list[str]:
    begin, end = along(bar.low), along(bar.high)
    kind = escape(bar.kind)
    found = [
        f'<text x="{left - 8}" y="{y + 4:.1f}" text-anchor="end">{escape(bar.title)}</text>',
        f'<line class="bar {kind}" x1="{begin:.1f}" y1="{y:.1f}" x2="{end:.1f}" y2="{y:.1f}"/>',
    ]
    if 0.25 <= bar.value <= 4:
        found.append(f'<circle class="dot {kind}" cx="{along(bar.value):.1f}" cy="{y:.1f}" r="4"/>')
    for beyond, x, way in ((bar.low < 0.25, begin, 1), (bar.high > 4, end, -1)):
        if beyond:
            points = f"{x:.1f},{y:.1f} {x + way * 9:.1f},{y - 5:.1f} {x + way * 9:.1f},{y + 5:.1f}"
            found.append(f'<polygon class="dot {kind}" points="{points}"/>')
    return found


def shares(rows: Sequence[tuple[str, Sequence[tuple[str, float]]]], title: str) -> str:
    """A bar a run, of named parts that add up to 1; the class of a part is its name."""
    left, step = 150, 30
    height = _TOP + step * len(rows) + 8
    along = _scale(0.0, 1.0, left, _WIDTH - _RIGHT)
    parts = []
    for i, (name, held) in enumerate(rows):
        y, reached = _TOP + step * i, 0.0
        parts.append(f'<text x="{left - 8}" y="{y + 16}" text-anchor="end">{escape(name[:22])}</text>')
        for part, share in held:
            begin, end = along(reached), along(reached + share)
            reached += share
            box = f'x="{begin:.1f}" y="{y}" width="{end - begin:.1f}" height="22"'
            tip = f"{part.replace('_', ' ')} {share:.0%}"
            parts.append(f'<rect class="part {escape(part)}" {box}><title>{escape(tip)}</title></rect>')
    return _svg(title, parts, height)


# -- pieces -------------------------------------------------------------------------------------------------------


def _svg(title: str, parts: Iterable[str], height: float) -> str:
    said = escape(title)
    size = f'viewBox="0 0 {_WIDTH} {height:.0f}"'
    return f'<svg {size} role="img" aria-label="{said}"><title>{said}</title>{"".join(parts)}</svg>'


def _scale(low: float, high: float, begin: float, end: float) -> Callable[[float], float]:
    per = (end - begin) / ((high - low) or 1.0)
    return lambda value: begin + (value - low) * per


def _path(line: SvgLine, along: Callable[[float], float], up: Callable[[float], float]) -> str:
    points = " ".join(f"{along(x):.1f},{up(y):.1f}" for x, y in line.points)
    return f'<polyline class="run run{line.index}" points="{points}"/>'


def _grid_y(marks: Iterable[tuple[float, float]], unit: str, times: float = 1.0) -> list[str]:
    found = []
    for value, y in marks:
        found.append(f'<line class="grid" x1="{_LEFT}" y1="{y:.1f}" x2="{_WIDTH - _RIGHT}" y2="{y:.1f}"/>')
        said = f"{format_number(value * times)}{f' {unit}' if unit else ''}"
        found.append(f'<text x="{_LEFT - 6}" y="{y + 4:.1f}" text-anchor="end">{escape(said)}</text>')
    return found


def _grid_x(marks: Iterable[tuple[float, float]], unit: str) -> list[str]:
    return [
        f'<text x="{x:.1f}" y="{_HEIGHT - 10}" text-anchor="middle">{escape(f"{format_number(value)} {unit}")}</text>'
        for value, x in marks
    ]


def _round_marks(high: float) -> list[float]:
    """Some four round numbers from 0 to `high`."""
    size = 10.0 ** floor(log10(high / 4))
    step = next(size * times for times in (1, 2, 5, 10) if size * times * 4.5 >= high)
    return [step * i for i in range(floor(high / step + 1e-9) + 1)]


def _log2(ratio: float) -> float:
    return log10(max(ratio, 1e-9)) / log10(2.0)
