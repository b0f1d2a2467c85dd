"""Blocking calls in daemon threads: name look-ups, drivers, the judgement of large pages.

A call that hangs blocks its thread, and nothing can interrupt it. Neither the event loop, nor the stop of the
service, nor the exit of the interpreter waits for a daemon thread. They do wait for the threads of the
standard library's executors.
"""

from __future__ import annotations

import asyncio
import socket
import threading
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from typing import ParamSpec, TypeVar

MAX_LOOKUPS = 64
_P = ParamSpec("_P")
_T = TypeVar("_T")


def start_call(name: str, call: Callable[[], _T], release: Callable[[], None]) -> Future[_T]:
    """Starts a call in a daemon thread. `release` runs when it returns, before its future has the result."""
    future: Future[_T] = Future()

    def run() -> None:
        finish: Callable[[], None]
        try:
            finish = partial(future.set_result, call())
        except BaseException as error:  # noqa: BLE001 - the error belongs to the owner of the future
            finish = partial(future.set_exception, error)
        release()
        if future.set_running_or_notify_cancel():
            finish()

    threading.Thread(target=run, name=name, daemon=True).start()
    return future


class CallTimeout(Exception):  # noqa: N818 - named like TimeoutError's cause
    """The call did not return in time, or an earlier call still runs."""


class IsolatedCall:
    """Runs one call at a time in a daemon thread; never a second one while the first still runs.

    All that share a `turn` run one call at a time together.
    """

    def __init__(self, name: str, turn: asyncio.Semaphore | None = None) -> None:
        self._name = name
        self._busy = threading.Event()
        self._turn = turn or asyncio.Semaphore()

    async def run(self, call: Callable[[], _T], timeout_s: float) -> _T:
        """Returns or raises what `call` does; raises `CallTimeout` after `timeout_s` seconds."""
        if self._busy.is_set():
            raise CallTimeout("the call before it has not returned yet")
        async with self._turn:
            self._busy.set()
            waiting = asyncio.wrap_future(start_call(self._name, call, self._busy.clear))
            try:
                done, _ = await asyncio.wait({waiting}, timeout=timeout_s)
                if not done:
                    raise CallTimeout(f"no answer within {timeout_s:g} s")
                return waiting.result()
            finally:
                waiting.cancel()  # a late result is dropped


class DnsExecutor(ThreadPoolExecutor):
    """The event loop's executor, which kvwatch uses only for name look-ups; the resolver may block for 30 s.

    Each look-up gets its own daemon thread. Beyond `most` look-ups in progress, further ones fail at once.
    """

    def __init__(self, most: int = MAX_LOOKUPS) -> None:
        super().__init__(max_workers=1)  # this thread is never started
        self._free = threading.Semaphore(most)

    def submit(self, fn: Callable[_P, _T], /, *args: _P.args, **kwargs: _P.kwargs) -> Future[_T]:
        if self._free.acquire(blocking=False):
            return start_call("kvwatch look-up", partial(fn, *args, **kwargs), self._free.release)
        future: Future[_T] = Future()
        future.set_exception(socket.gaierror(socket.EAI_AGAIN, "too many look-ups without an answer"))
        return future

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        """Returns at once, whatever `wait` is; look-ups in progress end with the process."""
        del wait
        super().shutdown(wait=False, cancel_futures=cancel_futures)
