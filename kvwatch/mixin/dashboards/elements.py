"""The elements of a dashboard, independent of how Grafana stores them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from functools import partial

from kvwatch.mixin.dashboards.colours import GOOD

WIDTH = 24
"""Columns of Grafana's grid."""

NOT_EXPOSED, NO_TRAFFIC = "Not exposed by this vLLM", "No traffic"
"""Shown if a query finds no series, and if a ratio is 0/0."""


class PanelKind(StrEnum):
    """The panels that are used, named as in Grafana."""

    STAT = "stat"
    BARS = "bargauge"
    LINES = "timeseries"
    STACK = "timeseries-stacked"
    HEATMAP = "heatmap"
    TIMELINE = "state-timeline"
    TABLE = "table"


@dataclass(frozen=True, slots=True)
class ThresholdStep:
    """Values from `value` on have this colour."""

    value: float
    colour: str


@dataclass(frozen=True, slots=True)
class Column:
    """How a table shows a label or a query's value. A click opens `link`."""

    name: str
    title: str = ""
    unit: str = ""
    decimals: int | None = None
    width: int = 0
    steps: tuple[ThresholdStep, ...] = ()
    words: Mapping[str, tuple[str, str]] = field(default_factory=dict)
    """Text and colour by value."""
    link: str = ""
    link_title: str = ""


@dataclass(frozen=True, slots=True)
class Panel:
    """One panel. The constructors below name its kind."""

    kind: PanelKind
    title: str
    queries: Mapping[str, str]
    """Legend -> PromQL. The legend is Grafana's template of a series' name, in a table the column's name."""
    description: str
    unit: str = "none"
    """One of Grafana's unit ids. A ratio is ``percentunit``."""
    size: tuple[int, int] = (8, 7)
    """Width and height in the grid."""
    steps: tuple[ThresholdStep, ...] = ()
    """Colours by value, and lines in a graph. Below the first, `base` applies."""
    base: str = GOOD
    colours: Mapping[str, str] = field(default_factory=dict)
    """Colours of series by legend."""
    words: Mapping[str, tuple[str, str]] = field(default_factory=dict)
    """Text and colour by value."""
    absent: str = NOT_EXPOSED
    """Shown if no query finds a series."""
    decimals: int | None = None
    high: float | None = None
    """Upper end of the axis."""
    names: bool = False
    """A stat shows the name of each series."""
    columns: tuple[Column, ...] = ()
    """The columns of a table, in order."""
    sort: str = ""
    """The column that a table is sorted by."""
    repeat: str = ""
    """A variable: the panel repeats for each of its values."""
    shift: str = ""
    """A variable: how much earlier the panel's time range is."""


graph = partial(Panel, PanelKind.LINES)
ratio_panel = partial(Panel, PanelKind.LINES, unit="percentunit", high=1)
stacked = partial(Panel, PanelKind.STACK)
stat = partial(Panel, PanelKind.STAT)
bars = partial(Panel, PanelKind.BARS)
heatmap = partial(Panel, PanelKind.HEATMAP)
timeline = partial(Panel, PanelKind.TIMELINE)
table = partial(Panel, PanelKind.TABLE)


@dataclass(frozen=True, slots=True)
class PanelRow:
    """Panels under a title, from left to right. A panel that does not fit begins a new line."""

    title: str
    panels: tuple[Panel, ...]
    collapsed: bool = False


@dataclass(frozen=True, slots=True)
class Variable:
    """A choice at the top of the dashboard.

    It offers the values of the label `label` (or `name`) of the selector `label_of`, several or all at once; or, if
    given, one of `choices` (text -> value).
    """

    name: str
    title: str
    description: str
    label_of: str = ""
    label: str = ""
    choices: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Annotation:
    """Marks in all graphs where the expression is above 0."""

    name: str
    expr: str
    title: str
    tags: tuple[str, ...]
    colour: str


@dataclass(frozen=True, slots=True)
class Dashboard:
    """One dashboard. `uid` never changes, because alerts and people link to it. Times are in Grafana's format."""

    uid: str
    title: str
    description: str
    rows: tuple[PanelRow, ...]
    variables: tuple[Variable, ...]
    annotations: tuple[Annotation, ...] = ()
    since: str = "now-1h"
    refresh: str = "30s"
