"""The poller: a real scraper, a real server on loopback, and a clock that the test turns."""

from __future__ import annotations

import asyncio
import contextlib
import io
import json
import threading
import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from random import Random

import pytest
from pydantic import SecretStr

from kvwatch.core.judgement.pipeline import advance
from kvwatch.core.judgement.state import State, Transition, initial
from kvwatch.core.model.outcome import Failure, Outcome, Pace, Scrape, ScrapeError
from kvwatch.core.model.server_info import ServerInfo
from kvwatch.settings import Settings, TargetSettings
from kvwatch.sidecar import log
from kvwatch.sidecar.http_client import client_for
from kvwatch.sidecar.polling.narrowing import Narrowing
from kvwatch.sidecar.polling.pacing import NO_OFFSET, StartOffset
from kvwatch.sidecar.polling.poller import Poller, ScrapeSource
from kvwatch.sidecar.polling.scrape import Scraper
from kvwatch.sidecar.store import Store
from tests.support.loopback import (
    Asked,
    Handler,
    Loopback,
    TurnedClock,
    VllmLike,
    always,
    narrowed,
    pages,
    send,
    serving,
)

HEALTHY = "0.32.0--b-healthy.jsonl.gz"
TOKEN = "a-token-nobody-may-see"  # noqa: S105


@dataclass
class Watch:
    """One target under watch, and what came of it."""

    server: Loopback
    store: Store
    clock: TurnedClock
    poller: Poller
    logged: io.StringIO
    seen: list[tuple[State, tuple[Transition, ...]]] = field(default_factory=list)

    @property
    def state(self) -> State:
        return self.store.state("vllm")

    @property
    def scrapes(self) -> list[Asked]:
        return [asked for asked in self.server.asked if asked.path.startswith("/metrics")]

    @property
    def lines(self) -> list[dict[str, object]]:
        return [json.loads(line) for line in self.logged.getvalue().splitlines()]

    async def run(self, seconds: float) -> None:
        """Polls for so many seconds of the clock."""
        self.clock.go_on(seconds)
        task = asyncio.create_task(self.poller.run())
        reached = asyncio.create_task(self.clock.reached.wait())
        await asyncio.wait({task, reached}, timeout=20, return_when=asyncio.FIRST_COMPLETED)
        assert reached.done(), "the poller ended or hangs"
        await asyncio.sleep(0)
        task.cancel()
        await asyncio.gather(task, reached, return_exceptions=True)


Judge = Callable[[State, Outcome, float], tuple[State, tuple[Transition, ...]]]


@asynccontextmanager
async def watching(
    handler: Handler,
    judge: Judge = advance,
    start: StartOffset = NO_OFFSET,
    turn: asyncio.Semaphore | None = None,
    **more: object,
) -> AsyncIterator[Watch]:
    """Watches a server. The duty cycle is wide open, since here an answer takes no time of the clock."""
    logged = io.StringIO()
    log.configure_logging("json", "debug", logged)
    async with serving(handler) as server:
        target = TargetSettings(name="vllm", url=server.url, token=SecretStr(TOKEN))
        settings = Settings.model_validate({"targets": [target], "duty_cycle": 0.5} | more)
        if more.get("timeout_s") is None:  # of real seconds, on a machine that may be busy
            settings = settings.model_copy(update={"timeout_s": 20.0})
        store, clock = Store([initial("vllm", settings.policy(target))]), TurnedClock()
        async with client_for(target) as client:
            scraper = Scraper(target, settings, client)
            poller = Poller(
                store.state("vllm"),
                scraper,
                store,
                clock,
                settings,
                random=Random(3),
                judge=judge,
                start=start,
                turn=turn,
            )
            watch = Watch(server, store, clock, poller, logged)
            publish = store.publish

            def noting(state: State, transitions: tuple[Transition, ...] = ()) -> None:
                watch.seen.append((state, transitions))
                publish(state, transitions)

            store.publish = noting  # type: ignore[method-assign, assignment]
            yield watch


def test_of_large_pages_one_is_judged_at_a_time() -> None:
    """Those of three servers that answer at once."""
    at_once, most, lock = 0, 0, threading.Lock()

    def judge(state: State, outcome: Outcome, now: float) -> tuple[State, tuple[Transition, ...]]:
        nonlocal at_once, most
        with lock:
            at_once += 1
            most = max(most, at_once)
        time.sleep(0.2)
        result = advance(state, outcome, now)
        with lock:
            at_once -= 1
        return result

    async def run() -> None:
        turn = asyncio.Semaphore()
        large = pages(HEALTHY)[0] + b"# HELP other x\n" * 20_000
        async with contextlib.AsyncExitStack() as stack:
            watches = [
                await stack.enter_async_context(watching(always(large), judge, turn=turn)) for _ in range(3)
            ]
            await asyncio.gather(*(one.run(1) for one in watches))
            assert all(one.state.up for one in watches)

    asyncio.run(run())
    assert most == 1


def watched(
    handler: Handler, seconds: float, judge: Judge = advance, start: StartOffset = NO_OFFSET, **more: object
) -> Watch:
    async def run() -> Watch:
        async with watching(handler, judge, start, None, **more) as watch:
            await watch.run(seconds)
            return watch

    return asyncio.run(run())


# -- the beat ---------------------------------------------------------------------------------------------------


def test_it_polls_once_an_interval_and_publishes_each_state() -> None:
    watch = watched(VllmLike(pages(HEALTHY), step=1), 20)
    times = [state.now for state, _ in watch.seen]
    assert times == [1000.0 + n for n in range(20)]
    assert watch.state.up
    assert watch.state.outcomes["ok"] == 20
    assert watch.state.last is not None
    assert watch.state.last.interval_s == 1.0
    assert watch.store.poll_stats("vllm").polls == 20
    assert watch.store.poll_stats("vllm").missed_ticks == 0


def test_it_sees_what_a_replay_of_the_same_pages_sees() -> None:
    recorded = pages("0.32.0--c-kv-saturation.jsonl.gz")[:60]
    watch = watched(VllmLike(recorded, step=1), 60, narrow="never")
    state = initial("vllm")
    for n, body in enumerate(recorded):
        pace = watch.seen[n][0].full_at == 1000.0 + n
        outcome = Scrape(body, 0.0)
        state, _ = advance(state, replace(outcome, pace=outcome.pace if pace else Pace.FAST), 1000.0 + n)
    (mine,), (other,) = watch.state.engines.values(), state.engines.values()
    assert mine.regime_seconds == other.regime_seconds
    assert mine.derived == other.derived
    assert {k: v.stage for k, v in mine.symptoms.items()} == {k: v.stage for k, v in other.symptoms.items()}


def test_a_slow_server_stretches_the_interval_and_that_is_told() -> None:
    page = pages(HEALTHY)[0]

    async def handler(_: Asked, writer: asyncio.StreamWriter) -> None:
        await asyncio.sleep(0.02)
        await send(writer, page)

    watch = watched(handler, 30, duty_cycle=0.01, narrow="never")
    assert watch.state.last is not None
    assert 2.0 <= watch.state.last.interval_s <= 8.0
    assert watch.clock.slept[-1] == pytest.approx(watch.state.last.interval_s)
    assert watch.store.poll_stats("vllm").missed_ticks == 0


def test_a_poller_waits_for_its_turn_and_comes_into_its_own_phase() -> None:
    watch = watched(VllmLike(pages(HEALTHY), step=1), 6, start=StartOffset(first_s=0.25, phase=0.75))
    assert [state.now for state, _ in watch.seen] == [1000.25 + n for n in (0, 1.25, 2.25, 3.25, 4.25, 5.25)]
    assert watch.store.poll_stats("vllm").missed_ticks == 0


# -- narrowing --------------------------------------------------------------------------------------------------


def kinds(watch: Watch) -> str:
    return "".join("n" if asked.names else "W" for asked in watch.scrapes)


def test_it_narrows_after_one_whole_page_and_one_probe_and_looks_at_the_whole_once_a_minute() -> None:
    watch = watched(VllmLike(pages(HEALTHY)), 130)
    assert kinds(watch) == "Wn" + "n" * 59 + "W" + "n" * 59 + "W" + "n" * 9
    assert watch.state.last is not None
    assert watch.state.last.narrowed
    narrow = [line for line in watch.lines if "narrowed" in line]
    assert [line["narrowed"] for line in narrow] == [True]


@pytest.mark.parametrize(
    "recording", ["0.32.0--c-kv-saturation.jsonl.gz", "0.32.0--j-data-parallel-2.jsonl.gz"]
)
def test_what_is_judged_narrowed_is_what_is_judged_whole(recording: str) -> None:
    async def run(narrow: str) -> Watch:
        vllm = VllmLike(pages(recording))
        async with watching(vllm, narrow=narrow) as watch:
            vllm.index = lambda: int(watch.clock.now() - 1000.0)
            await watch.run(50)
            return watch

    narrowly, wholly = asyncio.run(run("auto")), asyncio.run(run("never"))
    assert "nnnn" in kinds(narrowly)
    assert narrowly.state.engines.keys() == wholly.state.engines.keys()
    for key, one in narrowly.state.engines.items():
        other = wholly.state.engines[key]
        assert one.windows == other.windows
        assert one.regime_seconds == other.regime_seconds
        assert one.derived == other.derived
        assert one.symptoms == other.symptoms


def test_it_asks_for_buckets_only_when_they_are_due() -> None:
    watch = watched(VllmLike(pages(HEALTHY)), 40)
    full = [
        n for n, asked in enumerate(watch.scrapes) if any(name.endswith("_bucket") for name in asked.names)
    ]
    assert full == [1, 16, 31]  # the probe, and every 15 s


def test_a_server_that_answers_narrowed_requests_with_nothing_is_scraped_whole() -> None:
    watch = watched(VllmLike(pages(HEALTHY), narrows=False), 130)
    assert kinds(watch).count("n") == 2  # the probe at the start, and one more a minute later
    assert watch.state.outcomes == {**initial("x").outcomes, "ok": 130}
    assert [line["narrowed"] for line in watch.lines if "narrowed" in line] == [False]  # said once


def test_narrowing_can_be_forbidden() -> None:
    assert set(kinds(watched(VllmLike(pages(HEALTHY)), 20, narrow="never"))) == {"W"}


@pytest.mark.parametrize(
    ("answer", "why"),
    [
        ("404 Not Found", "narrowed scrape failed: the server answers with HTTP status 404"),
        ("lost", "narrowed scrape failed: the connection failed"),
        ("late", "narrowed scrape failed: no complete answer within 0.6 s"),
        ("broken", "the narrowed page is malformed: "),
        ("less", "the narrowed page lacks 1 series, e.g. vllm:request_success_total"),
        ("narrowed", "the narrowed page has every series that kvwatch reads"),
        ("whole", "the server ignores the names: "),
    ],
)
def test_why_scrapes_are_narrowed_or_not_is_the_real_reason(answer: str, why: str) -> None:
    page = pages(HEALTHY)[0]

    async def handler(asked: Asked, writer: asyncio.StreamWriter) -> None:
        if not asked.names or answer == "whole":
            await send(writer, page)
        elif answer == "narrowed":
            await send(writer, narrowed(page, asked.names))
        elif answer == "lost":
            writer.transport.abort()
        elif answer == "late":
            await asyncio.sleep(1)
        elif answer == "broken":
            await send(writer, b"vllm:num_requests_running{ 1\n")
        elif answer == "less":
            await send(writer, less(page))
        else:
            await send(writer, b"no", answer)

    watch = watched(handler, 5, timeout_s=0.6 if answer == "late" else None)
    (told,) = [line for line in watch.lines if "narrowed" in line]
    assert told["narrowed"] is (answer == "narrowed")
    assert str(told["why"]).startswith(why)
    assert ("every series" in str(told["why"])) is (answer == "narrowed")


def less(page: bytes) -> bytes:
    """A page without one of its series."""
    lines = page.splitlines(keepends=True)
    lines.remove(next(line for line in lines if b'finished_reason="abort"' in line))
    return b"".join(lines)


@dataclass
class Late:
    """A source that at these seconds of the clock gives up waiting, for whole pages or for any; `kinds` is what
    it was asked for."""

    source: ScrapeSource
    clock: TurnedClock
    seconds: tuple[int, ...]
    whole_only: bool
    kinds: str = ""

    def __post_init__(self) -> None:
        self.secrets = self.source.secrets

    async def scrape(self, pace: Pace, names: Sequence[str] | None = None) -> Scrape | ScrapeError:
        self.kinds += "W" if names is None else "n"
        if round(self.clock.now() - 1000.0) in self.seconds and not (self.whole_only and names):
            return ScrapeError(Failure.TIMEOUT, "no complete answer within 0.9 s", 0.0)
        return await self.source.scrape(pace, names)

    async def facts(self) -> ServerInfo:
        return await self.source.facts()


def late_at(*seconds: int, whole_only: bool = False) -> tuple[Watch, str]:
    """A server that misses the deadline at these seconds, and what it was asked for."""

    async def run() -> tuple[Watch, str]:
        async with watching(VllmLike(pages(HEALTHY))) as watch:
            late = Late(watch.poller._source, watch.clock, seconds, whole_only)
            watch.poller._source = late
            await watch.run(90)
            return watch, late.kinds

    return asyncio.run(run())


def test_one_late_answer_is_counted_but_ends_no_narrowing_and_is_no_news() -> None:
    watch, asked = late_at(20)
    assert watch.state.outcomes["timeout"] == 1
    assert watch.state.outcomes["ok"] == 89
    assert asked.startswith("Wn" + "n" * 59)
    assert asked.count("W") == 2  # at the start, and the one a minute
    assert [line["up"] for line in watch.lines if "up" in line] == [True]
    assert [line["narrowed"] for line in watch.lines if "narrowed" in line] == [True]


def test_two_late_answers_in_a_row_end_narrowing() -> None:
    watch, asked = late_at(20, 21)
    told = [line for line in watch.lines if "narrowed" in line]
    assert [line["narrowed"] for line in told] == [True, False, True]
    assert told[1]["why"] == "2 in a row: no complete answer within 0.9 s"
    assert asked.startswith("Wn" + "n" * 21 + "W")


def test_a_whole_page_that_is_late_is_followed_by_a_narrowed_one() -> None:
    watch, asked = late_at(60, whole_only=True)
    assert asked[61:64] == "Wnn"
    assert watch.state.outcomes["timeout"] == 1
    assert [line["narrowed"] for line in watch.lines if "narrowed" in line] == [True]


def test_a_late_try_while_narrowing_is_in_use_is_made_again() -> None:
    narrowing, state = Narrowing("auto"), initial("vllm")
    late = ScrapeError(Failure.TIMEOUT, "late", 0.0)
    assert not narrowing.postpone(late, 0.0)  # the first try tells that it can't be used
    narrowing.record_probe(state, True, 0.0)
    assert narrowing.postpone(late, 600.0)
    assert not narrowing.postpone(late, 660.0)
    assert not narrowing.postpone(ScrapeError(Failure.HTTP_STATUS, "404", 0.0), 660.0)


def test_a_server_that_fails_whole_as_narrowed_does_not_end_narrowing() -> None:
    async def run() -> Watch:
        vllm = VllmLike(pages(HEALTHY))
        async with watching(vllm) as watch:
            await watch.run(10)
            vllm.down = True
            await watch.run(1.5)
            vllm.down = False
            await watch.run(10)
            return watch

    watch = asyncio.run(run())
    assert watch.state.outcomes["connection"] >= 1
    assert kinds(watch).endswith("nnnn")
    assert [line["narrowed"] for line in watch.lines if "narrowed" in line] == [True]


def test_a_server_that_loses_a_single_series_in_the_narrowed_answer_is_scraped_whole() -> None:
    page = pages(HEALTHY)[0]

    async def handler(asked: Asked, writer: asyncio.StreamWriter) -> None:
        await send(writer, less(narrowed(page, asked.names)) if asked.names else page)

    assert kinds(watched(handler, 20)) == "Wn" + "W" * 19


def one_rank(page: bytes, without: str) -> bytes:
    """A page of two engines without the series of one."""
    return b"".join(
        line for line in page.splitlines(keepends=True) if f'engine="{without}"'.encode() not in line
    )


@pytest.mark.parametrize("how", ["narrowed only", "for good"])
def test_an_answer_without_one_of_two_engines_is_looked_at_whole(how: str) -> None:
    page = pages("0.32.0--j-data-parallel-2.jsonl.gz")[-1]

    async def run() -> Watch:
        gone = False

        async def handler(asked: Asked, writer: asyncio.StreamWriter) -> None:
            body = narrowed(page, asked.names) if asked.names else page
            await send(writer, one_rank(body, "1") if gone and (asked.names or how == "for good") else body)

        async with watching(handler) as watch:
            await watch.run(10)
            gone = True
            watch.server.asked.clear()
            watch.seen.clear()
            await watch.run(20)
            return watch

    watch = asyncio.run(run())
    told = [line["narrowed"] for line in watch.lines if "narrowed" in line]
    if how == "for good":  # the narrowing is not to blame
        assert kinds(watch) == "nW" + "n" * 19
        assert told == [True]
        return
    assert kinds(watch) == "n" + "W" * 20
    assert told == [True, False]
    for state, _ in watch.seen:
        assert len(state.engines) == 2
        assert all(engine.seen_at == state.good_at for engine in state.engines.values())


def test_an_engine_that_came_after_the_last_whole_page_is_missed_as_well() -> None:
    narrowing = Narrowing("auto")
    one, two = b'a{e="0"} 1\n', b'a{e="0"} 1\na{e="1"} 1\n'
    narrowing.record_probe(initial("vllm"), True, 0.0)
    narrowing.record_whole(b"# HELP a b\n" + one, 0.0)
    answers = [Scrape(body, 0.0, narrowed=True) for body in (one, two, one)]
    assert [bool(narrowing.objection(answer, ["a"])) for answer in answers] == [False, False, True]


@pytest.mark.parametrize("how", ["empty", "status", "lacks a name"])
def test_when_narrowing_ceases_to_work_the_same_tick_falls_back_to_the_whole_page(how: str) -> None:
    async def run() -> Watch:
        vllm = VllmLike(pages(HEALTHY))

        async def handler(asked: Asked, writer: asyncio.StreamWriter) -> None:
            if broken and asked.names and how == "status":
                await send(writer, b"no", "400 Bad Request")
            elif broken and asked.names and how == "lacks a name":
                await send(writer, narrowed(vllm.recorded[0], asked.names[1:]))
            else:
                vllm.narrows = not broken
                await vllm(asked, writer)

        broken = False
        async with watching(handler) as watch:
            await watch.run(10)
            broken = True
            watch.server.asked.clear()
            await watch.run(70)
            return watch

    watch = asyncio.run(run())
    assert kinds(watch).startswith("nWWW")
    assert kinds(watch).count("n") == 2  # the one that failed, and one probe a minute later
    assert watch.state.outcomes["ok"] == 80
    assert sum(watch.state.outcomes.values()) == 80
    assert [line["narrowed"] for line in watch.lines if "narrowed" in line] == [True, False]


def test_gauges_that_come_with_the_first_request_are_not_missed() -> None:
    """v0 shows most of its gauges only once it has served; until then pages must be whole."""
    page = pages("0.8.5-v0--b-healthy.jsonl.gz")[0]
    bare = b"\n".join(line for line in page.split(b"\n") if b"num_requests_running" not in line)
    watch = watched(VllmLike([bare]), 10)
    assert set(kinds(watch)) == {"W"}


def test_a_new_family_is_noticed_within_a_minute() -> None:
    async def run() -> Watch:
        vllm = VllmLike(pages(HEALTHY))
        async with watching(vllm) as watch:
            await watch.run(5)
            vllm.recorded = [page + b"vllm:brand_new_thing 1\n" for page in vllm.recorded]
            await watch.run(61)
            return watch

    assert "brand_new_thing" in str(asyncio.run(run()).state.unknown_families)


# -- facts ------------------------------------------------------------------------------------------------------


def test_facts_are_read_at_the_start_and_every_ten_minutes() -> None:
    async def run() -> Watch:
        async with watching(VllmLike(pages(HEALTHY)), interval_s=10) as watch:
            await watch.run(640)
            return watch

    watch = asyncio.run(run())
    assert watch.state.facts == ServerInfo("0.32.0", {"tiny-llama": 2048})
    assert [asked.path for asked in watch.server.asked].count("/version") == 2


def test_facts_are_read_anew_after_a_restart_and_narrowing_is_tried_anew() -> None:
    async def run() -> Watch:
        recorded = pages("0.32.0--i-restart.jsonl.gz")
        vllm = VllmLike(recorded[:1])
        async with watching(vllm) as watch:
            await watch.run(10)
            vllm.down = True
            await watch.run(10)
            vllm.down, vllm.recorded, vllm.version = False, recorded[-1:], "0.33.0"
            watch.server.asked.clear()
            await watch.run(10)
            return watch

    watch = asyncio.run(run())
    assert watch.state.restarts == 1
    assert watch.state.facts is not None
    assert watch.state.facts.version == "0.33.0"
    assert kinds(watch).startswith("Wnn")
    assert [line["event"] for line in watch.lines if line.get("event") == "restart"] == ["restart"]


def test_facts_that_hang_hold_up_nothing() -> None:
    vllm = VllmLike(pages(HEALTHY))

    async def handler(asked: Asked, writer: asyncio.StreamWriter) -> None:
        if not asked.path.startswith("/metrics"):
            await asyncio.sleep(5)
        await vllm(asked, writer)

    watch = watched(handler, 20)
    assert watch.state.outcomes["ok"] == 20
    assert watch.store.poll_stats("vllm").missed_ticks == 0


# -- down and up ------------------------------------------------------------------------------------------------


def test_while_down_it_backs_off_and_after_the_first_success_it_is_back_at_its_interval() -> None:
    async def run() -> tuple[Watch, list[float], list[float]]:
        vllm = VllmLike(pages(HEALTHY))
        async with watching(vllm) as watch:
            await watch.run(5)
            vllm.down = True
            watch.clock.slept.clear()
            await watch.run(120)
            down = list(watch.clock.slept)
            vllm.down = False
            await watch.run(11)
            watch.clock.slept.clear()
            await watch.run(10)
            return watch, down, list(watch.clock.slept)

    watch, down, up = asyncio.run(run())
    assert down[:2] == [1.0, pytest.approx(1.75, abs=0.25)]
    assert down[2] == pytest.approx(3.5, abs=0.5)
    assert all(7.5 <= wait <= 10.0 for wait in down[5:])
    assert up == [pytest.approx(1.0)] * len(up)
    assert watch.state.up
    told = [line["up"] for line in watch.lines if "up" in line]
    assert told == [True, False, True]  # one line a change, none a poll


def test_good_pages_that_come_seldom_are_no_gap() -> None:
    """One scrape in six is in time; the spacing told with a page is the one kept, so that times are booked."""

    async def run() -> tuple[Watch, list[float]]:
        vllm = VllmLike(pages(HEALTHY))
        spacings: list[float] = []

        def judge(state: State, outcome: Outcome, now: float) -> tuple[State, tuple[Transition, ...]]:
            if isinstance(outcome, Scrape):
                spacings.append(outcome.interval_s)
            return advance(state, outcome, now)

        asked = 0

        async def handler(one: Asked, writer: asyncio.StreamWriter) -> None:
            nonlocal asked
            asked += one.path.startswith("/metrics")
            if asked % 6 == 1 or not one.path.startswith("/metrics"):
                await vllm(one, writer)
            else:
                await send(writer, b"busy", "503 Service Unavailable")

        async with watching(handler, judge, narrow="never") as watch:
            await watch.run(200)
            return watch, spacings

    watch, spacings = asyncio.run(run())
    assert spacings[0] == 1.0
    assert all(7.5 <= spacing <= 10.0 for spacing in spacings[1:]), spacings
    assert watch.state.outcomes["ok"] >= 5


def test_time_spent_down_is_counted_as_down_in_spite_of_the_back_off() -> None:
    async def run() -> Watch:
        vllm = VllmLike(pages(HEALTHY))
        async with watching(vllm) as watch:
            await watch.run(5)
            vllm.down = True
            await watch.run(60)
            return watch

    (engine,) = asyncio.run(run()).state.engines.values()
    assert engine.regime_seconds.get("unknown", 0.0) == 0.0  # type: ignore[call-overload]
    assert engine.regime_seconds["down"] > 40  # type: ignore[index]


@pytest.mark.parametrize(
    ("body", "kind"),
    [
        (b"", Failure.EMPTY),
        (b"<!doctype html><p>Hello", Failure.NOT_VLLM),
        (b"# HELP other x\nother 1\n", Failure.NOT_VLLM),
        (b"vllm:num_requests_running{ 1\n", Failure.MALFORMED),
        (b'vllm:num_requests_running{engine="0",model_name="m"} 1\nvllm:num_requests_wai', Failure.MALFORMED),
    ],
)
def test_pages_that_can_not_be_read_are_failures_and_are_kept_to_look_at(body: bytes, kind: Failure) -> None:
    watch = watched(always(body), 5)
    assert watch.state.up is False
    assert watch.state.outcomes[str(kind)] == watch.store.poll_stats("vllm").polls
    last = watch.store.failures()[-1]
    assert (last.target, last.kind) == ("vllm", kind)
    assert last.excerpt == body.decode()


def test_what_is_kept_holds_no_secret_and_no_more_than_its_beginning() -> None:
    body = f"Bearer {TOKEN} http://u:{TOKEN}@h/?token={TOKEN}\n\xff".encode("latin-1") + b"x" * 5000
    watch = watched(always(body, "401 Unauthorized"), 5)
    last = watch.store.failures()[-1]
    assert last.kind is Failure.HTTP_STATUS
    assert TOKEN not in last.excerpt + last.detail + watch.logged.getvalue() + str(watch.state.error)
    assert len(last.excerpt) <= 2048
    assert "\N{REPLACEMENT CHARACTER}" in last.excerpt


def test_a_malformed_line_that_holds_the_token_does_not_spread_it() -> None:
    page = pages(HEALTHY)[0]
    watch = watched(always(page + f"vllm:num_requests_running{{ {TOKEN}\n".encode()), 3)
    assert watch.state.failure is Failure.MALFORMED
    assert TOKEN not in str(watch.state.error) + watch.logged.getvalue() + str(watch.store.failures())


# -- what nobody expected ---------------------------------------------------------------------------------------


def test_an_error_that_should_not_happen_is_counted_logged_once_and_polling_goes_on() -> None:
    def broken(state: State, outcome: Outcome, now: float) -> tuple[State, tuple[Transition, ...]]:
        if isinstance(outcome, Scrape) and 1005 <= now < 1010:
            raise ZeroDivisionError("a mistake of ours")
        return advance(state, outcome, now)

    async def run() -> Watch:
        async with watching(VllmLike(pages(HEALTHY)), broken) as watch:
            await watch.run(20)
            return watch

    watch = asyncio.run(run())
    errors = watch.store.poll_stats("vllm").unexpected_errors
    assert errors >= 2
    told = [line for line in watch.lines if "traceback" in line]
    assert len(told) == 1
    assert "a mistake of ours" in str(told[0]["traceback"])
    assert watch.state.up
    during = [state for state, _ in watch.seen if state.now is not None and 1005 <= state.now < 1010]
    assert all(state.up is False for state in during)  # old values never stand as new ones


def test_even_a_judge_that_always_fails_does_not_end_it() -> None:
    def broken(_: State, __: Outcome, ___: float) -> tuple[State, tuple[Transition, ...]]:
        raise RecursionError

    watch = watched(VllmLike(pages(HEALTHY)), 200, broken)
    polls = watch.store.poll_stats("vllm").polls
    assert polls > 15
    assert watch.store.poll_stats("vllm").unexpected_errors == 2 * polls
    told = [line for line in watch.lines if "traceback" in line]
    assert 3 <= len(told) <= 5  # once a minute


def test_symptoms_are_logged_as_they_change_and_kept() -> None:
    watch = watched(VllmLike(pages("0.32.0--c-kv-saturation.jsonl.gz"), step=1), 90)
    changes = [change for _, transitions in watch.seen for change in transitions]
    assert {change.symptom for change in changes if change.after == "firing"}
    assert watch.store.transitions() == tuple(changes)
    told = [(line["symptom"], line["from"], line["to"]) for line in watch.lines if "symptom" in line]
    assert told == [(change.symptom, change.before, change.after) for change in changes]
    assert all("evidence" in line for line in watch.lines if "symptom" in line)
