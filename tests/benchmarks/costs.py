"""Processor time: of this process, of others, and of a watch that runs as fast as it can.

Times on a clock are of little use on a machine that others use too; what is compared here is processor time, which
Linux counts for each thread in nanoseconds.
"""

from __future__ import annotations

import asyncio
import io
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from time import process_time

from kvwatch.core.judgement.state import State, initial
from kvwatch.settings import Settings, TargetSettings
from kvwatch.sidecar import log
from kvwatch.sidecar.http_client import client_for
from kvwatch.sidecar.polling.poller import Poller
from kvwatch.sidecar.polling.scrape import Scraper
from kvwatch.sidecar.store import Store
from tests.support.loopback import TurnedClock

MIB = 1 << 20


def cpu_s(pid: int) -> float:
    """Processor seconds that all threads of a running process have used, those that ended included."""
    fields = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8").rpartition(") ")[2].split()
    ticks = (int(fields[11]) + int(fields[12])) / 100
    try:
        threads = [path.read_text(encoding="utf-8") for path in Path(f"/proc/{pid}/task").glob("*/schedstat")]
    except OSError:
        return ticks
    return max(sum(int(one.split()[0]) for one in threads) / 1e9, ticks - 0.01)


def rss_mib(pid: int) -> float:
    """Resident memory of a running process, MiB."""
    lines = Path(f"/proc/{pid}/status").read_text(encoding="utf-8").splitlines()
    (kib,) = [line.split()[1] for line in lines if line.startswith("VmRSS:")]
    return int(kib) / 1024


@dataclass(frozen=True)
class Watched:
    """What a watch of so many seconds cost: processor seconds here and in the server that was asked."""

    seconds: float
    own_s: float
    server_s: float
    states: tuple[State, ...]


def watched(urls: Sequence[str], seconds: float, *, pid: int, narrow: str = "auto") -> Watched:
    """Watches servers, at `pid`, for so many seconds of a clock that is turned: the real poller asks for what it
    would ask for in that time, one question after the other."""
    return asyncio.run(_watched(urls, seconds, pid, narrow))


def keep_watching(url: str, spans: Sequence[float]) -> Iterator[float]:
    """Watches a server for so many seconds of a clock that is turned, and again; after each the size of this process,
    MiB."""

    async def watch(span: float) -> None:
        await _poll(store, target, settings, span)

    log.configure_logging("json", "error", io.StringIO())
    settings, store = _prepared([url], "auto")
    (target,) = settings.targets
    for span in spans:
        asyncio.run(watch(span))
        yield rss_mib(os.getpid())


async def _watched(urls: Sequence[str], seconds: float, pid: int, narrow: str) -> Watched:
    log.configure_logging("json", "error", io.StringIO())
    settings, store = _prepared(urls, narrow)
    own, server = process_time(), cpu_s(pid)
    for target in settings.targets:
        await _poll(store, target, settings, seconds)
    spent = process_time() - own, cpu_s(pid) - server
    return Watched(seconds * len(urls), *spent, tuple(store.states().values()))


def _prepared(urls: Sequence[str], narrow: str) -> tuple[Settings, Store]:
    """Settings with more time for an answer than anyone has in production: the machine may be busy."""
    targets = [TargetSettings(name=f"t{n}", url=url) for n, url in enumerate(urls)]
    settings = Settings.model_validate({"targets": targets, "narrow": narrow, "max_interval_s": 1.0})
    settings = settings.model_copy(update={"timeout_s": 60.0})
    return settings, Store(initial(one.name, settings.policy(one)) for one in targets)


async def _poll(store: Store, target: TargetSettings, settings: Settings, seconds: float) -> None:
    """Polls a target from its state on; as time does, the clock goes on from there."""
    async with client_for(target) as client:
        clock, state = TurnedClock(), store.state(target.name)
        clock.time = 1000.0 if state.now is None else state.now + 1.0
        clock.go_on(seconds)
        poller = Poller(state, Scraper(target, settings, client), store, clock, settings)
        polling = asyncio.create_task(poller.run())
        await clock.reached.wait()
        polling.cancel()
        await asyncio.gather(polling, return_exceptions=True)
