"""Manifests as Kubernetes would get them: rendered by kustomize, and what can be wrong with them."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import jsonschema
import kubernetes_validate
import yaml

ROOT = Path(__file__).parents[2]
KUBERNETES = ROOT / "deploy" / "kubernetes"
SCHEMAS = Path(__file__).parent / "schemas"
#: Every kind that Kubernetes itself does not know, by its schema's file.
CUSTOM = {path.stem for path in SCHEMAS.glob("[A-Z]*.json")} - {"README"}
OLDEST = "1.29"
"""The first release in which native sidecars are on by default."""

Document = dict[str, Any]
#: The dashboards are long: the loader in C where there is one.
LOADER = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


def rendered(folder: Path) -> list[Document]:
    """What `kubectl kustomize` makes of a folder; fails with what it says."""
    done = subprocess.run(["kubectl", "kustomize", str(folder)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return [one for one in yaml.load_all(done.stdout, LOADER) if one]


@cache
def everything() -> tuple[Document, ...]:
    """Every document that the repository's manifests make, those of all components in the example's pod."""
    folders = [KUBERNETES / "example", KUBERNETES / "monitoring"]
    plain = sorted((KUBERNETES / "autoscaling").rglob("*.yaml"))
    more = [
        one for path in plain if path.name != "values.yaml" for one in yaml.safe_load_all(path.read_text())
    ]
    return (*(one for folder in folders for one in rendered(folder)), *more)


def with_components(folder: Path, base: Sequence[Document], components: Sequence[str]) -> list[Document]:
    """What kustomize makes of documents with components laid over them; `folder` is a new one to do it in."""
    (folder / "base.yaml").write_text(yaml.safe_dump_all(base), encoding="utf-8")
    document = {
        "apiVersion": "kustomize.config.k8s.io/v1beta1",
        "kind": "Kustomization",
        "resources": ["base.yaml"],
        "components": [str(_relative(KUBERNETES / "components" / one, folder)) for one in components],
    }
    (folder / "kustomization.yaml").write_text(yaml.safe_dump(document), encoding="utf-8")
    return rendered(folder)


def _relative(path: Path, start: Path) -> Path:
    """`path` seen from `start`: kustomize takes no absolute ones."""
    up = [".."] * (len(start.resolve().parts) - 1)
    return Path(*up, *path.resolve().parts[1:])


def of_kind(documents: Sequence[Document], kind: str) -> list[Document]:
    """Those of a kind."""
    return [one for one in documents if one["kind"] == kind]


def pods(documents: Sequence[Document]) -> list[Document]:
    """The pod templates in documents."""
    return [one["spec"]["template"] for one in documents if "template" in one.get("spec", {})]


def containers(pod: Document) -> Iterator[Document]:
    """All containers of a pod template, init containers too."""
    yield from pod["spec"].get("initContainers", [])
    yield from pod["spec"]["containers"]


def sidecar(pod: Document) -> Document:
    """kvwatch in a pod template."""
    found: list[Document] = [one for one in pod["spec"].get("initContainers", []) if one["name"] == "kvwatch"]
    assert len(found) == 1
    return found[0]


def faults(document: Document, version: str) -> list[str]:
    """What a release of Kubernetes (or the operator that knows the kind) finds wrong with a document."""
    if document["kind"] in CUSTOM:
        schema = json.loads((SCHEMAS / f"{document['kind']}.json").read_text(encoding="utf-8"))
        found = jsonschema.Draft202012Validator(schema).iter_errors(document)
        return [f"{'.'.join(map(str, one.absolute_path))}: {one.message}" for one in found]
    try:
        kubernetes_validate.validate(document, version, strict=True)
    except kubernetes_validate.ValidationError as error:
        return [f"{'.'.join(map(str, error.path))}: {error.message}"]
    return []


def not_restricted(pod: Document) -> list[str]:
    """What Pod Security "restricted" refuses in a pod template, as its standard has it."""
    spec, wrong = pod["spec"], []
    whole = spec.get("securityContext", {})
    wrong += [name for name in ("hostNetwork", "hostPID", "hostIPC") if spec.get(name)]
    allowed = {
        "configMap",
        "csi",
        "downwardAPI",
        "emptyDir",
        "ephemeral",
        "persistentVolumeClaim",
        "projected",
        "secret",
    }
    wrong += [f"volume {one['name']}" for one in spec.get("volumes", []) if not {*one} - {"name"} <= allowed]
    for one in containers(pod):
        own = one.get("securityContext", {})
        seccomp = own.get("seccompProfile", whole.get("seccompProfile", {})).get("type")
        checks = {
            "privileged": not own.get("privileged"),
            "allowPrivilegeEscalation": own.get("allowPrivilegeEscalation") is False,
            "capabilities": own.get("capabilities", {}).get("drop") == ["ALL"]
            and {*own["capabilities"].get("add", [])} <= {"NET_BIND_SERVICE"},
            "runAsNonRoot": own.get("runAsNonRoot", whole.get("runAsNonRoot")) is True,
            "runAsUser": own.get("runAsUser", whole.get("runAsUser")) != 0,
            "seccompProfile": seccomp in {"RuntimeDefault", "Localhost"},
            "hostPort": not any(port.get("hostPort") for port in one.get("ports", [])),
        }
        wrong += [f"{one['name']}: {name}" for name, good in checks.items() if not good]
    return wrong
