"""Reads GPUs in the background: one reader for all targets, which never ends on an error and delays nothing.

Each target has a `GpuFeed`. Its poller takes each reading from it once and passes it on with the next
outcome. A machine without GPU data is the normal case: it is detected once at the start, without a request to
another host, and the reader ends.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import replace
from random import Random
from typing import TYPE_CHECKING, Protocol

from kvwatch.core.exposition import dcgm
from kvwatch.core.model.gpu import NO_DATA, OFF, GpuReading, GpuWindow
from kvwatch.core.model.outcome import Pace, ScrapeError
from kvwatch.settings import TargetSettings
from kvwatch.sidecar.clock import Backoff, Clock, SystemClock
from kvwatch.sidecar.http_client import client_for
from kvwatch.sidecar.log import ProblemLog, log_event
from kvwatch.sidecar.polling.nvml import Nvml
from kvwatch.sidecar.polling.scrape import Scraper
from kvwatch.text.redact import redact, shown_url

if TYPE_CHECKING:
    from kvwatch.settings import Settings

NEARBY = "http://127.0.0.1:9400/metrics"
"""The default address of NVIDIA's DCGM exporter, on this host."""
_BACKOFF_MAX_S = 60.0
_MAX_TIMEOUT_S = 10.0


class GpuSource(Protocol):
    """A source of readings."""

    name: str

    async def read(self) -> GpuReading: ...
    async def close(self) -> None: ...


class Dcgm:
    """Reads the page of a DCGM exporter, under the same limits as a page of vLLM."""

    name = dcgm.SOURCE

    def __init__(self, url: str, settings: Settings) -> None:
        target = TargetSettings(url=url, name="gpu")
        timeout = min(0.9 * settings.gpu_interval_s, _MAX_TIMEOUT_S)
        self._client = client_for(target)
        self._scraper = Scraper(target, settings.model_copy(update={"timeout_s": timeout}), self._client)
        self._pages = dcgm.page_reader()
        self._interval_s = settings.gpu_interval_s
        self.url = url

    async def read(self) -> GpuReading:
        """The GPUs on the page, or the reason why there are none. Never raises."""
        page = await self._scraper.scrape(Pace.FULL)
        if isinstance(page, ScrapeError):
            reason = f"{shown_url(self.url)}: {page.kind}: {page.detail}"
            return GpuReading(source=self.name, reason=reason, interval_s=self._interval_s)
        openmetrics = "openmetrics" in page.content_type
        found = dcgm.read_gpus(self._pages, page.body, interval_s=self._interval_s, openmetrics=openmetrics)
        if not found.reason:
            return found
        return replace(found, reason=f"{shown_url(self.url)}: {redact(found.reason)}")  # may quote the page

    async def close(self) -> None:
        await self._client.aclose()


async def choose(
    settings: Settings, nearby: str = NEARBY, driver: Callable[[float], GpuSource] = Nvml
) -> tuple[GpuSource | None, GpuReading | None]:
    """The source that the settings name, or the first that has GPUs, with the reading that showed it."""
    if settings.gpu == "nvml":
        return driver(settings.gpu_interval_s), None
    if settings.gpu == "dcgm" or settings.gpu_url is not None:
        return Dcgm(settings.gpu_url or nearby, settings), None
    candidates: tuple[Callable[[], GpuSource], ...] = (
        lambda: Dcgm(nearby, settings),
        lambda: driver(settings.gpu_interval_s),
    )
    for make in candidates:
        source = make()
        reading = await source.read()
        if reading.gpus:
            return source, reading
        await source.close()
    return None, None


Choose = Callable[["Settings"], Awaitable[tuple[GpuSource | None, GpuReading | None]]]


class GpuFeed:
    """The readings for one target: each once, only the newest."""

    def __init__(self, reader: GpuReader) -> None:
        self._reader = reader
        self._taken = 0
        self._logged: frozenset[str] = frozenset()

    def take(self, now: float) -> GpuReading | None:
        """A reading that was not taken yet, with its age at `now` (monotonic seconds)."""
        number, reading, at = self._reader.newest
        if number == self._taken or reading is None:
            return None
        self._taken = number
        return replace(reading, age_s=max(now - at, 0.0))

    def log_absent(self, target: str, window: GpuWindow) -> None:
        """Logs the target's configured GPUs that do not exist, each once."""
        new = frozenset(window.absent) - self._logged
        if new:
            self._logged |= new
            names = [name for name in window.absent if name in new]
            message = "configured GPU does not exist"
            log_event(logging.WARNING, message, target=target, gpus=names, there=list(window.seen))


class GpuReader:
    """Reads a source at an interval while `run` runs, and backs off while it fails."""

    def __init__(
        self,
        settings: Settings,
        clock: Clock | None = None,
        *,
        random: Random | None = None,
        choose: Choose = choose,
    ) -> None:
        self._settings = settings
        self._clock = clock or SystemClock()
        self._choose = choose
        self._backoff = Backoff(_BACKOFF_MAX_S, random)
        self._problems = ProblemLog()
        self._good: bool | None = None
        self.newest: tuple[int, GpuReading | None, float] = (0, None, 0.0)
        """Number of the reading, counted from 1, the reading, and its time (monotonic seconds)."""

    def feed(self) -> GpuFeed:
        return GpuFeed(self)

    async def run(self) -> None:
        """Reads until cancelled; ends by itself if there is no source."""
        source: GpuSource | None = None
        try:
            source, reading = await self._chosen()
            if source is None:
                self._publish(GpuReading(reason=OFF if self._settings.gpu == "off" else NO_DATA))
                return
            while True:
                reading = reading or await self._read(source)
                self._publish(reading)
                self._log_status(source, reading)
                wait_s = self._wait_s(reading)
                reading = None
                await self._clock.sleep(wait_s)
        finally:
            if source is not None:
                with contextlib.suppress(Exception):
                    await source.close()

    async def _chosen(self) -> tuple[GpuSource | None, GpuReading | None]:
        if self._settings.gpu == "off":
            return None, None
        try:
            return await self._choose(self._settings)
        except Exception as error:  # noqa: BLE001 - GPU data is optional
            self._problems.log(error, self._clock.now())
            return None, None

    async def _read(self, source: GpuSource) -> GpuReading:
        try:
            return await source.read()
        except Exception as error:  # noqa: BLE001 - reading continues whatever happens
            self._problems.log(error, self._clock.now(), source=source.name)
            reason = "kvwatch failed at this reading; see its log"
            return GpuReading(source=source.name, reason=reason, interval_s=self._settings.gpu_interval_s)

    def _publish(self, reading: GpuReading) -> None:
        self.newest = (self.newest[0] + 1, reading, self._clock.now())

    def _wait_s(self, reading: GpuReading) -> float:
        if not reading.gpus:
            return self._backoff.failed(self._settings.gpu_interval_s)
        self._backoff.succeeded()
        return self._settings.gpu_interval_s

    def _log_status(self, source: GpuSource, reading: GpuReading) -> None:
        """Logs each change between readable and unreadable once."""
        good = bool(reading.gpus)
        if good is self._good:
            return
        self._good = good
        if good:
            labels = [gpu.label for gpu in reading.gpus]
            log_event(logging.INFO, "GPUs are readable", source=source.name, gpus=labels)
        else:
            log_event(logging.WARNING, "GPUs are not readable", source=source.name, reason=reading.reason)


@contextlib.asynccontextmanager
async def running_gpu_reader(settings: Settings, clock: Clock) -> AsyncIterator[GpuReader]:
    """A reader that runs in the background while the block runs."""
    reader = GpuReader(settings, clock)
    task = asyncio.create_task(reader.run(), name="read GPUs")
    try:
        yield reader
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
