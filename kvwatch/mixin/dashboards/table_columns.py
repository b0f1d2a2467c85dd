"""Tables in Grafana's JSON: which columns there are, in which order, how they look, where they lead."""

from __future__ import annotations

import string
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from kvwatch.mixin.dashboards.elements import Column, Panel, PanelKind, ThresholdStep

#: Names of a panel's queries, in their order.
REFS = string.ascii_uppercase
#: What links read of a line, shown or not.
_READ = ("job", "instance", "target", "page")


def thresholds(steps: Sequence[ThresholdStep], base: str) -> dict[str, Any]:
    listed: list[dict[str, Any]] = [{"value": None, "color": base}]
    listed += [{"value": one.value, "color": one.colour} for one in steps]
    return {"mode": "absolute", "steps": listed}


def mapped(words: Mapping[str, tuple[str, str]]) -> dict[str, Any]:
    """Words and colours for values."""
    options = {
        value: {"text": text, "color": colour, "index": number}
        for number, (value, (text, colour)) in enumerate(words.items())
    }
    return {"type": "value", "options": options}


def override(name: str, properties: Mapping[str, Any]) -> dict[str, Any]:
    """What holds for the series or the column of this name only."""
    return {
        "matcher": {"id": "byName", "options": name},
        "properties": [{"id": key, "value": value} for key, value in properties.items()],
    }


def columns(panel: Panel) -> Iterable[dict[str, Any]]:
    """One override per column, and those that hide what only links read."""
    yield from map(_column, panel.columns)
    for name in _hidden(panel):
        yield override(name, {"custom.hidden": True})


def _hidden(panel: Panel) -> list[str]:
    shown = {one.name for one in panel.columns}
    links = "".join(one.link for one in panel.columns)
    return [name for name in _READ if f"__data.fields.{name}}}" in links and name not in shown]


def _column(one: Column) -> dict[str, Any]:
    plain = {"displayName": one.title, "unit": one.unit, "custom.width": one.width}
    found: dict[str, Any] = {key: value for key, value in plain.items() if value}
    if one.decimals is not None:
        found["decimals"] = one.decimals
    if one.steps:
        found["thresholds"] = thresholds(one.steps, "transparent")
        found["custom.cellOptions"] = {"type": "color-background", "mode": "basic"}
    if one.words:
        found["mappings"] = [mapped(one.words)]
        found["custom.cellOptions"] = {"type": "color-text"}
    if one.link:
        found["links"] = [{"title": one.link_title, "url": one.link, "targetBlank": False}]
    return override(one.name, found)


def transformations(panel: Panel) -> list[dict[str, Any]]:
    """Queries merged to a line per set of labels, columns in their order; words sorted upward, numbers downward."""
    if panel.kind is not PanelKind.TABLE:
        return []
    several = len(panel.queries) > 1
    shown = [one.name for one in panel.columns]
    values = {
        f"Value #{ref}" if several else "Value": query.legend
        for ref, query in zip(REFS, panel.queries, strict=False)
        if query.legend in shown
    }
    kept = [name for name in shown if name not in values.values()]
    place = {name: number for number, name in enumerate(shown)}
    found: list[dict[str, Any]] = [{"id": "merge", "options": {}}] if several else []
    found += [
        {
            "id": "filterFieldsByName",
            "options": {"include": {"names": [*kept, *values, *_hidden(panel)]}},
        },
        {
            "id": "organize",
            "options": {
                "excludeByName": {},
                "indexByName": {
                    **{name: place[name] for name in kept},
                    **{v: place[n] for v, n in values.items()},
                },
                "renameByName": values,
            },
        },
    ]
    if panel.sort:
        down = panel.sort in {*values.values(), "Value"}
        found.append({"id": "sortBy", "options": {"sort": [{"field": panel.sort, "desc": down}]}})
    return found
