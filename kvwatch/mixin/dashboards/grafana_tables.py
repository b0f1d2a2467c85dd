"""Tables in Grafana's JSON: their columns, the order of these, and the links."""

from __future__ import annotations

import string
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from kvwatch.mixin.dashboards.elements import Column, Panel, PanelKind, ThresholdStep

REFS = string.ascii_uppercase
"""Names of a panel's queries, in their order."""

_LINK_LABELS = ("job", "instance", "target", "page")
"""Labels that links read, whether shown or not."""


def thresholds(steps: Sequence[ThresholdStep], base: str) -> dict[str, Any]:
    listed: list[dict[str, Any]] = [{"value": None, "color": base}]
    return {
        "mode": "absolute",
        "steps": listed + [{"value": one.value, "color": one.colour} for one in steps],
    }


def value_mapping(words: Mapping[str, tuple[str, str]]) -> dict[str, Any]:
    """Text and colour by value."""
    options = {
        value: {"text": text, "color": colour, "index": number}
        for number, (value, (text, colour)) in enumerate(words.items())
    }
    return {"type": "value", "options": options}


def override(name: str, properties: Mapping[str, Any]) -> dict[str, Any]:
    """Properties of the series or column of this name only."""
    return {
        "matcher": {"id": "byName", "options": name},
        "properties": [{"id": key, "value": value} for key, value in properties.items()],
    }


def columns(panel: Panel) -> Iterable[dict[str, Any]]:
    """One override per column, and one for each label that only links read."""
    yield from map(_column, panel.columns)
    for name in _hidden(panel):
        yield override(name, {"custom.hidden": True})


def _hidden(panel: Panel) -> list[str]:
    shown = {one.name for one in panel.columns}
    links = "".join(one.link for one in panel.columns)
    return [name for name in _LINK_LABELS if f"__data.fields.{name}}}" in links and name not in shown]


def _column(one: Column) -> dict[str, Any]:
    plain = {"displayName": one.title, "unit": one.unit, "custom.width": one.width}
    found: dict[str, Any] = {key: value for key, value in plain.items() if value}
    if one.decimals is not None:
        found["decimals"] = one.decimals
    if one.steps:
        found["thresholds"] = thresholds(one.steps, "transparent")
        found["custom.cellOptions"] = {"type": "color-background", "mode": "basic"}
    if one.words:
        found["mappings"] = [value_mapping(one.words)]
        found["custom.cellOptions"] = {"type": "color-text"}
    if one.link:
        found["links"] = [{"title": one.link_title, "url": one.link, "targetBlank": False}]
    return override(one.name, found)


def transformations(panel: Panel) -> list[dict[str, Any]]:
    """Merges the queries to one line per set of labels and orders the columns. Text sorts up, numbers sort down."""
    if panel.kind is not PanelKind.TABLE:
        return []
    several = len(panel.queries) > 1
    shown = [one.name for one in panel.columns]
    values = {
        f"Value #{ref}" if several else "Value": legend
        for ref, legend in zip(REFS, panel.queries, strict=False)
        if legend in shown
    }
    labels = [name for name in shown if name not in values.values()]
    place = {name: number for number, name in enumerate(shown)}
    order = {name: place[name] for name in labels} | {name: place[title] for name, title in values.items()}
    include = {"names": [*labels, *values, *_hidden(panel)]}
    organize = {"excludeByName": {}, "indexByName": order, "renameByName": values}
    found: list[dict[str, Any]] = [{"id": "merge", "options": {}}] if several else []
    found += [
        {"id": "filterFieldsByName", "options": {"include": include}},
        {"id": "organize", "options": organize},
    ]
    if panel.sort:
        descending = panel.sort in {*values.values(), "Value"}
        found.append({"id": "sortBy", "options": {"sort": [{"field": panel.sort, "desc": descending}]}})
    return found
