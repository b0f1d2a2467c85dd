"""Opens a file, or what comes through a pipe; gzipped or not, which its first bytes tell."""

from __future__ import annotations

import gzip
import io
import os
import sys
import zlib
from collections.abc import Iterator
from pathlib import Path
from types import TracebackType
from typing import IO, TYPE_CHECKING, Self, cast

from kvwatch.recording.records import RecordingError

if TYPE_CHECKING:
    from _typeshed import WriteableBuffer

_CHUNK = 1 << 20
_GZIP = b"\x1f\x8b"


class OpenFile:
    """What was opened: `stream` gives its bytes unpacked, and `empty` says that there are none.

    `written` is when the file was last written (unix seconds), `size` its length as it lies there, None of a pipe.
    """

    def __init__(self, name: str, file: io.BufferedReader) -> None:
        self.name = name
        self.damage = ""
        """Why the pieces ended before their end, if they did."""
        self._file = file
        head = file.read(len(_GZIP))
        self.empty = not head
        found = os.fstat(file.fileno())
        self.written = found.st_mtime
        self.size = found.st_size or None
        whole = cast("IO[bytes]", io.BufferedReader(_Whole(head, file), _CHUNK))
        self.stream = cast("IO[bytes]", gzip.GzipFile(fileobj=whole)) if head == _GZIP else whole
        self._read = len(head)

    def pieces(self, size: int) -> Iterator[tuple[bytes, int]]:
        """The bytes, `size` at most at a time, and how many of the file were read for them."""
        while not self.damage:
            try:
                piece = self.stream.read1(size) if hasattr(self.stream, "read1") else self.stream.read(size)
            except EOFError:
                self.damage = f"{self.name} is cut short: it was not copied whole"
                return
            except (OSError, zlib.error) as error:
                self.damage = f"{self.name} is damaged: {error}"
                return
            if not piece:
                return
            yield piece, self._position(len(piece))

    def _position(self, more: int) -> int:
        try:
            return self._file.tell()
        except OSError:
            self._read += more
            return self._read

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stream.close()
        self._file.close()


def open_file(path: Path | str) -> OpenFile:
    """Opens a file; ``-`` is standard input. Raises `RecordingError`, at once, if it can't be read."""
    name = "standard input" if str(path) == "-" else str(path)
    try:
        return OpenFile(name, _standard_input() if str(path) == "-" else Path(path).open("rb"))
    except OSError as error:
        raise RecordingError(f"can't read {name}: {error.strerror or error}") from None


def _standard_input() -> io.BufferedReader:
    if sys.stdin is None:
        raise RecordingError("can't read standard input: it is closed")
    return cast("io.BufferedReader", sys.stdin.buffer)


class _Whole(io.RawIOBase):
    """A stream of which the beginning was read already, with it: a pipe can't be wound back."""

    def __init__(self, head: bytes, rest: io.BufferedReader) -> None:
        self._head, self._rest = head, rest

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: WriteableBuffer) -> int:
        found = self._head or self._rest.read1(memoryview(buffer).nbytes)
        self._head = b""
        memoryview(buffer)[: len(found)] = found
        return len(found)
