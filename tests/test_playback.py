"""A recording served over real HTTP answers as the recorded server did, and pretends to nothing else."""

import asyncio
from collections.abc import Callable

import httpx
import pytest

from kvwatch.playback import Playback
from kvwatch.recording import Record, RecordingError, Skipped

RECORDS = [
    Record(100.0, 200, b"zero"),
    Record(101.0, 200, b"one", content_type="text/odd"),
    Record(102.0, 0, error="refused"),
    Record(103.0, 503, b"busy"),
]


class Hands:
    """A clock set by hand."""

    def __init__(self) -> None:
        self.time = 50.0

    def __call__(self) -> float:
        return self.time


def played(test: Callable[[httpx.AsyncClient, Hands, Playback], object], *, loop: bool = False) -> list[int]:
    rounds: list[int] = []

    async def play() -> None:
        clock = Hands()
        async with Playback(RECORDS, clock, loop=loop, on_round=rounds.append) as playback:
            url = await playback.start()
            async with httpx.AsyncClient(base_url=url.removesuffix("/metrics"), trust_env=False) as client:
                await test(client, clock, playback)  # type: ignore[misc]

    asyncio.run(play())
    return rounds


def test_each_record_in_its_time_and_the_last_one_for_good() -> None:
    async def test(client: httpx.AsyncClient, clock: Hands, playback: Playback) -> None:
        first = await client.get("/metrics")
        assert (first.status_code, first.text) == (200, "zero")
        assert first.headers["content-type"].startswith("text/plain; version=0.0.4")
        clock.time += 1.9
        second = await client.get("/metrics")
        assert (second.text, second.headers["content-type"]) == ("one", "text/odd")
        clock.time += 0.5
        with pytest.raises(httpx.RemoteProtocolError):
            await client.get("/metrics")
        clock.time += 1
        busy = await client.get("/metrics")
        assert (busy.status_code, busy.text) == (503, "busy")
        clock.time += 100
        assert (await client.get("/metrics")).status_code == 503
        assert playback.rounds == 0

    assert played(test) == []


def test_a_loop_begins_anew_and_says_so() -> None:
    async def test(client: httpx.AsyncClient, clock: Hands, playback: Playback) -> None:
        assert (await client.get("/metrics")).text == "zero"
        clock.time += playback.duration_s + 1
        assert (await client.get("/metrics")).text == "one"
        clock.time += playback.duration_s
        assert (await client.get("/metrics")).text == "one"

    assert played(test, loop=True) == [1, 2]


def test_nothing_but_the_whole_page_is_answered() -> None:
    async def test(client: httpx.AsyncClient, clock: Hands, playback: Playback) -> None:
        del clock, playback
        assert (await client.get("/metrics", params={"name[]": "a"})).text == "zero"
        for path in ("/metrics/", "/metrics/?name[]=a", "/health", "/"):
            assert (await client.get(path)).status_code == 404
        assert (await client.post("/metrics")).status_code == 405

    played(test)


def test_what_holds_nothing_is_not_played() -> None:
    with pytest.raises(RecordingError):
        Playback([Skipped(1, "not JSON")], lambda: 0.0)
