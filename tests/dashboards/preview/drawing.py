"""A whole dashboard on Grafana's grid, as a picture."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import matplotlib as mpl
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle

from tests.dashboards.grafana import filled
from tests.dashboards.preview.answers import View
from tests.dashboards.preview.charts import draw
from tests.dashboards.preview.looks import BACKGROUND, FAINT, LINE, PANEL, TEXT

#: Grafana's measures on a laptop's screen, in pixels: a column, a line of the grid, and the space between panels.
WIDE, COLUMNS, LINE_PX, GAP = 1440, 24, 38, 8
HEAD, TITLE = 64, 24
_GRAPHS = {"timeseries", "heatmap", "state-timeline"}


def picture(board: Mapping[str, Any], view: View, path: Path) -> None:
    """Draws the dashboard into a PNG file."""
    mpl.rcParams["font.family"] = "DejaVu Sans"
    high = HEAD + max(one["gridPos"]["y"] + one["gridPos"]["h"] for one in board["panels"]) * LINE_PX
    figure = Figure(figsize=(WIDE / 100, high / 100), dpi=100, facecolor=BACKGROUND)
    _head(figure, board, view, high)
    for panel in board["panels"]:
        place = panel["gridPos"]
        left, top = place["x"] * (WIDE / COLUMNS), HEAD + place["y"] * LINE_PX
        wide, tall = place["w"] * (WIDE / COLUMNS) - GAP, place["h"] * LINE_PX - GAP
        if panel["type"] == "row":
            folded = f"  ({len(panel['panels'])} panels)" if panel["collapsed"] else ""
            mark = "▸" if panel["collapsed"] else "▾"
            figure.text(
                (left + 8) / WIDE,
                1 - (top + 16) / high,
                f"{mark} {panel['title']}{folded}",
                color=TEXT,
                fontsize=11,
                va="center",
            )
            continue
        box = Rectangle(
            (left / WIDE, 1 - (top + tall) / high),
            wide / WIDE,
            tall / high,
            facecolor=PANEL,
            edgecolor=LINE,
            lw=0.6,
            transform=figure.transFigure,
            zorder=-1,
        )
        figure.add_artist(box)
        title = filled(panel["title"], {**view.values, "model_name": view.values["shown_model"]})
        figure.text((left + 8) / WIDE, 1 - (top + 14) / high, title, color=TEXT, fontsize=9, va="center")
        margin = (
            (64, 14, 44)
            if panel["type"] == "timeseries"
            else (64, 14, 22)
            if panel["type"] in _GRAPHS
            else (8, 8, 8)
        )
        if panel["type"] == "state-timeline":
            margin = (150, 12, 22)
        size = (wide - margin[0] - margin[1], tall - TITLE - margin[2] - 4)
        axes = figure.add_axes(
            ((left + margin[0]) / WIDE, 1 - (top + tall - margin[2]) / high, size[0] / WIDE, size[1] / high)
        )
        draw(axes, panel, view, size)
    figure.savefig(path, dpi=100, facecolor=BACKGROUND)


def _head(figure: Figure, board: Mapping[str, Any], view: View, high: float) -> None:
    figure.text(12 / WIDE, 1 - 18 / high, board["title"], color=TEXT, fontsize=13, va="center")
    left = 12.0
    for one in board["templating"]["list"]:
        value = view.values[one["name"]] if one["name"] != "datasource" else ""
        said = f"{one['label']}: {'All' if value == '.+' else value or 'Prometheus'}"
        figure.text(left / WIDE, 1 - 46 / high, said, color=FAINT, fontsize=8.5, va="center")
        left += len(said) * 6.3 + 22
