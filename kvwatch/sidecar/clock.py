"""Clocks, which tests and the demo replace, and the back-off between tries."""

from __future__ import annotations

import asyncio
import time
from random import Random
from typing import Protocol

_MAX_DOUBLINGS = 10


class MonotonicClock(Protocol):
    """Monotonic time in seconds, for intervals."""

    def now(self) -> float: ...


class Clock(MonotonicClock, Protocol):
    """`now` is monotonic seconds, for intervals; `wall` is unix seconds, for people."""

    def wall(self) -> float: ...

    async def sleep(self, seconds: float) -> None: ...


class SystemClock:
    """The clock of this machine."""

    def now(self) -> float:
        return time.monotonic()

    def wall(self) -> float:
        return time.time()

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(max(seconds, 0.0))


class ScaledClock:
    """A clock that runs `factor` times as fast as `base`, from its creation on."""

    def __init__(self, base: Clock, factor: float) -> None:
        if not factor > 0:
            raise ValueError(f"the speed of a clock must be above 0, not {factor}")
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


class Backoff:
    """Delays that double with each failure, with jitter so that many sidecars do not retry in step."""

    def __init__(self, max_s: float, random: Random | None = None) -> None:
        self._max = max_s
        self._random = random or Random()  # noqa: S311 - jitter, no secret
        self._failures = 0

    def succeeded(self) -> bool:
        """Counts a success; returns whether failures came before it."""
        was_down, self._failures = self._failures > 0, 0
        return was_down

    def failed(self, interval_s: float) -> float:
        """Counts a failure; returns the seconds to wait: at first the interval, at most the maximum."""
        doublings = min(self._failures, _MAX_DOUBLINGS)
        self._failures += 1
        longest: float = min(interval_s * 2.0**doublings, max(self._max, interval_s))
        if doublings == 0:
            return longest
        return max(interval_s, longest * self._random.uniform(0.75, 1.0))
