"""When the next scrape is due: where each watch begins, an even rhythm, the share of vLLM's time that it may take,
and back-off while down.

All of it is arithmetic on times that are handed in; nothing here sleeps or asks for the time.
"""

from __future__ import annotations

import math
from collections import deque
from dataclasses import dataclass
from hashlib import sha256
from random import Random

_REMEMBERED = 20
_WEIGHT = 0.1
_STEP_S = 0.25
_ENOUGH = 5
_MOST_DOUBLINGS = 10


@dataclass(frozen=True, slots=True)
class Start:
    """When a target is first asked, and where in the interval it is asked from then on.

    Sidecars that a rollout starts at once would ask at once for ever, and so would one kvwatch its many targets. So
    the second question comes after half to one and a half intervals, by `phase` (0-1; 0.5 is one interval): another
    for every target, host and port, the same at every start. The first ones of one process are spread over an
    interval, and never later than a second: `first_s` seconds after the start, none for the first target.
    """

    first_s: float = 0.0
    phase: float = 0.5


AT_ONCE = Start()
_SPREAD_S = 1.0


def start_of(place: int, places: int, interval_s: float, *seed: str) -> Start:
    """The start of one of so many targets; `seed` tells it from those of other processes."""
    drawn = int.from_bytes(sha256("\0".join(seed).encode()).digest()[:8]) / 2**64
    return Start(min(interval_s, _SPREAD_S) * place / places, drawn)


class Rhythm:
    """Ticks that keep their beat: each is due an interval after the last one was *due*, so nothing drifts.

    Ticks that could not be kept are skipped, never made up for in a bunch.
    """

    def __init__(self, start: float, shift_s: float = 0.0) -> None:
        self._due = start + shift_s

    def next(self, now: float, interval_s: float) -> tuple[float, int]:
        """When the next tick is due, and how many were missed since the last one."""
        due = self._due + interval_s
        missed = 0
        if due < now:
            missed = max(math.ceil((now - due) / interval_s - 1e-9), 1)
            due += missed * interval_s
        self._due = due
        return due, missed

    def restart(self, now: float, wait_s: float) -> float:
        """A tick `wait_s` from now, and the beat from there on."""
        self._due = now + wait_s
        return self._due


class DutyCycle:
    """Stretches the interval so that answering takes vLLM no more than a share of its time.

    What counts is the time vLLM works for an answer, but what can be measured is the time until the answer is
    there, which under load is mostly waiting for vLLM's event loop. To stretch the interval by that would
    blind kvwatch just when it matters. So of the last answers of a kind (`key`: whole, narrowed fast, narrowed
    full) the lower quartile is taken for the work, and a moving average over those for the cost of a scrape.
    The very first answer is left out: it opens the connection. A few answers stretch nothing yet.
    """

    def __init__(self, base_s: float, max_s: float, share: float) -> None:
        self._base = base_s
        self._max = max(max_s, base_s)
        self._share = share
        self._recent: dict[str, deque[float]] = {}
        self._mean = 0.0
        self._answers = -1

    def took(self, key: str, seconds: float) -> None:
        """Notes that an answer of this kind came after so many seconds."""
        self._answers += 1
        if self._answers == 0:
            return
        recent = self._recent.setdefault(key, deque(maxlen=_REMEMBERED))
        recent.append(seconds)
        work = sorted(recent)[len(recent) // 4]
        self._mean += max(_WEIGHT, 1 / self._answers) * (work - self._mean)

    @property
    def cost_s(self) -> float:
        """Seconds of vLLM's time that a scrape takes, on average."""
        return self._mean

    @property
    def interval_s(self) -> float:
        """The interval to keep, in whole quarters of a second above the base, so that it does not flutter."""
        needed = self.cost_s / self._share
        if needed <= self._base or self._answers < _ENOUGH:
            return self._base
        return min(self._base + math.ceil((needed - self._base) / _STEP_S) * _STEP_S, self._max)


class Backoff:
    """Waits that double while a server is down, with jitter so that many sidecars do not knock in step."""

    def __init__(self, max_s: float, random: Random) -> None:
        self._max = max_s
        self._random = random
        self._failures = 0

    def succeeded(self) -> bool:
        """Notes a success; whether failures came before it."""
        was_down, self._failures = self._failures > 0, 0
        return was_down

    def failed(self, interval_s: float) -> float:
        """Seconds to wait after one more failure: the interval at first, then ever more up to the most."""
        doublings = min(self._failures, _MOST_DOUBLINGS)
        self._failures += 1
        longest: float = min(interval_s * 2.0**doublings, max(self._max, interval_s))
        if doublings == 0:
            return longest
        return max(interval_s, longest * self._random.uniform(0.75, 1.0))
