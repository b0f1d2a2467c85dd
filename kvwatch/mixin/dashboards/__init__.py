"""Grafana dashboards, as tables of panels that `render` writes as JSON.

A panel is one row: what it is called, which queries it asks, what the number means and what to do. `grafana` knows
Grafana's schema and nothing of kvwatch; the tables know kvwatch and nothing of the schema.
"""

from __future__ import annotations

from kvwatch.mixin.dashboards import experiment_dashboard, fleet_dashboard, server_dashboard
from kvwatch.mixin.dashboards.elements import Dashboard
from kvwatch.mixin.dashboards.grafana import document
from kvwatch.mixin.render_options import Options


def every(options: Options) -> tuple[Dashboard, ...]:
    """All dashboards, in the order in which they link to each other."""
    return tuple(one.dashboard(options) for one in (server_dashboard, fleet_dashboard, experiment_dashboard))


def rendered(options: Options) -> dict[str, str]:
    """File name -> JSON, for every dashboard."""
    boards = every(options)
    return {f"{one.uid}.json": document(one, boards) for one in boards}
