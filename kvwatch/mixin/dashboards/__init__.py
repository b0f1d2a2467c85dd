"""Grafana dashboards: tables of panels, rendered as JSON.

The tables (`*_panels`, `*_dashboard`) know kvwatch and nothing of Grafana's schema; `grafana_*` the other way round.
"""

from __future__ import annotations

from kvwatch.mixin.dashboards import experiment_dashboard, fleet_dashboard, server_dashboard
from kvwatch.mixin.dashboards.elements import Dashboard
from kvwatch.mixin.dashboards.grafana import to_json
from kvwatch.mixin.render_options import Options


def every(options: Options) -> tuple[Dashboard, ...]:
    """All dashboards, in the order of their links to each other."""
    return tuple(one.dashboard(options) for one in (server_dashboard, fleet_dashboard, experiment_dashboard))


def rendered(options: Options) -> dict[str, str]:
    """File name -> JSON."""
    boards = every(options)
    return {f"{one.uid}.json": to_json(one, boards) for one in boards}
