"""What the log of a server tells of its starts, where kvwatch is given that log."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

FINE = frozenset({"ok", "ok_but_tight"})
"""Verdicts on a start that did not fail."""


@dataclass(frozen=True, slots=True)
class LogVerdict:
    """The verdict on the newest start in the log: one of a closed set, how sure it is (high, medium, low), what it
    means, what to do in order, and the line that it stands on. `before` is that on the start before it."""

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
        """As evidence of a symptom."""
        found = {"log_verdict": self.verdict, "log_confidence": self.confidence, "log_meaning": self.meaning}
        return found | ({"log_line": self.line, "log_text": self.text} if self.line else {})


def of_a_failed_start(log: LogVerdict | None) -> LogVerdict | None:
    """Why a server does not come up: what its newest start failed of."""
    return log if log is not None and log.failed else None


def of_an_ended_run(log: LogVerdict | None) -> LogVerdict | None:
    """Why a server was started again: what the run before failed of, or the newest, where there is no other."""
    return next((one for one in _newest_last(log) if one.failed), None)


def _newest_last(log: LogVerdict | None) -> Iterator[LogVerdict]:
    if log is not None:
        yield from _newest_last(log.before)
        yield log
