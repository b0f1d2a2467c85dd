"""Reads a log as it grows, beside everything else: the file may not be there yet, be rotated or be cut off.

A thread of its own looks every few seconds, reads what is new, a part of it at a time, and leaves what the log comes
to where others may take it without waiting. Nothing that happens to the file ends it.

A file that was moved away is read to its end before the one that took its place, since it is kept open. One that was
cut off is known by its size or, where it has grown beyond that again, by what stands before the place that was
reached.
"""

from __future__ import annotations

import errno
import os
import stat
import threading
from pathlib import Path
from types import TracebackType
from typing import IO, Self

from kvwatch.core.model.log_verdict import LogVerdict
from kvwatch.logs.explanation import Explanation, LogReader

EVERY_S = 2.0
_PART = 1 << 20
_BEFORE = 64 << 20
"""Of a file that is longer when it is first seen, only so much of its end is read."""
_MARK = 4096
"""Bytes before the place that was reached, by which a file is known again: enough to have a line with its time."""
_LET_GO_S = 0.5
"""How long the end waits for the thread, which a file system may hold: whoever ends it serves others meanwhile."""


class Tail:
    """Follows one file while the block runs."""

    def __init__(self, path: Path, *, every_s: float = EVERY_S) -> None:
        self._path, self._every_s = path, every_s
        self._reader = LogReader(kept=1)
        self._newest: LogVerdict | None = None
        self._trouble: OSError | None = None
        self._broken: Exception | None = None
        self._file: IO[bytes] | None = None
        self._at = 0
        self._mark = b""
        self._end = threading.Event()
        self._thread = threading.Thread(target=self._follow, name=f"log {path.name}", daemon=True)

    def newest(self) -> LogVerdict | None:
        """What the log comes to so far; None before it tells anything. Raises, once, what broke the reading."""
        broken, self._broken = self._broken, None
        if broken is not None:
            raise broken
        return self._newest

    def trouble(self) -> OSError | None:
        """Why the file could not be read when it was last looked at; None if it could."""
        return self._trouble

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._end.set()
        self._thread.join(timeout=_LET_GO_S)

    def _follow(self) -> None:
        while not self._end.is_set():
            try:
                if self.look():
                    self._newest = self.told()
                self._trouble = None
            except OSError as error:
                self._trouble = error  # not there, not readable, gone while it was read: look again
            except Exception as error:  # noqa: BLE001 - a line that nobody thought of must not end the following
                self._broken, self._reader = error, LogReader(kept=1)
            self._end.wait(self._every_s)
        self.close()

    def look(self) -> bool:
        """Reads what is new; whether anything was."""
        read = False
        try:
            there = self._path.stat()
        except OSError:
            self._leave()
            raise
        if self._file is not None and not os.path.samestat(os.fstat(self._file.fileno()), there):
            read = self._leave()
        if self._file is None:
            self._file = _opened(self._path)
            self._at = max(there.st_size - _BEFORE, 0)
        elif self._cut_off(self._file):
            self._reader.another_file()
            self._at = 0
        return self._take(self._file) or read

    def told(self) -> LogVerdict | None:
        """What it comes to of what was read."""
        before, newest = self._reader.starts()
        return _verdict(newest, _verdict(before, None)) if newest is not None else None

    def _take(self, file: IO[bytes]) -> bool:
        """Reads on from the place that was reached."""
        file.seek(self._at)
        read = False
        while not self._end.is_set() and (part := file.read(_PART)):
            self._at += len(part)
            self._mark = (self._mark + part)[-_MARK:]
            self._reader.feed(part)
            read = True
        return read

    def _leave(self) -> bool:
        """Reads the rest of a file that is no longer in its place; whether there was any."""
        if self._file is None:
            return False
        read = not self._cut_off(self._file) and self._take(self._file)
        self.close()
        self._reader.another_file()
        self._at, self._mark = 0, b""
        return read

    def close(self) -> None:
        """Lets go of the file."""
        if self._file is not None:
            self._file.close()
            self._file = None

    def _cut_off(self, file: IO[bytes]) -> bool:
        file.seek(max(self._at - len(self._mark), 0))
        return file.read(len(self._mark)) != self._mark


def _opened(path: Path) -> IO[bytes]:
    """Opens a file that can be read to an end; a pipe would hold the thread until somebody writes to it."""
    file = os.fdopen(os.open(path, os.O_RDONLY | os.O_NONBLOCK), "rb", buffering=0)
    if stat.S_ISREG(os.fstat(file.fileno()).st_mode):
        return file
    file.close()
    raise OSError(errno.EINVAL, "not a regular file", str(path))


def _verdict(found: Explanation | None, before: LogVerdict | None) -> LogVerdict | None:
    if found is None:
        return None
    line, text = found.evidence[0] if found.evidence else (0, "")
    return LogVerdict(found.verdict, found.confidence, found.meaning, found.actions, line, text, before)
