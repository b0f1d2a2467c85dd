"""Reads a log in pieces, splits it into starts, and rejects what is no log of vLLM."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import replace

from kvwatch.logs import log_patterns, stages, start_record, statistics
from kvwatch.logs.causes import BY_VERDICT
from kvwatch.logs.explanation import NO_LOG, Explanation, explain_start
from kvwatch.logs.lines import LineFinder, LogLine
from kvwatch.logs.start_record import StartRecord

WORDS = tuple(
    dict.fromkeys(
        (
            *(row.word for row in log_patterns.PATTERNS),
            *log_patterns.OPTION_WORDS,
            *stages.WORDS,
            *statistics.WORDS,
            *start_record.WORDS,
        )
    )
)
"""Every line that is read has one of these words, or one of `start_record.CONTINUED_WORDS`."""

_VLLM = re.compile(rb"(?i)\bvllm\b")
_RECORD = re.compile(rb"\b(?:INFO|WARNING|ERROR|DEBUG) \d\d-\d\d \d\d:\d\d:\d\d \[?[\w/.]+\.py:\d+\]")
"""A log record as only vLLM writes it."""
_HEAD = 1 << 20
_PASTED_LINES = 40
"""A log of at most so many lines is a pasted fragment: it need not name vLLM."""
_CONTROL = re.compile(rb"[\x00-\x08\x0e-\x1a\x1c-\x1f]")


class LogReader:
    """Reads a log in pieces of bytes, in bounded memory, and explains its newest start.

    `max_lines` statistics lines of a start are kept.
    """

    def __init__(self, *, max_lines: int = statistics.MAX_LINES) -> None:
        self._max_lines = max_lines
        self._finder = LineFinder(WORDS, start_record.CONTINUED_WORDS)
        self._newest = StartRecord(max_lines=max_lines)
        self._previous: StartRecord | None = None
        self._restarts = 0
        self._head = b""
        self._bytes = 0

    def feed(self, data: bytes) -> None:
        if len(self._head) < _HEAD:
            self._head += data[: _HEAD - len(self._head)].replace(b"\0", b"")
        self._bytes += len(data)
        self._add(self._finder.feed(data))

    def next_file(self) -> None:
        """Continues with another file of the same server. Its lines are counted from 1."""
        self._add(self._finder.close())
        self._finder = LineFinder(WORDS, start_record.CONTINUED_WORDS)

    def last_starts(self) -> tuple[Explanation | None, Explanation | None]:
        """The start before the newest, and the newest, so far; None for one that shows nothing yet."""
        previous, newest = self._previous, self._newest
        return (
            None if previous is None or previous.just_begun else explain_start(previous),
            None if newest.just_begun else explain_start(newest),
        )

    def explain(self) -> Explanation:
        """The verdict on the newest start that shows anything. Call it after the last piece."""
        self._add(self._finder.close())
        lines, starts = self._finder.lines, self._restarts + 1
        if reason := self._why_no_log():
            return Explanation(NO_LOG, "high", reason, {}, (), (), starts=0, lines=lines)
        record, why = self._newest, "judged the last one"
        if self._previous is not None and record.just_begun:
            record, why = self._previous, "the last has only begun, so the one before it was judged"
        found = explain_start(record)
        note = f"the log has {starts} starts: {why}, from line {record.first_line} on"
        all_notes = (note, *found.notes) if starts > 1 else found.notes
        return replace(found, starts=starts, lines=lines, notes=all_notes)

    def _add(self, lines: Iterator[LogLine]) -> None:
        for line in lines:
            if not line.continuation and self._newest.is_next_start(line):
                if not self._newest.just_begun:
                    self._previous = self._newest
                self._restarts += 1
                self._newest = StartRecord(line.number, max_lines=self._max_lines)
            self._newest.add(line)

    def _why_no_log(self) -> str:
        """Why this is no log of vLLM; empty if it is one."""
        if not self._bytes:
            return "It is empty."
        sample = self._head[:4096]
        utf16 = sample.startswith((b"\xff\xfe", b"\xfe\xff"))
        if not utf16 and len(_CONTROL.findall(sample)) > len(sample) / 50:
            return "It is binary, not text."
        record = self._newest
        shows_vllm = (
            record.statistics.seen or record.vllm_lines or record.has_beginning or record.consequence
            or self._previous is not None
            or any(not BY_VERDICT[error.verdict].generic for error in (*record.causes, *record.hints))
            or _RECORD.search(self._head)
            or ((record.other_error or record.causes) and _VLLM.search(self._head))
            or (record.causes and self._finder.lines <= _PASTED_LINES)
        )  # fmt: skip
        return "" if shows_vllm else BY_VERDICT[NO_LOG].meaning({})
