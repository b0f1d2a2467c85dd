"""The rendered YAML: Prometheus rules, the same as a PrometheusRule, and the files that kustomize needs."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import yaml

from kvwatch.mixin import alerts
from kvwatch.mixin.alerts import Alert
from kvwatch.mixin.dashboards.common import FLEET_UID, SERVER_UID
from kvwatch.mixin.recording import recordings
from kvwatch.mixin.render_options import Options

HEADER = "# Rendered by `kvwatch render` from the tables in kvwatch/. Edits here are lost; see --config.\n"

_KUSTOMIZATION = {"apiVersion": "kustomize.config.k8s.io/v1beta1", "kind": "Kustomization"}


class _Dumper(yaml.SafeDumper):
    """Multi-line text as blocks, lists indented, no anchors."""

    def increase_indent(self, flow: bool = False, indentless: bool = False) -> None:  # noqa: ARG002 - always indented
        super().increase_indent(flow, indentless=False)

    def ignore_aliases(self, data: Any) -> bool:  # noqa: ARG002
        return True


def _text(dumper: yaml.SafeDumper, value: str) -> yaml.ScalarNode:
    style = "|" if "\n" in value else None
    return dumper.represent_scalar("tag:yaml.org,2002:str", value, style=style)


_Dumper.add_representer(str, _text)


def to_yaml(value: Any) -> str:
    """`value` as YAML, keys in their order, below the header."""
    return HEADER + yaml.dump(value, Dumper=_Dumper, sort_keys=False, allow_unicode=True, width=1000)


def groups(options: Options) -> dict[str, Any]:
    """The rule groups in Prometheus' format."""
    found = {
        "kvwatch-fleet": [{"record": name, "expr": expr} for name, expr in recordings(options).items()],
        "kvwatch-symptoms": [_rule(one, options) for one in alerts.symptom_alerts(options)],
        "kvwatch-meta": [_rule(one, options) for one in alerts.meta_alerts(options)],
    }
    return {"groups": [{"name": name, "rules": rules} for name, rules in found.items() if rules]}


def prometheus(options: Options) -> str:
    """`kvwatch.rules.yml`."""
    return to_yaml(groups(options))


def operator(options: Options) -> str:
    """`prometheusrule.yml`, for the Prometheus operator."""
    labels = {"app.kubernetes.io/name": "kvwatch", **options.rule_labels}
    return to_yaml(
        {
            "apiVersion": "monitoring.coreos.com/v1",
            "kind": "PrometheusRule",
            "metadata": {"name": "kvwatch", "labels": labels},
            "spec": groups(options),
        }
    )


def kustomization() -> str:
    """`alerts/kustomization.yaml`. kustomize reads no file outside the folder of its kustomization."""
    return to_yaml({**_KUSTOMIZATION, "resources": ["prometheusrule.yml"]})


def dashboard_kustomization(files: Iterable[str]) -> str:
    """`dashboards/kustomization.yaml`: one ConfigMap per file, labelled for Grafana's sidecar.

    One each, because the API server limits an object to 1 MiB. The names are fixed, because nothing mounts them.
    """
    return to_yaml(
        {
            **_KUSTOMIZATION,
            "generatorOptions": {
                "disableNameSuffixHash": True,
                "labels": {"app.kubernetes.io/name": "kvwatch", "grafana_dashboard": "1"},
            },
            "configMapGenerator": [
                {"name": f"dashboard-{name.removesuffix('.json')}", "files": [name]} for name in sorted(files)
            ],
        }
    )


def _server_url(grafana: str) -> str:
    """The dashboard of the alert's target, or the fleet dashboard if the alert has none."""
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
        **({"for": one.for_duration} if one.for_duration else {}),
        "labels": {"severity": one.severity.value, **options.labels},
        "annotations": {**annotations, **options.annotations},
    }
