"""`kustomization.yaml` beside what kustomize is to carry: it reads no file outside the folder that names it."""

from __future__ import annotations

from collections.abc import Iterable

from kvwatch.mixin.rules import dumped

_API = "kustomize.config.k8s.io/v1beta1"


def rule() -> str:
    """`alerts/kustomization.yaml`: the PrometheusRule."""
    return dumped({"apiVersion": _API, "kind": "Kustomization", "resources": ["prometheusrule.yml"]})


def dashboards(files: Iterable[str]) -> str:
    """`dashboards/kustomization.yaml`: each of `files` as a ConfigMap that Grafana's sidecar finds by its label.

    One each, since the API server takes no object of more than a MiB; of a fixed name, since nothing mounts them.
    """
    return dumped(
        {
            "apiVersion": _API,
            "kind": "Kustomization",
            "generatorOptions": {
                "disableNameSuffixHash": True,
                "labels": {"app.kubernetes.io/name": "kvwatch", "grafana_dashboard": "1"},
            },
            "configMapGenerator": [
                {"name": f"dashboard-{name.removesuffix('.json')}", "files": [name]} for name in sorted(files)
            ],
        }
    )
