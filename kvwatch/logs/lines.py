"""Finds the lines of a log that matter, and removes what was added to them on the way.

A log passes through consoles, containers and collectors. Each adds something: colours, time stamps, names of pods,
JSON. `parse_line` removes it. `LineFinder` finds the lines with a wanted word and decodes no other line.
"""

from __future__ import annotations

import codecs
import json
import re
from collections.abc import Iterator, Sequence
from typing import NamedTuple

_MAX_CHARACTERS = 1 << 16
"""Characters of a line that are searched."""
CONTINUATION_LINES = 5
"""Lines that may continue a message: a console of 60 columns wraps none into more."""
_MAX_BYTES = 1 << 20
"""Bytes of a line that are kept. A traceback in a JSON record is one line."""

INFO_LEVELS = frozenset({"DEBUG", "INFO", "WARNING"})
"""Levels of lines that report no error. They may quote anything, such as a prompt."""

_ANSI = re.compile(r"\x1b\[[0-?]*[ -/]*[@-~]|\x1b\][^\x07\x1b]*(?:\x07|\x1b\\)|\x1b[@-_]")
_ISO = re.compile(
    r"\[?(?P<date>\d{4}-(?P<when>\d\d-\d\d[T ]\d\d:\d\d:\d\d))(?:[.,]\d+)?(?:Z|[+-]\d\d:?\d\d)?\]?"
    r"\s+(?:std(?:out|err) [FP] )?(?:- )?"
)
_PREFIX = re.compile(
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
_RECORD_ANYWHERE = re.compile(
    r"(?:\([A-Z]\w*[^()]{0,60}\)\s*)?(?:DEBUG|INFO|WARNING|ERROR|CRITICAL)\s+\d\d-\d\d \d\d:\d\d:\d\d\s"
)
"""The beginning of a vLLM record. Everything before it was added on the way."""
_LONGEST_PREFIX = 300
_MESSAGE, _LEVEL, _TIME = (
    ("message", "msg", "log", "MESSAGE", "textPayload", "text", "event"),
    ("level", "levelname", "severity", "lvl"),
    ("time", "timestamp", "asctime", "ts", "@timestamp"),
)


class LogLine(NamedTuple):
    """A line as vLLM wrote it."""

    number: int
    """In its file, from 1."""
    text: str
    level: str = ""
    """Empty if the line has none, as in a traceback on standard error."""
    source: str = ""
    """The process that wrote it: ``EngineCore_DP0``, ``Worker_TP1``."""
    when: str = ""
    """``month-day hour:minute:second``; empty if unknown."""
    continuation: bool = False
    """It has no wanted word, but may be the rest of the line before."""


class LineFinder:
    """Finds the lines that have a word of `words` or `continued`, in bytes that come in pieces of any size.

    After a line with a word of `continued`, the next few lines are found too: they may be the rest of its message.
    """

    def __init__(self, words: Sequence[str], continued: Sequence[str]) -> None:
        self._words = [(word.encode(), False) for word in words] + [
            (word.encode(), True) for word in continued
        ]
        self._partial = bytearray()
        self.lines = 0
        """Complete lines so far."""
        self._to_follow = 0
        """Lines at the beginning of the next block that may continue a message."""
        self._after_info = False
        """The newest line reports no error: the lines after it continue none."""
        self._utf16: codecs.IncrementalDecoder | None = None
        self._bom: bytes | None = b""
        """The first bytes while the encoding is unknown; None once it is known."""

    def feed(self, data: bytes) -> Iterator[LogLine]:
        """The wanted lines that `data` completes."""
        data = self._utf8(data).replace(b"\0", b"")  # a file that was truncated while it was written has many
        end = data.rfind(b"\n") + 1
        if end:
            block = bytes(self._partial + data[:end])
            self._partial.clear()
            yield from self._find(_apply_carriage_returns(block))
        self._keep(data[end:])

    def close(self) -> Iterator[LogLine]:
        """The last line, if it has no end."""
        if self._partial:
            block = bytes(self._partial + b"\n")
            self._partial.clear()
            yield from self._find(_apply_carriage_returns(block))

    def _utf8(self, data: bytes) -> bytes:
        """`data` as UTF-8. Windows consoles write UTF-16, with a byte order mark."""
        if self._bom is not None:
            data = self._bom + data
            self._bom = data if len(data) < len(codecs.BOM_UTF16) else None
            if self._bom is not None:
                return b""
            if data.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
                self._utf16 = codecs.getincrementaldecoder("utf-16")("replace")
        return self._utf16.decode(data).encode("utf-8", "replace") if self._utf16 else data

    def _keep(self, rest: bytes) -> None:
        """Keeps the beginning of a line, at most `_MAX_BYTES` of what a console would show."""
        self._partial += rest
        if len(self._partial) > 2 * _MAX_BYTES:
            returns = self._partial.endswith(b"\r")
            kept = _apply_carriage_returns(bytes(self._partial))[:_MAX_BYTES]
            self._partial = bytearray(kept + b"\r" if returns else kept)

    def _find(self, block: bytes) -> Iterator[LogLine]:
        starts = self._starts(block)
        counted = 0
        for start in sorted(starts):
            self.lines += block.count(b"\n", counted, start)
            counted = start
            if not starts[start] and self._after_info:
                continue
            raw = block[start : min(block.find(b"\n", start), start + _MAX_BYTES)]
            for line in parse_line(raw, self.lines + 1):
                yield line._replace(continuation=True) if not starts[start] else line
                self._after_info = line.level in INFO_LEVELS
        self.lines += block.count(b"\n", counted)

    def _starts(self, block: bytes) -> dict[int, bool]:
        """Where wanted lines start, and whether they have a word."""
        starts: dict[int, bool] = {}
        continued: set[int] = set()
        for word, may_continue in self._words:
            at = block.find(word)
            while at >= 0:
                start = block.rfind(b"\n", 0, at) + 1
                if at + len(word) <= start + _MAX_BYTES:
                    starts[start] = True
                    if may_continue:
                        continued.add(start)
                at = block.find(word, block.find(b"\n", at))
        to_follow = self._follow(block, 0, self._to_follow, starts)
        for start in continued:
            to_follow = max(
                to_follow, self._follow(block, block.find(b"\n", start) + 1, CONTINUATION_LINES, starts)
            )
        self._to_follow = to_follow
        return starts

    @staticmethod
    def _follow(block: bytes, start: int, count: int, starts: dict[int, bool]) -> int:
        """Adds `count` lines from `start` on; returns how many of them are yet to come."""
        while count and start < len(block):
            starts.setdefault(start, False)
            start = block.find(b"\n", start) + 1
            count -= 1
        return count


def _apply_carriage_returns(block: bytes) -> bytes:
    """The lines as a console shows them in the end: a progress bar overwrites its line."""
    block = block.replace(b"\r\n", b"\n")
    if b"\r" not in block:
        return block
    return b"\n".join(line.rstrip(b"\r").rpartition(b"\r")[2] for line in block.split(b"\n"))


def parse_line(raw: bytes, number: int) -> Iterator[LogLine]:
    """The line, or the lines of a JSON record, that vLLM wrote."""
    text = raw.decode("utf-8", "replace").lstrip("\ufeff")
    stamp = ""
    if text.lstrip().startswith("{") and (fields := _json(text)):
        message, level, stamp = fields
        for one in message.splitlines():
            line = _plain(one[:_MAX_CHARACTERS], number)
            yield line._replace(level=line.level or level, when=line.when or stamp)
        return
    yield _plain(text[:_MAX_CHARACTERS], number)


def _json(text: str) -> tuple[str, str, str] | None:
    """Message, level and time of a JSON record; None for any other line."""
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
    message = message.encode("utf-8", "replace").decode()  # JSON may have lone surrogates
    return message, level, found["when"].replace("T", " ") if found else ""


def _plain(text: str, number: int) -> LogLine:
    """A line of text without its prefixes."""
    text = _ANSI.sub("", text).rstrip().rpartition("\r")[2]
    stamp, begins = "", 0
    if (anywhere := _RECORD_ANYWHERE.search(text, 0, _LONGEST_PREFIX)) is not None:
        if iso := _ISO.search(text, 0, anywhere.start()):
            stamp = iso["when"]
        begins = anywhere.start()
    else:
        while (before := _ISO.match(text, begins) or _PREFIX.match(text, begins)) is not None:
            stamp = before.groupdict().get("when") or stamp
            begins = before.end()
    found = _RECORD.match(text, begins)
    assert found is not None  # noqa: S101 - every part of it is optional
    when = found["when"] or stamp.replace("T", " ")
    return LogLine(number, text[found.end() :], found["level"] or "", (found["source"] or "").strip(), when)
