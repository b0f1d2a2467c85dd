"""The verdict on a server's starts, from its log, if kvwatch reads that log."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

FINE = frozenset({"ok", "ok_but_tight"})
"""Verdicts on a start that succeeded."""


@dataclass(frozen=True, slots=True)
class LogVerdict:
    """The verdict on the newest start in a log.

    `verdict` is one of `kvwatch.logs.causes.VERDICTS`, `confidence` is high, medium or low. `actions` are in the
    order to try. `line` and `text` are the evidence (line 0: none). `before` is the verdict on the start before.
    """

    verdict: str
    confidence: str
    meaning: str
    actions: tuple[str, ...]
    line: int = 0
    text: str = ""
    before: LogVerdict | None = None

    @property
    def failed(self) -> bool:
        return self.verdict not in FINE

    def evidence(self) -> dict[str, Any]:
        """The verdict as evidence of a symptom."""
        found = {"log_verdict": self.verdict, "log_confidence": self.confidence, "log_meaning": self.meaning}
        return found | ({"log_line": self.line, "log_text": self.text} if self.line else {})


def failed_start(log: LogVerdict | None) -> LogVerdict | None:
    """Why a server does not come up: the verdict on its newest start, if that failed."""
    return log if log is not None and log.failed else None


def failed_run(log: LogVerdict | None) -> LogVerdict | None:
    """Why a server was restarted: the first failure among its starts, oldest first."""
    return next((one for one in _oldest_first(log) if one.failed), None)


def _oldest_first(log: LogVerdict | None) -> Iterator[LogVerdict]:
    if log is not None:
        yield from _oldest_first(log.before)
        yield log
