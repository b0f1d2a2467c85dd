"""The README's table of dashboards."""

from __future__ import annotations

from kvwatch.mixin.dashboards import every
from kvwatch.mixin.markdown_tables import table
from kvwatch.mixin.render_options import Options


def dashboards() -> str:
    """Every dashboard: its file, what it is for, and the questions of its rows."""
    rows = [
        [f"`{one.uid}`", one.description, " ".join(row.title for row in one.rows)] for one in every(Options())
    ]
    return table(["dashboard", "for", "its rows"], rows)
