"""Readings of GPUs beside the scraping: a DCGM exporter over real HTTP, the driver's library, and both failing.

There is no GPU where these tests run. What the real library says without a driver is tested with the real one; what
it says with GPUs is played by `Driver`, which answers as its documentation has it.
"""

from __future__ import annotations

import asyncio
import gc
import inspect
import io
import json
import subprocess
import sys
import threading
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from types import SimpleNamespace
from typing import Any, TypeVar

import httpx
import pytest
from pydantic import SecretStr

from kvwatch.core.judgement.state import State, initial
from kvwatch.core.model.gpu import NO_DATA, OFF, Gpu, GpuReading
from kvwatch.settings import Settings, TargetSettings
from kvwatch.sidecar import log
from kvwatch.sidecar.daemon_threads import CallTimeout, IsolatedCall
from kvwatch.sidecar.http_client import client_for
from kvwatch.sidecar.polling.gpu_reader import Dcgm, GpuReader, GpuSource, choose
from kvwatch.sidecar.polling.nvml import NO_LIBRARY, Nvml, import_pynvml
from kvwatch.sidecar.polling.poller import Poller
from kvwatch.sidecar.polling.scrape import Scraper
from kvwatch.sidecar.service import serve
from kvwatch.sidecar.store import Store
from tests.support.loopback import Asked, Handler, TurnedClock, VllmLike, always, pages, serving

KUBERNETES = (Path(__file__).parents[1] / "data" / "dcgm" / "kubernetes.prom").read_bytes()
HEALTHY = "0.32.0--b-healthy.jsonl.gz"
NOBODY = "http://127.0.0.1:1/metrics"
GIB = 1 << 30
TOKEN = "a-token-nobody-may-see"  # noqa: S105
T = TypeVar("T")


def settings_of(**more: Any) -> Settings:
    return Settings.model_validate({"targets": NOBODY, "gpu_interval_s": 20.0} | more)


async def eventually(found: Callable[[], T | None], within_s: float = 20.0) -> T:
    """The first truthy answer; time passes for others between two looks."""
    end = time.monotonic() + within_s
    while time.monotonic() < end:
        if answer := found():
            return answer
        await asyncio.sleep(0.005)
    raise AssertionError("it did not come to be")


# -- a DCGM exporter -----------------------------------------------------------------------------------------------


def exported(handler: Handler, **more: Any) -> GpuReading:
    async def run() -> GpuReading:
        async with serving(handler) as server:
            source = Dcgm(server.url, settings_of(**more))
            try:
                return await source.read()
            finally:
                await source.close()

    return asyncio.run(run())


def test_an_exporter_is_read_over_http() -> None:
    found = exported(always(KUBERNETES))
    assert [gpu.label for gpu in found.gpus] == ["0", "1", "2"]
    assert (found.source, found.interval_s, found.reason) == ("dcgm", 20.0, "")


async def hangs(*_: object) -> None:
    await asyncio.sleep(5)


async def breaks_off(_: Asked, writer: asyncio.StreamWriter) -> None:
    writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 10000\r\n\r\n" + KUBERNETES[:500])
    await writer.drain()
    writer.transport.abort()


@pytest.mark.parametrize(
    ("handler", "why"),
    [
        (breaks_off, "connection"),
        (always(b"no", "503 Service Unavailable"), "HTTP status 503"),
        (always(b"", "302 Found", {"Location": "http://example.invalid/metrics"}), "redirect"),
        (always(KUBERNETES * 3), "too_large"),
        (always(b"nothing of a GPU 1\n"), "not as a DCGM exporter"),
        (always(b""), "empty"),
        (always(KUBERNETES[:-10]), "can't be read"),
    ],
)
def test_whatever_an_exporter_does_is_a_reading_with_the_reason(handler: Handler, why: str) -> None:
    found = exported(handler, max_body_bytes=2 * len(KUBERNETES))
    assert found.gpus == ()
    assert found.source == "dcgm"
    assert why in found.reason
    assert "localhost" in found.reason, "it says whose answer that is"


def test_an_exporter_that_hangs_is_a_reading_with_the_reason() -> None:
    found = exported(hangs, gpu_interval_s=0.5)
    assert found.gpus == ()
    assert "timeout: no complete answer within 0.45 s" in found.reason


def test_nobody_there_is_a_reading_with_the_reason() -> None:
    async def run() -> GpuReading:
        return await Dcgm(NOBODY, settings_of()).read()

    assert "refused" in asyncio.run(run()).reason


# -- the driver ----------------------------------------------------------------------------------------------------


class DriverError(Exception):
    """As `pynvml.NVMLError`."""


NOT_SUPPORTED = DriverError("Not Supported")


@dataclass
class Driver:
    """A driver with GPUs, as the library shows it: one answer a call, by call and handle.

    A handle is a label. What is not among the answers raises as "Not Supported" does; an answer that is an exception
    is raised.
    """

    answers: dict[tuple[str, Any], Any] = field(default_factory=dict)
    inits: int = 0
    shutdowns: int = 0
    block: threading.Event | None = None
    NVMLError: type[Exception] = DriverError

    def nvmlInit(self) -> None:  # noqa: N802
        self.inits += 1
        self._answer("init", None, None)

    def nvmlShutdown(self) -> None:  # noqa: N802
        self.shutdowns += 1

    def nvmlDeviceGetCount(self) -> int:  # noqa: N802
        if self.block is not None:
            self.block.wait(30)
        return int(self._answer("count", None))

    def nvmlDeviceGetHandleByIndex(self, index: int) -> Any:  # noqa: N802
        return self._answer("handle", index, str(index))

    def nvmlDeviceGetUUID(self, handle: Any) -> str | bytes:  # noqa: N802
        return self._text("uuid", handle)

    def nvmlDeviceGetName(self, handle: Any) -> str | bytes:  # noqa: N802
        return self._text("name", handle)

    def nvmlDeviceGetUtilizationRates(self, handle: Any) -> Any:  # noqa: N802
        return SimpleNamespace(gpu=self._answer("utilization", handle), memory=7)

    def nvmlDeviceGetMemoryInfo(self, handle: Any) -> Any:  # noqa: N802
        used, free = self._answer("memory", handle)
        return SimpleNamespace(total=used + free, used=used, free=free)

    def nvmlDeviceGetMigMode(self, handle: Any) -> list[int]:  # noqa: N802
        return [self._answer("mig", handle), 0]

    def nvmlDeviceGetMaxMigDeviceCount(self, handle: Any) -> int:  # noqa: N802
        return int(self._answer("parts", handle))

    def nvmlDeviceGetMigDeviceHandleByIndex(self, device: Any, index: int) -> Any:  # noqa: N802
        return self._answer("part", (device, index))

    def nvmlDeviceGetGpuInstanceId(self, device: Any) -> int:  # noqa: N802
        return int(self._answer("instance", device))

    def _text(self, what: str, handle: Any) -> str | bytes:
        text: str | bytes = self._answer(what, handle)
        return text

    def _answer(self, what: str, handle: Any, default: Any = NOT_SUPPORTED) -> Any:
        answer = self.answers.get((what, handle), default)
        if isinstance(answer, Exception):
            raise answer
        return answer


def two_gpus() -> Driver:
    return Driver(
        {
            ("count", None): 2,
            ("uuid", "0"): "GPU-a",
            ("name", "0"): "NVIDIA L4",
            ("utilization", "0"): 35,
            ("memory", "0"): (20 * GIB, 2 * GIB),
            ("mig", "0"): 0,
            ("uuid", "1"): b"GPU-b",
            ("name", "1"): b"NVIDIA L4",
            ("utilization", "1"): 0,
            ("memory", "1"): (1 * GIB, 21 * GIB),
        }
    )


def driven(driver: Driver) -> GpuReading:
    return asyncio.run(Nvml(5.0, lambda: driver).read())


def test_the_driver_tells_utilisation_and_memory() -> None:
    found = driven(two_gpus())
    assert found == GpuReading(
        (
            Gpu("0", "GPU-a", "NVIDIA L4", None, None, 0.35, 20.0 * GIB, 2.0 * GIB),
            Gpu("1", "GPU-b", "NVIDIA L4", None, None, 0.0, 1.0 * GIB, 21.0 * GIB),
        ),
        "nvml",
        "",
        5.0,
    )
    activity = found.gpus[0].activity
    assert activity is not None
    assert activity.upper_bound is True


def test_what_the_driver_does_not_say_is_missing() -> None:
    driver = two_gpus()
    for what in ("uuid", "name", "utilization", "memory"):
        del driver.answers[what, "0"]
    assert driven(driver).gpus[0] == Gpu("0")
    driver.answers["utilization", "0"] = 4_294_967_295
    assert driven(driver).gpus[0].utilization is None


def test_a_lost_gpu_is_left_out() -> None:
    driver = two_gpus()
    driver.answers["handle", 0] = DriverError("GPU is lost")
    assert [gpu.label for gpu in driven(driver).gpus] == ["1"]
    driver.answers["handle", 1] = DriverError("GPU is lost")
    assert driven(driver).reason == "the driver shows no GPU"


def test_a_divided_gpu_stands_as_its_parts() -> None:
    """There are gaps among their numbers, and no utilisation of any of them."""
    driver = two_gpus()
    driver.answers |= {
        ("mig", "0"): 1,
        ("parts", "0"): 7,
        ("part", ("0", 0)): "first",
        ("part", ("0", 2)): "third",
        ("instance", "first"): 9,
        ("uuid", "first"): "MIG-x",
        ("name", "first"): "NVIDIA A100 MIG 3g.20gb",
        ("memory", "first"): (GIB, 19 * GIB),
    }
    first, second, whole = sorted(driven(driver).gpus, key=lambda gpu: -len(gpu.name))
    assert first == Gpu("0/9", "MIG-x", "NVIDIA A100 MIG 3g.20gb", None, None, None, 1.0 * GIB, 19.0 * GIB)
    assert whole.label == "0/2", "a part without a number of its own has that of its place"
    assert second.label == "1"
    driver.answers["mig", "0"] = 0
    assert [gpu.label for gpu in driven(driver).gpus] == ["0", "1"], "it is not divided"
    driver.answers["mig", "0"] = 1
    del driver.answers["parts", "0"]
    assert [gpu.label for gpu in driven(driver).gpus] == ["0", "1"], "divided, but into nothing"


@pytest.mark.parametrize("what", ["init", "count"])
def test_a_driver_that_fails_is_a_reading_and_is_started_anew(what: str) -> None:
    driver = two_gpus()
    source = Nvml(5.0, lambda: driver)
    good = driver.answers.get((what, None))
    driver.answers[what, None] = DriverError("Driver/library version mismatch")

    async def run() -> tuple[GpuReading, GpuReading]:
        bad = await source.read()
        driver.answers[what, None] = good
        return bad, await source.read()

    bad, after = asyncio.run(run())
    assert bad == GpuReading((), "nvml", "the driver can't be read: Driver/library version mismatch", 5.0)
    assert len(after.gpus) == 2
    assert driver.inits == 2


def test_the_driver_is_initialised_once_and_let_go_of_once() -> None:
    driver = two_gpus()

    async def run() -> None:
        source = Nvml(5.0, lambda: driver)
        await source.close()
        assert driver.shutdowns == 0
        for _ in range(3):
            await source.read()
        await source.close()

    asyncio.run(run())
    assert (driver.inits, driver.shutdowns) == (1, 1)


def test_an_error_that_nobody_expected_is_a_reading() -> None:
    driver = two_gpus()
    driver.answers["memory", "0"] = TypeError("struct changed")
    assert driven(driver).reason == "the driver can't be read: struct changed"


def test_a_driver_that_hangs_is_a_reading_and_is_not_asked_twice_at_once() -> None:
    driver = two_gpus()
    driver.block = threading.Event()
    source = Nvml(5.0, lambda: driver, timeout_s=0.05)

    async def run() -> tuple[GpuReading, GpuReading, GpuReading]:
        first, second = await source.read(), await source.read()
        await source.close()
        assert driver.shutdowns == 0, "it can't be let go of while it hangs"
        assert driver.block is not None
        driver.block.set()
        await eventually(lambda: not source._call._busy.is_set())
        return first, second, await source.read()

    first, second, third = asyncio.run(run())
    assert first.reason == "the driver hangs: no answer within 0.05 s"
    assert second.reason == "the driver hangs: the call before it has not returned yet"
    assert len(third.gpus) == 2


def test_without_the_library_it_says_how_to_have_it() -> None:
    def missing() -> Any:
        raise ImportError("No module named 'pynvml'")

    found = asyncio.run(Nvml(5.0, missing).read())
    assert (found.gpus, found.reason) == ((), NO_LIBRARY)
    assert "kvwatch[nvml]" in NO_LIBRARY


def test_the_real_library_without_a_driver_is_a_reading() -> None:
    """The real `nvidia-ml-py`, on a machine where libnvidia-ml.so is not."""
    found = asyncio.run(Nvml(5.0).read())
    assert found.gpus == ()
    assert found.reason.startswith("the driver can't be read: ")
    assert "NVML" in found.reason or "Library" in found.reason


def test_the_real_library_has_what_is_asked_of_it() -> None:
    """The names of the fake driver exist, and accept the same arguments."""
    library = import_pynvml()
    for name in (name for name in dir(Driver) if name.startswith("nvml")):
        played = list(inspect.signature(getattr(Driver, name)).parameters)[1:]
        inspect.signature(getattr(library, name)).bind(*played)
    assert issubclass(library.NVMLError, Exception)


# -- calls that may never come back --------------------------------------------------------------------------------


def test_answers_and_errors_of_a_call_come_back() -> None:
    def fails() -> None:
        raise KeyError("x")

    async def run() -> int:
        isolated = IsolatedCall("x")
        with pytest.raises(KeyError):
            await isolated.run(fails, 5)
        return await isolated.run(lambda: 3, 5)

    assert asyncio.run(run()) == 3


def test_an_answer_after_the_end_of_the_loop_breaks_nothing(caplog: pytest.LogCaptureFixture) -> None:
    held, came = threading.Event(), threading.Event()

    def late() -> int:
        held.wait(30)
        came.set()
        return 1

    isolated = IsolatedCall("x")

    async def cancelled() -> None:
        task = asyncio.create_task(isolated.run(late, 30))
        await asyncio.sleep(0)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        with pytest.raises(CallTimeout):
            await isolated.run(late, 30)

    asyncio.run(cancelled())
    held.set()
    assert came.wait(30)
    asyncio.run(eventually_free(isolated))
    assert caplog.records == []


def test_an_error_that_comes_too_late_is_nobodys() -> None:
    held = threading.Event()
    complaints: list[dict[str, Any]] = []

    def fails_late() -> None:
        held.wait(30)
        raise RuntimeError("boom")

    async def run() -> None:
        asyncio.get_running_loop().set_exception_handler(lambda _, context: complaints.append(context))
        isolated = IsolatedCall("x")
        with pytest.raises(CallTimeout):
            await isolated.run(fails_late, 0.01)
        held.set()
        await eventually_free(isolated)
        gc.collect()

    asyncio.run(run())
    assert complaints == []


async def eventually_free(isolated: IsolatedCall) -> None:
    await eventually(lambda: not isolated._busy.is_set())
    assert await isolated.run(lambda: 2, 5) == 2


# -- which source --------------------------------------------------------------------------------------------------


def choice(nearby: Handler | None, driver: Driver, **more: Any) -> tuple[str, int]:
    """The name of what is chosen, and how often the exporter nearby was asked."""

    async def run() -> tuple[str, int]:
        async with serving(nearby or always(b"x", "404 Not Found")) as server:
            url = server.url if nearby else NOBODY
            source, reading = await choose(settings_of(**more), url, lambda s: Nvml(s, lambda: driver))
            if source is None:
                return "", len(server.asked)
            assert reading is None or reading.gpus
            await source.close()
            where = f" {source.url}" if isinstance(source, Dcgm) and source.url != server.url else ""
            return source.name + where, len(server.asked)

    return asyncio.run(run())


def test_what_is_there_is_found() -> None:
    """An exporter on this host before the driver, the driver before nothing; each is asked once."""
    assert choice(always(KUBERNETES), two_gpus()) == ("dcgm", 1)
    assert choice(always(b"# no DCGM\nx 1\n"), two_gpus()) == ("nvml", 1)
    assert choice(None, two_gpus()) == ("nvml", 0)
    assert choice(None, Driver()) == ("", 0)


def test_what_is_said_is_taken_and_nothing_else_is_asked() -> None:
    assert choice(always(KUBERNETES), two_gpus(), gpu="nvml") == ("nvml", 0)
    assert choice(always(KUBERNETES), Driver(), gpu="dcgm") == ("dcgm", 0)
    given = {"gpu_url": "gpu1:9400"}
    assert choice(always(KUBERNETES), two_gpus(), **given) == ("dcgm http://gpu1:9400/metrics", 0)
    assert choice(always(KUBERNETES), two_gpus(), gpu="dcgm", **given)[0] == "dcgm http://gpu1:9400/metrics"


# -- the reader ----------------------------------------------------------------------------------------------------


@dataclass
class Played:
    """A source that gives these readings in turn, the last for ever; an exception is raised."""

    readings: list[GpuReading | Exception]
    name: str = "played"
    asked: int = 0
    closed: int = 0

    async def read(self) -> GpuReading:
        self.asked += 1
        reading = self.readings[min(self.asked, len(self.readings)) - 1]
        if isinstance(reading, Exception):
            raise reading
        return reading

    async def close(self) -> None:
        self.closed += 1


GOOD = GpuReading((Gpu("0", sm_active=0.3),), "played", interval_s=5.0)
BAD = GpuReading(source="played", reason="it is down")


def chosen_to_be(
    source: GpuSource | None,
) -> Callable[[Settings], Awaitable[tuple[GpuSource | None, GpuReading | None]]]:
    async def choose(_: Settings) -> tuple[GpuSource | None, GpuReading | None]:
        return source, None

    return choose


@pytest.fixture
def logged() -> io.StringIO:
    stream = io.StringIO()
    log.configure_logging("json", "info", stream)
    return stream


def lines(logged: io.StringIO) -> list[dict[str, Any]]:
    return [json.loads(line) for line in logged.getvalue().splitlines()]


def read_for(seconds: float, source: GpuSource | None, **more: Any) -> tuple[GpuReader, TurnedClock]:
    """A reader that has read for so many seconds of its clock."""
    clock = TurnedClock(until=seconds)

    async def run() -> GpuReader:
        settings = settings_of(gpu_interval_s=5.0, **more)
        reader = GpuReader(settings, clock, random=Random(1), choose=chosen_to_be(source))
        task = asyncio.create_task(reader.run())
        await asyncio.wait(
            {task, asyncio.ensure_future(clock.reached.wait())},
            return_when=asyncio.FIRST_COMPLETED,
            timeout=20,
        )
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        return reader

    return asyncio.run(run()), clock


def test_it_reads_at_the_interval_and_closes_the_source(logged: io.StringIO) -> None:
    source = Played([GOOD])
    reader, clock = read_for(60.0, source)
    assert set(clock.slept) == {5.0}
    assert source.asked == reader.newest[0] == 12
    assert source.closed == 1
    (line,) = lines(logged)
    assert (line["message"], line["source"], line["gpus"]) == ("GPUs are readable", "played", ["0"])


def test_it_backs_off_while_it_fails_and_says_so_once(logged: io.StringIO) -> None:
    source = Played([GOOD, *[BAD] * 8, GOOD, BAD, GOOD])
    reader, clock = read_for(600.0, source)
    assert clock.slept[1] == 5.0
    assert clock.slept[2] > 5.0
    assert max(clock.slept) <= 60.0
    assert max(clock.slept) > 40.0
    assert clock.slept[9:12] == [5.0] * 3, "it is at its pace again afterwards, and patient anew"
    assert reader.newest[1] == GOOD
    assert [line["message"] for line in lines(logged)] == [
        "GPUs are readable",
        "GPUs are not readable",
        "GPUs are readable",
        "GPUs are not readable",
        "GPUs are readable",
    ]
    assert lines(logged)[1]["reason"] == "it is down"
    assert lines(logged)[1]["level"] == "warning"


def test_it_goes_on_after_an_error_that_nobody_expected(logged: io.StringIO) -> None:
    source = Played([RuntimeError("boom"), RuntimeError("boom"), GOOD])
    reader, _ = read_for(60.0, source)
    assert reader.newest[1] == GOOD
    assert sum("traceback" in line for line in lines(logged)) == 1


def test_where_there_is_nothing_it_ends_and_says_nothing_alarming(logged: io.StringIO) -> None:
    reader, clock = read_for(60.0, None)
    assert clock.slept == []
    assert reader.newest[1] == GpuReading(reason=NO_DATA)
    assert lines(logged) == []


def test_turned_off_it_looks_for_nothing(logged: io.StringIO) -> None:
    source = Played([GOOD])
    reader, _ = read_for(60.0, source, gpu="off")
    assert (source.asked, reader.newest[1]) == (0, GpuReading(reason=OFF))
    assert lines(logged) == []


def test_choosing_that_breaks_is_no_source(logged: io.StringIO) -> None:
    async def breaks(_: Settings) -> tuple[GpuSource | None, GpuReading | None]:
        raise RuntimeError("boom")

    async def run() -> GpuReader:
        reader = GpuReader(settings_of(), TurnedClock(), choose=breaks)
        await reader.run()
        return reader

    assert asyncio.run(run()).newest[1] == GpuReading(reason=NO_DATA)
    assert [line["error"] for line in lines(logged)] == ["RuntimeError"]


def test_each_target_gets_each_reading_once_with_its_age() -> None:
    reader, clock = read_for(3.0, Played([GOOD]))
    one, two = reader.feed(), reader.feed()
    first = one.take(clock.now() + 2.0)
    assert first is not None
    assert (first.gpus, first.age_s) == (GOOD.gpus, 2.0)
    assert one.take(clock.now() + 3.0) is None
    assert two.take(clock.now()) is not None


def test_a_reader_with_a_driver_that_hangs_is_stopped_at_once() -> None:
    driver = two_gpus()
    driver.block = threading.Event()

    async def run() -> float:
        reader = GpuReader(settings_of(), choose=chosen_to_be(Nvml(1.0, lambda: driver)))
        task = asyncio.create_task(reader.run())
        await eventually(lambda: driver.inits)
        started = time.monotonic()
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        return time.monotonic() - started

    try:
        assert asyncio.run(run()) < 1.0
    finally:
        driver.block.set()


_HANGS_AT_EXIT = """
import asyncio, sys, threading, types
from kvwatch.settings import Settings
from kvwatch.sidecar.clock import SystemClock
from kvwatch.sidecar.polling.gpu_reader import running_gpu_reader
asked = threading.Event()
def hangs():
    asked.set()
    threading.Event().wait(60)
sys.modules["pynvml"] = library = types.ModuleType("pynvml")
library.nvmlInit = hangs
async def run():
    async with running_gpu_reader(Settings(targets="http://127.0.0.1:1", gpu="nvml"), SystemClock()):
        while not asked.is_set():
            await asyncio.sleep(0.01)
asyncio.run(run())
print("gone", flush=True)
"""


def test_a_driver_that_hangs_does_not_hold_the_process() -> None:
    started = time.monotonic()
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", _HANGS_AT_EXIT],
        capture_output=True,
        text=True,
        timeout=50,
        check=False,
    )
    assert (done.stdout, done.returncode) == ("gone\n", 0), done.stderr
    assert time.monotonic() - started < 40


# -- with the poller and the service -------------------------------------------------------------------------------


def test_a_poller_gives_readings_to_the_judgement(logged: io.StringIO) -> None:
    """Good pages and failures bring them alike; what is not there is logged once."""
    two = GpuReading((Gpu("0", sm_active=0.3), Gpu("1", sm_active=0.9)), "played", interval_s=5.0)
    reader, _ = read_for(1.0, Played([two]))

    async def run(handler: Handler) -> State:
        clock = TurnedClock(until=10.0)
        async with serving(handler) as server:
            target = TargetSettings(name="vllm", url=server.url, gpus=["0", "5"], token=SecretStr(TOKEN))
            settings = Settings(targets=[target])
            store = Store([initial("vllm", settings.policy(target))])
            async with client_for(target) as client:
                scraper = Scraper(target, settings, client)
                poller = Poller(store.state("vllm"), scraper, store, clock, settings, gpus=reader.feed())
                task = asyncio.create_task(poller.run())
                await asyncio.wait_for(clock.reached.wait(), 20)
                task.cancel()
                await asyncio.gather(task, return_exceptions=True)
            return store.state("vllm")

    broken = pages(HEALTHY)[0] + b"vllm:num_requests_running{engine=" + TOKEN.encode() + b"\n"
    for handler, up in (
        (VllmLike(pages(HEALTHY)), True),
        (always(b"", "500 Oh"), False),
        (always(broken), False),
    ):
        logged.truncate(0)
        logged.seek(0)
        state = asyncio.run(run(handler))
        assert state.up is up
        assert TOKEN not in str(state.error)
        assert [gpu.label for gpu in state.gpu.current(state.now or 0.0)] == ["0"]
        assert state.gpu.outcomes == {"ok": 1, "failed": 0}, "one reading counts once"
        told = [line for line in lines(logged) if line["message"] == "configured GPU does not exist"]
        assert [(line["gpus"], line["there"], line["target"]) for line in told] == [
            (["5"], ["0", "1"], "vllm")
        ]


@asynccontextmanager
async def running(settings: Settings) -> AsyncIterator[str]:
    stop, ready = asyncio.Event(), asyncio.get_running_loop().create_future()
    end = asyncio.create_task(serve(settings, stop=stop, ready=ready.set_result))
    try:
        yield await asyncio.wait_for(ready, 20)
    finally:
        stop.set()
        await end


async def once(client: httpx.AsyncClient, url: str, true: Callable[[dict[str, Any]], bool]) -> dict[str, Any]:
    """The state, as soon as something is true of it."""
    state: dict[str, Any] = {}
    for _ in range(1000):
        state = (await client.get(f"{url}/api/v1/state")).json()
        if true(state):
            return state
        await asyncio.sleep(0.02)
    raise AssertionError(state)


def test_the_service_shows_the_gpus_of_each_target() -> None:
    """From a real page over real HTTP to /metrics and the JSON."""

    async def run() -> tuple[str, dict[str, Any]]:
        async with (
            serving(VllmLike(pages(HEALTHY))) as vllm,
            serving(always(KUBERNETES)) as exporter,
        ):
            targets = [
                TargetSettings(name="a", url=vllm.url, gpus=["pod:chat-0"]),
                TargetSettings(name="b", url=vllm.url, gpus=["2"]),
            ]
            settings = Settings(
                targets=targets,
                host="127.0.0.1",
                port=0,
                interval_s=0.1,
                gpu_url=exporter.url,
                gpu_interval_s=0.5,
            )
            async with running(settings) as url, httpx.AsyncClient() as client:
                state = await once(client, url, lambda now: all(one["gpus"] for one in now["targets"]))
                return (await client.get(f"{url}/metrics")).text, state

    metrics, state = asyncio.run(run())
    shown = {target["target"]: [gpu["gpu"] for gpu in target["gpus"]] for target in state["targets"]}
    assert shown == {"a": ["0", "1"], "b": ["2"]}
    assert state["targets"][0]["gpus"][0]["sm_active_ratio"] == 0.231847
    assert state["targets"][0]["gpus_missing"] is None
    assert 'kvwatch_gpu_sm_active_ratio{gpu="0",target="a"} 0.231847' in metrics
    assert 'kvwatch_gpu_readings_total{outcome="ok",target="b"}' in metrics


def test_a_hanging_exporter_holds_up_neither_the_scraping_nor_the_stop() -> None:
    async def run() -> float:
        async with serving(VllmLike(pages(HEALTHY))) as vllm, serving(hangs) as exporter:
            settings = Settings(
                targets=[TargetSettings(name="a", url=vllm.url)],
                host="127.0.0.1",
                port=0,
                interval_s=0.1,
                gpu_url=exporter.url,
                gpu_interval_s=60,
            )
            async with running(settings) as url, httpx.AsyncClient() as client:
                state = await once(client, url, lambda now: now["targets"][0]["scrapes"]["ok"] >= 3)
                assert state["targets"][0]["gpus"] == []
                started = time.monotonic()
            return time.monotonic() - started

    assert asyncio.run(run()) < 1.0
