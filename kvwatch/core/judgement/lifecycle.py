"""Verdict and the state before, to the state after: inactive, pending, firing, or unknown.

Theory of operation
    ::

        inactive --active--> pending --active for `for_s`--> firing --clear for `keep_s`--> inactive
        pending --clear--> inactive
        any --unknown for the grace period--> unknown --clear or active--> as it was, and on from there

    An unknown verdict changes nothing at first: it neither fires nor resolves, and the clocks of `for` and
    `keep` stand still meanwhile. After the grace period it shows as a state of its own, and what was before
    is remembered (`held`), so that a firing symptom whose signals come back still active fires at once.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Any

from kvwatch.core.judgement.symptoms import Evidence, Judgement, Verdict

PUBLISH_EVERY_S = 60.0
"""Shortest time between two changes of the names or texts in the evidence that is exported for a firing symptom."""


class Stage(StrEnum):
    INACTIVE = "inactive"
    PENDING = "pending"
    FIRING = "firing"
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True)
class Lifecycle:
    """Where one symptom of one engine is. Times in monotonic seconds.

    `stage` since `since`; `evidence` of the newest judgement that was not unknown (while firing: of the newest
    that was active, the numbers that made it fire), `reason` of the newest that was unknown. `progressed` is
    how long the verdict has been active (pending) or clear (firing).
    """

    stage: Stage = Stage.INACTIVE
    since: float | None = None
    evidence: Evidence = field(default_factory=dict)
    reason: str = ""
    held: Stage = Stage.INACTIVE
    progressed: float = 0.0
    judged_at: float | None = None
    verdict: Verdict = Verdict.CLEAR
    unknown_since: float | None = None
    published: Evidence = field(default_factory=dict)
    """The evidence to export while the symptom fires (`with_published`)."""
    published_at: float | None = None
    """When names or texts in `published` last changed."""

    @property
    def goes_on(self) -> bool:
        """Fires, or did when its signals went missing: what can't be judged any more has not ended by that."""
        return (self.held if self.stage is Stage.UNKNOWN else self.stage) is Stage.FIRING


def step(
    before: Lifecycle, judgement: Judgement, now: float, *, for_s: float, keep_s: float, grace_s: float
) -> Lifecycle:
    """The state after a judgement at `now`."""
    if judgement.verdict is Verdict.UNKNOWN:
        return _unknown(before, judgement, now, grace_s)
    elapsed = 0.0
    if before.judged_at is not None and before.verdict is judgement.verdict:
        elapsed = max(now - before.judged_at, 0.0)
    stage = before.held if before.stage is Stage.UNKNOWN else before.stage
    since = now if before.stage is Stage.UNKNOWN else before.since
    progressed = before.progressed
    if judgement.verdict is Verdict.ACTIVE:
        if stage is Stage.INACTIVE:
            stage, since, progressed = Stage.PENDING, now, 0.0
        elif stage is Stage.PENDING:
            progressed += elapsed
        else:
            progressed = 0.0
        if stage is Stage.PENDING and progressed >= for_s:
            stage, since, progressed = Stage.FIRING, now, 0.0
    elif stage is Stage.PENDING:
        stage, since, progressed = Stage.INACTIVE, now, 0.0
    elif stage is Stage.FIRING:
        progressed += elapsed
        if progressed >= keep_s:
            stage, since, progressed = Stage.INACTIVE, now, 0.0
    keeps = stage is Stage.FIRING and judgement.verdict is Verdict.CLEAR
    goes_on = stage is Stage.FIRING and before.goes_on
    return Lifecycle(
        stage=stage,
        since=now if since is None else since,
        evidence=before.evidence if keeps else judgement.evidence,
        reason="",
        held=stage,
        progressed=progressed,
        judged_at=now,
        verdict=judgement.verdict,
        unknown_since=None,
        published=before.published if goes_on else {},
        published_at=before.published_at if goes_on else None,
    )


def _unknown(before: Lifecycle, judgement: Judgement, now: float, grace_s: float) -> Lifecycle:
    since = now if before.unknown_since is None else before.unknown_since
    after = replace(
        before, reason=judgement.reason, unknown_since=since, judged_at=now, verdict=Verdict.UNKNOWN
    )
    if after.stage is Stage.UNKNOWN or now - since < grace_s:
        return after if after.since is not None else replace(after, since=now)
    return replace(after, stage=Stage.UNKNOWN, held=before.stage, since=now)


def with_published(life: Lifecycle, now: float) -> Lifecycle:
    """`life` with the evidence to export at `now`.

    New numbers are published at once. New names or texts wait until `PUBLISH_EVERY_S` after the last change, because
    each makes a new time series in Prometheus.
    """
    if _same_series(life.published, life.evidence):
        return replace(life, published=life.evidence)
    if life.published_at is None or now - life.published_at >= PUBLISH_EVERY_S:
        return replace(life, published=life.evidence, published_at=now)
    return life


def _same_series(before: Any, after: Any) -> bool:
    """Whether two pieces of evidence differ in numbers only, so that their time series are the same."""
    if isinstance(before, Mapping) and isinstance(after, Mapping):
        return list(before) == list(after) and all(_same_series(before[name], after[name]) for name in after)
    if isinstance(before, int | float) and isinstance(after, int | float):
        return math.isfinite(before) == math.isfinite(after)
    return bool(before == after)
