"""Recordings of raw scrapes: gzipped JSON lines, one a scrape.

``{"t": unix seconds, "status": 200, "body": "…", "content_type": "…"}``, or with ``"status": 0`` and ``"error"``
where the server could not be reached.

Reading forgives: what can't be read is skipped with the reason, and a file that ends in the middle gives what
came before. Plain JSON lines and a single page of metrics as text are understood as well. Memory is bounded by
the longest line allowed.
"""

from __future__ import annotations

import contextlib
import gzip
import io
import json
import math
import os
import re
import statistics
import sys
import zlib
from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from pathlib import Path
from types import TracebackType
from typing import IO, TYPE_CHECKING, Any, Self, TypeGuard, cast

from kvwatch.core.outcome import Failure, Outcome, Pace, Scrape, ScrapeError

if TYPE_CHECKING:
    from _typeshed import WriteableBuffer

MAX_LINE = 32 << 20
"""Bytes of a line beyond which it is skipped: twice the largest page that is scraped by default."""
_CHUNK = 1 << 20
_SPACINGS = 10
"""So many spacings before a record, and as many after it, tell the pace it was recorded at."""
_AT_ONCE = 40
"""Records held at once at most: the time of some does not move."""
_BYTES_AT_ONCE = 64 << 20
"""Bytes of pages beyond which no more records are held."""
_DEFAULT_SPACING_S = 1.0
_GZIP = b"\x1f\x8b"
#: What a page of metrics begins with: a comment or a sample.
_PAGE = re.compile(rb"#|[a-zA-Z_:][a-zA-Z0-9_:.]*(\{.*\})?[ \t]+([-+0-9.]|NaN)")

#: What the text of an error says, to the kind of failure; the first that fits.
_KINDS: tuple[tuple[re.Pattern[str], Failure], ...] = tuple(
    (re.compile(pattern, re.IGNORECASE), kind)
    for pattern, kind in (
        (r"refused|errno 111|errno 61", Failure.REFUSED),
        (r"time[d]?[ -]?out|no (whole )?answer|errno 110", Failure.TIMEOUT),
        (r"name resolution|resolve|getaddrinfo|name or service|nodename|\bdns\b", Failure.DNS),
        (r"\bssl\b|\btls\b|certificate", Failure.TLS),
        (r"http (status|error)|status code", Failure.HTTP_STATUS),
        (r"too large|longer than|body size", Failure.TOO_LARGE),
        (r"malformed|compressed|encoded", Failure.MALFORMED),
    )
)


class RecordingError(Exception):
    """A file that can't be used as a recording; the text says why and what to do."""


class WriteError(RecordingError):
    """A recording can't be written any further, as when the disk is full."""


@dataclass(frozen=True, slots=True)
class Record:
    """One scrape as it came; `status` is that of HTTP, or 0 with `error`."""

    t: float
    status: int
    body: bytes = b""
    error: str = ""
    content_type: str = ""


@dataclass(frozen=True, slots=True)
class Skipped:
    """A line that could not be read, or the place where the file breaks off."""

    line: int
    reason: str


@dataclass(frozen=True, slots=True)
class Step:
    """The clock of a recording went back by some seconds; `t` is what is taken instead, after the record before."""

    t: float
    back_s: float

    @property
    def text(self) -> str:
        return (
            f"the clock of the recording went back by {self.back_s:g} s here:"
            " how much time passed is not known, and taken for as much as between the records before"
        )


# -- reading ------------------------------------------------------------------------------------------------------


def read(path: Path | str, *, max_line: int = MAX_LINE) -> Iterator[Record | Skipped]:
    """The records of a file, or of what comes through a pipe; ``-`` is standard input.

    Raises `RecordingError`, at once, if there is none to read.
    """
    name = "standard input" if str(path) == "-" else str(path)
    try:
        file = _standard_input() if str(path) == "-" else Path(path).open("rb")  # noqa: SIM115
        head = file.read(len(_GZIP))
        if not head:
            file.close()
            raise RecordingError(f"{name} is empty")
        written = os.fstat(file.fileno()).st_mtime
    except OSError as error:
        raise RecordingError(f"can't read {name}: {error.strerror or error}") from None
    whole = cast("IO[bytes]", io.BufferedReader(_Whole(head, file), _CHUNK))
    stream = cast("IO[bytes]", gzip.GzipFile(fileobj=whole)) if head == _GZIP else whole
    return _records(written, stream, file, max_line)


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


def _records(written: float, stream: IO[bytes], file: IO[bytes], max_line: int) -> Iterator[Record | Skipped]:
    with file, stream:
        lines = _lines(stream, max_line)
        first = next((line for line in lines if isinstance(line, Skipped) or line[1].strip()), None)
        if first is None:
            return
        if not isinstance(first, Skipped) and _PAGE.match(first[1].lstrip()):
            yield _page(written, chain([first], lines), max_line)
            return
        yield first if isinstance(first, Skipped) else _record(*first)
        del first  # no line is held while the next is read
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
            yield Skipped(
                number, "the file is cut short: recording was interrupted, or it was not copied whole"
            )
            return
        except (OSError, zlib.error) as error:
            yield Skipped(number, f"the file is damaged from here on: {error}")
            return
        if not line:
            return
        held = [line]
        del line
        yield number, held.pop()


def _record(number: int, line: bytes) -> Record | Skipped:
    try:
        fields = json.loads(line)
    except UnicodeDecodeError:
        return Skipped(number, "not UTF-8")
    except (ValueError, RecursionError):
        return Skipped(number, "not JSON")
    if not isinstance(fields, dict):
        return Skipped(number, "not an object")
    t, status, body = fields.get("t"), fields.get("status"), fields.get("body", "")
    if not _is_number(t):
        return Skipped(number, 'no time: "t" must be unix seconds')
    if isinstance(status, bool) or not isinstance(status, int):
        return Skipped(number, 'no "status"')
    if status == 200 and not isinstance(fields.get("body"), str):
        return Skipped(number, 'status 200 and no "body"')
    return Record(
        float(t),
        status,
        body.encode(errors="backslashreplace") if isinstance(body, str) else b"",
        str(fields.get("error") or ""),
        str(fields.get("content_type") or ""),
    )


def _is_number(value: Any) -> TypeGuard[float]:
    try:
        return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
    except OverflowError:
        return False


def _page(written: float, lines: Iterable[tuple[int, bytes] | Skipped], limit: int) -> Record | Skipped:
    """A page of metrics as one record of the time at which the file was written."""
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


# -- to the judgement -----------------------------------------------------------------------------------------------


def spaced(
    records: Iterable[Record | Skipped], stepped: Callable[[Step], None] = lambda _: None
) -> Generator[tuple[Record | Skipped, float], None, None]:
    """Each record with the spacing that was kept around it, in seconds: the median of some twenty spacings, half of
    them before it and half after, so that a pace that changes is neither lost in time nor taken for an outage.

    Time only goes on: where the clock of the recording was put back, `stepped` is told, and that record and those
    after it are taken as later.
    """
    waiting: deque[tuple[Record | Skipped, int]] = deque()  # with how many spacings there were up to each
    lately: deque[float] = deque(maxlen=2 * _SPACINGS)
    seen, last, size = 0, None, 0
    for item in _onward(records, stepped):
        if isinstance(item, Record):
            if last is not None and item.t > last:
                lately.append(item.t - last)
                seen += 1
            last = item.t
        waiting.append((item, seen))
        size += _size(item)
        del item
        while waiting and (
            seen - waiting[0][1] >= _SPACINGS or len(waiting) > _AT_ONCE or size > _BYTES_AT_ONCE
        ):
            size -= _size(waiting[0][0])
            yield waiting.popleft()[0], _median(lately)
    for item, before in waiting:
        while len(lately) > 1 and seen - len(lately) < before - _SPACINGS:
            lately.popleft()
        yield item, _median(lately)


def _onward(
    records: Iterable[Record | Skipped], stepped: Callable[[Step], None]
) -> Iterator[Record | Skipped]:
    """The records by a clock that is never put back."""
    lately: deque[float] = deque(maxlen=2 * _SPACINGS)
    shift, last = 0.0, None
    for item in records:
        if isinstance(item, Skipped):
            yield item
            continue
        t = item.t + shift
        if last is not None and t < last:
            step = Step(last + _median(lately), last - t)
            stepped(step)
            shift += step.t - t
            t = step.t
        elif last is not None and t > last:
            lately.append(t - last)
        last = t
        yield replace(item, t=t) if shift else item


def _size(item: Record | Skipped) -> int:
    return len(item.body) if isinstance(item, Record) else 0


def _median(spacings: Sequence[float]) -> float:
    return statistics.median(spacings) if spacings else _DEFAULT_SPACING_S


def outcome(record: Record, *, interval_s: float, pace: Pace = Pace.FULL) -> Outcome:
    """A record as what a scrape came to."""
    if record.status == 200:
        return Scrape(
            record.body, record.t, interval_s=interval_s, pace=pace, content_type=record.content_type
        )
    if record.status:
        detail = f"the answer is HTTP status {record.status}"
        return ScrapeError(Failure.HTTP_STATUS, detail, record.t, interval_s=interval_s)
    detail = " ".join(record.error.split())[:200] or "not reachable"
    return ScrapeError(failure_of(detail), detail, record.t, interval_s=interval_s)


def failure_of(text: str) -> Failure:
    """The kind of failure that the text of an error tells."""
    return next((kind for pattern, kind in _KINDS if pattern.search(text)), Failure.CONNECTION)


# -- writing ------------------------------------------------------------------------------------------------------


class Writer:
    """Writes a recording to ``FILE.part``, which becomes ``FILE`` when closed.

    Every record is flushed through the compression, so an interrupted recording can be read up to the last one.
    One without any record is no recording: nothing is left of it.
    """

    def __init__(self, path: Path | str, *, force: bool = False) -> None:
        self.path = Path(path)
        self.part = self.path.with_name(self.path.name + ".part")
        self.records = 0
        self.bytes = 0
        self._force = force
        if self.path.is_dir():
            raise RecordingError(f"{self.path} is a folder; name a file in it")
        if not force:
            for taken in (self.path, self.part):
                if taken.exists():
                    raise RecordingError(
                        f"{taken} is there already; choose another name or --force to overwrite it"
                    )
        self._broken = False
        try:
            self._file = self.part.open("wb", buffering=0)
        except OSError as error:
            raise RecordingError(f"can't write {self.part}: {error.strerror or error}") from None
        self._packer = zlib.compressobj(wbits=31)

    def write(self, record: Record) -> None:
        fields: dict[str, Any] = {"t": round(record.t, 3), "status": record.status}
        if record.status:
            fields["body"] = record.body.decode(errors="replace")
        if record.content_type:
            fields["content_type"] = record.content_type
        if record.error:
            fields["error"] = record.error
        line = json.dumps(fields, ensure_ascii=False, separators=(",", ":")).encode(errors="replace") + b"\n"
        self._put(self._packer.compress(line) + self._packer.flush(zlib.Z_SYNC_FLUSH))
        self.records += 1

    def _put(self, data: bytes) -> None:
        left = memoryview(data)
        try:
            while left:
                left = left[self._file.write(left) :]
        except OSError as error:
            self._broken = True
            with contextlib.suppress(OSError):  # no half of a record; one is understood, too
                self._file.truncate(self.bytes)
            raise WriteError(f"can't write {self.part}: {error.strerror or error}") from None
        self.bytes += len(data)

    def discard(self) -> None:
        """Ends without a recording: what was written goes away, a file of that name from before stays."""
        if not self._file.closed:
            self._file.close()
            self.part.unlink(missing_ok=True)

    def close(self) -> None:
        """Ends the recording. Of one that could not be written to its end what was written is kept."""
        if self._file.closed:
            return
        if not self.records:
            self.discard()
            return
        try:
            if not self._broken:
                self._put(self._packer.flush())
        finally:
            self._file.close()
            self._name()

    def _name(self) -> None:
        if self.path.exists() and not self._force:
            raise RecordingError(f"{self.path} came to be meanwhile; the recording is in {self.part}")
        try:
            self.part.replace(self.path)
        except OSError as error:
            raise WriteError(
                f"can't name it {self.path}: {error.strerror or error}; the recording is in {self.part}"
            ) from None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
