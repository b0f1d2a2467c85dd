"""Waiting for what another process does: looked for again and again, never for a fixed time."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")


def until(what: str, found: Callable[[], T | None], within_s: float, every_s: float = 0.2) -> T:
    """The first truthy answer of `found`; fails, naming what was waited for, when there is none in time."""
    end = time.monotonic() + within_s
    while time.monotonic() < end:
        answer = found()
        if answer:
            return answer
        time.sleep(every_s)
    raise AssertionError(f"no {what} within {within_s:g} s")
