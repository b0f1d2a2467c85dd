"""Rows of the one table that `make bench` prints, and the file that remembers them."""

from __future__ import annotations

import json
import os
import platform
import time
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from pathlib import Path

from kvwatch import __version__

HISTORY = Path(__file__).parents[2] / ".benchmarks" / "history.jsonl"


@dataclass(frozen=True)
class Row:
    """One comparison. `value` is judged against `budget`, which is the most it may be, or with `at_least` the least;
    without a budget it is only told."""

    what: str
    value: float
    unit: str
    detail: str
    budget: float | None = None
    at_least: bool = False

    @property
    def met(self) -> bool | None:
        if self.budget is None:
            return None
        return self.value >= self.budget if self.at_least else self.value <= self.budget


def table(rows: Iterable[Row]) -> str:
    """The rows as a table for people, and for a README."""
    lines = ["| what | measured | budget | met | of |", "|---|---|---|---|---|"]
    for row in rows:
        bound = (
            ""
            if row.budget is None
            else f"{'≥' if row.at_least else '≤'} {row.budget:.3g} {row.unit}".rstrip()
        )
        met = {None: "", True: "yes", False: "**no**"}[row.met]
        lines.append(f"| {row.what} | {row.value:.3g} {row.unit} | {bound} | {met} | {row.detail} |")
    return "\n".join(lines)


def remember(rows: Iterable[Row], history: Path = HISTORY) -> None:
    """Adds a run to the history: when, where, under which load, and every row."""
    history.parent.mkdir(exist_ok=True)
    run = {
        "t": round(time.time()),
        "version": __version__,
        "python": platform.python_version(),
        "cores": os.cpu_count(),
        "load": round(os.getloadavg()[0], 2),
        "rows": [asdict(row) for row in rows],
    }
    with history.open("a", encoding="utf-8") as file:
        file.write(json.dumps(run) + "\n")
