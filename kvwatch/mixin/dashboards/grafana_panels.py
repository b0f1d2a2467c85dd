"""One panel in Grafana's JSON, by kind."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from kvwatch.mixin.dashboards.colours import GREY, SERIES
from kvwatch.mixin.dashboards.elements import NO_TRAFFIC, Panel, PanelKind
from kvwatch.mixin.dashboards.grafana_tables import (
    REFS,
    columns,
    override,
    thresholds,
    transformations,
    value_mapping,
)

DATASOURCE = {"type": "prometheus", "uid": "${datasource}"}

TYPES: Mapping[PanelKind, str] = {kind: kind.value.removesuffix("-stacked") for kind in PanelKind}
"""Grafana's name of the panel."""

_INSTANT = {PanelKind.STAT, PanelKind.BARS, PanelKind.TABLE}
_GRAPH = {PanelKind.LINES, PanelKind.STACK}
_FORMATS = {PanelKind.TABLE: "table", PanelKind.HEATMAP: "heatmap"}


def panel_json(panel: Panel, number: int, place: Mapping[str, int]) -> dict[str, Any]:
    """The panel at a place of the grid."""
    found: dict[str, Any] = {
        "id": number,
        "type": TYPES[panel.kind],
        "title": panel.title,
        "description": panel.description,
        "datasource": DATASOURCE,
        "gridPos": dict(place),
        "pluginVersion": "10.4.0",
        "targets": [
            _target(panel.kind, ref, legend, expr)
            for ref, (legend, expr) in zip(REFS, panel.queries.items(), strict=False)
        ],
        "fieldConfig": {
            "defaults": _defaults(panel),
            "overrides": [*(columns if panel.kind is PanelKind.TABLE else _overrides)(panel)],
        },
        "options": _options(panel),
        "transformations": transformations(panel),
    }
    if panel.repeat:
        found |= {"repeat": panel.repeat, "repeatDirection": "h", "maxPerRow": 3}
    if panel.shift:
        found["timeShift"] = f"${panel.shift}"
    return found


def _target(kind: PanelKind, ref: str, legend: str, expr: str) -> dict[str, Any]:
    return {
        "refId": ref,
        "datasource": DATASOURCE,
        "editorMode": "code",
        "expr": expr,
        "legendFormat": legend if kind is not PanelKind.TABLE else "",
        "format": _FORMATS.get(kind, "time_series"),
        "instant": kind in _INSTANT,
        "range": kind not in _INSTANT,
    }


# -- fields ------------------------------------------------------------------------------------------------------


def _defaults(panel: Panel) -> dict[str, Any]:
    by_threshold = panel.kind in _INSTANT or panel.kind is PanelKind.TIMELINE
    found: dict[str, Any] = {
        "unit": panel.unit,
        "noValue": panel.absent,
        "mappings": _mappings(panel),
        "thresholds": thresholds(panel.steps, panel.base),
        "color": {"mode": "thresholds" if by_threshold else "palette-classic"},
        "custom": _custom(panel),
    }
    limits = {"min": 0, "max": panel.high, "decimals": panel.decimals}
    if panel.kind is not PanelKind.TABLE:
        found |= {name: value for name, value in limits.items() if value is not None}
    return found


def _mappings(panel: Panel) -> list[dict[str, Any]]:
    words = [value_mapping(panel.words)] if panel.words else []
    result = {"text": NO_TRAFFIC, "color": GREY, "index": len(panel.words)}
    return [*words, {"type": "special", "options": {"match": "nan", "result": result}}]


def _custom(panel: Panel) -> dict[str, Any]:
    match panel.kind:
        case PanelKind.LINES | PanelKind.STACK:
            is_stack = panel.kind is PanelKind.STACK
            return {
                "drawStyle": "line",
                "lineInterpolation": "linear",
                "lineWidth": 0 if is_stack else 2,
                "fillOpacity": 85 if is_stack else 0,
                "showPoints": "never",
                "spanNulls": False,
                "stacking": {"mode": "normal" if is_stack else "none", "group": "A"},
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
        legends = [legend for legend in panel.queries if "{{" not in legend]
        colours = dict(zip(legends, SERIES, strict=False))
    for name, colour in colours.items():
        yield override(name, {"color": {"mode": "fixed", "fixedColor": colour}})


# -- options -----------------------------------------------------------------------------------------------------

_LAST = {"calcs": ["lastNotNull"], "fields": "", "values": False}
_HEATMAP_COLOURS = {
    "mode": "scheme",
    "scheme": "Viridis",
    "steps": 64,
    "fill": "dark-blue",
    "exponent": 0.5,
    "scale": "exponential",
    "reverse": False,
}


def _options(panel: Panel) -> dict[str, Any]:
    match panel.kind:
        case PanelKind.STAT:
            return {
                "colorMode": "background_solid" if panel.colours or panel.steps or panel.words else "value",
                "graphMode": "none",
                "justifyMode": "auto",
                "orientation": "auto",
                "reduceOptions": _LAST,
                "textMode": "value_and_name" if panel.names else "value",
                "wideLayout": True,
            }
        case PanelKind.BARS:
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
        case PanelKind.HEATMAP:
            return {
                "calculate": False,
                "cellGap": 1,
                "color": _HEATMAP_COLOURS,
                "exemplars": {"color": "rgba(255,0,255,0.7)"},
                "filterValues": {"le": 1e-9},
                "legend": {"show": True},
                "rowsFrame": {"layout": "auto"},
                "tooltip": {"mode": "single", "yHistogram": False, "showColorScale": True},
                "yAxis": {"axisPlacement": "left", "reverse": False, "unit": panel.unit},
                "cellValues": {"unit": "short"},
            }
        case PanelKind.TIMELINE:
            return {
                "alignValue": "left",
                "legend": {"displayMode": "list", "placement": "bottom", "showLegend": False},
                "mergeValues": True,
                "rowHeight": 0.85,
                "showValue": "never",
                "tooltip": {"mode": "single", "sort": "none"},
            }
        case PanelKind.TABLE:
            footer = {
                "show": False,
                "enablePagination": True,
                "reducer": ["sum"],
                "countRows": False,
                "fields": "",
            }
            return {"cellHeight": "sm", "footer": footer, "showHeader": True}
        case PanelKind.LINES | PanelKind.STACK:
            return {
                "legend": {"displayMode": "list", "placement": "bottom", "showLegend": True, "calcs": []},
                "tooltip": {"mode": "multi", "sort": "desc" if panel.kind is PanelKind.LINES else "none"},
            }
