"""What a panel's queries answer, as the panel gets it: series over time, or the lines of a table."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from tests.dashboards.filling import Filled
from tests.dashboards.grafana import filled

_SECONDS = {"s": 1, "m": 60, "h": 3600, "d": 86400}


@dataclass(frozen=True)
class Series:
    """A name as the legend writes it, and numbers at times."""

    name: str
    labels: Mapping[str, str]
    times: tuple[float, ...]
    values: tuple[float, ...]
    ref: str = "A"

    @property
    def last(self) -> float:
        return self.values[-1] if self.values else math.nan


@dataclass(frozen=True)
class View:
    """What is looked at: from, to, the spacing of points, and what variables stand for."""

    given: Filled
    start: float
    end: float
    step: float
    values: Mapping[str, str] = field(default_factory=dict)

    def ask(self, panel: Mapping[str, Any]) -> list[Series]:
        """Of a panel's queries, in its own time range."""
        earlier = _seconds(filled(panel["timeShift"], self.values)) if "timeShift" in panel else 0.0
        return [one for target in panel["targets"] for one in self._answer(target, earlier)]

    def _answer(self, target: Mapping[str, Any], earlier: float) -> list[Series]:
        query = {"query": filled(target["expr"], self.values)}
        if target["instant"]:
            path, when = "query", {"time": str(self.end - earlier)}
        else:
            path = "query_range"
            when = {
                "start": str(self.start - earlier),
                "end": str(self.end - earlier),
                "step": str(self.step),
            }
        answer = self.given.client.get(f"/api/v1/{path}", params=query | when).json()
        assert answer["status"] == "success", answer
        found = []
        for one in answer["data"]["result"]:
            points = one["values"] if "values" in one else [one["value"]]
            times, values = zip(*((float(t) + earlier, float(v)) for t, v in points), strict=True)
            found.append(
                Series(
                    _legend(target["legendFormat"], one["metric"]),
                    one["metric"],
                    times,
                    values,
                    target["refId"],
                )
            )
        return found


def _seconds(duration: str) -> float:
    return int(duration[:-1]) * _SECONDS[duration[-1]]


def _legend(template: str, labels: Mapping[str, str]) -> str:
    if not template:
        return ", ".join(f"{name}={value}" for name, value in labels.items())
    return re.sub(r"\{\{(\w+)\}\}", lambda match: labels.get(match[1], ""), template)


@dataclass(frozen=True)
class Cell:
    column: str
    value: str | float


def lines(panel: Mapping[str, Any], series: list[Series]) -> list[dict[str, str | float]]:
    """The lines of a table after the panel's transformations, as Grafana makes them."""
    several = len(panel["targets"]) > 1
    merged: dict[tuple[tuple[str, str], ...], dict[str, str | float]] = {}
    for one in series:
        labels = {name: value for name, value in one.labels.items() if name != "__name__"}
        line = merged.setdefault(tuple(sorted(labels.items())), {**labels})
        line[f"Value #{one.ref}" if several else "Value"] = one.last
    found = list(merged.values())
    for step in panel["transformations"]:
        options = step["options"]
        if step["id"] == "filterFieldsByName":
            names = options["include"]["names"]
            found = [{name: value for name, value in line.items() if name in names} for line in found]
        elif step["id"] == "organize":
            place, called = options["indexByName"], options["renameByName"]
            found = [
                {
                    called.get(name, name): line[name]
                    for name in sorted(line, key=lambda name: place.get(name, 99))
                }
                for line in found
            ]
        elif step["id"] == "sortBy":
            (by,) = options["sort"]
            found.sort(key=lambda line: _order(line.get(by["field"])), reverse=by["desc"])
    return found


def _order(value: str | float | None) -> tuple[float, str]:
    if isinstance(value, float):
        return (value if not math.isnan(value) else -1.0, "")
    return (-1.0, value or "")
