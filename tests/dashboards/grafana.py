"""Reads rendered dashboards as Grafana does: panels with what they ask, and what variables stand for."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

FOLDER = Path(__file__).parents[2] / "dashboards"
FILES = sorted(FOLDER.glob("*.json"))
ALL = ".+"


@dataclass(frozen=True)
class Asked:
    """A query with where it stands: an annotation's panel is none."""

    dashboard: str
    panel: str
    query: str
    expr: str
    kind: str

    def __str__(self) -> str:
        return f"{self.dashboard}, panel {self.panel!r}, query {self.query}: {self.expr}"


def load(path: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    return found


def panels(board: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """Those that show something, in rows that are folded too."""
    for panel in board["panels"]:
        if panel["type"] == "row":
            yield from panel["panels"]
        else:
            yield panel


def queries(board: Mapping[str, Any]) -> Iterator[Asked]:
    """Of panels and of annotations."""
    name = board["uid"]
    for panel in panels(board):
        for target in panel["targets"]:
            yield Asked(name, panel["title"], target["refId"], target["expr"], panel["type"])
    for one in board["annotations"]["list"]:
        if "expr" in one:
            yield Asked(name, f"annotation {one['name']}", "-", one["expr"], "annotation")


def filled(text: str, values: Mapping[str, str]) -> str:
    """The text with every variable of `values` in it; one that is not among them is an error, ``$1`` is none."""

    def value(match: re.Match[str]) -> str:
        return values[match[1] or match[2]]

    return re.sub(r"\$(?:\{([a-z_]\w*)\}|([a-z_]\w*))", value, text)


def variables(
    board: Mapping[str, Any], chosen: Mapping[str, str] | None = None, **builtin: str
) -> dict[str, str]:
    """A value for every variable: what is chosen, all by default, and Grafana's own times."""
    own = {"__rate_interval": "20s", "__range": "70s", "__interval": "5s"} | builtin
    found = {one["name"]: one.get("allValue", "0s") for one in board["templating"]["list"]}
    return found | own | dict(chosen or {})
