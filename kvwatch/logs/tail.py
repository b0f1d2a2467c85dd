"""Reads a log as it grows, beside everything else: the file may not be there yet, be rotated or be cut off.

A thread of its own looks every few seconds, reads what is new, a part of it at a time, and leaves what the log comes
to where others may take it without waiting. Nothing that happens to the file ends it.
"""

from __future__ import annotations

import os
import threading
from pathlib import Path
from types import TracebackType
from typing import Self

from kvwatch.core.told import LogVerdict
from kvwatch.logs.verdict import Explanation, Reader

EVERY_S = 2.0
_PART = 1 << 20
_BEFORE = 64 << 20
"""Of a file that is longer when it is first seen, only so much of its end is read."""


class Tail:
    """Follows one file while the block runs."""

    def __init__(self, path: Path, *, every_s: float = EVERY_S) -> None:
        self._path, self._every_s = path, every_s
        self._reader = Reader(kept=1)
        self._newest: LogVerdict | None = None
        self._file: tuple[int, int] | None = None
        self._at = 0
        self._end = threading.Event()
        self._thread = threading.Thread(target=self._follow, name=f"log {path.name}", daemon=True)

    def newest(self) -> LogVerdict | None:
        """What the log comes to so far; None before it tells anything."""
        return self._newest

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._end.set()
        self._thread.join(timeout=self._every_s)

    def _follow(self) -> None:
        while not self._end.is_set():
            try:
                if self.look():
                    self._newest = self.told()
            except OSError:
                pass  # not there, not readable, gone while it was read: look again
            self._end.wait(self._every_s)

    def look(self) -> bool:
        """Reads what is new; whether anything was."""
        with self._path.open("rb") as file:
            found = os.fstat(file.fileno())
            if self._file is None:
                self._at = max(found.st_size - _BEFORE, 0)
            elif (found.st_dev, found.st_ino) != self._file or found.st_size < self._at:
                self._reader.another_file()
                self._at = 0
            self._file = found.st_dev, found.st_ino
            file.seek(self._at)
            read = 0
            while not self._end.is_set() and (part := file.read(_PART)):
                self._reader.feed(part)
                read += len(part)
            self._at += read
        return read > 0

    def told(self) -> LogVerdict | None:
        """What it comes to of what was read."""
        before, newest = self._reader.starts()
        return _verdict(newest, _verdict(before, None)) if newest is not None else None


def _verdict(found: Explanation | None, before: LogVerdict | None) -> LogVerdict | None:
    if found is None:
        return None
    line, text = found.evidence[0] if found.evidence else (0, "")
    return LogVerdict(found.verdict, found.confidence, found.meaning, found.actions, line, text, before)
