"""The README's table of dashboards."""

from __future__ import annotations

from kvwatch.mixin.dashboards import every
from kvwatch.mixin.options import Options
from kvwatch.mixin.tables import table


def dashboards() -> str:
    """Every dashboard: its file, what it is for, and the questions of its rows."""
    rows = [
        [f"`{one.uid}`", one.description, " ".join(row.title for row in one.rows)] for one in every(Options())
    ]
    return table(["dashboard", "for", "its rows"], rows)
