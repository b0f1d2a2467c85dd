"""Reads recordings, and forgives.

What can't be read is skipped with the reason, and a file that ends in the middle gives what came before. Plain JSON
lines and a single page of metrics as text are understood as well. Memory is bounded by the longest line allowed.
"""

from __future__ import annotations

import json
import math
import re
import zlib
from collections.abc import Iterable, Iterator
from itertools import chain
from pathlib import Path
from typing import IO, Any, TypeGuard

from kvwatch.recording import gpu_codec, server_info_codec
from kvwatch.recording.open_file import OpenFile, open_file
from kvwatch.recording.records import Record, RecordingError, Skipped

MAX_LINE = 32 << 20
"""Bytes of a line beyond which it is skipped: twice the largest page that is scraped by default."""
MAX_LABEL = 100
"""Characters of a run's name."""
_CHUNK = 1 << 20
#: What a page of metrics begins with: a comment or a sample.
_PAGE = re.compile(rb"#|[a-zA-Z_:][a-zA-Z0-9_:.]*(\{.*\})?[ \t]+([-+0-9.]|NaN)")


def read(path: Path | str, *, max_line: int = MAX_LINE) -> Iterator[Record | Skipped]:
    """The records of a file, or of what comes through a pipe; ``-`` is standard input.

    Raises `RecordingError`, at once, if there is none to read.
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
        gpu_codec.of_fields(fields),
        server_info_codec.of_fields(fields),
        fields.get("warmup") is True,
        str(fields.get("label") or "")[:MAX_LABEL],
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
