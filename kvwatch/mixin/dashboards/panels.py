"""One panel in Grafana's JSON, by kind."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from kvwatch.mixin.dashboards.colours import GREY, SERIES
from kvwatch.mixin.dashboards.elements import NO_TRAFFIC, Panel, PanelKind, Query
from kvwatch.mixin.dashboards.table_columns import (
    REFS,
    columns,
    mapped,
    override,
    thresholds,
    transformations,
)

#: Grafana's name of the panel.
TYPES: Mapping[PanelKind, str] = {kind: kind.value.removesuffix("-stacked") for kind in PanelKind}
_NOW = {PanelKind.STAT, PanelKind.BARS, PanelKind.TABLE}
_GRAPH = {PanelKind.LINES, PanelKind.STACK}
_FORMATS = {PanelKind.TABLE: "table", PanelKind.HEATMAP: "heatmap"}


def written(
    panel: Panel, number: int, place: Mapping[str, int], datasource: Mapping[str, str]
) -> dict[str, Any]:
    """The panel at a place of the grid."""
    found: dict[str, Any] = {
        "id": number,
        "type": TYPES[panel.kind],
        "title": panel.title,
        "description": panel.description,
        "datasource": datasource,
        "gridPos": dict(place),
        "pluginVersion": "10.4.0",
        "targets": [
            _target(panel.kind, ref, query, datasource)
            for ref, query in zip(REFS, panel.queries, strict=False)
        ],
        "fieldConfig": {
            "defaults": _defaults(panel),
            "overrides": [*(columns if panel.kind is PanelKind.TABLE else _overrides)(panel)],
        },
        "options": _OPTIONS[TYPES[panel.kind]](panel),
        "transformations": transformations(panel),
    }
    if panel.repeat:
        found |= {"repeat": panel.repeat, "repeatDirection": "h", "maxPerRow": 3}
    if panel.shift:
        found["timeShift"] = f"${panel.shift}"
    return found


def _target(kind: PanelKind, ref: str, query: Query, datasource: Mapping[str, str]) -> dict[str, Any]:
    now = kind in _NOW
    return {
        "refId": ref,
        "datasource": datasource,
        "editorMode": "code",
        "expr": query.expr,
        "legendFormat": query.legend if kind is not PanelKind.TABLE else "",
        "format": _FORMATS.get(kind, "time_series"),
        "instant": now,
        "range": not now,
    }


# -- fields ------------------------------------------------------------------------------------------------------


def _defaults(panel: Panel) -> dict[str, Any]:
    found: dict[str, Any] = {
        "unit": panel.unit,
        "noValue": panel.absent,
        "mappings": _mappings(panel),
        "thresholds": thresholds(panel.steps, panel.base),
        "color": {"mode": "thresholds" if panel.kind in _NOW else "palette-classic"},
        "custom": _custom(panel),
    }
    if panel.kind is PanelKind.TIMELINE:
        found["color"] = {"mode": "thresholds"}
    ends = {"min": 0, "max": panel.high, "decimals": panel.decimals}
    if panel.kind is not PanelKind.TABLE:
        found |= {name: value for name, value in ends.items() if value is not None}
    return found


def _mappings(panel: Panel) -> list[dict[str, Any]]:
    words = [mapped(panel.words)] if panel.words else []
    none = {"match": "nan", "result": {"text": NO_TRAFFIC, "color": GREY, "index": len(panel.words)}}
    return [*words, {"type": "special", "options": none}]


def _custom(panel: Panel) -> dict[str, Any]:
    match panel.kind:
        case PanelKind.LINES | PanelKind.STACK:
            stacked = panel.kind is PanelKind.STACK
            return {
                "drawStyle": "line",
                "lineInterpolation": "linear",
                "lineWidth": 0 if stacked else 2,
                "fillOpacity": 85 if stacked else 0,
                "showPoints": "never",
                "spanNulls": False,
                "stacking": {"mode": "normal" if stacked else "none", "group": "A"},
                "thresholdsStyle": {"mode": "dashed" if panel.steps else "off"},
                "axisSoftMin": 0,
            }
        case PanelKind.TIMELINE:
            return {"lineWidth": 0, "fillOpacity": 85}
        case PanelKind.TABLE:
            return {"align": "auto", "cellOptions": {"type": "auto"}, "filterable": False, "inspect": False}
        case _:
            return {}


def _overrides(panel: Panel) -> Iterable[dict[str, Any]]:
    colours = dict(panel.colours)
    if panel.kind in _GRAPH and not colours:
        known = [query.legend for query in panel.queries if "{{" not in query.legend]
        colours = dict(zip(known, SERIES, strict=False))
    for name, colour in colours.items():
        yield override(name, {"color": {"mode": "fixed", "fixedColor": colour}})


# -- options -----------------------------------------------------------------------------------------------------

_LAST = {"calcs": ["lastNotNull"], "fields": "", "values": False}


def _stat(panel: Panel) -> dict[str, Any]:
    return {
        "colorMode": "background_solid" if panel.colours or panel.steps or panel.words else "value",
        "graphMode": "none",
        "justifyMode": "auto",
        "orientation": "auto",
        "reduceOptions": _LAST,
        "textMode": "value_and_name" if panel.names else "value",
        "wideLayout": True,
    }


def _bars(_: Panel) -> dict[str, Any]:
    return {
        "displayMode": "basic",
        "orientation": "horizontal",
        "reduceOptions": _LAST,
        "showUnfilled": True,
        "valueMode": "color",
        "namePlacement": "left",
        "minVizHeight": 8,
        "minVizWidth": 8,
        "sizing": "auto",
    }


def _lines(panel: Panel) -> dict[str, Any]:
    return {
        "legend": {"displayMode": "list", "placement": "bottom", "showLegend": True, "calcs": []},
        "tooltip": {"mode": "multi", "sort": "desc" if panel.kind is PanelKind.LINES else "none"},
    }


def _heatmap(panel: Panel) -> dict[str, Any]:
    return {
        "calculate": False,
        "cellGap": 1,
        "color": {
            "mode": "scheme",
            "scheme": "Viridis",
            "steps": 64,
            "fill": "dark-blue",
            "exponent": 0.5,
            "scale": "exponential",
            "reverse": False,
        },
        "exemplars": {"color": "rgba(255,0,255,0.7)"},
        "filterValues": {"le": 1e-9},
        "legend": {"show": True},
        "rowsFrame": {"layout": "auto"},
        "tooltip": {"mode": "single", "yHistogram": False, "showColorScale": True},
        "yAxis": {"axisPlacement": "left", "reverse": False, "unit": panel.unit},
        "cellValues": {"unit": "short"},
    }


def _timeline(_: Panel) -> dict[str, Any]:
    return {
        "alignValue": "left",
        "legend": {"displayMode": "list", "placement": "bottom", "showLegend": False},
        "mergeValues": True,
        "rowHeight": 0.85,
        "showValue": "never",
        "tooltip": {"mode": "single", "sort": "none"},
    }


def _table(_: Panel) -> dict[str, Any]:
    return {
        "cellHeight": "sm",
        "footer": {
            "show": False,
            "enablePagination": True,
            "reducer": ["sum"],
            "countRows": False,
            "fields": "",
        },
        "showHeader": True,
    }


_OPTIONS = {
    "stat": _stat,
    "bargauge": _bars,
    "timeseries": _lines,
    "heatmap": _heatmap,
    "state-timeline": _timeline,
    "table": _table,
}
