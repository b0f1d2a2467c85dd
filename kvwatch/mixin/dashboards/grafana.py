"""Dashboards in Grafana's JSON, schema version 39: that of Grafana 10.4, which later releases migrate.

The data source is a variable, so neither an import nor provisioning requires input.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from typing import Any

from kvwatch.mixin.dashboards.elements import WIDTH, Annotation, Dashboard, Panel, PanelRow, Variable
from kvwatch.mixin.dashboards.grafana_panels import DATASOURCE, TYPES, panel_json

SCHEMA_VERSION, OLDEST = 39, "10.4.0"
TAG = "kvwatch"


def to_json(board: Dashboard, among: Sequence[Dashboard] = ()) -> str:
    """The file of one dashboard, with links to the others in `among`."""
    found = {
        "__inputs": [],
        "__requires": _requires(board),
        "uid": board.uid,
        "title": board.title,
        "description": board.description,
        "tags": [TAG],
        "schemaVersion": SCHEMA_VERSION,
        "version": 1,
        "editable": False,
        "graphTooltip": 1,
        "refresh": board.refresh,
        "time": {"from": board.since, "to": "now"},
        "timepicker": {"refresh_intervals": ["5s", "10s", "30s", "1m", "5m", "15m", "1h"]},
        "timezone": "browser",
        "links": [_link(other) for other in among if other.uid != board.uid],
        "templating": {"list": [_DATASOURCE_VARIABLE, *map(_variable, board.variables)]},
        "annotations": {"list": [_GRAFANA_ANNOTATIONS, *map(_annotation, board.annotations)]},
        "panels": list(_grid(board.rows)),
    }
    return json.dumps(found, indent=2, ensure_ascii=False) + "\n"


_DATASOURCE_VARIABLE = {
    "name": "datasource",
    "label": "Data source",
    "description": "The Prometheus that scrapes kvwatch.",
    "type": "datasource",
    "query": "prometheus",
    "refresh": 1,
    "hide": 0,
}

_GRAFANA_ANNOTATIONS = {
    "builtIn": 1,
    "datasource": {"type": "grafana", "uid": "-- Grafana --"},
    "enable": True,
    "hide": True,
    "iconColor": "rgba(0, 211, 255, 1)",
    "name": "Annotations & Alerts",
    "type": "dashboard",
}
"""Grafana's own, which every dashboard has."""


def _requires(board: Dashboard) -> list[dict[str, str]]:
    kinds = sorted({TYPES[panel.kind] for row in board.rows for panel in row.panels})
    return [
        {"type": "grafana", "id": "grafana", "name": "Grafana", "version": OLDEST},
        {"type": "datasource", "id": "prometheus", "name": "Prometheus", "version": "1.0.0"},
        *({"type": "panel", "id": kind, "name": kind, "version": ""} for kind in kinds),
    ]


def _link(board: Dashboard) -> dict[str, Any]:
    return {
        "type": "link",
        "title": board.title.rpartition("/ ")[2],
        "tooltip": board.description,
        "icon": "dashboard",
        "url": f"/d/{board.uid}",
        "keepTime": True,
        "includeVars": True,
        "asDropdown": False,
        "targetBlank": False,
        "tags": [],
    }


def _variable(one: Variable) -> dict[str, Any]:
    head = {"name": one.name, "label": one.title, "description": one.description, "hide": 0}
    if one.choices:
        options = [
            {"text": text, "value": value, "selected": number == 0}
            for number, (text, value) in enumerate(one.choices.items())
        ]
        return head | {
            "type": "custom",
            "query": ",".join(f"{text} : {value}" for text, value in one.choices.items()),
            "multi": False,
            "includeAll": False,
            "current": options[0],
            "options": options,
        }
    query = f"label_values({one.label_of}, {one.label or one.name})"
    return head | {
        "type": "query",
        "datasource": DATASOURCE,
        "definition": query,
        "query": {"query": query, "refId": "StandardVariableQuery"},
        "refresh": 2,
        "sort": 1,
        "multi": True,
        "includeAll": True,
        "allValue": ".+",
        "current": {"text": ["All"], "value": ["$__all"], "selected": True},
    }


def _annotation(one: Annotation) -> dict[str, Any]:
    return {
        "name": one.name,
        "datasource": DATASOURCE,
        "enable": True,
        "hide": False,
        "iconColor": one.colour,
        "expr": one.expr,
        "step": "30s",
        "titleFormat": one.title,
        "tagKeys": ",".join(one.tags),
        "textFormat": "",
        "useValueForTime": False,
    }


def _grid(rows: Iterable[PanelRow]) -> Iterable[dict[str, Any]]:
    """Rows and panels, numbered and placed."""
    top, number = 0, 0
    for row in rows:
        number += 1
        head = {
            "id": number,
            "type": "row",
            "title": row.title,
            "collapsed": row.collapsed,
            "gridPos": {"x": 0, "y": top, "w": WIDTH, "h": 1},
            "panels": [],
        }
        top += 1
        placed = []
        for panel, place in _places(row.panels, top):
            number += 1
            placed.append(panel_json(panel, number, place))
        if row.collapsed:
            yield head | {"panels": placed}
        else:
            yield head
            yield from placed
            top = max((one["gridPos"]["y"] + one["gridPos"]["h"] for one in placed), default=top)


def _places(shown: Iterable[Panel], top: int) -> Iterable[tuple[Panel, dict[str, int]]]:
    """From left to right. A line is as high as its highest panel."""
    left, high = 0, 0
    for panel in shown:
        width, height = panel.size
        if left + width > WIDTH:
            left, top, high = 0, top + high, 0
        yield panel, {"x": left, "y": top, "w": width, "h": height}
        left, high = left + width, max(high, height)
