"""An incident to its message: a recorded vLLM, kvwatch, Prometheus with the rules, Alertmanager with its file.

To accept a change of the message: `KVWATCH_REGENERATE=1 .venv/bin/pytest tests/e2e/test_alerting.py`, look at the
diff, commit it. Regenerating fails the run, so that a stale golden can't slip through.
"""

from __future__ import annotations

import json
import os
import re
import time
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path
from typing import Any

import httpx
import pytest
import yaml

from tests.e2e.test_notify import DOWN, THRASHING, firing
from tests.e2e.test_stack import SATURATED, playing
from tests.e2e.webhook import Alertmanager, Webhook, webhook
from tests.support.promtool import RULES
from tests.support.stack import Prometheus, answers, free_port, kvwatch, prometheus
from tests.support.waiting import until

CONFIG = Path(__file__).parents[2] / "alerts" / "alertmanager.yml"

GOLDEN = Path(__file__).parents[1] / "golden" / "notification.json"
#: Three seconds of the light load before the saturation are played, and the rest in 30 s.
SINCE_S, SPEED = 23.0, 3.0
ACCOUNTED = (
    'kvwatch_symptom_state{symptom="%s",state="firing"} == 1'
    ' and ignoring (state) kvwatch_symptom_explained{symptom="%s"} == 1'
)
#: Of a budget for an hour or more, not of an incident: so young a Prometheus takes the incident for the whole hour.
BUDGETS = "KVWatchTtftBudget.+"
EXPLAINED = ("ttft_high", "kv_exhausted")  # in the order in which they come
#: As short as the incident is made by its speed. What kv_thrashing explains ends before it does: when waiting has
#: lasted for long, late first tokens are no more than its aftermath. Requests wait for some 23 s here, less where the
#: machine is too busy to look all the time: 14 s are reached in any case.
THRESHOLDS = {
    "kv_thrashing.for": 5,
    "kv_thrashing.keep": 5,
    "kv_exhausted.share": 0.2,
    "kv_exhausted.keep": 1,
    "ttft_high.for": 1,
    "ttft_high.keep": 1,
    "ttft_high.waited": 14,
}


def adapted(hook: Webhook, slack: Webhook) -> dict[str, Any]:
    """The rendered configuration with its routes, inhibition and templates; waits are short and receivers ours."""
    config: dict[str, Any] = yaml.safe_load(CONFIG.read_text(encoding="utf-8"))
    for route in (config["route"], *config["route"]["routes"]):
        short = {"group_wait": "0s", "group_interval": "1s"}
        route |= {name: wait for name, wait in short.items() if name in route}
    for receiver in config["receivers"]:
        receiver.pop("pagerduty_configs", None)
        for one in receiver.get("slack_configs", ()):
            del one["api_url_file"]
            one["api_url"] = slack.url
        receiver["webhook_configs"] = [{"url": hook.url, "send_resolved": True}]
    config["templates"] = [str(CONFIG.parent / name) for name in config["templates"]]
    return config


def silence(alertmanager: Alertmanager, pattern: str) -> None:
    """Silences alerts by a pattern of their names, as a person would."""
    silenced = {
        "matchers": [{"name": "alertname", "value": pattern, "isRegex": True}],
        "startsAt": datetime.now(UTC).isoformat(),
        "endsAt": (datetime.now(UTC) + timedelta(hours=1)).isoformat(),
        "createdBy": "test",
        "comment": "not what is tested",
    }
    assert httpx.post(f"{alertmanager.url}/api/v2/silences", json=silenced).status_code == 200


def waits(url: str) -> bool:
    """Whether requests wait in what is played now."""
    found = re.search(r"^vllm:num_requests_waiting\{.*\} (\S+)$", httpx.get(url).text, re.MULTILINE)
    return found is not None and float(found[1]) > 0


def unnumbered(text: str) -> str:
    """A text with each number of its evidence as N: those that were judged differ from run to run."""
    return re.sub(
        r"(?<=^Evidence: ).+$", lambda found: re.sub(r"\d+(\.\d+)?", "N", found[0]), text, flags=re.MULTILINE
    )


def said(status: str, received: Webhook, slack: Webhook, instance: str) -> dict[str, Any] | None:
    """What the message of this status says, without what differs from run to run; None before it has come."""
    message = next((one for _, one in received.messages if one["status"] == status), None)
    posted = [one["attachments"][0] for _, one in slack.messages]
    shown = next((one for one in posted if one["title"].lower().startswith(f"[{status}")), None)
    if message is None or shown is None:
        return None
    alerts = [
        {
            "status": one["status"],
            "labels": one["labels"] | {"instance": one["labels"]["instance"].replace(instance, "INSTANCE")},
            "annotations": {name: unnumbered(words) for name, words in one["annotations"].items()},
        }
        for one in message["alerts"]
    ]
    return {
        "receiver": message["receiver"],
        "groupLabels": message["groupLabels"],
        "alerts": alerts,
        "slack": {"title": shown["title"], "text": unnumbered(shown["text"]).splitlines()},
    }


def errors(asked: Prometheus) -> float:
    """How many of its posts to Alertmanagers failed."""
    page = httpx.get(f"{asked.url}/metrics", timeout=5).text
    found = re.findall(r"^prometheus_notifications_errors_total\{.*\} (\S+)$", page, re.MULTILINE)
    return sum(map(float, found))


def test_an_alert_outlives_an_alertmanager(tmp_path: Path) -> None:
    """What fires while Alertmanager is away arrives when it is back; one that it knows is not told of again."""
    port, server, log = free_port(), free_port(), tmp_path / "kvwatch.log"
    address = f"127.0.0.1:{port}"
    arguments = (
        *("run", "--host", "127.0.0.1", "--port", str(port), "--targets", f"gpu1=http://127.0.0.1:{server}"),
        *(
            "--gpu",
            "off",
            "--interval",
            "250ms",
            "--threshold",
            "target_down.for=1",
            "--threshold",
            "target_down.never_up=0",
        ),
        # It never came up, which tells more than that it is down.
        *("--disable", "startup_kv_failure"),
    )
    with webhook() as received, webhook() as slack, kvwatch(log, *arguments):
        alertmanager = Alertmanager(tmp_path, received, config=adapted(received, slack))
        told = f'ALERTS{{alertname="{DOWN}",alertstate="firing"}}'
        with prometheus(
            tmp_path,
            address,
            rules=RULES,
            alertmanager=f"127.0.0.1:{alertmanager.port}",
            resend="1s",
        ) as asked:
            until("alert in Prometheus", lambda: asked.query(told), 20)
            until("failed post", lambda: errors(asked), 20)
            with alertmanager.running():
                _, down = until("message", lambda: received.first(DOWN, "firing"), 20)
                assert "failure refused" in down["annotations"]["description"]
            with alertmanager.running():
                until("alert told again", alertmanager.alerts, 20)
                with playing(SATURATED, SPEED, port=server):
                    until("the end", lambda: received.first(DOWN, "resolved"), 30)
    assert (received.count(DOWN, "firing"), received.count(DOWN, "resolved")) == (1, 1)


def test_an_incident_becomes_one_message_and_its_end(
    tmp_path: Path, record_property: Callable[[str, object], None]
) -> None:
    """One cause, three symptoms: a person gets one message, with all it needs, and is told when it is over."""
    port, log = free_port(), tmp_path / "kvwatch.log"
    url, instance = f"http://127.0.0.1:{port}", f"127.0.0.1:{port}"
    with (
        webhook() as received,
        webhook() as slack,
        playing(SATURATED, SPEED, since_s=SINCE_S, loop=False) as vllm,
    ):
        alertmanager = Alertmanager(tmp_path, received, config=adapted(received, slack))
        arguments = (
            *("run", "--host", "127.0.0.1", "--port", str(port), "--targets", f"gpu1={vllm}", "--gpu", "off"),
            *("--interval", "250ms", "--full-interval", "1s", "--duty-cycle", "0.5"),
            *("--threshold", ",".join(f"{name}={value}" for name, value in THRESHOLDS.items())),
            # True of this recording and no part of the incident: its prompts share nothing.
            *("--disable", "prefix_cache_ineffective"),
        )
        with (
            alertmanager.running(),
            prometheus(
                tmp_path, instance, rules=RULES, alertmanager=f"127.0.0.1:{alertmanager.port}"
            ) as asked,
            kvwatch(log, *arguments),
        ):
            silence(alertmanager, BUDGETS)
            until("answer of kvwatch", lambda: answers(f"{url}/readyz"), 15)
            until("onset of saturation", lambda: waits(vllm), 15, 0.05)
            onset = time.time()
            at, alert = until("message", lambda: received.first(THRASHING, "firing"), 30, 0.05)
            found = firing(url, "kv_thrashing")
            assert found is not None
            for name, seconds in (("firing", found["since_at"] - onset), ("webhook", at - onset)):
                record_property(f"onset_to_{name}_s", round(seconds, 2))
                print(f"\nfrom onset of saturation to {name}: {seconds:.2f} s")
            told_of = re.search(
                r"preemptions (\d+);.* requests waiting (\d+);", alert["annotations"]["description"]
            )
            assert told_of, alert["annotations"]["description"]
            assert int(told_of[1]) >= 3
            first = until("message in Slack", lambda: said("firing", received, slack, instance), 5)

            # The cause mutes its effects in the rules, and in the Alertmanager whoever tells it of them.
            for symptom in EXPLAINED:
                until(f"explained {symptom}", partial(asked.query, ACCOUNTED % (symptom, symptom)), 20)
            assert asked.query(f'ALERTS{{alertname="{THRASHING}",alertstate="firing"}}')
            effect = alert["labels"] | {"alertname": "KVWatchTtftHigh", "severity": "warning"}
            alerts = f"{alertmanager.url}/api/v2/alerts"
            assert httpx.post(alerts, json=[{"labels": effect}]).status_code == 200
            until(
                "inhibition",
                lambda: [one for one in alertmanager.alerts() if one["status"]["inhibitedBy"]],
                10,
            )
            over = [{"labels": effect, "endsAt": datetime.now(UTC).isoformat()}]
            assert httpx.post(alerts, json=over).status_code == 200

            until("the end", lambda: received.first(THRASHING, "resolved"), 40)
            last = until("the end in Slack", lambda: said("resolved", received, slack, instance), 5)
            told = asked.query(
                f'count by (alertname) (max_over_time(ALERTS{{alertstate="firing",alertname!~"{BUDGETS}"}}[10m]))'
            )
    assert [one["metric"]["alertname"] for one in told] == [THRASHING]
    others = [
        (round(at - onset, 2), one["status"], one["labels"], one["startsAt"], one["endsAt"])
        for at, message in received.messages
        for one in message["alerts"]
        if one["labels"]["alertname"] != THRASHING
    ]
    assert others == []
    assert (received.count(THRASHING, "firing"), received.count(THRASHING, "resolved")) == (1, 1)
    assert "Traceback" not in log.read_text(encoding="utf-8")
    text = json.dumps({"firing": first, "resolved": last}, indent=2, ensure_ascii=False) + "\n"
    if os.environ.get("KVWATCH_REGENERATE"):
        GOLDEN.write_text(text, encoding="utf-8")
        pytest.fail(f"{GOLDEN.name} was written anew: look at the diff, then run without KVWATCH_REGENERATE")
    assert text == GOLDEN.read_text(encoding="utf-8")
