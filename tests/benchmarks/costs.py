"""Processor time: of this process, of others, and of a watch that runs as fast as it can.

Times on a clock are of little use on a machine that others use too; what is compared here is processor time, which
Linux counts for each thread in nanoseconds.
"""

from __future__ import annotations

import asyncio
import io
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from time import process_time

from kvwatch.core.state import State, initial
from kvwatch.settings import Settings, TargetSettings
from kvwatch.sidecar import log
from kvwatch.sidecar.poller import Poller
from kvwatch.sidecar.scrape import Scraper
from kvwatch.sidecar.store import Store
from kvwatch.sidecar.transport import client_for
from tests.sidecar.loopback import TurnedClock

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


async def _watched(urls: Sequence[str], seconds: float, pid: int, narrow: str) -> Watched:
    log.set_up("json", "error", io.StringIO())
    targets = [TargetSettings(name=f"t{n}", url=url) for n, url in enumerate(urls)]
    settings = Settings.model_validate({"targets": targets, "narrow": narrow, "max_interval_s": 1.0})
    settings = settings.model_copy(
        update={"timeout_s": 60.0}
    )  # of real seconds, on a machine that may be busy
    store = Store(initial(one.name, settings.policy(one)) for one in targets)
    own, server = process_time(), cpu_s(pid)
    for target in targets:
        async with client_for(target) as client:
            clock = TurnedClock(seconds)
            scraper = Scraper(target, settings, client)
            poller = Poller(store.state(target.name), scraper, store, clock, settings)
            polling = asyncio.create_task(poller.run())
            await clock.reached.wait()
            polling.cancel()
            await asyncio.gather(polling, return_exceptions=True)
    spent = process_time() - own, cpu_s(pid) - server
    return Watched(seconds * len(targets), *spent, tuple(store.states().values()))
