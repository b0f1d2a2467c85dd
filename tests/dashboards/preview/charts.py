"""Draws one panel on an Axes that covers its place."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

from matplotlib.axes import Axes
from matplotlib.patches import Rectangle
from matplotlib.ticker import MaxNLocator

from tests.dashboards.preview.answers import Series, View, lines
from tests.dashboards.preview.looks import CLASSIC, FAINT, LINE, PANEL, TEXT, colour, number, properties, text

Panel = Mapping[str, Any]
#: Height of a table's or legend's line, in pixels of the grid.
_LINE_PX = 19


def draw(axes: Axes, panel: Panel, view: View, size: tuple[float, float]) -> None:
    """`size` is that of the axes in pixels."""
    series = view.ask(panel)
    if not series:
        _word(axes, panel["fieldConfig"]["defaults"]["noValue"], size)
        return
    _KINDS[panel["type"]](axes, panel, series, view, size)


def _bare(axes: Axes) -> None:
    axes.set_xlim(0, 1)
    axes.set_ylim(1, 0)
    axes.axis("off")


def _word(axes: Axes, said: str, size: tuple[float, float]) -> None:
    _bare(axes)
    axes.text(0.5, 0.5, _fitted(said, size[0] / 8), color=FAINT, ha="center", va="center", fontsize=9)


def _fitted(said: str, width: float) -> str:
    """Broken into lines of so many letters."""
    found, line = [], ""
    for word in said.split():
        if line and len(line) + len(word) + 1 > width:
            found.append(line)
            line = ""
        line = f"{line} {word}".strip()
    return "\n".join([*found, line])


def _on(background: str) -> str:
    """Dark text on light, light text on dark."""
    red, green, blue = (int(background[at : at + 2], 16) for at in (1, 3, 5))
    return "#000000" if 0.299 * red + 0.587 * green + 0.114 * blue > 140 else "#ffffff"


# -- stat and bars -----------------------------------------------------------------------------------------------


def _stat(axes: Axes, panel: Panel, series: Sequence[Series], _: View, size: tuple[float, float]) -> None:
    _bare(axes)
    width, gap = 1 / len(series), 4 / size[0]
    solid = panel["options"]["colorMode"] == "background_solid"
    named = panel["options"]["textMode"] == "value_and_name"
    for number_, one in enumerate(series):
        look = properties(panel, one.name)
        shade = colour(one.last, look)
        said = text(one.last, look)
        left = number_ * width
        if solid:
            axes.add_patch(
                Rectangle((left, 0), width - (gap if len(series) > 1 else 0), 1, color=shade, lw=0)
            )
        front = _on(shade) if solid else shade
        big = min(22, size[0] * width / max(len(said), 2) / 0.85, size[1] / 2.4)
        axes.text(
            left + width / 2,
            0.62 if named else 0.5,
            said,
            color=front,
            ha="center",
            va="center",
            fontsize=big,
        )
        if named:
            small = min(9, size[0] * width / max(len(one.name), 1) / 0.75)
            shown = front if solid else TEXT
            axes.text(left + width / 2, 0.2, one.name, color=shown, ha="center", va="center", fontsize=small)


def _bars(axes: Axes, panel: Panel, series: Sequence[Series], _: View, size: tuple[float, float]) -> None:
    _bare(axes)
    defaults = panel["fieldConfig"]["defaults"]
    most = defaults.get("max") or max(
        max((one.last for one in series if not math.isnan(one.last)), default=1), 1e-9
    )
    height, left, right = 1 / len(series), min(120 / size[0], 0.4), 1 - 50 / size[0]
    for row, one in enumerate(series):
        look = properties(panel, one.name)
        shade = colour(one.last, look)
        middle = (row + 0.5) * height
        axes.text(left - 6 / size[0], middle, one.name, color=TEXT, ha="right", va="center", fontsize=8)
        share = 0 if math.isnan(one.last) else min(max(one.last / most, 0), 1)
        axes.add_patch(
            Rectangle((left, middle - 0.38 * height), right - left, 0.76 * height, color="#22252b", lw=0)
        )
        axes.add_patch(
            Rectangle(
                (left, middle - 0.38 * height), (right - left) * share, 0.76 * height, color=shade, lw=0
            )
        )
        axes.text(
            right + 6 / size[0], middle, text(one.last, look), color=TEXT, ha="left", va="center", fontsize=8
        )


# -- graphs ------------------------------------------------------------------------------------------------------


def _graph(axes: Axes, panel: Panel, series: Sequence[Series], view: View, size: tuple[float, float]) -> None:
    defaults = panel["fieldConfig"]["defaults"]
    stacked = defaults["custom"]["stacking"]["mode"] == "normal"
    shades = [_shade(panel, one.name, number_) for number_, one in enumerate(series)]
    grid = [view.start + n * view.step for n in range(round((view.end - view.start) / view.step) + 1)]
    if all(math.isnan(value) for one in series for value in one.values):
        _word(axes, text(math.nan, defaults), size)
        return
    rows = [_on_grid(one, grid, view.step) for one in series]
    if stacked:
        whole = [[0.0 if math.isnan(value) else value for value in row] for row in rows]
        axes.stackplot(grid, whole, colors=shades, lw=0, alpha=0.9)
    else:
        for row, shade in zip(rows, shades, strict=True):
            axes.plot(grid, row, color=shade, lw=1.4)
    if defaults["custom"]["thresholdsStyle"]["mode"] != "off":
        for one in defaults["thresholds"]["steps"]:
            if one["value"]:
                axes.axhline(one["value"], color=one["color"], lw=0.9, ls=(0, (4, 3)))
    axes.set_ylim(bottom=defaults.get("min", 0), top=defaults.get("max"))
    if not defaults.get("max") and axes.get_ylim()[1] <= 0:
        axes.set_ylim(0, 1)
    _axes(axes, panel, view, size)
    _legend(axes, series, shades, size)


def _shade(panel: Panel, name: str, number_: int) -> str:
    look = properties(panel, name)
    return (
        str(look["color"]["fixedColor"])
        if look["color"]["mode"] == "fixed"
        else CLASSIC[number_ % len(CLASSIC)]
    )


def _on_grid(one: Series, grid: Sequence[float], step: float) -> list[float]:
    known = {round((at - grid[0]) / step): value for at, value in zip(one.times, one.values, strict=True)}
    return [known.get(number_, math.nan) for number_ in range(len(grid))]


def _axes(axes: Axes, panel: Panel, view: View, size: tuple[float, float]) -> None:
    unit = panel["fieldConfig"]["defaults"]["unit"]
    axes.set_facecolor(PANEL)
    axes.set_xlim(view.start, view.end)
    axes.grid(color=LINE, lw=0.5)
    for side in axes.spines.values():
        side.set_visible(False)
    axes.tick_params(colors=FAINT, labelsize=7, length=0)
    axes.yaxis.set_major_formatter(lambda value, _: number(value, unit))
    axes.yaxis.set_major_locator(MaxNLocator(4))
    axes.xaxis.set_major_locator(MaxNLocator(max(int(size[0] / 110), 2)))
    axes.xaxis.set_major_formatter(lambda value, _: f"{datetime.fromtimestamp(value, UTC):%H:%M:%S}")


def _legend(axes: Axes, series: Sequence[Series], shades: Sequence[str], size: tuple[float, float]) -> None:
    """Below the graph, as many names as fit its lines."""
    left, line = 0.0, 0
    for one, shade in zip(series, shades, strict=True):
        wide = (len(one.name) * 6.1 + 24) / size[0]
        if left and left + wide > 1:
            left, line = 0.0, line + 1
        if line > 1:
            break
        below = -(24 + line * 13) / size[1]
        transform = axes.transAxes
        axes.add_patch(
            Rectangle(
                (left, below - 1.5 / size[1]),
                9 / size[0],
                3 / size[1],
                color=shade,
                transform=transform,
                clip_on=False,
            )
        )
        axes.text(
            left + 13 / size[0], below, one.name, color=TEXT, fontsize=7.5, va="center", transform=transform
        )
        left += wide


def _heatmap(
    axes: Axes, panel: Panel, series: Sequence[Series], view: View, size: tuple[float, float]
) -> None:
    bounds = sorted(series, key=lambda one: float(one.name))
    grid = [view.start + n * view.step for n in range(round((view.end - view.start) / view.step) + 1)]
    rows = [_on_grid(one, grid, view.step) for one in bounds]
    single = [
        [value - (rows[n - 1][at] if n else 0.0) for at, value in enumerate(row)]
        for n, row in enumerate(rows)
    ]
    shown = [[value if value > 1e-9 else math.nan for value in row] for row in single]
    axes.pcolormesh(
        [at - view.step / 2 for at in [*grid, grid[-1] + view.step]],
        list(range(len(shown) + 1)),
        shown,
        cmap="viridis",
        norm="log" if any(value > 0 for row in shown for value in row) else None,
    )
    _axes(axes, panel, view, size)
    unit = panel["options"]["yAxis"]["unit"]
    ticks = list(range(1, len(bounds) + 1, max(len(bounds) // 7, 1)))
    axes.set_yticks(ticks, [number(float(bounds[tick - 1].name), unit) for tick in ticks])


def _timeline(
    axes: Axes, panel: Panel, series: Sequence[Series], view: View, size: tuple[float, float]
) -> None:
    _axes(axes, panel, view, size)
    axes.grid(visible=False)
    for row, one in enumerate(series):
        look = properties(panel, one.name)
        for at, value in zip(one.times, one.values, strict=True):
            axes.add_patch(Rectangle((at, row + 0.1), view.step, 0.8, color=colour(value, look), lw=0))
    axes.set_ylim(len(series), 0)
    axes.set_yticks([row + 0.5 for row in range(len(series))], [one.name for one in series])
    axes.tick_params(axis="y", labelsize=7.5, colors=TEXT)


# -- tables ------------------------------------------------------------------------------------------------------


def _table(axes: Axes, panel: Panel, series: Sequence[Series], _: View, size: tuple[float, float]) -> None:
    _bare(axes)
    found = lines(panel, list(series))
    names = list(dict.fromkeys(name for line in found for name in line))
    order = [one["matcher"]["options"] for one in panel["fieldConfig"]["overrides"]]
    shown = [name for name in order if name in names and not properties(panel, name).get("custom.hidden")]
    looks = {name: properties(panel, name) for name in shown}
    fixed = {name: look.get("custom.width") for name, look in looks.items()}
    rest = size[0] - sum(width for width in fixed.values() if width)
    free = max(rest / max(sum(not width for width in fixed.values()), 1), 40)
    height, top = _LINE_PX / size[1], 0.0
    for number_, line in enumerate([None, *found]):
        if top + height > 1:
            axes.text(
                0.5, 1, f"{len(found) - number_ + 1} more", color=FAINT, fontsize=7, ha="center", va="bottom"
            )
            break
        left = 0.0
        for name in shown:
            wide = (fixed[name] or free) / size[0]
            look = looks[name]
            value: str | float = look.get("displayName", name) if line is None else line.get(name, "")
            _cell(axes, (left, top, wide, height), value, look if line is not None else None, size[0])
            left += wide
        top += height
        axes.plot([0, 1], [top, top], color=LINE, lw=0.5)


def _cell(
    axes: Axes,
    place: tuple[float, float, float, float],
    value: str | float,
    look: Mapping[str, Any] | None,
    pixels: float,
) -> None:
    left, top, wide, height = place
    front, said = FAINT, str(value)
    if look is not None:
        said, front = text(value, look) if value != "" else "", TEXT
        kind = look["custom.cellOptions"]["type"]
        if kind == "color-background" and isinstance(value, float):
            shade = colour(value, look)
            if shade.startswith("#") and not math.isnan(value):
                axes.add_patch(Rectangle((left, top), wide - 2 / pixels, height, color=shade, lw=0))
                front = _on(shade)
        elif kind == "color-text":
            front = colour(value, look)
        if look.get("links"):
            front = "#6e9fff"
    room = int(wide * pixels / 6.6)
    said = said if len(said) <= room else said[: max(room - 1, 1)] + "…"
    axes.text(left + 4 / pixels, top + height / 2, said, color=front, fontsize=7.8, va="center")


_KINDS = {
    "stat": _stat,
    "bargauge": _bars,
    "timeseries": _graph,
    "heatmap": _heatmap,
    "state-timeline": _timeline,
    "table": _table,
}
