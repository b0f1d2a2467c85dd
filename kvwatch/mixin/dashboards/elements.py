"""What a dashboard is made of. Nothing here knows how Grafana writes it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from kvwatch.mixin.dashboards.colours import GOOD

#: Grafana's grid is so many columns wide.
WIDTH = 24
#: What stands where a query finds no series, and where a ratio has nothing above and below the line.
NOT_EXPOSED, NO_TRAFFIC = "Not exposed by this vLLM", "No traffic"


class PanelKind(StrEnum):
    """Grafana's built-in panels that are used, by its own names."""

    STAT = "stat"
    BARS = "bargauge"
    LINES = "timeseries"
    STACK = "timeseries-stacked"
    HEATMAP = "heatmap"
    TIMELINE = "state-timeline"
    TABLE = "table"


@dataclass(frozen=True, slots=True)
class Query:
    """A PromQL expression. `legend` is Grafana's template of a series' name, or the column's name in a table."""

    expr: str
    legend: str = ""


@dataclass(frozen=True, slots=True)
class ThresholdStep:
    """From this value on, this colour."""

    value: float
    colour: str


@dataclass(frozen=True, slots=True)
class Column:
    """How a table shows a label or a query's value. `words` are for values, with colours; a click leads to `link`."""

    name: str
    title: str = ""
    unit: str = ""
    decimals: int | None = None
    width: int = 0
    steps: tuple[ThresholdStep, ...] = ()
    words: Mapping[str, tuple[str, str]] = field(default_factory=dict)
    link: str = ""
    link_title: str = ""


@dataclass(frozen=True, slots=True)
class Panel:
    """One panel. `unit` is one of Grafana's ids; a ratio is ``percentunit``.

    `steps` colour a value (and are drawn as lines in a graph), below the first of them `base` holds. `colours` are
    those of series by their legend. `absent` stands where no query finds a series. A table shows only its `columns`,
    in their order, sorted by the column `sort`. `repeat` names a variable for each of whose values the panel stands
    once; `shift` one that says how much earlier its time range lies.
    """

    title: str
    kind: PanelKind
    unit: str
    queries: tuple[Query, ...]
    description: str
    width: int = 8
    height: int = 7
    steps: tuple[ThresholdStep, ...] = ()
    base: str = GOOD
    colours: Mapping[str, str] = field(default_factory=dict)
    words: Mapping[str, tuple[str, str]] = field(default_factory=dict)
    """Words for values, each with its colour, for instance of 0 and 1."""
    absent: str = NOT_EXPOSED
    decimals: int | None = None
    high: float | None = None
    names: bool = False
    """A stat shows the name of each series beside its value."""
    columns: tuple[Column, ...] = ()
    sort: str = ""
    repeat: str = ""
    shift: str = ""


@dataclass(frozen=True, slots=True)
class PanelRow:
    """Panels under a question. They stand from left to right, a new line where the next does not fit."""

    title: str
    panels: tuple[Panel, ...]
    collapsed: bool = False


@dataclass(frozen=True, slots=True)
class Variable:
    """A choice at the head. `label_of` is a selector whose values of the label `name` (or `label`) are offered.

    Several can be chosen, and all. With `choices` (what is shown -> the value) it is one of those instead.
    """

    name: str
    title: str
    description: str
    label_of: str = ""
    label: str = ""
    choices: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Annotation:
    """Marks over all graphs, where the expression is above 0."""

    name: str
    expr: str
    title: str
    tags: tuple[str, ...]
    colour: str


@dataclass(frozen=True, slots=True)
class Dashboard:
    """One dashboard; `uid` never changes, since alerts and people link to it. `refresh` and times as Grafana's."""

    uid: str
    title: str
    description: str
    rows: tuple[PanelRow, ...]
    variables: tuple[Variable, ...]
    annotations: tuple[Annotation, ...] = ()
    since: str = "now-1h"
    refresh: str = "30s"
