"""The manifests are what Kubernetes and the operators take, and what is wrong in them would be found."""

from __future__ import annotations

import copy
from collections.abc import Callable

import kubernetes_validate
import pytest
import yaml

from tests.deploy.manifests import (
    KUBERNETES,
    OLDEST,
    Document,
    everything,
    faults,
    not_restricted,
    of_kind,
    pods,
    rendered,
    sidecar,
)

NEWEST = kubernetes_validate.latest_version()
PLAIN = KUBERNETES / "plain.yaml"


@pytest.mark.parametrize("version", [OLDEST, "1.32", NEWEST])
def test_every_manifest_is_valid(version: str) -> None:
    """On the first Kubernetes with native sidecars, one between, and the newest that there are schemas of."""
    wrong = {f"{one['kind']} {one['metadata']['name']}": faults(one, version) for one in everything()}
    assert {"Deployment vllm", "HorizontalPodAutoscaler vllm", "NetworkPolicy kvwatch"} <= wrong.keys()
    assert {"PodMonitor kvwatch", "PrometheusRule kvwatch", "ScaledObject vllm"} <= wrong.keys()
    assert not {name: found for name, found in wrong.items() if found}


def changed(kind: str, change: Callable[[Document], object]) -> Document:
    """A copy of the first document of a kind, broken."""
    document = copy.deepcopy(of_kind(everything(), kind)[0])
    change(document)
    return document


BROKEN: dict[str, tuple[str, Callable[[Document], object], str]] = {
    "a probe's path misspelled": (
        "Deployment",
        lambda one: sidecar(one["spec"]["template"])["livenessProbe"]["httpGet"].update(paht="/healthz"),
        "paht",
    ),
    "a port that is text": (
        "Deployment",
        lambda one: sidecar(one["spec"]["template"])["ports"][0].update(containerPort="9477"),
        "9477",
    ),
    "a policy without pods": ("NetworkPolicy", lambda one: one["spec"].update(podSelecter={}), "podSelecter"),
    "a behaviour misspelled": (
        "HorizontalPodAutoscaler",
        lambda one: one["spec"]["behavior"].update(scaledown={}),
        "scaledown",
    ),
    "an endpoint's field misspelled": (
        "PodMonitor",
        lambda one: one["spec"]["podMetricsEndpoints"][0].update(intervall="15s"),
        "intervall",
    ),
    "a time that is none": (
        "PodMonitor",
        lambda one: one["spec"]["podMetricsEndpoints"][0].update(interval="15 s"),
        "15 s",
    ),
    "a rule's hold time as a number": (
        "PrometheusRule",
        lambda one: one["spec"]["groups"][0]["rules"][0].update({"for": 5}),
        "5",
    ),
    "a trigger without its type": (
        "ScaledObject",
        lambda one: one["spec"]["triggers"][0].pop("type"),
        "type",
    ),
    "replicas as text": ("ScaledObject", lambda one: one["spec"].update(maxReplicaCount="8"), "8"),
}


@pytest.mark.parametrize("what", BROKEN)
def test_a_broken_manifest_is_found(what: str) -> None:
    """With what is wrong named."""
    kind, change, named = BROKEN[what]
    for version in (OLDEST, NEWEST):
        assert named in "".join(faults(changed(kind, change), version))


def test_a_kubernetes_without_native_sidecars_is_told_apart() -> None:
    """1.27 does not know an init container that goes on running: these manifests are not for it."""
    (deployment,) = of_kind(everything(), "Deployment")
    assert "restartPolicy" in "".join(faults(deployment, "1.27"))


def test_pods_are_as_pod_security_restricted_wants_them() -> None:
    """In a namespace that enforces it, and kvwatch writes nothing."""
    (namespace,) = of_kind(everything(), "Namespace")
    assert namespace["metadata"]["labels"]["pod-security.kubernetes.io/enforce"] == "restricted"
    (pod,) = pods(everything())
    assert not_restricted(pod) == []
    assert sidecar(pod)["securityContext"]["readOnlyRootFilesystem"] is True
    assert "volumeMounts" not in sidecar(pod)


@pytest.mark.parametrize(
    ("name", "worse"),
    [
        ("runAsNonRoot", False),
        ("allowPrivilegeEscalation", True),
        ("capabilities", {"drop": ["NET_RAW"]}),
        ("seccompProfile", {"type": "Unconfined"}),
        ("runAsUser", 0),
        ("privileged", True),
    ],
)
def test_a_pod_that_is_not_restricted_is_found(name: str, worse: object) -> None:
    pod = copy.deepcopy(pods(everything())[0])
    sidecar(pod)["securityContext"][name] = worse
    assert f"kvwatch: {name}" in not_restricted(pod)


def test_the_plain_example_is_the_rendered_one() -> None:
    """`plain.yaml`, for those without kustomize, is what kustomize makes of the example."""
    assert [one for one in yaml.safe_load_all(PLAIN.read_text(encoding="utf-8")) if one] == rendered(
        KUBERNETES / "example"
    ), "run `make plain` and commit the result"
