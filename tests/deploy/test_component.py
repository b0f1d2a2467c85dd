"""The components over manifests that people have: what they add, and that they leave the rest alone."""

from __future__ import annotations

import copy
import re
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.deploy.manifests import (
    KUBERNETES,
    OLDEST,
    Document,
    containers,
    everything,
    faults,
    of_kind,
    pods,
    rendered,
    sidecar,
    with_components,
)
from tests.support.waiting import until

#: In the order that the README tells: others patch what `sidecar` brings.
COMPONENTS = sorted(
    (path.name for path in (KUBERNETES / "components").iterdir()), key=lambda name: name != "sidecar"
)


def workload(kind: str = "Deployment", **labels: str) -> Document:
    """As people have it: an init container that fetches the model, a sidecar of another make, two ports."""
    document: Document = {
        "apiVersion": "apps/v1",
        "kind": kind,
        "metadata": {"name": "chat", "labels": labels},
        "spec": {
            "selector": {"matchLabels": {"app": "chat"}},
            "template": {
                "metadata": {"labels": {"app": "chat"}, "annotations": {"team": "inference"}},
                "spec": {
                    "initContainers": [{"name": "fetch", "image": "fetch:1"}],
                    "containers": [
                        {
                            "name": "vllm",
                            "image": "vllm/vllm-openai:v0.32.0",
                            "ports": [{"name": "http", "containerPort": 8000}],
                        },
                        {"name": "mesh", "image": "mesh:1"},
                    ],
                },
            },
        },
    }
    if kind == "StatefulSet":
        document["spec"]["serviceName"] = "chat"
    return document


def without_sidecar(document: Document) -> Document:
    """The document as it was, if the component added nothing but what it says."""
    document = copy.deepcopy(document)
    template = document["spec"]["template"]
    template["spec"]["initContainers"].remove(sidecar(template))
    assert template["metadata"]["labels"].pop("kvwatch") == "enabled"
    return document


@pytest.mark.parametrize("kind", ["Deployment", "StatefulSet"])
def test_the_sidecar_comes_first_and_changes_nothing_else(kind: str, tmp_path: Path) -> None:
    """Before the init container that fetches the model for minutes, and beside whatever else is there."""
    before = workload(kind, kvwatch="enabled")
    (after,) = of_kind(with_components(tmp_path, [before], ["sidecar"]), kind)
    assert [one["name"] for one in containers(after["spec"]["template"])] == [
        "kvwatch",
        "fetch",
        "vllm",
        "mesh",
    ]
    assert without_sidecar(after) == before
    assert faults(after, OLDEST) == []


def test_what_is_not_labelled_is_left_alone(tmp_path: Path) -> None:
    before = workload()
    assert before in with_components(tmp_path, [before], COMPONENTS)


def test_it_is_a_native_sidecar_that_vllm_does_not_wait_for() -> None:
    """It runs on beside vLLM, holds up no start, and has no say in the pod's readiness."""
    kvwatch = sidecar(pods(everything())[0])
    assert kvwatch["restartPolicy"] == "Always"
    assert "startupProbe" not in kvwatch
    assert "readinessProbe" not in kvwatch
    assert "lifecycle" not in kvwatch
    assert kvwatch["livenessProbe"]["httpGet"]["path"] == "/healthz"


def test_all_components_go_together_and_are_valid(tmp_path: Path) -> None:
    documents = with_components(tmp_path, [workload(kvwatch="enabled")], COMPONENTS)
    assert [one["kind"] for one in documents if faults(one, OLDEST)] == []
    (pod,) = pods(documents)
    assert pod["metadata"]["annotations"] == {
        "team": "inference",
        "prometheus.io/scrape": "true",
        "prometheus.io/port": "9477",
        "prometheus.io/path": "/metrics",
    }
    environment = {one["name"]: one.get("value") for one in sidecar(pod)["env"]}
    assert environment["KVWATCH_GPU_URL"] == "http://$(HOST_IP):9400"
    assert '"gpus": ["pod:$(POD_NAME)"]' in (environment["KVWATCH_TARGETS"] or "")


def test_a_variable_is_defined_before_it_is_used(tmp_path: Path) -> None:
    """Kubernetes puts in for $(NAME) only what stands above it."""
    (pod,) = pods(with_components(tmp_path, [workload(kvwatch="enabled")], COMPONENTS))
    defined: set[str] = set()
    used: set[str] = set()
    for one in sidecar(pod)["env"]:
        wanted = set(re.findall(r"\$\((\w+)\)", one.get("value", "")))
        assert wanted <= defined, one["name"]
        used |= wanted
        defined.add(one["name"])
    assert used == {"POD_NAME", "HOST_IP"}


def test_the_patch_that_the_readme_shows_has_the_last_word(tmp_path: Path) -> None:
    """It stands beside the components, and says where another vLLM listens."""
    blocks = re.findall(
        r"^```yaml\n(.*?)^```", (KUBERNETES / "README.md").read_text("utf-8"), re.MULTILINE | re.DOTALL
    )
    (patches,) = [one for one in blocks if one.startswith("patches:")]
    with_components(tmp_path, [workload(kvwatch="enabled")], ["sidecar"])
    kustomization = tmp_path / "kustomization.yaml"
    kustomization.write_text(kustomization.read_text(encoding="utf-8") + patches, encoding="utf-8")
    (pod,) = pods(rendered(tmp_path))
    environment = {one["name"]: one.get("value") for one in sidecar(pod)["env"]}
    assert environment["KVWATCH_TARGETS"] == "http://localhost:8080"


@contextmanager
def process_of(command: list[str], path: Path) -> Iterator[subprocess.Popen[bytes]]:
    """A command that finds its programs in `path` first; ended at the end, whatever happens."""
    process = subprocess.Popen(command, env={"PATH": f"{path}:/usr/bin:/bin"}, stdout=subprocess.PIPE)
    try:
        yield process
    finally:
        process.kill()
        process.wait()
        assert process.stdout
        process.stdout.close()


def test_the_log_is_copied_and_vllm_stays_its_own_process(tmp_path: Path) -> None:
    """The component's command, run with something in vLLM's place: its options, output, signals and exit code."""
    (pod,) = pods(with_components(tmp_path, [workload(kvwatch="enabled")], ["sidecar", "vllm-log"]))
    vllm = pod["spec"]["containers"][0]
    kept = {one["name"]: one["mountPath"] for one in vllm["volumeMounts"]}["vllm-log"]
    environment = {one["name"]: one.get("value") for one in sidecar(pod)["env"]}
    assert environment["KVWATCH_VLLM_LOG"] == vllm["command"][-1]
    assert Path(vllm["command"][-1]).parent == Path(kept)
    fake, log = tmp_path / "vllm", tmp_path / "vllm.log"
    fake.write_text(
        '#!/bin/bash\ntrap "echo ended >&2; exit 7" TERM\necho "$@"\nwhile :; do sleep 0.05; done\n'
    )
    fake.chmod(0o755)
    command = [*vllm["command"][:-1], str(log), "--port=8000", "--max-num-seqs", "4"]
    for earlier in (False, True):
        with process_of(command, tmp_path) as process:
            until("log of the start before", (tmp_path / ("vllm.log.1" if earlier else "vllm")).exists, 10)
            until("line in the log", lambda: log.exists() and log.read_text(), 10)
            process.terminate()
            told, _ = process.communicate(timeout=10)
            assert process.returncode == 7
            assert told == b"serve --port=8000 --max-num-seqs 4\nended\n"
    until("copied log", lambda: log.read_text().endswith("ended\n"), 10)
    assert (tmp_path / "vllm.log.1").read_text() == log.read_text()


def open_to(policy: Document, protocol: str, port: int) -> str:
    """Whom a policy lets reach a port of its pods: everybody, some or nobody."""
    reached = "nobody"
    for rule in policy["spec"]["ingress"]:
        for one in rule["ports"]:
            if one["protocol"] == protocol and one["port"] <= port <= one.get("endPort", one["port"]):
                if not rule.get("from"):
                    return "everybody"
                reached = "some"
    return reached


def test_the_policy_closes_kvwatchs_port_and_no_other() -> None:
    """vLLM's API, its data-parallel and KV-transfer ports stay as open as without a policy."""
    (policy,) = of_kind(everything(), "NetworkPolicy")
    assert open_to(policy, "TCP", 9477) == "some"
    others = [1, 80, 5600, 8000, 8200, 9476, 9478, 13345, 29500, 65535]
    assert {open_to(policy, "TCP", port) for port in others} == {"everybody"}
    assert {open_to(policy, kind, port) for kind in ("UDP", "SCTP") for port in (1, 9477, 65535)} == {
        "everybody"
    }
    assert policy["spec"]["policyTypes"] == ["Ingress"]


def test_everything_selects_the_pods_that_have_kvwatch() -> None:
    """Service, PodMonitor and policy go by the label that the component sets."""
    label = {"kvwatch": "enabled"}
    labels = pods(everything())[0]["metadata"]["labels"]
    assert label.items() <= labels.items()
    services = {one["metadata"]["name"]: one for one in of_kind(everything(), "Service")}
    assert services["kvwatch"]["spec"]["selector"] == label
    assert of_kind(everything(), "PodMonitor")[0]["spec"]["selector"] == {"matchLabels": label}
    assert of_kind(everything(), "NetworkPolicy")[0]["spec"]["podSelector"] == {"matchLabels": label}


def test_dashboards_are_found_by_their_label_and_fit_in_an_object() -> None:
    """Each in a ConfigMap below the megabyte that the API server takes."""
    maps = of_kind(everything(), "ConfigMap")
    files = {name for one in maps for name in one["data"]}
    assert files == {path.name for path in (KUBERNETES.parents[1] / "dashboards").glob("*.json")}
    for one in maps:
        assert one["metadata"]["labels"]["grafana_dashboard"] == "1"
        assert sum(len(text.encode()) for text in one["data"].values()) < 1_000_000
