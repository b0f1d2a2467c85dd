"""How often a line of one kind may be logged, so that nothing that others do can fill a disk."""

from __future__ import annotations

import logging
import time
from collections import Counter
from collections.abc import Callable, Mapping

FIELDS = "kvwatch_fields"
"""The attribute of a log record that holds its fields."""
_MOST_KINDS = 200
_KIND_CHARACTERS = 80


class LogThrottle(logging.Filter):
    """Lets through one record of a kind (logger, first words, error) a minute; the next says how many came between.

    For what libraries log: the event loop and the web server may say the same thousands of times a second.
    """

    def __init__(self, every_s: float = 60.0, now: Callable[[], float] = time.monotonic) -> None:
        super().__init__()
        self._every_s = every_s
        self._now = now
        self._said: dict[tuple[str, str, str], tuple[float, int]] = {}
        """When a kind was last let through, and how many were not since."""

    def filter(self, record: logging.LogRecord) -> bool:
        error = type(record.exc_info[1]).__name__ if record.exc_info else ""
        kind = (record.name, str(record.msg).partition("\n")[0][:_KIND_CHARACTERS], error)
        if kind not in self._said and len(self._said) >= _MOST_KINDS:
            kind = (record.name, "", "")
        now = self._now()
        at, held_back = self._said.get(kind, (now - self._every_s, 0))
        if now - at < self._every_s:
            self._said[kind] = (at, held_back + 1)
            return False
        self._said[kind] = (now, 0)
        if held_back:
            setattr(record, FIELDS, {**getattr(record, FIELDS, {}), "not_shown": held_back})
        return True


class RateLimiter:
    """Engines of one target that come and go: so many lines a minute are for one each, then one is for the rest."""

    def __init__(self, most: int = 10, every_s: float = 60.0) -> None:
        self._most = most
        self._every_s = every_s
        self._since: float | None = None
        self._told = 0
        self._rest: Counter[str] = Counter()

    def admits(self, kind: str, now: float) -> bool:
        """Whether an event of this kind gets a line of its own; `now` in monotonic seconds. Ask `rest` before."""
        if self._since is None:
            self._since, self._told = now, 0
        if self._told < self._most:
            self._told += 1
            return True
        self._rest[kind] += 1
        return False

    def rest(self, now: float) -> Mapping[str, int]:
        """How many of each kind got no line, once their minute is over; empty before, and if there were none."""
        if self._since is None or now - self._since < self._every_s:
            return {}
        rest, self._rest, self._since = self._rest, Counter(), None
        return dict(rest)
