"""The log of a watched server: its newest verdict, and whether the file is readable."""

from __future__ import annotations

import logging
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import Protocol, Self

from kvwatch.core.model.log_verdict import LogVerdict
from kvwatch.sidecar.log import log_event


class FollowedLog(Protocol):
    """A log that is read in the background while the block runs. Its methods return at once.

    `newest` raises an error of the reader once; reading continues. `trouble` is why the file can't be read now.
    """

    def newest(self) -> LogVerdict | None: ...
    def trouble(self) -> OSError | None: ...
    def __enter__(self) -> Self: ...
    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None: ...


FollowLog = Callable[[Path], FollowedLog]


class LogStatus:
    """Returns the newest verdict at each call, and logs each change between readable and unreadable once."""

    def __init__(self, target: str, file: Path, log: FollowedLog) -> None:
        self._fields = {"target": target, "file": str(file)}
        self._followed = log
        self._reason = ""

    def __call__(self) -> LogVerdict | None:
        trouble = self._followed.trouble()
        reason = (trouble.strerror or str(trouble)) if trouble is not None else ""
        if reason != self._reason:
            self._reason = reason
            if isinstance(trouble, FileNotFoundError):  # the server may not have started yet
                log_event(logging.INFO, "server log does not exist yet", **self._fields)
            elif reason:
                log_event(logging.WARNING, "server log is not readable", **self._fields, why=reason)
            else:
                log_event(logging.INFO, "server log is readable", **self._fields)
        return self._followed.newest()
