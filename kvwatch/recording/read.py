"""Reads recordings, and tolerates damage.

* A line that can't be read is skipped, with the reason. A file that breaks off yields the records before the break.
* Plain JSON lines, and a single page of metrics as text, are read as well.
* Memory is bounded by the longest line allowed.
"""

from __future__ import annotations

import gzip
import io
import json
import math
import os
import re
import sys
import zlib
from collections.abc import Iterable, Iterator
from itertools import chain
from pathlib import Path
from types import TracebackType
from typing import IO, TYPE_CHECKING, Any, Self, TypeGuard, cast

from kvwatch.recording.format import Record, RecordingError, Skipped, from_fields

if TYPE_CHECKING:
    from _typeshed import WriteableBuffer

MAX_LINE = 32 << 20
"""Longest line that is read, bytes: twice the largest page that is scraped by default."""
_CHUNK = 1 << 20
_GZIP = b"\x1f\x8b"
_PAGE = re.compile(rb"#|[a-zA-Z_:][a-zA-Z0-9_:.]*(\{.*\})?[ \t]+([-+0-9.]|NaN)")
"""The beginning of a page of metrics: a comment or a sample."""


class OpenFile:
    """An open file or pipe; `stream` yields its bytes, unpacked if its first bytes are those of gzip.

    `written` is the file's modification time (unix seconds). `size` is its length in bytes; None for a pipe.
    """

    def __init__(self, name: str, file: io.BufferedReader) -> None:
        self.name = name
        self.damage = ""
        """Why the pieces ended before the end of the file, if they did."""
        self._file = file
        head = file.read(len(_GZIP))
        self.empty = not head
        found = os.fstat(file.fileno())
        self.written = found.st_mtime
        self.size = found.st_size or None
        whole = cast("IO[bytes]", io.BufferedReader(_Rejoined(head, file), _CHUNK))
        self.stream = cast("IO[bytes]", gzip.GzipFile(fileobj=whole)) if head == _GZIP else whole
        self._read = len(head)

    def pieces(self, size: int) -> Iterator[tuple[bytes, int]]:
        """The bytes in pieces of at most `size`, each with how many bytes of the file were read up to it."""
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
            return self._file.seek(0, io.SEEK_CUR)
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


class _Rejoined(io.RawIOBase):
    """A stream with the bytes that were already read from it put back; a pipe can't be rewound."""

    def __init__(self, head: bytes, rest: io.BufferedReader) -> None:
        self._head, self._rest = head, rest

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: WriteableBuffer) -> int:
        found = self._head or self._rest.read1(memoryview(buffer).nbytes)
        self._head = b""
        memoryview(buffer)[: len(found)] = found
        return len(found)


def open_file(path: Path | str) -> OpenFile:
    """Opens a file; ``-`` is standard input. Raises `RecordingError` if it can't be read."""
    standard = str(path) == "-"
    name = "standard input" if standard else str(path)
    try:
        return OpenFile(name, _standard_input() if standard else Path(path).open("rb"))
    except OSError as error:
        raise RecordingError(f"can't read {name}: {error.strerror or error}") from None


def _standard_input() -> io.BufferedReader:
    if sys.stdin is None:
        raise RecordingError("can't read standard input: it is closed")
    return cast("io.BufferedReader", sys.stdin.buffer)


def read(path: Path | str, *, max_line: int = MAX_LINE) -> Iterator[Record | Skipped]:
    """The records of a file or pipe; ``-`` is standard input.

    Raises `RecordingError` at the call, not at the first record, if the file can't be read or is empty.
    """
    file = open_file(path)
    if file.empty:
        with file:
            raise RecordingError(f"{file.name} is empty")
    return _records(file, max_line)


def _records(file: OpenFile, max_line: int) -> Iterator[Record | Skipped]:
    with file:
        lines = _lines(file.stream, max_line)
        first = next((line for line in lines if isinstance(line, Skipped) or line[1].strip()), None)
        if first is None:
            return
        if not isinstance(first, Skipped) and _PAGE.match(first[1].lstrip()):
            yield _page(file.written, chain([first], lines), max_line)
            return
        yield first if isinstance(first, Skipped) else _record(*first)
        del first  # frees the line before the next is read
        for line in lines:
            if isinstance(line, Skipped):
                yield line
            elif line[1].strip():
                item = _record(*line)
                del line
                yield item
                del item


def _lines(stream: IO[bytes], max_line: int) -> Iterator[tuple[int, bytes] | Skipped]:
    number = 0
    while True:
        number += 1
        try:
            line = stream.readline(max_line + 1)
            if len(line) > max_line and not line.endswith(b"\n"):
                del line
                yield Skipped(number, f"longer than {max_line >> 20} MiB")
                while (part := stream.readline(_CHUNK)) and not part.endswith(b"\n"):
                    pass
                continue
        except EOFError:
            reason = "the file is cut short: recording was interrupted, or it was not copied whole"
            yield Skipped(number, reason)
            return
        except (OSError, zlib.error) as error:
            yield Skipped(number, f"the file is damaged from here on: {error}")
            return
        if not line:
            return
        kept = [line]
        del line
        yield number, kept.pop()  # no reference stays here while the caller has the line


def _record(number: int, line: bytes) -> Record | Skipped:
    try:
        fields = json.loads(line)
    except UnicodeDecodeError:
        return Skipped(number, "not UTF-8")
    except (ValueError, RecursionError):
        return Skipped(number, "not JSON")
    if not isinstance(fields, dict):
        return Skipped(number, "not an object")
    t, status = fields.get("t"), fields.get("status")
    if not _is_number(t):
        return Skipped(number, 'no time: "t" must be unix seconds')
    if isinstance(status, bool) or not isinstance(status, int):
        return Skipped(number, 'no "status"')
    if status == 200 and not isinstance(fields.get("body"), str):
        return Skipped(number, 'status 200 and no "body"')
    return from_fields(float(t), status, fields)


def _is_number(value: Any) -> TypeGuard[float]:
    try:
        return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
    except OverflowError:
        return False


def _page(written: float, lines: Iterable[tuple[int, bytes] | Skipped], limit: int) -> Record | Skipped:
    """A page of metrics as one record; its time is the modification time of the file."""
    parts: list[bytes] = []
    size = 0
    for line in lines:
        if isinstance(line, Skipped):
            return line
        parts.append(line[1])
        size += len(line[1])
        if size > limit:
            return Skipped(line[0], f"a page longer than {limit >> 20} MiB")
    body = b"".join(parts)
    openmetrics = body.rstrip().endswith(b"# EOF")
    return Record(written, 200, body, content_type="application/openmetrics-text" if openmetrics else "")
