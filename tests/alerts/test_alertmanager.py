"""Alertmanager takes its configuration, and a real one routes, mutes and words as it should."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
import yaml

from kvwatch.core.export.alert_names import alert_labels, alert_name
from kvwatch.core.judgement.symptoms import SYMPTOMS
from kvwatch.core.model.snapshot import EngineKey
from kvwatch.mixin.alerts import FAST_BURN, SLOW_BURN
from tests.support.stack import answers, free_port, process
from tests.support.waiting import until

ALERTS = Path(__file__).parents[2] / "alerts"
CONFIG = ALERTS / "alertmanager.yml"
ENGINE, OTHER, SERVER = EngineKey("gpu1", "llama", "0"), EngineKey("gpu1", "llama", "1"), EngineKey("gpu1")
ELSEWHERE = EngineKey("gpu2", "llama", "0")


def amtool(*arguments: str) -> str:
    done = subprocess.run(["amtool", *arguments], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_amtool_takes_the_configuration() -> None:
    said = amtool("check-config", str(CONFIG))
    assert "4 receivers" in said
    assert "1 templates" in said


@pytest.mark.parametrize(
    ("severity", "name", "receiver"),
    [
        ("critical", "KVWatchKvThrashing", "kvwatch-critical"),
        ("warning", "KVWatchDown", "kvwatch-warning"),
        ("info", "KVWatchColdStart", "kvwatch-info"),
        ("critical", "NodeDown", "default"),
    ],
)
def test_an_alert_goes_where_its_severity_says(severity: str, name: str, receiver: str) -> None:
    found = amtool(
        "config", "routes", "test", f"--config.file={CONFIG}", f"severity={severity}", f"alertname={name}"
    )
    assert found.strip() == receiver


def test_inhibition_is_what_the_table_explains() -> None:
    """One rule for severities, one for the objective; the rest, taken apart, are the pairs of cause and effect."""
    rules = yaml.safe_load(CONFIG.read_text(encoding="utf-8"))["inhibit_rules"]
    pairs = set()
    assert rules[-1]["target_matchers"] == [f'alertname=~"{FAST_BURN}|{SLOW_BURN}"']
    for rule in rules[1:-1]:
        (cause,), (effects,) = rule["source_matchers"], rule["target_matchers"]
        name = cause.removeprefix('alertname="').removesuffix('"')
        pairs |= {
            (name, effect) for effect in effects.removeprefix('alertname=~"').removesuffix('"').split("|")
        }
    assert pairs == {(alert_name(row.id), alert_name(effect)) for row in SYMPTOMS for effect in row.explains}


@pytest.fixture(scope="module")
def alertmanager(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A real Alertmanager with the rendered inhibition; its receivers notify nobody."""
    folder = tmp_path_factory.mktemp("alertmanager")
    config = yaml.safe_load(CONFIG.read_text(encoding="utf-8"))
    config |= {"receivers": [{"name": one["name"]} for one in config["receivers"]], "templates": []}
    (folder / "alertmanager.yml").write_text(yaml.safe_dump(config), encoding="utf-8")
    url = f"127.0.0.1:{free_port()}"
    command = (
        "alertmanager",
        f"--config.file={folder / 'alertmanager.yml'}",
        f"--storage.path={folder / 'data'}",
        f"--web.listen-address={url}",
        "--cluster.listen-address=",
    )
    with process(folder / "log", *command):
        until("Alertmanager", lambda: answers(f"http://{url}/-/ready"), 20)
        yield f"http://{url}/api/v2/alerts"


def muted(url: str, case: str, *alerts: dict[str, str], wanted: set[str]) -> set[tuple[str, str, str]]:
    """Which of these alerts, told together, are inhibited once all of `wanted` are, by name, target and engine.

    `case` keeps them from others', as their instance.
    """
    told = [{"labels": {**one, "instance": case}} for one in alerts]
    assert httpx.post(url, json=told).status_code == 200

    def shown() -> list[dict[str, str]] | None:
        answer = httpx.get(url, params={"filter": f'instance="{case}"'}).json()
        found = [one["labels"] for one in answer if one["status"]["inhibitedBy"]]
        return found if wanted <= {one["alertname"] for one in found} else None

    found = until("inhibition", shown, 20)
    return {(one["alertname"], one["target"], one.get("engine", "")) for one in found}


def test_a_cause_mutes_its_effects_on_the_same_engine(alertmanager: str) -> None:
    """Neither what it does not explain, nor another rank, nor another server."""
    found = muted(
        alertmanager,
        "cause",
        alert_labels(ENGINE, "kv_exhausted"),
        alert_labels(ENGINE, "ttft_high"),
        alert_labels(ENGINE, "prefill_limited"),
        alert_labels(OTHER, "ttft_high"),
        alert_labels(ELSEWHERE, "ttft_high"),
        wanted={"KVWatchTtftHigh"},
    )
    assert found == {("KVWatchTtftHigh", "gpu1", "0")}


def test_what_is_of_a_whole_server_mutes_all_its_engines(alertmanager: str) -> None:
    found = muted(
        alertmanager,
        "whole",
        alert_labels(SERVER, "target_down"),
        alert_labels(ENGINE, "kv_thrashing"),
        alert_labels(OTHER, "kv_thrashing"),
        alert_labels(ELSEWHERE, "kv_thrashing"),
        wanted={"KVWatchKvThrashing"},
    )
    assert found == {("KVWatchKvThrashing", "gpu1", "0"), ("KVWatchKvThrashing", "gpu1", "1")}


def test_critical_mutes_the_rest_of_its_engine_and_no_other(alertmanager: str) -> None:
    found = muted(
        alertmanager,
        "severity",
        alert_labels(ENGINE, "kv_thrashing"),
        alert_labels(ENGINE, "requests_deferred"),
        alert_labels(ENGINE, "max_model_len_oversized"),
        alert_labels(OTHER, "requests_deferred"),
        wanted={"KVWatchRequestsDeferred", "KVWatchMaxModelLenOversized"},
    )
    assert found == {
        ("KVWatchRequestsDeferred", "gpu1", "0"),
        ("KVWatchMaxModelLenOversized", "gpu1", "0"),
    }


def test_what_pages_for_a_server_in_trouble_mutes_its_missed_objective(alertmanager: str) -> None:
    """And what pages nobody, or pages for another server, mutes none."""
    burn = {"alertname": FAST_BURN, "severity": "critical", "model_name": "llama"}
    found = muted(
        alertmanager,
        "budget",
        alert_labels(ENGINE, "kv_thrashing"),
        {**burn, "target": "gpu1"},
        alert_labels(EngineKey("gpu3", "llama", "0"), "kv_exhausted"),
        {**burn, "target": "gpu3"},
        {**burn, "target": "gpu2"},
        wanted={FAST_BURN},
    )
    assert found == {(FAST_BURN, "gpu1", "")}


def rendered(name: str, alert: dict[str, Any], tmp_path: Path) -> str:
    data = {
        "receiver": "slack",
        "status": alert["status"],
        "alerts": [alert],
        "groupLabels": {},
        "commonLabels": alert["labels"],
        "commonAnnotations": alert["annotations"],
        "externalURL": "",
    }
    path = tmp_path / "data.json"
    path.write_text(json.dumps(data), encoding="utf-8")
    glob, text = ALERTS / "templates" / "*.tmpl", f'{{{{ template "{name}" . }}}}'
    return amtool(
        "template",
        "render",
        f"--template.glob={glob}",
        f"--template.text={text}",
        f"--template.data={path}",
    )


def test_the_message_says_what_and_why_and_what_to_do(tmp_path: Path) -> None:
    alert = {
        "status": "firing",
        "labels": alert_labels(ENGINE, "kv_thrashing"),
        "annotations": {
            "summary": "KV cache thrashing.",
            "description": "gpu1, model llama, engine 0: too small.\nWhat to do first:\n1. lower --max-num-seqs",
            "evidence": "preemptions 99, finished requests 42",
            "runbook_url": "https://example.com/kvwatch/runbooks/kvwatchkvthrashing.md",
        },
        "startsAt": "2026-01-01T00:00:00Z",
        "endsAt": "2026-01-01T00:00:00Z",
    }
    title = rendered("kvwatch.title", alert, tmp_path).strip()
    assert title == "[FIRING: 1] gpu1 KV cache thrashing."
    assert rendered("kvwatch.text", alert, tmp_path).strip().splitlines() == [
        "CRITICAL: KV cache thrashing.",
        "gpu1, model llama, engine 0: too small.",
        "What to do first:",
        "1. lower --max-num-seqs",
        "Evidence: preemptions 99, finished requests 42",
        "Runbook: https://example.com/kvwatch/runbooks/kvwatchkvthrashing.md",
    ]
    resolved = rendered("kvwatch.text", alert | {"status": "resolved"}, tmp_path).strip()
    assert resolved == "Resolved: KV cache thrashing. (gpu1, llama)"
