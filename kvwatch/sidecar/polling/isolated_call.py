"""Calls that may never come back, out of everybody's way.

A driver that hangs holds the thread that asked it, and nothing can interrupt that. So it is asked in a daemon
thread, which neither the event loop, nor the stop, nor the exit of the interpreter waits for; and never in a
second one while the first has not come back.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from concurrent.futures import Future
from functools import partial
from typing import TypeVar

_T = TypeVar("_T")


class CallTimeout(Exception):  # noqa: N818 - says what it is
    """No answer in time, or none yet to what was asked before."""


class IsolatedCall:
    """Runs one call at a time in a daemon thread. With a `turn` it is one of all that share it."""

    def __init__(self, name: str, turn: asyncio.Semaphore | None = None) -> None:
        self._name = name
        self._busy = threading.Event()
        self._turn = turn or asyncio.Semaphore()

    async def call(self, ask: Callable[[], _T], within_s: float) -> _T:
        """What `ask` returns or raises; `Hangs` after `within_s` seconds, or if the call before still goes on."""
        if self._busy.is_set():
            raise CallTimeout("it has not answered yet to what it was asked before")
        async with self._turn:
            return await self._call(ask, within_s)

    async def _call(self, ask: Callable[[], _T], within_s: float) -> _T:
        self._busy.set()
        future: Future[_T] = Future()
        threading.Thread(target=self._run, args=(ask, future), name=self._name, daemon=True).start()
        waiting = asyncio.wrap_future(future)
        try:
            done, _ = await asyncio.wait({waiting}, timeout=within_s)
            if not done:
                raise CallTimeout(f"no answer within {within_s:g} s")
            return waiting.result()
        finally:
            waiting.cancel()  # an answer that comes later concerns nobody

    def _run(self, ask: Callable[[], _T], future: Future[_T]) -> None:
        done: Callable[[], None]
        try:
            result = ask()
        except BaseException as error:  # noqa: BLE001 - it is whose future this is that it concerns
            done = partial(future.set_exception, error)
        else:
            done = partial(future.set_result, result)
        self._busy.clear()
        if future.set_running_or_notify_cancel():
            done()
