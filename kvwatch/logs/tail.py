"""Follows a log while the server writes it. The file may be missing, rotated or truncated.

A thread reads what is new every few seconds, one part at a time, and keeps the verdict for others. No error of the
file ends the thread.

A rotated file stays open and is read to its end before the new one. A truncated file is recognised by the bytes
before the position that was reached, because by its size alone a file that grew again would be missed.
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
from kvwatch.logs.explanation import Explanation
from kvwatch.logs.log_reader import LogReader

EVERY_S = 2.0
_PART = 1 << 20
_MAX_BACKLOG = 64 << 20
"""Bytes at the end of a file that are read when it is first seen."""
_MARK = 4096
"""Bytes before the position that identify a file: enough for a line with its time."""
_JOIN_S = 0.5
"""How long `__exit__` waits for the thread, which a file system may block."""


class Tail:
    """Follows one file while the block runs."""

    def __init__(self, path: Path, *, every_s: float = EVERY_S) -> None:
        self._path, self._every_s = path, every_s
        self._reader = LogReader(max_lines=1)
        self._newest: LogVerdict | None = None
        self._trouble: OSError | None = None
        self._broken: Exception | None = None
        self._file: IO[bytes] | None = None
        self._position = 0
        self._mark = b""
        self._end = threading.Event()
        self._thread = threading.Thread(target=self._follow, name=f"log {path.name}", daemon=True)

    def newest(self) -> LogVerdict | None:
        """The verdict so far; None before the log shows anything. Raises an error of the reader once."""
        broken, self._broken = self._broken, None
        if broken is not None:
            raise broken
        return self._newest

    def trouble(self) -> OSError | None:
        """Why the last attempt could not read the file; None if it could."""
        return self._trouble

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._end.set()
        self._thread.join(timeout=_JOIN_S)

    def _follow(self) -> None:
        while not self._end.is_set():
            try:
                if self.read_new():
                    self._newest = self.verdict()
                self._trouble = None
            except OSError as error:
                self._trouble = error  # missing, not readable, removed while it was read: try again
            except Exception as error:  # noqa: BLE001 - an unexpected line must not end the thread
                self._broken, self._reader = error, LogReader(max_lines=1)
            self._end.wait(self._every_s)
        self.close()

    def read_new(self) -> bool:
        """Reads what is new; returns whether there was anything."""
        read = False
        try:
            found = self._path.stat()
        except OSError:
            self._finish()
            raise
        if self._file is not None and not os.path.samestat(os.fstat(self._file.fileno()), found):
            read = self._finish()
        if self._file is None:
            self._file = _open(self._path)
            self._position = max(found.st_size - _MAX_BACKLOG, 0)
        elif self._is_truncated(self._file):
            self._reader.next_file()
            self._position = 0
        return self._read_on(self._file) or read

    def verdict(self) -> LogVerdict | None:
        """The verdict on what was read."""
        before, newest = self._reader.last_starts()
        return _verdict(newest, _verdict(before, None)) if newest is not None else None

    def _read_on(self, file: IO[bytes]) -> bool:
        """Reads on from the position."""
        file.seek(self._position)
        read = False
        while not self._end.is_set() and (part := file.read(_PART)):
            self._position += len(part)
            self._mark = (self._mark + part)[-_MARK:]
            self._reader.feed(part)
            read = True
        return read

    def _finish(self) -> bool:
        """Reads the rest of a rotated file; returns whether there was any."""
        if self._file is None:
            return False
        read = not self._is_truncated(self._file) and self._read_on(self._file)
        self.close()
        self._reader.next_file()
        self._position, self._mark = 0, b""
        return read

    def close(self) -> None:
        """Closes the file."""
        if self._file is not None:
            self._file.close()
            self._file = None

    def _is_truncated(self, file: IO[bytes]) -> bool:
        file.seek(max(self._position - len(self._mark), 0))
        return file.read(len(self._mark)) != self._mark


def _open(path: Path) -> IO[bytes]:
    """Opens a regular file; a pipe would block the thread until somebody writes to it."""
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
