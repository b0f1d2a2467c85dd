"""A row of the symptom table: condition, judge, texts, levers and runbook."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Any

from kvwatch.core.judgement.advice.levers import DoNot, Lever
from kvwatch.core.judgement.thresholds import Threshold
from kvwatch.core.model.log_verdict import LogVerdict


class Verdict(StrEnum):
    CLEAR = "clear"
    ACTIVE = "active"
    UNKNOWN = "unknown"


class Severity(StrEnum):
    """How urgent a symptom is, by what users notice."""

    CRITICAL = "critical"
    """Page someone now: users get no answers, or capacity is lost."""
    WARNING = "warning"
    """Notify someone: users wait or get errors."""
    INFO = "info"
    """Context: users notice nothing yet."""


class Scope(StrEnum):
    ENGINE = "engine"
    TARGET = "target"


Evidence = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Judgement:
    """A verdict and the numbers behind it; `reason` says why it is unknown."""

    verdict: Verdict
    evidence: Evidence = field(default_factory=dict)
    reason: str = ""
    severity: Severity | None = None
    """The severity if it is not the row's."""

    @classmethod
    def active_if(cls, condition: bool, evidence: Evidence, severity: Severity | None = None) -> Judgement:
        return cls(Verdict.ACTIVE if condition else Verdict.CLEAR, evidence, severity=severity)

    @classmethod
    def clear(cls, **evidence: Any) -> Judgement:
        return cls(Verdict.CLEAR, evidence)

    @classmethod
    def unknown(cls, reason: str, evidence: Evidence | None = None) -> Judgement:
        return cls(Verdict.UNKNOWN, evidence or {}, reason)


@dataclass(frozen=True, slots=True)
class Runbook:
    """What a runbook needs besides the row: what users notice, which queries to run, and what shows the fix.

    `queries` are names in `QUERIES` of `kvwatch/mixin/runbook_texts.py`.
    """

    impact: str
    queries: tuple[str, ...]
    worked: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Symptom:
    """One row of the table.

    `when` is the condition in words, with thresholds of the row (and ``for``, ``keep``) in braces; `fires_when` fills
    them in. The verdict must be active for `for_s` before the symptom fires, and clear for `keep_s` before it
    resolves. `causes` are sorted by likelihood, `levers` by expected relief against cost;
    `do_not` are plausible steps that would not help. `explains` names the symptoms
    that this one covers while it fires. `log_cause` picks
    the cause out of the server's log; the actions of that cause then replace the row's. `origin` is the source of
    condition and thresholds.
    """

    id: str
    title: str
    when: str
    severity: Severity
    calm_severity: Severity | None = None
    """The severity while users do not notice it, if that differs (evidence `users_suffer`)."""
    scope: Scope = Scope.ENGINE
    for_s: float = 0
    keep_s: float = 60
    judge: Callable[[Any], Judgement]
    thresholds: tuple[Threshold, ...] = ()
    """Named without the row's id, which `named_thresholds` adds."""
    meaning: str
    causes: tuple[str, ...]
    levers: tuple[Lever, ...]
    do_not: tuple[DoNot, ...] = ()
    runbook: Runbook
    explains: tuple[str, ...] = ()
    log_cause: Callable[[LogVerdict | None], LogVerdict | None] = lambda _: None
    origin: str

    def named_thresholds(self) -> tuple[Threshold, ...]:
        """The row's own thresholds under their full names, as `kv_thrashing.preemptions`."""
        return tuple(replace(one, name=f"{self.id}.{one.name}") for one in self.thresholds)

    def fires_when(self, limits: Mapping[str, float]) -> str:
        """The condition in words, with the thresholds in force; shares as percentages."""
        rows = {threshold.name: threshold for threshold in self.thresholds}

        def value(match: re.Match[str]) -> str:
            row = rows.get(match[1])
            number = limits[f"{self.id}.{match[1]}"]
            if row is None or row.unit == "seconds":  # `for` and `keep` are seconds
                return f"{number:g} s"
            return f"{number * 100:g} %" if row.unit == "ratio" and row.high <= 1 else f"{number:g}"

        return re.sub(r"\{(\w+)\}", value, self.when)
