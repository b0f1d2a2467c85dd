"""The real kvwatch before the routes that vLLM has, alone and behind proxies: what it asks for, and that no signal is
lost by it. One process watches all of them at once."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any

import httpx
import pytest

from kvwatch.core.export import report
from kvwatch.core.judgement.pipeline import advance
from kvwatch.core.judgement.state import initial
from kvwatch.core.model.outcome import Scrape
from kvwatch.sidecar.polling.narrowing import COMPLETE, IGNORED
from tests.support.replica.running import (
    drops_the_query,
    passes,
    proxy,
    redirects_the_slash,
    replica,
    strips_the_slash,
)
from tests.support.stack import answers, free_port, kvwatch
from tests.support.waiting import until

NOTHING = "the narrowed page is malformed: status 200 with an empty body"
#: By a name: the mode of the server, the proxy before it, and what the log says of narrowing there.
WAYS = {
    "one-process": ("one", passes, COMPLETE),
    "eight-engines": ("eight", passes, COMPLETE),
    "three-api-server-processes": (
        "several",
        passes,
        "the narrowed page is malformed: status 200 with an empty body",
    ),
    "query-dropped": ("one", drops_the_query, IGNORED),
    "slash-stripped": ("one", strips_the_slash, IGNORED),
    "slash-redirected": ("one", redirects_the_slash, IGNORED),
}


@dataclass
class Seen:
    """One target: how it says it was watched, what it was asked, and what it shows to who asks for all."""

    state: dict[str, Any]
    narrowed: bool
    why: str
    asked: list[str]
    whole: bytes


@pytest.fixture(scope="module")
def seen(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Seen]]:
    """Every way, watched for a few polls of either pace. Answers have two seconds, on machines that may be busy."""
    folder = tmp_path_factory.mktemp("routes")
    shared = folder / "shared"
    shared.mkdir()
    port, log = free_port(), folder / "kvwatch.log"
    with ExitStack() as running:
        modes = {
            "one": running.enter_context(replica()),
            "eight": running.enter_context(replica(engines=8)),
            "several": running.enter_context(replica(processes=3, folder=shared)),
        }
        urls = {
            name: running.enter_context(proxy(modes[mode].url, way)) for name, (mode, way, _) in WAYS.items()
        }
        targets = ",".join(f"{name}={url}" for name, (url, _) in urls.items())
        command = ("run", "--host=127.0.0.1", f"--port={port}", f"--targets={targets}", "--full-interval=4")
        paced = ("--interval=2", "--timeout=1.9", "--max-interval=2", "--gpu=off", "--log-format=json")
        running.enter_context(kvwatch(log, *command, *paced))
        mine = f"http://127.0.0.1:{port}"
        until("answer of kvwatch", lambda: answers(f"{mine}/metrics"), 40)

        def polled() -> dict[str, dict[str, Any]]:
            targets = httpx.get(f"{mine}/api/v1/state", timeout=10).json()["targets"]
            enough = all(one["scrapes"]["ok"] >= 6 for one in targets)
            return {one["target"]: one for one in targets} if enough else {}

        states = until("six polls of each target", polled, 60)
        page = httpx.get(f"{mine}/metrics", timeout=10).text.splitlines()
        lines = [json.loads(line) for line in log.read_text(encoding="utf-8").splitlines()]
        yield {
            name: Seen(
                states[name],
                f'kvwatch_scrape_narrowed{{target="{name}"}} 1.0' in page,
                [str(line["why"]) for line in lines if "narrowed" in line and line["target"] == name][-1],
                urls[name][1],
                httpx.get(f"{modes[WAYS[name][0]].url}/metrics", timeout=10).content,
            )
            for name in WAYS
        }


@pytest.mark.parametrize("way", WAYS)
def test_narrowed_where_that_gives_less_and_whole_elsewhere(seen: dict[str, Seen], way: str) -> None:
    why = WAYS[way][2]
    assert seen[way].why == why
    assert seen[way].narrowed == (why == COMPLETE)
    scrapes = [path for path in seen[way].asked if path.startswith("/metrics")]
    assert scrapes[0] == "/metrics"
    late = scrapes[3:]
    assert late
    assert all(("name[]=" in path) == (why == COMPLETE) for path in late), late


@pytest.mark.parametrize("way", WAYS)
def test_no_signal_is_lost(seen: dict[str, Seen], way: str) -> None:
    """Signals, and reasons of missing ones, are those of a whole page; all scrapes were good."""
    state, _ = advance(initial(way), Scrape(seen[way].whole, 0.0), 0.0)
    expected = {one["engine"]: one for one in report.target(state)["engines"]}
    found = {one["engine"]: one for one in seen[way].state["engines"]}
    assert found.keys() == expected.keys()
    for engine, one in found.items():
        assert one["signals"].keys() == expected[engine]["signals"].keys()
        assert one["missing"] == expected[engine]["missing"]
        assert one["config"] == expected[engine]["config"]
        for gauge in ("kv_cache_usage_ratio", "requests_running", "requests_waiting"):
            assert one["signals"][gauge] == expected[engine]["signals"][gauge]
    assert seen[way].state["server"].keys() == report.target(state)["server"].keys()
