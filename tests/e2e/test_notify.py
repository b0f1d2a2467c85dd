"""Direct notification, the whole way: a recorded vLLM, the real kvwatch, a real Alertmanager, a webhook."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import Any

import httpx

from tests.e2e.test_stack import SATURATED, playing
from tests.e2e.webhook import Alertmanager, webhook
from tests.support.stack import answers, free_port, kvwatch
from tests.support.waiting import until

SPEED = 6.0
DOWN, THRASHING = "KVWatchTargetDown", "KVWatchKvThrashing"


def firing(url: str, symptom: str) -> dict[str, Any] | None:
    """What kvwatch says of a symptom that fires."""
    found = httpx.get(f"{url}/api/v1/findings", timeout=5).json()["findings"]
    return next((one for one in found if one["symptom"] == symptom), None)


def counted(url: str) -> dict[str, float]:
    """kvwatch's counts of posts by outcome."""
    lines = httpx.get(f"{url}/metrics", timeout=5).text.splitlines()
    return {
        line.partition('outcome="')[2].partition('"')[0]: float(line.rpartition(" ")[2])
        for line in lines
        if line.startswith('kvwatch_notifications_total{alertmanager="am"')
    }


def test_an_alert_arrives_through_an_outage_and_resolves(tmp_path: Path) -> None:
    """Within seconds and with all that a person needs; once, though the Alertmanager was away; and its end."""
    port, nobody, log = free_port(), free_port(), tmp_path / "kvwatch.log"
    url = f"http://127.0.0.1:{port}"
    with playing(SATURATED, SPEED) as vllm, webhook() as received:
        alertmanager = Alertmanager(tmp_path, received)
        arguments = (
            *("run", "--host", "127.0.0.1", "--port", str(port)),
            *("--targets", f"v1={vllm},gone=http://127.0.0.1:{nobody}", "--gpu", "off"),
            *("--interval", "250ms", "--full-interval", "1s", "--duty-cycle", "0.5"),
            *("--threshold", "kv_thrashing.for=1", "--threshold", "kv_thrashing.keep=1"),
            *(
                "--threshold",
                "target_down.for=1",
                "--threshold",
                "target_down.never_up=0",
                "--disable",
                "startup_kv_failure",
            ),
            *("--alertmanager", f"am={alertmanager.url}", "--notify-repeat", "2s"),
            *("--external-url", "https://kvwatch.example.com"),
        )
        with kvwatch(log, *arguments) as process:
            with alertmanager.running():
                until("answer of kvwatch", lambda: answers(f"{url}/readyz"), 15)
                at, down = until("target_down", lambda: received.first(DOWN, "firing"), 20, 0.05)
                said = firing(url, "target_down")
                assert said is not None
                print(f"\nfrom firing to the webhook: {at - said['since_at']:.2f} s")
                assert at - said["since_at"] < 5
                assert "refused" in down["annotations"]["description"]
            until("kv_thrashing in kvwatch", lambda: firing(url, "kv_thrashing"), 30)
            until("failed post", lambda: counted(url)["refused"] > 0, 10)
            with alertmanager.running():
                _, thrashing = until("kv_thrashing", lambda: received.first(THRASHING, "firing"), 20)
                assert thrashing["labels"] == {
                    "alertname": THRASHING,
                    "severity": "critical",
                    "symptom": "kv_thrashing",
                    "target": "v1",
                    "model_name": "tiny-llama",
                    "engine": "0",
                }
                assert thrashing["generatorURL"] == "https://kvwatch.example.com/"
                assert "KV cache thrashing" in thrashing["annotations"]["summary"]
                words = thrashing["annotations"]["description"]
                assert "Evidence: " in words
                assert "requests waiting 1" in words
                parts = ("Do now, no restart:", "1. ", "With a restart (", "--kv-cache-dtype fp8", "Do not:")
                places = [words.index(part) for part in parts]
                assert places == sorted(places), words
                assert "Raise --max-num-seqs" in words.partition("Do not:")[2]
                until("the end of kv_thrashing", lambda: received.first(THRASHING, "resolved"), 40)
                assert (received.count(THRASHING, "firing"), received.count(THRASHING, "resolved")) == (1, 1)
                os.kill(process.pid, signal.SIGTERM)
                assert process.wait(timeout=3) == 0
                assert DOWN in {one["labels"]["alertname"] for one in alertmanager.alerts()}
                assert (received.count(DOWN, "firing"), received.count(DOWN, "resolved")) == (1, 0)
    names = {one["labels"]["alertname"] for _, message in received.messages for one in message["alerts"]}
    assert "KVWatchKvExhausted" not in names, "what something else accounts for is not told of"
    lines = log.read_text(encoding="utf-8").splitlines()
    assert len([line for line in lines if "Alertmanager accepts no alerts" in line]) == 1
    assert "Traceback" not in "\n".join(lines)
