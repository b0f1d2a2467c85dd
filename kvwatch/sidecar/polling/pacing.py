"""When the next scrape is due: the start of each target, a steady schedule, and the share of vLLM's time used.

Pure arithmetic on given times; nothing here sleeps or reads a clock.
"""

from __future__ import annotations

import math
from collections import deque
from dataclasses import dataclass
from hashlib import sha256

_REMEMBERED = 20
_WEIGHT = 0.1
_STEP_S = 0.25
_MIN_ANSWERS = 5
_SPREAD_S = 1.0


@dataclass(frozen=True, slots=True)
class StartOffset:
    """When the first scrape of a target is due, and its phase within the interval from then on.

    Without offsets, sidecars that a rollout starts together would scrape together forever; so would one
    kvwatch its targets. The first scrapes of one process are spread over an interval, at most 1 s: `first_s`
    seconds after the start. The second scrape comes after half to one and a half intervals, by `phase` (0-1;
    0.5 is one interval), which depends on target, host and port and is the same at every start.
    """

    first_s: float = 0.0
    phase: float = 0.5


NO_OFFSET = StartOffset()


def start_offset(index: int, count: int, interval_s: float, *seed: str) -> StartOffset:
    """The offset of one of `count` targets; `seed` distinguishes processes."""
    phase = int.from_bytes(sha256("\0".join(seed).encode()).digest()[:8]) / 2**64
    return StartOffset(min(interval_s, _SPREAD_S) * index / count, phase)


class Schedule:
    """Ticks without drift: each is due one interval after the last one was *due*.

    Ticks that were missed are skipped, never run in a burst.
    """

    def __init__(self, start: float, shift_s: float = 0.0) -> None:
        self._due = start + shift_s

    def next(self, now: float, interval_s: float) -> tuple[float, int]:
        """When the next tick is due, and how many ticks were missed since the last one."""
        due = self._due + interval_s
        missed = 0
        if due < now:
            missed = max(math.ceil((now - due) / interval_s - 1e-9), 1)
            due += missed * interval_s
        self._due = due
        return due, missed

    def restart(self, now: float, wait_s: float) -> float:
        """The next tick is due in `wait_s` seconds; later ones follow it."""
        self._due = now + wait_s
        return self._due


class DutyCycle:
    """Stretches the interval so that scrapes take at most a share of vLLM's time.

    The cost is the time that vLLM works for an answer. Only the time until the answer can be measured, and
    under load that is mostly time in the queue of vLLM's event loop; stretching the interval by it would
    blind kvwatch when it matters. So the work is estimated as the lower quartile of the last 20 answers of a
    kind (`key`: whole, narrowed fast, narrowed full), and the cost as the moving average of that. The first
    answer is ignored, because it includes the connect. Up to 4 answers stretch nothing.
    """

    def __init__(self, base_s: float, max_s: float, share: float) -> None:
        self._base = base_s
        self._max = max(max_s, base_s)
        self._share = share
        self._recent: dict[str, deque[float]] = {}
        self._mean = 0.0
        self._answers = -1

    def record(self, key: str, seconds: float) -> None:
        """Records the time until an answer of this kind."""
        self._answers += 1
        if self._answers == 0:
            return
        recent = self._recent.setdefault(key, deque(maxlen=_REMEMBERED))
        recent.append(seconds)
        work = sorted(recent)[len(recent) // 4]
        self._mean += max(_WEIGHT, 1 / self._answers) * (work - self._mean)

    @property
    def cost_s(self) -> float:
        """Seconds of vLLM's time per scrape, on average."""
        return self._mean

    @property
    def interval_s(self) -> float:
        """The interval, in steps of 0.25 s above the base so that it is stable."""
        needed = self.cost_s / self._share
        if needed <= self._base or self._answers < _MIN_ANSWERS:
            return self._base
        return min(self._base + math.ceil((needed - self._base) / _STEP_S) * _STEP_S, self._max)
