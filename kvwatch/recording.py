"""Recordings of raw scrapes: gzipped JSON lines, one a scrape.

``{"t": unix seconds, "status": 200, "body": "…", "content_type": "…"}``, or with ``"status": 0`` and ``"error"``
where the server could not be reached.

Reading forgives: what can't be read is skipped with the reason, and a file that ends in the middle gives what
came before. Plain JSON lines and a single page of metrics as text are understood as well. Memory is bounded by
the longest line allowed.
"""

from __future__ import annotations

import gzip
import json
import math
import re
import statistics
import zlib
from collections import deque
from collections.abc import Generator, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from types import TracebackType
from typing import IO, Any, Self, TypeGuard, cast

from kvwatch.core.outcome import Failure, Outcome, Pace, Scrape, ScrapeError

MAX_LINE = 64 << 20
"""Bytes of a line beyond which it is skipped: four times the largest page that is scraped by default."""
_SPACINGS = 10
"""So many spacings before a record, and as many after it, tell the pace it was recorded at."""
_AT_ONCE = 40
"""Records held at once at most: the time of some does not move."""
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


# -- reading ------------------------------------------------------------------------------------------------------


def read(path: Path | str, *, max_line: int = MAX_LINE) -> Iterator[Record | Skipped]:
    """The records of a file. Raises `RecordingError`, at once, if there is none to read."""
    path = Path(path)
    try:
        file: IO[bytes] = path.open("rb")
        packed = file.read(2) == _GZIP
        file.seek(0)
        if not path.stat().st_size:
            file.close()
            raise RecordingError(f"{path} is empty")
    except OSError as error:
        raise RecordingError(f"can't read {path}: {error.strerror or error}") from None
    return _records(path, cast("IO[bytes]", gzip.open(file)) if packed else file, file, max_line)


def _records(path: Path, stream: IO[bytes], file: IO[bytes], max_line: int) -> Iterator[Record | Skipped]:
    with file, stream:
        lines = _lines(stream, max_line)
        first = next((line for line in lines if isinstance(line, Skipped) or line[1].strip()), None)
        if first is None:
            return
        if not isinstance(first, Skipped) and _PAGE.match(first[1].lstrip()):
            yield _page(path, chain([first], lines), max_line)
            return
        for line in chain([first], lines):
            if isinstance(line, Skipped):
                yield line
            elif line[1].strip():
                yield _record(*line)


def _lines(stream: IO[bytes], max_line: int) -> Iterator[tuple[int, bytes] | Skipped]:
    number = 0
    while True:
        number += 1
        try:
            line = stream.readline(max_line + 1)
            if len(line) > max_line and not line.endswith(b"\n"):
                yield Skipped(number, f"longer than {max_line >> 20} MiB")
                while line and not line.endswith(b"\n"):
                    line = stream.readline(max_line + 1)
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
        yield number, line


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


def _page(path: Path, lines: Iterable[tuple[int, bytes] | Skipped], limit: int) -> Record | Skipped:
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
    return Record(
        path.stat().st_mtime, 200, body, content_type="application/openmetrics-text" if openmetrics else ""
    )


# -- to the judgement -----------------------------------------------------------------------------------------------


def spaced(records: Iterable[Record | Skipped]) -> Generator[tuple[Record | Skipped, float], None, None]:
    """Each record with the spacing that was kept around it, in seconds: the median of some twenty spacings, half of
    them before it and half after, so that a pace that changes is neither lost in time nor taken for an outage."""
    waiting: deque[tuple[Record | Skipped, int]] = deque()  # with how many spacings there were up to each
    lately: deque[float] = deque(maxlen=2 * _SPACINGS)
    seen, last = 0, None
    for item in records:
        if isinstance(item, Record):
            if last is not None and item.t > last:
                lately.append(item.t - last)
                seen += 1
            last = item.t
        waiting.append((item, seen))
        while waiting and (seen - waiting[0][1] >= _SPACINGS or len(waiting) > _AT_ONCE):
            yield waiting.popleft()[0], _median(lately)
    for item, before in waiting:
        while len(lately) > 1 and seen - len(lately) < before - _SPACINGS:
            lately.popleft()
        yield item, _median(lately)


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
        try:
            self._file = self.part.open("wb")
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
        try:
            self._file.write(data)
            self._file.flush()
        except OSError as error:
            raise RecordingError(f"can't write {self.part}: {error.strerror or error}") from None
        self.bytes += len(data)

    def discard(self) -> None:
        """Ends without a recording: what was written goes away, a file of that name from before stays."""
        if not self._file.closed:
            self._file.close()
            self.part.unlink(missing_ok=True)

    def close(self) -> None:
        if self._file.closed:
            return
        if not self.records:
            self.discard()
            return
        try:
            self._put(self._packer.flush())
        finally:
            self._file.close()
        if self.path.exists() and not self._force:
            raise RecordingError(f"{self.path} came to be meanwhile; the recording is in {self.part}")
        self.part.replace(self.path)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
