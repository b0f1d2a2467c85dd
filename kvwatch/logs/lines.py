"""The lines of a log that matter, without what was put before them on the way.

A log passes through consoles, containers and collectors, and each adds something: colours, time stamps, names of
pods, JSON. `unwrapped` takes that off; `Finder` finds the lines that hold one of the wanted words, so that the
other hundreds of megabytes are never decoded.
"""

from __future__ import annotations

import codecs
import json
import re
from collections.abc import Iterator, Sequence
from typing import NamedTuple

MAX_LINE = 1 << 16
"""Bytes of a line that are looked at; what is beyond is cut off."""
FOLLOWING = 5
"""Lines after one that may go on: a message that a console of 60 columns wrapped has no more."""
_LONG_JSON = 1 << 20
"""Bytes of a line that are kept at all: a traceback in a record of JSON is one line."""

#: Levels of lines that only inform: those may quote anything, a request's prompt too.
INFORMS = frozenset({"DEBUG", "INFO", "WARNING"})

_ANSI = re.compile(r"\x1b\[[0-?]*[ -/]*[@-~]|\x1b\][^\x07\x1b]*(?:\x07|\x1b\\)|\x1b[@-_]")
_ISO = re.compile(
    r"\[?(?P<date>\d{4}-(?P<when>\d\d-\d\d[T ]\d\d:\d\d:\d\d))(?:[.,]\d+)?(?:Z|[+-]\d\d:?\d\d)?\]?"
    r"\s+(?:std(?:out|err) [FP] )?(?:- )?"
)
_BEFORE = re.compile(
    r"\[pod/[^\]\s]+\]\s"  # kubectl logs --prefix
    r"|[A-Z][a-z]{2} [ \d]\d \d\d:\d\d:\d\d \S+ [^\s:\[]+(?:\[\d+\])?: "  # journald, syslog
    r"|[\w.-]+\s*\| "  # docker compose
)
_PLACE = r"[\w./-]+\.py:\d+\]"
_RECORD = re.compile(
    r"(?:\((?P<source>[A-Za-z][\w .=,/:-]{0,80})\)\s*)?"
    r"(?:(?P<level>DEBUG|INFO|WARNING|ERROR|CRITICAL):?\s+)?"
    r"(?:(?P<when>\d\d-\d\d \d\d:\d\d:\d\d)(?:[.,]\d+)?\s+)?"
    rf"(?:\[?{_PLACE}\s?)?"
)
#: What a record of vLLM begins with, wherever it stands: whatever is before it was added on the way.
_ANYWHERE = re.compile(
    r"(?:\([A-Z]\w*[^()]{0,60}\)\s*)?(?:DEBUG|INFO|WARNING|ERROR|CRITICAL)\s+\d\d-\d\d \d\d:\d\d:\d\d\s"
)
_SEARCHED = 300
_MESSAGE, _LEVEL, _TIME = (
    ("message", "msg", "log", "MESSAGE", "textPayload", "text", "event"),
    ("level", "levelname", "severity", "lvl"),
    ("time", "timestamp", "asctime", "ts", "@timestamp"),
)


class LogLine(NamedTuple):
    """A line as vLLM wrote it.

    `number` counts from 1, in the file. `level` is empty where the line says none (as those of a traceback on
    standard error do), `source` the process that wrote it (``EngineCore_DP0``, ``Worker_TP1``). `when` is
    ``month-day hour:minute:second``, empty if unknown. `following`: nobody looked for it; it may be the rest of the
    line before.
    """

    number: int
    text: str
    level: str = ""
    source: str = ""
    when: str = ""
    following: bool = False


class Finder:
    """Finds lines that hold a wanted word, in bytes that come in pieces of any size.

    After a line with one of the words in `opening` come the next few too: they may be its rest.
    """

    def __init__(self, words: Sequence[str], opening: Sequence[str]) -> None:
        self._words = [(word.encode(), False) for word in words] + [(word.encode(), True) for word in opening]
        self._rest = bytearray()
        self._number = 0
        """Lines before what is held back."""
        self._owed = 0
        self._informs = False
        """The newest line only informs: what follows it is the rest of no error."""
        self._wide: codecs.IncrementalDecoder | None = None
        self._first: bytes | None = b""
        """What came while it is open how many bytes a character has; None once that is known."""

    @property
    def lines(self) -> int:
        """Lines seen whole so far."""
        return self._number

    def feed(self, data: bytes) -> Iterator[LogLine]:
        """The wanted lines in what is complete with `data`."""
        data = self._utf8(data).replace(
            b"\0", b""
        )  # a file that was cut off while it was written is full of them
        end = data.rfind(b"\n") + 1
        if end:
            block = bytes(self._rest + data[:end])
            self._rest.clear()
            yield from self._found(_without_overwritten(block))
        self._hold(data[end:])

    def close(self) -> Iterator[LogLine]:
        """The last line, if it has no end."""
        if self._rest:
            block = bytes(self._rest + b"\n")
            self._rest.clear()
            yield from self._found(_without_overwritten(block))

    def _utf8(self, data: bytes) -> bytes:
        """Consoles of Windows write two bytes a character, and say so at the beginning."""
        if self._first is not None:
            data = self._first + data
            self._first = data if len(data) < len(codecs.BOM_UTF16) else None
            if self._first is not None:
                return b""
            if data.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
                self._wide = codecs.getincrementaldecoder("utf-16")("replace")
        return self._wide.decode(data).encode("utf-8", "replace") if self._wide else data

    def _hold(self, rest: bytes) -> None:
        """Keeps the beginning of a line, and of a very long one no more than that, nor what was overwritten."""
        self._rest += rest
        if len(self._rest) > 2 * _LONG_JSON:
            returns = self._rest.endswith(b"\r")
            kept = _without_overwritten(bytes(self._rest))[:_LONG_JSON]
            self._rest = bytearray(kept + b"\r" if returns else kept)

    def _found(self, block: bytes) -> Iterator[LogLine]:
        starts = self._starts(block)
        counted = 0
        for start in sorted(starts):
            self._number += block.count(b"\n", counted, start)
            counted = start
            if not starts[start] and self._informs:
                continue
            raw = block[start : min(block.find(b"\n", start), start + _LONG_JSON)]
            for line in unwrapped(raw, self._number + 1):
                yield line._replace(following=True) if not starts[start] else line
                self._informs = line.level in INFORMS
        self._number += block.count(b"\n", counted)

    def _starts(self, block: bytes) -> dict[int, bool]:
        """Where wanted lines start, and whether a word was found in them."""
        starts: dict[int, bool] = {}
        opening: set[int] = set()
        for word, opens in self._words:
            at = block.find(word)
            while at >= 0:
                start = block.rfind(b"\n", 0, at) + 1
                if at + len(word) <= start + _LONG_JSON:
                    starts[start] = True
                    if opens:
                        opening.add(start)
                at = block.find(word, block.find(b"\n", at))
        owed = self._follow(block, 0, self._owed, starts)
        for start in opening:
            owed = max(owed, self._follow(block, block.find(b"\n", start) + 1, FOLLOWING, starts))
        self._owed = owed
        return starts

    @staticmethod
    def _follow(block: bytes, start: int, count: int, starts: dict[int, bool]) -> int:
        """Wants `count` more lines from `start` on; how many of them are yet to come."""
        while count and start < len(block):
            starts.setdefault(start, False)
            start = block.find(b"\n", start) + 1
            count -= 1
        return count


def _without_overwritten(block: bytes) -> bytes:
    """The lines as a console shows them in the end: a bar of progress returns to the beginning and writes over it."""
    block = block.replace(b"\r\n", b"\n")
    if b"\r" not in block:
        return block
    return b"\n".join(line.rstrip(b"\r").rpartition(b"\r")[2] for line in block.split(b"\n"))


def unwrapped(raw: bytes, number: int) -> Iterator[LogLine]:
    """A line of a file as the line, or the lines, that vLLM wrote."""
    text = raw.decode("utf-8", "replace").lstrip("\ufeff")
    stamp = ""
    if text.lstrip().startswith("{") and (fields := _json(text)):
        message, level, stamp = fields
        for one in message.splitlines():
            line = _plain(one[:MAX_LINE], number)
            yield line._replace(level=line.level or level, when=line.when or stamp)
        return
    yield _plain(text[:MAX_LINE], number)


def _json(text: str) -> tuple[str, str, str] | None:
    """Message, level and time of a line of JSON; None if it is no record of a log."""
    try:
        fields = json.loads(text)
    except (ValueError, RecursionError):
        return None
    if not isinstance(fields, dict):
        return None
    message = next((fields[name] for name in _MESSAGE if isinstance(fields.get(name), str)), None)
    if message is None:
        return None
    for name in ("exc_info", "exc_text", "exception", "traceback", "stack_info"):
        if isinstance(fields.get(name), str):
            message += f"\n{fields[name]}"
    level = next((fields[name].upper() for name in _LEVEL if isinstance(fields.get(name), str)), "")
    stamp = next((fields[name] for name in _TIME if isinstance(fields.get(name), str)), "")
    found = _ISO.match(f"{stamp} ")
    message = message.encode("utf-8", "replace").decode()  # JSON may spell halves of characters
    return message, level, found["when"].replace("T", " ") if found else ""


def _plain(text: str, number: int) -> LogLine:
    """A line of text, without what was put before it."""
    text = _ANSI.sub("", text).rstrip().rpartition("\r")[2]
    stamp, begins = "", 0
    if (anywhere := _ANYWHERE.search(text, 0, _SEARCHED)) is not None:
        if iso := _ISO.search(text, 0, anywhere.start()):
            stamp = iso["when"]
        begins = anywhere.start()
    else:
        while (before := _ISO.match(text, begins) or _BEFORE.match(text, begins)) is not None:
            stamp = before.groupdict().get("when") or stamp
            begins = before.end()
    found = _RECORD.match(text, begins)
    assert found is not None  # noqa: S101 - every part of it may be left out
    when = found["when"] or stamp.replace("T", " ")
    return LogLine(number, text[found.end() :], found["level"] or "", (found["source"] or "").strip(), when)
