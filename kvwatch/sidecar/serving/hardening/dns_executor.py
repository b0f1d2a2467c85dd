"""Name look-ups that nobody has to wait for at the end.

The system's resolver blocks a thread, for half a minute if name servers do not answer, and can't be interrupted.
The threads of the standard library's executors are waited for at the stop and at the exit of the interpreter;
these are daemons, which are not. A look-up holds nothing that would have to be put away.
"""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import ParamSpec, TypeVar

MOST = 64
_P = ParamSpec("_P")
_T = TypeVar("_T")


class DnsExecutor(ThreadPoolExecutor):
    """An executor for an event loop's look-ups, which is all that kvwatch has the loop's executor do.

    Each gets a thread of its own; beyond `most` that are still under way, further ones fail at once.
    """

    def __init__(self, most: int = MOST) -> None:
        super().__init__(max_workers=1)  # whose threads are never started
        self._free = threading.Semaphore(most)

    def submit(self, fn: Callable[_P, _T], /, *args: _P.args, **kwargs: _P.kwargs) -> Future[_T]:
        future: Future[_T] = Future()
        if not self._free.acquire(blocking=False):
            future.set_exception(
                socket.gaierror(socket.EAI_AGAIN, "too many look-ups under way that are not answered")
            )
            return future

        def run() -> None:
            try:
                if not future.set_running_or_notify_cancel():
                    return
                try:
                    result = fn(*args, **kwargs)
                except BaseException as error:  # noqa: BLE001 - it is whose future this is that it concerns
                    future.set_exception(error)
                else:
                    future.set_result(result)
            finally:
                self._free.release()

        threading.Thread(target=run, name="kvwatch look-up", daemon=True).start()
        return future

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        """Returns at once, whatever `wait` says; look-ups under way end with the process, if not before."""
        del wait
        super().shutdown(wait=False, cancel_futures=cancel_futures)
