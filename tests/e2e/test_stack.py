"""The whole way: a recorded vLLM over real HTTP, the real kvwatch process, a real Prometheus that answers PromQL."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import subprocess
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import httpx
import pytest

from kvwatch.playback import Playback
from kvwatch.recording import Record, read
from tests.support.stack import Prometheus, answers, free_port, kvwatch, prometheus
from tests.support.waiting import until

RECORDINGS = Path(__file__).parents[1] / "replay" / "recordings"
SATURATED = RECORDINGS / "0.32.0--c-kv-saturation.jsonl.gz"
V0 = RECORDINGS / "0.8.5-v0--c-kv-saturation.jsonl.gz"
#: The light load before the saturation is passed over at this speed.
SPEED = 4.0


@contextmanager
def playing(
    recording: Path, speed: float, *, since_s: float = 0.0, loop: bool = True, port: int = 0
) -> Iterator[str]:
    """A recording served over real HTTP by a thread of its own; gives the URL of its metrics. At any port, if 0.

    What was recorded before `since_s` is left out. Without `loop` it stays at its end.
    """
    records = [one for one in read(recording) if isinstance(one, Record)]
    kept = [one for one in records if one.t >= records[0].t + since_s]
    started = threading.Event()
    urls: list[str] = []
    events = asyncio.new_event_loop()
    ended = asyncio.Event()

    async def serve() -> None:
        async with Playback(kept, lambda: time.monotonic() * speed, loop=loop) as server:
            urls.append(await server.start(port=port))
            started.set()
            await ended.wait()

    thread = threading.Thread(target=lambda: events.run_until_complete(serve()))
    thread.start()
    try:
        assert started.wait(10), "the playback did not start"
        yield urls[0]
    finally:
        events.call_soon_threadsafe(ended.set)
        thread.join(10)
        events.close()


@dataclass
class Stack:
    """Everything that runs, and where to ask."""

    url: str
    prometheus: Prometheus
    process: subprocess.Popen[bytes]
    log: Path


@pytest.fixture(scope="module")
def stack(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    """Two recorded servers of two engine generations and one that is not there, watched, and scraped."""
    folder = tmp_path_factory.mktemp("stack")
    port, nobody = free_port(), free_port()
    log = folder / "kvwatch.log"
    with playing(SATURATED, SPEED) as v1, playing(V0, SPEED) as v0:
        arguments = (
            *("run", "--host", "127.0.0.1", "--port", str(port)),
            *("--targets", f"v1={v1},v0={v0},gone=http://127.0.0.1:{nobody}"),
            *("--interval", "250ms", "--full-interval", "1s", "--duty-cycle", "0.5"),
            *(
                "--threshold",
                "kv_thrashing.for=1",
                "--threshold",
                "target_down.for=2",
                "--threshold",
                "target_down.never_up=0",
            ),
        )
        with kvwatch(log, *arguments) as process, prometheus(folder, f"127.0.0.1:{port}") as asked:
            until("answer of kvwatch", lambda: answers(f"http://127.0.0.1:{port}/readyz"), 15)
            yield Stack(f"http://127.0.0.1:{port}", asked, process, log)


def test_prometheus_scrapes_every_sample(stack: Stack) -> None:
    """A real Prometheus takes the whole exposition, with the format that it negotiates."""
    until("scrape by Prometheus", lambda: stack.prometheus.value('up{job="kvwatch"}') == 1, 20)
    assert (stack.prometheus.value("scrape_samples_scraped") or 0) > 500
    assert stack.prometheus.value("kvwatch_build_info") == 1


def test_the_symptom_fires_for_both_generations(stack: Stack) -> None:
    """The same words over v0 and v1: both saturated caches thrash, with evidence and actions."""
    firing = 'max_over_time(kvwatch_symptom_state{symptom="kv_thrashing",state="firing"}[1m]) == 1'
    until("kv_thrashing on both", lambda: len(stack.prometheus.query(firing)) == 2, 40)
    found = httpx.get(f"{stack.url}/api/v1/findings").json()["findings"]
    thrashing = [one for one in found if one["symptom"] == "kv_thrashing"]
    assert thrashing
    assert thrashing[0]["evidence"]["preemptions"] >= 3
    assert {"shed_load", "add_replica"} & {action["lever"] for action in thrashing[0]["actions"]}


def test_why_requests_wait_is_a_query(stack: Stack) -> None:
    """Time per regime is rate-able: most of the saturated time went to waiting for the cache."""
    query = 'increase(kvwatch_regime_seconds_total{target="v1",regime="kv_limited"}[30s])'
    until("seconds of kv_limited", lambda: (stack.prometheus.value(query) or 0) > 3, 40)
    watched = stack.prometheus.value('sum(kvwatch_regime_seconds_total{target="v1"})') or 0.0
    limited = stack.prometheus.value('kvwatch_regime_seconds_total{target="v1",regime="kv_limited"}') or 0.0
    assert 0 < limited < watched


def test_vllms_histograms_are_there_under_one_name(stack: Stack) -> None:
    """Latency quantiles work on kvwatch's copy of vLLM's buckets, for both generations."""
    buckets = "sum by (target, le) (rate(kvwatch_time_to_first_token_seconds_bucket[30s]))"
    until(
        "TTFT of both",
        lambda: len(stack.prometheus.query(f"histogram_quantile(0.95, {buckets}) > 0")) == 2,
        30,
    )


def test_a_server_that_is_not_there_is_down_and_nothing_else(stack: Stack) -> None:
    """`up` is 0, the kind of failure is counted, `target_down` fires, and no signal is made up."""
    down = 'kvwatch_symptom_state{target="gone",symptom="target_down",state="firing"}'
    until("target_down", lambda: stack.prometheus.value(down) == 1, 30)
    assert stack.prometheus.value('kvwatch_up{target="gone"}') == 0
    assert (stack.prometheus.value('kvwatch_scrapes_total{target="gone",outcome="refused"}') or 0) > 0
    assert stack.prometheus.query('kvwatch_requests_running{target="gone"}') == []


def test_the_log_has_a_line_per_transition_and_none_per_poll(stack: Stack) -> None:
    """What an operator reads afterwards: transitions with their evidence, no chatter."""
    until("transition in the log", lambda: b"symptom=kv_thrashing" in stack.log.read_bytes(), 40)
    lines = stack.log.read_text(encoding="utf-8").splitlines()
    fired = [line for line in lines if "symptom=kv_thrashing" in line and "to=firing" in line]
    assert fired
    assert all("evidence.preemptions=" in line for line in fired)
    polls = until("count of polls", lambda: stack.prometheus.value("sum(kvwatch_polls_total)"), 10)
    assert len(lines) < polls / 3
    assert "Traceback" not in stack.log.read_text(encoding="utf-8")


def test_sigterm_ends_it_at_once(tmp_path: Path) -> None:
    """With a target that never answers and a client that holds its connection open, it ends within a second."""
    port, log = free_port(), tmp_path / "log"
    with socket.create_server(("127.0.0.1", 0)) as silent:
        target = f"http://127.0.0.1:{silent.getsockname()[1]}"
        with kvwatch(log, "run", "--port", str(port), "--host", "127.0.0.1", "--targets", target) as process:
            until("answer of kvwatch", lambda: answers(f"http://127.0.0.1:{port}/healthz"), 15)
            with httpx.Client(base_url=f"http://127.0.0.1:{port}") as held:
                assert held.get("/metrics").status_code == 200
                os.kill(process.pid, signal.SIGTERM)
                assert process.wait(timeout=1.5) == 0
    assert "Traceback" not in log.read_text(encoding="utf-8")
