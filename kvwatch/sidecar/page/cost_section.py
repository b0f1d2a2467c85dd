"""What kvwatch costs: this process, and what its scrapes take of the servers."""

from __future__ import annotations

import os
import resource
import time
from collections.abc import Iterator
from pathlib import Path

from kvwatch.sidecar.page.markup import e, number
from kvwatch.sidecar.store import Store
from kvwatch.text.numbers import NOTHING, format_duration

_BEGAN = time.monotonic()
_MIB = 2**20


def cost(store: Store) -> Iterator[str]:
    """The section."""
    spent = resource.getrusage(resource.RUSAGE_SELF)
    busy = (spent.ru_utime + spent.ru_stime) / max(time.monotonic() - _BEGAN, 1.0)
    yield '<section aria-labelledby="cost"><h2 id="cost">What kvwatch costs</h2><dl>'
    yield f"<div><dt>processor, mean since the start</dt><dd>{100 * busy:.1f} % of a core</dd></div>"
    yield f"<div><dt>memory</dt><dd>{_memory()}</dd></div></dl>"
    for state in store.states().values():
        last, stats = state.last, store.poll_stats(state.target)
        if last is None:
            continue
        share = last.duration_s / max(last.interval_s, last.duration_s, 1e-9)
        yield (
            f"<p>{e(state.target)}: the newest scrape took {e(format_duration(last.duration_s))} for"
            f" {number(last.body_bytes)} bytes, {100 * share:.2f} % of its interval;"
            f" {number(stats.polls)} scrapes, {number(stats.missed_ticks)} left out to stay within bounds.</p>"
        )
    yield "</section>"


def _memory() -> str:
    """What this process holds in memory, where the system tells."""
    try:
        pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1])
    except (OSError, ValueError, IndexError):
        return NOTHING
    return f"{pages * os.sysconf('SC_PAGE_SIZE') / _MIB:.0f} MiB"
