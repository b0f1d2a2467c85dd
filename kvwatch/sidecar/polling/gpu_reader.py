"""Reads GPUs beside the scraping: one reader for all targets, which never dies and holds up nothing.

Each target has a `Feed`, from which its poller takes a reading that it has not had yet and gives it to the
judgement with the next outcome. Where no GPU data is to be had, that is the normal case: it is found out once, at
the start, without asking any other host, and the reader ends.
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
from kvwatch.sidecar.clock import Clock, SystemClock
from kvwatch.sidecar.http_client import client_for
from kvwatch.sidecar.log import ProblemLog, log_event
from kvwatch.sidecar.polling.nvml import Nvml
from kvwatch.sidecar.polling.pacing import Backoff
from kvwatch.sidecar.polling.scrape import Scraper
from kvwatch.text.redact import redact, shown_url

if TYPE_CHECKING:
    from kvwatch.settings import Settings

NEARBY = "http://127.0.0.1:9400/metrics"
"""Where NVIDIA's exporter serves by default, on this host."""
_BACKOFF_MAX_S = 60.0
_MOST_TIMEOUT_S = 10.0


class GpuSource(Protocol):
    """Where readings come from."""

    name: str

    async def read(self) -> GpuReading: ...
    async def close(self) -> None: ...


class Dcgm:
    """Reads the page of a DCGM exporter, under the same limits as one of vLLM."""

    name = dcgm.SOURCE

    def __init__(self, url: str, settings: Settings) -> None:
        target = TargetSettings(url=url, name="gpu")
        timeout = min(0.9 * settings.gpu_interval_s, _MOST_TIMEOUT_S)
        self._client = client_for(target)
        self._scraper = Scraper(target, settings.model_copy(update={"timeout_s": timeout}), self._client)
        self._pages = dcgm.page_reader()
        self._interval_s = settings.gpu_interval_s
        self.url = url

    async def read(self) -> GpuReading:
        """The GPUs on the page, or why there are none. Never raises."""
        page = await self._scraper.scrape(Pace.FULL)
        if isinstance(page, ScrapeError):
            why = f"{shown_url(self.url)}: {page.kind}: {page.detail}"
            return GpuReading(source=self.name, reason=why, interval_s=self._interval_s)
        openmetrics = "openmetrics" in page.content_type
        found = dcgm.read_gpus(self._pages, page.body, interval_s=self._interval_s, openmetrics=openmetrics)
        if not found.reason:
            return found
        return replace(
            found, reason=f"{shown_url(self.url)}: {redact(found.reason)}"
        )  # it may quote the page

    async def close(self) -> None:
        await self._client.aclose()


async def choose(
    settings: Settings, nearby: str = NEARBY, driver: Callable[[float], GpuSource] = Nvml
) -> tuple[GpuSource | None, GpuReading | None]:
    """The source that the settings mean, or that is there; and what was read of it while finding that out."""
    if settings.gpu == "nvml":
        return driver(settings.gpu_interval_s), None
    if settings.gpu == "dcgm" or settings.gpu_url is not None:
        return Dcgm(settings.gpu_url or nearby, settings), None
    tries: tuple[Callable[[], GpuSource], ...] = (
        lambda: Dcgm(nearby, settings),
        lambda: driver(settings.gpu_interval_s),
    )
    for make in tries:
        source = make()
        reading = await source.read()
        if reading.gpus:
            return source, reading
        await source.close()
    return None, None


Choose = Callable[["Settings"], Awaitable[tuple[GpuSource | None, GpuReading | None]]]


class GpuFeed:
    """What one target gets of the readings: each once, the newest only."""

    def __init__(self, reader: GpuReader) -> None:
        self._reader = reader
        self._had = 0
        self._told: frozenset[str] = frozenset()

    def take(self, now: float) -> GpuReading | None:
        """A reading that was not taken yet, with its age at `now` (monotonic seconds)."""
        number, reading, at = self._reader.newest
        if number == self._had or reading is None:
            return None
        self._had = number
        return replace(reading, age_s=max(now - at, 0.0))

    def tell(self, target: str, seen: GpuWindow) -> None:
        """Logs GPUs that the settings of the target name and that are not there, each once."""
        new = frozenset(seen.absent) - self._told
        if new:
            self._told |= new
            named = [name for name in seen.absent if name in new]
            there = list(seen.seen)
            log_event(
                logging.WARNING, "a GPU of the settings is not there", target=target, gpus=named, there=there
            )


class GpuReader:
    """Reads a source at an interval for as long as `run` runs, and backs off while it fails."""

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
        self._backoff = Backoff(_BACKOFF_MAX_S, random or Random())  # noqa: S311 - jitter, no secret
        self._complaints = ProblemLog()
        self._good: bool | None = None
        self.newest: tuple[int, GpuReading | None, float] = (0, None, 0.0)
        """Which reading this is, counted from 1, and when it was made (monotonic seconds)."""

    def feed(self) -> GpuFeed:
        """What one target takes readings from."""
        return GpuFeed(self)

    async def run(self) -> None:
        """Reads until cancelled; ends by itself where there is nothing to read."""
        source: GpuSource | None = None
        try:
            source, reading = await self._chosen()
            if source is None:
                self._put(GpuReading(reason=OFF if self._settings.gpu == "off" else NO_DATA))
                return
            while True:
                reading = reading or await self._read(source)
                self._put(reading)
                self._tell(source, reading)
                wait_s = self._wait(reading)
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
        except Exception as error:  # noqa: BLE001 - GPU data is an extra
            self._complaints.about(error, self._clock.now())
            return None, None

    async def _read(self, source: GpuSource) -> GpuReading:
        try:
            return await source.read()
        except Exception as error:  # noqa: BLE001 - the net: reading goes on whatever happens
            self._complaints.about(error, self._clock.now(), source=source.name)
            why = "kvwatch itself failed at this reading; its log says how"
            return GpuReading(source=source.name, reason=why, interval_s=self._settings.gpu_interval_s)

    def _put(self, reading: GpuReading) -> None:
        self.newest = (self.newest[0] + 1, reading, self._clock.now())

    def _wait(self, reading: GpuReading) -> float:
        """Seconds to the next reading."""
        if not reading.gpus:
            return self._backoff.failed(self._settings.gpu_interval_s)
        self._backoff.succeeded()
        return self._settings.gpu_interval_s

    def _tell(self, source: GpuSource, reading: GpuReading) -> None:
        """Logs that GPUs can be read, or can't any more; not at every reading."""
        good = bool(reading.gpus)
        if good is self._good:
            return
        self._good = good
        if good:
            labels = [gpu.label for gpu in reading.gpus]
            log_event(logging.INFO, "GPUs are read", source=source.name, gpus=labels)
        else:
            log_event(logging.WARNING, "GPUs can't be read", source=source.name, reason=reading.reason)


@contextlib.asynccontextmanager
async def read_beside(settings: Settings, clock: Clock) -> AsyncIterator[GpuReader]:
    """A reader that reads while the block runs."""
    reader = GpuReader(settings, clock)
    task = asyncio.create_task(reader.run(), name="read GPUs")
    try:
        yield reader
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
