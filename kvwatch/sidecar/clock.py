"""Where the sidecar gets its time from, so that tests and the demo can give it another."""

from __future__ import annotations

import asyncio
import time
from typing import Protocol


class MonotonicClock(Protocol):
    """Monotonic time in seconds, for intervals."""

    def now(self) -> float: ...


class Clock(MonotonicClock, Protocol):
    """Time in seconds: `now` monotonic, for intervals; `wall` unix, to show to people."""

    def wall(self) -> float: ...

    async def sleep(self, seconds: float) -> None: ...


class SystemClock:
    """The machine's own time."""

    def now(self) -> float:
        return time.monotonic()

    def wall(self) -> float:
        return time.time()

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(max(seconds, 0.0))


class ScaledClock:
    """Time that runs `factor` times as fast as `base`, from the moment this was made."""

    def __init__(self, base: Clock, factor: float) -> None:
        if not factor > 0:
            raise ValueError(f"time can't run {factor} times as fast")
        self._base = base
        self._factor = factor
        self._now0 = base.now()
        self._wall0 = base.wall()

    def _elapsed(self) -> float:
        return (self._base.now() - self._now0) * self._factor

    def now(self) -> float:
        return self._now0 + self._elapsed()

    def wall(self) -> float:
        return self._wall0 + self._elapsed()

    async def sleep(self, seconds: float) -> None:
        await self._base.sleep(seconds / self._factor)
