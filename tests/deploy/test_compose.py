"""The compose stack: Compose takes the file, what it mounts is there and good, and the parts know each other."""

from __future__ import annotations

import copy
import json
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml

from kvwatch.settings import Settings
from tests.deploy.manifests import ROOT, SCHEMAS

COMPOSE = ROOT / "deploy" / "compose"
FILE = COMPOSE / "compose.yaml"
STACK: dict[str, Any] = yaml.safe_load(FILE.read_text(encoding="utf-8"))
SERVICES: dict[str, dict[str, Any]] = STACK["services"]
PORT = Settings.model_fields["port"].default
DEFAULTS = dict(line.split("=", 1) for line in (COMPOSE / ".env").read_text().splitlines() if line[:1] != "#")


def faults(stack: dict[str, Any]) -> list[str]:
    schema = json.loads((SCHEMAS / "compose.json").read_text(encoding="utf-8"))
    return [one.message for one in jsonschema.Draft202012Validator(schema).iter_errors(stack)]


def mounted(service: str, root: Path) -> None:
    """Copies what a service mounts to where it is in the container, below `root`."""
    for source, target in (one.split(":")[:2] for one in SERVICES[service]["volumes"]):
        if source.startswith("."):
            path, copied = (COMPOSE / source).resolve(), root / target.lstrip("/")
            copied.parent.mkdir(parents=True, exist_ok=True)
            if path.is_dir():
                shutil.copytree(path, copied)
            else:
                shutil.copy(path, copied)


def checked(*words: object) -> subprocess.CompletedProcess[str]:
    return subprocess.run([*map(str, words)], capture_output=True, text=True, check=False)


def test_compose_takes_the_file() -> None:
    assert faults(STACK) == []


@pytest.mark.parametrize(
    ("service", "worse"),
    [("kvwatch", {"enviroment": {}}), ("kvwatch", {"mem_limit": ["192m"]}), ("grafana", {"ports": "3000"})],
)
def test_a_broken_file_is_found(service: str, worse: dict[str, Any]) -> None:
    stack = copy.deepcopy(STACK)
    stack["services"][service] |= worse
    assert faults(stack)


def test_what_is_mounted_is_there_and_what_is_kept_has_a_volume() -> None:
    for name, service in SERVICES.items():
        for source, target in (one.split(":")[:2] for one in service.get("volumes", [])):
            assert target.startswith("/")
            if source.startswith("."):
                assert (COMPOSE / source).exists(), f"{name}: {source}"
            else:
                assert source in STACK["volumes"], f"{name}: {source}"


def test_prometheus_and_alertmanager_take_what_is_mounted(tmp_path: Path) -> None:
    """By their own tools, laid out as in the containers; rules, routes and templates are the rendered ones."""
    mounted("prometheus", tmp_path)
    mounted("alertmanager", tmp_path)
    prometheus = tmp_path / "etc" / "prometheus" / "prometheus.yml"
    told = checked("promtool", "check", "config", prometheus)
    assert told.returncode == 0, told.stderr
    assert re.search(r"[1-9]\d+ rules found", told.stdout)
    alertmanager = tmp_path / "etc" / "alertmanager" / "alertmanager.yml"
    told = checked("amtool", "check-config", alertmanager)
    assert told.returncode == 0, told.stderr
    assert "1 templates" in told.stdout
    for path, line in ((prometheus, "scrape_confgs: []\n"), (alertmanager, "recievers: []\n")):
        path.write_text(path.read_text(encoding="utf-8") + line, encoding="utf-8")
    assert checked("promtool", "check", "config", prometheus).returncode != 0
    assert checked("amtool", "check-config", alertmanager).returncode != 0


def test_nobody_outside_is_told_of_a_demonstration() -> None:
    """The routes are those of alerts/, the receivers bare names."""
    own, whole = (
        yaml.safe_load((ROOT / path).read_text(encoding="utf-8"))
        for path in ("deploy/compose/alertmanager.yml", "alerts/alertmanager.yml")
    )
    assert own["receivers"] == [{"name": one["name"]} for one in whole["receivers"]]
    assert (own["route"], own["inhibit_rules"]) == (whole["route"], whole["inhibit_rules"])


def test_grafana_finds_prometheus_and_the_dashboards(tmp_path: Path) -> None:
    mounted("grafana", tmp_path)
    provisioning = tmp_path / "etc" / "grafana" / "provisioning"
    (sources,) = [yaml.safe_load(path.read_text()) for path in (provisioning / "datasources").iterdir()]
    assert [one["url"] for one in sources["datasources"]] == ["http://prometheus:9090"]
    (providers,) = [yaml.safe_load(path.read_text()) for path in (provisioning / "dashboards").iterdir()]
    for one in providers["providers"]:
        assert sorted((tmp_path / one["options"]["path"].lstrip("/")).glob("*.json"))


def test_the_parts_know_each_other_by_name_and_port() -> None:
    """What one asks of another is a service that listens there."""
    listening = {"kvwatch": PORT, "alertmanager": 9093, "prometheus": 9090, "grafana": 3000, "vllm": 8000}
    config = yaml.safe_load((COMPOSE / "prometheus.yml").read_text(encoding="utf-8"))
    asked = [
        one["static_configs"] for one in (*config["scrape_configs"], *config["alerting"]["alertmanagers"])
    ]
    assert {target for one in asked for group in one for target in group["targets"]} == {
        f"{name}:{listening[name]}" for name in ("kvwatch", "alertmanager")
    }
    assert SERVICES["kvwatch"]["environment"]["KVWATCH_TARGETS"] == f"vllm=http://vllm:{listening['vllm']}"
    assert SERVICES["recorded"]["command"][-2:] == ["--port", str(listening["vllm"])]
    assert f"--port={listening['vllm']}" in SERVICES["vllm"]["command"]
    for name, port in listening.items():
        assert SERVICES[name]["ports"] == [f"127.0.0.1:{port}:{port}"], "published on this machine only"


def test_the_profile_says_which_vllm_there_is() -> None:
    """One of two, by one name; the recorded one where nothing is said, and kvwatch either way."""
    profiles = {name: one["profiles"] for name, one in SERVICES.items() if "profiles" in one}
    assert profiles == {"recorded": ["recorded"], "vllm": ["gpu"]}
    assert DEFAULTS["COMPOSE_PROFILES"] == "recorded"
    assert all(SERVICES[name]["networks"]["default"]["aliases"] == ["vllm"] for name in profiles)
    used = set(re.findall(r"\$\{(\w+)\}", FILE.read_text(encoding="utf-8")))
    assert used <= set(DEFAULTS), "a variable without a default needs one in .env"


def test_versions_are_pinned() -> None:
    """No image moves by itself; kvwatch's is built from here."""
    for name, service in SERVICES.items():
        if "build" in service:
            assert (COMPOSE / service["build"] / "Dockerfile").is_file()
        else:
            assert re.search(r":v?\d+\.\d+\.\d+$", service["image"]), name


def test_kvwatch_is_held_as_in_kubernetes() -> None:
    """Read-only, without capabilities, with the sidecar's memory."""
    kvwatch = SERVICES["kvwatch"]
    assert (kvwatch["read_only"], kvwatch["cap_drop"]) == (True, ["ALL"])
    assert kvwatch["security_opt"] == ["no-new-privileges:true"]
    assert kvwatch["mem_limit"] == "192m"
