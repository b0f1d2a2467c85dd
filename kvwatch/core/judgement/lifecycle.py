"""The life cycle of a symptom: inactive, pending, firing or unknown.

Theory of operation
    ::

        inactive --active--> pending --active for `for_s`--> firing --clear for `keep_s`--> inactive
        pending --clear--> inactive
        any --unknown for `grace_s`--> unknown --clear or active--> the stage before, and on from there

    An unknown verdict changes nothing at first: it neither fires nor resolves, and the clocks of `for_s` and `keep_s`
    stop. After the grace period the stage becomes unknown and `stage_before_unknown` keeps the one before. So a
    firing symptom whose signals come back and are still active fires at once.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Any

from kvwatch.core.judgement.advice.choose import NO_ADVICE, Advice
from kvwatch.core.judgement.symptoms import Evidence, Judgement, Severity, Verdict

PUBLISH_EVERY_S = 60.0
"""Names and texts in the exported evidence of a firing symptom change at most this often."""


class Stage(StrEnum):
    INACTIVE = "inactive"
    PENDING = "pending"
    FIRING = "firing"
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True)
class Lifecycle:
    """The stage of one symptom of one engine. Times are monotonic seconds.

    The symptom is in `stage` since `since`. `evidence` is of the newest judgement that was not unknown; while firing,
    of the newest that was active: the numbers that made it fire. `reason` is of the newest that was unknown.
    `verdict_for_s` is how long the verdict has been active (while pending) or clear (while firing).
    """

    stage: Stage = Stage.INACTIVE
    since: float | None = None
    evidence: Evidence = field(default_factory=dict)
    reason: str = ""
    stage_before_unknown: Stage = Stage.INACTIVE
    verdict_for_s: float = 0.0
    judged_at: float | None = None
    verdict: Verdict = Verdict.CLEAR
    unknown_since: float | None = None
    published: Evidence = field(default_factory=dict)
    """The evidence to export while the symptom fires (`with_published`)."""
    published_at: float | None = None
    """When names or texts in `published` last changed."""
    advice: Advice = NO_ADVICE
    """What to do while it fires; it changes at most every `PUBLISH_EVERY_S`."""
    advised_at: float | None = None
    advised_severity: Severity | None = None
    severity: Severity | None = None
    """The severity if it is not the row's: that of the newest active judgement."""

    @property
    def still_firing(self) -> bool:
        """Whether the symptom fires, or did when its signals went missing: unknown does not resolve it."""
        return (self.stage_before_unknown if self.stage is Stage.UNKNOWN else self.stage) is Stage.FIRING


def next_lifecycle(
    before: Lifecycle, judgement: Judgement, now: float, *, for_s: float, keep_s: float, grace_s: float
) -> Lifecycle:
    """The life cycle after a judgement at `now`."""
    if judgement.verdict is Verdict.UNKNOWN:
        return _unknown(before, judgement, now, grace_s)
    elapsed = 0.0
    if before.judged_at is not None and before.verdict is judgement.verdict:
        elapsed = max(now - before.judged_at, 0.0)
    stage = before.stage_before_unknown if before.stage is Stage.UNKNOWN else before.stage
    since = now if before.stage is Stage.UNKNOWN else before.since
    verdict_for_s = before.verdict_for_s
    if judgement.verdict is Verdict.ACTIVE:
        if stage is Stage.INACTIVE:
            stage, since, verdict_for_s = Stage.PENDING, now, 0.0
        elif stage is Stage.PENDING:
            verdict_for_s += elapsed
        else:
            verdict_for_s = 0.0
        if stage is Stage.PENDING and verdict_for_s >= for_s:
            stage, since, verdict_for_s = Stage.FIRING, now, 0.0
    elif stage is Stage.PENDING:
        stage, since, verdict_for_s = Stage.INACTIVE, now, 0.0
    elif stage is Stage.FIRING:
        verdict_for_s += elapsed
        if verdict_for_s >= keep_s:
            stage, since, verdict_for_s = Stage.INACTIVE, now, 0.0
    keeps_evidence = stage is Stage.FIRING and judgement.verdict is Verdict.CLEAR
    still_firing = stage is Stage.FIRING and before.still_firing
    return Lifecycle(
        stage=stage,
        since=now if since is None else since,
        evidence=before.evidence if keeps_evidence else judgement.evidence,
        reason="",
        stage_before_unknown=stage,
        verdict_for_s=verdict_for_s,
        judged_at=now,
        verdict=judgement.verdict,
        unknown_since=None,
        published=before.published if still_firing else {},
        published_at=before.published_at if still_firing else None,
        advice=before.advice if still_firing else NO_ADVICE,
        advised_at=before.advised_at if still_firing else None,
        advised_severity=before.advised_severity if still_firing else None,
        severity=before.severity if keeps_evidence else judgement.severity,
    )


def _unknown(before: Lifecycle, judgement: Judgement, now: float, grace_s: float) -> Lifecycle:
    since = now if before.unknown_since is None else before.unknown_since
    after = replace(
        before, reason=judgement.reason, unknown_since=since, judged_at=now, verdict=Verdict.UNKNOWN
    )
    if after.stage is Stage.UNKNOWN or now - since < grace_s:
        return after if after.since is not None else replace(after, since=now)
    return replace(after, stage=Stage.UNKNOWN, stage_before_unknown=before.stage, since=now)


def with_published(life: Lifecycle, now: float) -> Lifecycle:
    """`life` with the evidence to export at `now`.

    New numbers are published at once. New names or texts wait until `PUBLISH_EVERY_S` after the last change, because
    each creates a new time series in Prometheus.
    """
    if _same_series(life.published, life.evidence):
        return replace(life, published=life.evidence)
    if life.published_at is None or now - life.published_at >= PUBLISH_EVERY_S:
        return replace(life, published=life.evidence, published_at=now)
    return life


def with_advice(life: Lifecycle, now: float, advise: Callable[[], Advice]) -> Lifecycle:
    """`life` with new advice: the first, one `PUBLISH_EVERY_S` after the last, and one when it becomes critical."""
    worse = life.severity is Severity.CRITICAL and life.advised_severity is not Severity.CRITICAL
    if life.advised_at is not None and now - life.advised_at < PUBLISH_EVERY_S and not worse:
        return life
    return replace(life, advice=advise(), advised_at=now, advised_severity=life.severity)


def _same_series(before: Any, after: Any) -> bool:
    """Whether two pieces of evidence differ only in numbers, so that their time series are the same."""
    if isinstance(before, Mapping) and isinstance(after, Mapping):
        return list(before) == list(after) and all(_same_series(before[name], after[name]) for name in after)
    if isinstance(before, int | float) and isinstance(after, int | float):
        return math.isfinite(before) == math.isfinite(after)
    return bool(before == after)
