"""Telling Alertmanagers: over real HTTP, one that is away, one that hangs, and none that holds up another."""

from __future__ import annotations

import asyncio
import io
import json
import socket
import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, TypeVar

import httpx
import pytest
from pydantic import SecretStr

from kvwatch.core.export.notifications import Notification, NotificationId
from kvwatch.core.judgement.lifecycle import Stage
from kvwatch.core.judgement.state import State, Transition
from kvwatch.core.judgement.symptoms import Severity
from kvwatch.core.model.outcome import Failure
from kvwatch.core.model.snapshot import EngineKey
from kvwatch.settings import AlertmanagerSettings, Settings
from kvwatch.sidecar import log
from kvwatch.sidecar.clock import Clock
from kvwatch.sidecar.http_client import client_for
from kvwatch.sidecar.notifying.alertmanager_client import OUTCOMES, Alertmanager, Undelivered
from kvwatch.sidecar.notifying.notifier import Notifier, page_url
from kvwatch.sidecar.service import CANNOT_SERVE, serve
from kvwatch.sidecar.store import Store
from tests.support.loopback import Asked, Handler, Loopback, TurnedClock, always, serving
from tests.support.watch import replayed

TOKEN = "a-token-nobody-may-see"  # noqa: S105
PAGE = "http://gpu1:9477/"
KEY = EngineKey("t", "m", "0")
ID = NotificationId(KEY, "kv_thrashing", Severity.CRITICAL)
NOTICE = Notification(ID, 1_700_000_000.0, 1_700_000_180.5, annotations={"summary": "–"})
T = TypeVar("T")


async def eventually(found: Callable[[], T | None], within_s: float = 20.0) -> T:
    """The first truthy answer; time passes for others between two looks."""
    end = time.monotonic() + within_s
    while time.monotonic() < end:
        if answer := found():
            return answer
        await asyncio.sleep(0.005)
    raise AssertionError("it did not come to be")


# -- HTTP ----------------------------------------------------------------------------------------------------------


def posted(
    handler: Handler, *, timeout_s: float = 5.0, path: str = "", url: str = ""
) -> tuple[Undelivered | None, list[Asked]]:
    """What a post to a server comes to, and what the server was asked."""

    async def run() -> tuple[Undelivered | None, list[Asked]]:
        async with serving(handler) as server:
            where = url or f"http://localhost:{server.port}{path}"
            settings = AlertmanagerSettings(url=where, token=SecretStr(TOKEN))
            async with client_for(settings) as client:
                receiver = Alertmanager(settings, client, page=PAGE, timeout_s=timeout_s)
                return await receiver.post([NOTICE]), server.asked

    return asyncio.run(run())


def test_an_alert_is_posted_as_the_api_wants_it() -> None:
    failure, (asked,) = posted(always(b""), path="/am/")
    assert failure is None
    assert asked.path == "/am/api/v2/alerts"
    assert asked.headers["authorization"] == f"bearer {TOKEN}"
    assert asked.headers["content-type"] == "application/json"
    assert json.loads(asked.body) == [
        {
            "labels": NOTICE.labels,
            "annotations": {"summary": "–"},
            "startsAt": "2023-11-14T22:13:20.000Z",
            "endsAt": "2023-11-14T22:16:20.500Z",
            "generatorURL": PAGE,
        }
    ]


async def hangs(*_: object) -> None:
    await asyncio.sleep(5)


async def breaks_off(_: Asked, writer: asyncio.StreamWriter) -> None:
    writer.transport.abort()


@pytest.mark.parametrize(
    ("handler", "kind"),
    [
        (always(b"no", "503 Service Unavailable"), Failure.HTTP_STATUS),
        (always(b"bad", "400 Bad Request"), Failure.HTTP_STATUS),
        (always(b"", "302 Found", {"Location": "http://example.invalid/"}), Failure.HTTP_STATUS),
        (hangs, Failure.TIMEOUT),
        (breaks_off, Failure.CONNECTION),
    ],
)
def test_whatever_an_alertmanager_does_is_an_outcome(handler: Handler, kind: Failure) -> None:
    failure, _ = posted(handler, timeout_s=0.5)
    assert failure is not None
    assert failure.kind is kind
    assert str(kind) in OUTCOMES
    assert TOKEN not in failure.detail


def test_one_that_is_not_there_refuses() -> None:
    failure, _ = posted(always(b""), url="http://127.0.0.1:1")
    assert failure is not None
    assert failure.kind is Failure.REFUSED


def test_an_answer_without_end_is_not_read_to_its_end() -> None:
    failure, _ = posted(always(b"x" * (1 << 20)))
    assert failure is None


# -- the task --------------------------------------------------------------------------------------------------------


BURNING = replace(replayed("0.32.0--c-kv-saturation").state, target="t")
QUIET = replace(BURNING, engines={})
CHANGE = Transition(0.0, 0.0, KEY, "kv_thrashing", Stage.PENDING, Stage.FIRING, {})


@dataclass
class Receiver:
    """Takes what it is told, or fails as `answer` says."""

    name: str = "am"
    answer: Callable[[], Undelivered | None] = lambda: None
    told: list[tuple[float, list[Notification]]] = field(default_factory=list)
    hangs: bool = False

    async def post(self, notices: Sequence[Notification]) -> Undelivered | None:
        self.told.append((time.monotonic(), list(notices)))
        if self.hangs:
            await asyncio.Event().wait()
        return self.answer()

    @property
    def words(self) -> list[tuple[str, bool]]:
        """Which symptoms it was told of, and whether as over."""
        return [(one.id[1], one.resolved) for _, notices in self.told for one in notices]


@asynccontextmanager
async def telling(
    store: Store, *receivers: Receiver, repeat_s: float = 60.0, clock: Clock | None = None
) -> AsyncIterator[None]:
    """Notifiers at work."""
    tasks = [asyncio.create_task(Notifier(store, one, repeat_s, clock=clock).run()) for one in receivers]
    try:
        yield
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


def counts(store: Store, name: str = "am") -> dict[str, int]:
    (sent,) = [one for one in store.deliveries() if one.alertmanager == name]
    return {outcome: count for outcome, count in sent.outcomes.items() if count}


def test_a_change_wakes_it_at_once_and_others_are_told_all_the_same() -> None:
    """One that hangs holds up neither the other nor whoever publishes."""

    async def run() -> None:
        store, hung, fine = Store([QUIET]), Receiver("hung", hangs=True), Receiver("fine")
        async with telling(store, hung, fine):
            await asyncio.sleep(0.1)
            assert not fine.told
            published = time.monotonic()
            store.publish(BURNING, [CHANGE])
            await eventually(lambda: fine.told and hung.told)
            assert fine.told[0][0] - published < 1.0
            assert ("kv_thrashing", False) in fine.words
            store.publish(QUIET, [CHANGE])
            await eventually(lambda: ("kv_thrashing", True) in fine.words)
            await asyncio.sleep(0.1)
            assert len(hung.told) == 1
        assert counts(store, "fine") == {"ok": 2}
        assert counts(store, "hung") == {}

    asyncio.run(run())


def test_the_stop_tells_nothing() -> None:
    """kvwatch going away ends no fault: what fires times out at the Alertmanager, or is told on by the next."""

    async def run() -> Receiver:
        receiver = Receiver()
        async with telling(Store([BURNING]), receiver):
            await eventually(lambda: receiver.told)
        return receiver

    assert not any(resolved for _, resolved in asyncio.run(run()).words)


def test_it_backs_off_while_one_is_away_and_says_so_once() -> None:
    """Waits grow to a quarter of a minute, whatever changes meanwhile; what still fires is told then."""
    stream = io.StringIO()
    log.configure_logging("text", "info", stream)

    async def run() -> None:
        away = Undelivered(Failure.REFUSED, "nobody there")
        receiver, clock = Receiver(), TurnedClock(until=100.0)
        receiver.answer = lambda: away if clock.now() < 1060 else None
        store = Store([BURNING])
        async with telling(store, receiver, clock=clock):
            await eventually(lambda: counts(store).get("ok"))
        assert clock.slept[0] == 1.0
        assert max(clock.slept) <= 15.0
        assert clock.slept[-1] > 10.0
        assert all(
            ("kv_thrashing", False) in [(n.id[1], n.resolved) for n in told] for _, told in receiver.told
        )
        assert counts(store) == {"refused": len(receiver.told) - 1, "ok": 1}

    asyncio.run(run())
    lines = stream.getvalue().splitlines()
    assert [line.partition("message=")[2].split(" alertmanager=")[0] for line in lines] == [
        '"Alertmanager accepts no alerts"',
        '"Alertmanager accepts alerts again"',
    ]


def test_what_was_refused_and_is_over_is_not_told_at_all() -> None:
    async def run() -> None:
        receiver, clock = Receiver(), TurnedClock(until=1.5)
        receiver.answer = lambda: Undelivered(Failure.REFUSED, "")
        store = Store([BURNING])
        async with telling(store, receiver, clock=clock):
            await clock.reached.wait()
            store.publish(QUIET, [CHANGE])
            before = len(receiver.told)
            clock.go_on(30.0)
            await asyncio.sleep(0.1)
            assert len(receiver.told) == before

    asyncio.run(run())


def test_what_may_have_arrived_is_ended_in_so_many_words() -> None:
    """After a time-out nobody knows whether the alert is there, so its end is told."""

    async def run() -> None:
        receiver = Receiver()
        store = Store([BURNING])
        receiver.answer = lambda: Undelivered(Failure.TIMEOUT, "") if len(receiver.told) < 2 else None
        async with telling(store, receiver):
            await eventually(lambda: receiver.told)
            store.publish(QUIET, [CHANGE])
            await eventually(lambda: ("kv_thrashing", True) in receiver.words)

    asyncio.run(run())


def test_a_fault_of_its_own_does_not_end_it() -> None:
    stream = io.StringIO()
    log.configure_logging("text", "info", stream)

    async def run() -> None:
        faults = iter([RuntimeError("a bug")])
        receiver = Receiver()

        def answer() -> Undelivered | None:
            for fault in faults:
                raise fault
            return None

        receiver.answer = answer
        store = Store([BURNING])
        async with telling(store, receiver):
            await eventually(lambda: counts(store).get("ok"))

    asyncio.run(run())
    assert "RuntimeError: a bug" in stream.getvalue()


def test_many_alerts_go_in_several_posts() -> None:
    async def run() -> None:
        key, engine = next(iter(BURNING.engines.items()))
        keys = [key._replace(engine=str(n)) for n in range(230)]
        crowd: State = replace(BURNING, engines={one: replace(engine, key=one) for one in keys})
        receiver = Receiver()
        store = Store([crowd])
        async with telling(store, receiver):
            await eventually(lambda: sum(name == "kv_thrashing" for name, _ in receiver.words) == 230)
        assert max(len(notices) for _, notices in receiver.told) <= 100

    asyncio.run(run())


# -- the service -----------------------------------------------------------------------------------------------------


def settings_of(**more: Any) -> Settings:
    given = {"targets": "http://localhost:1", "host": "127.0.0.1", "port": 0, "gpu": "off"}
    return Settings.model_validate(given | more)


def own(server: Loopback) -> dict[str, str]:
    return {"url": f"http://localhost:{server.port}", "name": "am", "token": TOKEN}


def test_the_service_counts_from_zero_and_tells_no_secret() -> None:
    stream = io.StringIO()

    async def run() -> str:
        async with serving(always(b"", "500 Internal Server Error")) as server:
            stop, ready = asyncio.Event(), asyncio.get_running_loop().create_future()
            thresholds = {"target_down.for": 0.1, "target_down.never_up": 0}
            settings = settings_of(
                alertmanagers=[own(server)],
                interval_s=0.1,
                thresholds=thresholds,
                disabled=["startup_kv_failure"],
            )
            end = asyncio.create_task(serve(settings, stop=stop, ready=ready.set_result))
            url = await ready
            for handler in log.log.handlers:
                handler.setStream(stream)  # type: ignore[attr-defined]  # a StreamHandler, as set_up makes it
            async with httpx.AsyncClient(base_url=url) as client:
                first = (await client.get("/metrics")).text
                assert 'kvwatch_notifications_total{alertmanager="am",outcome="ok"} 0.0' in first
                await eventually(lambda: server.asked)
                await asyncio.sleep(0.2)
                after = (await client.get("/metrics")).text
            stop.set()
            assert await asyncio.wait_for(end, 5) == 0
            return after

    text = asyncio.run(run())
    assert 'kvwatch_notifications_total{alertmanager="am",outcome="http_status"} 0.0' not in text
    assert "kvwatch_notify_last_success_timestamp_seconds{" not in text
    assert "Alertmanager accepts no alerts" in stream.getvalue()
    assert TOKEN not in text + stream.getvalue()


def test_an_alertmanager_that_hangs_does_not_hold_up_the_stop() -> None:
    async def run() -> float:
        async with serving(hangs) as server:
            stop, ready = asyncio.Event(), asyncio.get_running_loop().create_future()
            settings = settings_of(
                alertmanagers=[own(server)],
                interval_s=0.1,
                thresholds={"target_down.for": 0.1, "target_down.never_up": 0},
                disabled=["startup_kv_failure"],
            )
            end = asyncio.create_task(serve(settings, stop=stop, ready=ready.set_result))
            await ready
            await eventually(lambda: server.asked)
            stopped = time.monotonic()
            stop.set()
            assert await asyncio.wait_for(end, 5) == 0
            return time.monotonic() - stopped

    assert asyncio.run(run()) < 1.5


def test_certificates_that_are_none_stop_it_with_a_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    bad = tmp_path / "ca.pem"
    bad.write_text("no certificate", encoding="utf-8")
    one = {"url": "https://localhost:1", "name": "am", "ca_file": str(bad)}
    assert asyncio.run(serve(settings_of(alertmanagers=[one]))) == CANNOT_SERVE
    assert "for Alertmanager am" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("external", "served", "page"),
    [
        (None, "http://127.0.0.1:9477", "http://127.0.0.1:9477/"),
        (None, "https://0.0.0.0:9477", f"https://{socket.gethostname()}:9477/"),
        (None, "http://[::]:80", f"http://{socket.gethostname()}:80/"),
        ("https://kvwatch.example.com/gpu1", "http://0.0.0.0:9477", "https://kvwatch.example.com/gpu1"),
    ],
)
def test_alerts_link_to_where_people_find_the_page(external: str | None, served: str, page: str) -> None:
    assert page_url(settings_of(external_url=external), served) == page
