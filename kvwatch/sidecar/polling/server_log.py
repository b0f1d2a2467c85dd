"""The log of a watched server, which somebody reads beside: what it tells, and whether it can be read at all."""

from __future__ import annotations

import logging
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import Protocol, Self

from kvwatch.core.model.log_verdict import LogVerdict
from kvwatch.sidecar.log import log_event


class FollowedLog(Protocol):
    """A log that is read beside, while the block runs. What it tells so far is asked at every scrape: no wait.

    `newest` raises, once, what broke the reading, which goes on; `trouble` is why the file can't be read at present.
    """

    def newest(self) -> LogVerdict | None: ...
    def trouble(self) -> OSError | None: ...
    def __enter__(self) -> Self: ...
    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None: ...


FollowLog = Callable[[Path], FollowedLog]


class LogStatus:
    """What a log tells so far, for who asks at every scrape. That it can't be read is said once, and when it can."""

    def __init__(self, target: str, file: Path, log: FollowedLog) -> None:
        self._target, self._file, self._followed = target, file, log
        self._why = ""

    def __call__(self) -> LogVerdict | None:
        trouble = self._followed.trouble()
        why = (trouble.strerror or str(trouble)) if trouble is not None else ""
        if why != self._why:
            self._why = why
            if isinstance(trouble, FileNotFoundError):  # a server that is yet to start has written none
                self._say(logging.INFO, "the log of the server is not there: it is read as soon as it is")
            elif why:
                self._say(logging.WARNING, "the log of the server can't be read", why=why)
            else:
                self._say(logging.INFO, "the log of the server is read")
        return self._followed.newest()

    def _say(self, level: int, message: str, **fields: str) -> None:
        log_event(level, message, target=self._target, file=str(self._file), **fields)
