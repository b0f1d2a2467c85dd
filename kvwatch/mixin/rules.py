"""`kvwatch.rules.yml` for a Prometheus, and the same as a PrometheusRule for its operator."""

from __future__ import annotations

from typing import Any

import yaml

from kvwatch.mixin import alerts
from kvwatch.mixin.alerts import Alert
from kvwatch.mixin.dashboards.common import FLEET_UID, SERVER_UID
from kvwatch.mixin.recording import recordings
from kvwatch.mixin.render_options import Options

HEADER = "# Written by `kvwatch render` from the tables in kvwatch/: edit those, or give a file (README: Alerts).\n"


class _Dumper(yaml.SafeDumper):
    """Text of several lines as blocks, lists indented as people write them, no anchors."""

    def increase_indent(self, flow: bool = False, indentless: bool = False) -> None:  # noqa: ARG002 - never without
        super().increase_indent(flow, indentless=False)

    def ignore_aliases(self, data: Any) -> bool:  # noqa: ARG002
        return True


def _text(dumper: yaml.SafeDumper, value: str) -> yaml.ScalarNode:
    style = "|" if "\n" in value else None
    return dumper.represent_scalar("tag:yaml.org,2002:str", value, style=style)


_Dumper.add_representer(str, _text)


def dumped(value: Any) -> str:
    """As YAML, in the order given, under a line that says where it comes from."""
    return HEADER + yaml.dump(value, Dumper=_Dumper, sort_keys=False, allow_unicode=True, width=1000)


def groups(options: Options) -> dict[str, Any]:
    """The groups as Prometheus reads them."""
    listed = [
        {
            "name": "kvwatch-fleet",
            "rules": [{"record": one.name, "expr": one.expr} for one in recordings(options)],
        },
        {"name": "kvwatch-symptoms", "rules": [_rule(one, options) for one in alerts.symptoms(options)]},
        {"name": "kvwatch-meta", "rules": [_rule(one, options) for one in alerts.meta(options)]},
    ]
    return {"groups": [group for group in listed if group["rules"]]}


def prometheus(options: Options) -> str:
    """`kvwatch.rules.yml`."""
    return dumped(groups(options))


def operator(options: Options) -> str:
    """`prometheusrule.yml`."""
    return dumped(
        {
            "apiVersion": "monitoring.coreos.com/v1",
            "kind": "PrometheusRule",
            "metadata": {
                "name": "kvwatch",
                "labels": {"app.kubernetes.io/name": "kvwatch", **options.rule_labels},
            },
            "spec": groups(options),
        }
    )


def _server_url(grafana: str) -> str:
    """Of the dashboard of the alert's server; of the fleet's for an alert that is of none."""
    chosen = "&".join(
        f"var-{name}={{{{ $labels.{name} | urlquery }}}}" for name in ("job", "instance", "target")
    )
    return (
        f"{grafana}/d/{{{{ if $labels.target }}}}{SERVER_UID}?{chosen}{{{{ else }}}}{FLEET_UID}{{{{ end }}}}"
    )


def _rule(one: Alert, options: Options) -> dict[str, Any]:
    annotations = {
        "summary": one.summary,
        "description": one.description,
        "runbook_url": f"{options.runbook_url}/{one.page}",
    }
    if options.dashboard_url or options.grafana_url:
        annotations["dashboard_url"] = options.dashboard_url or _server_url(options.grafana_url)
    return {
        "alert": one.name,
        "expr": one.expr,
        **({"for": one.held} if one.held else {}),
        "labels": {"severity": one.severity.value, **options.labels},
        "annotations": {**annotations, **options.annotations},
    }
