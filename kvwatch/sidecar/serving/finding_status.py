"""Firing symptoms whose condition does not hold at present, or of which nobody can tell: in words."""

from __future__ import annotations

from typing import Any

from kvwatch.core.export import report
from kvwatch.core.export.findings import findings, lifecycles
from kvwatch.core.judgement.lifecycle import Lifecycle
from kvwatch.core.judgement.state import State
from kvwatch.core.judgement.symptoms import Verdict
from kvwatch.text.numbers import format_duration


def why_not_firing(life: Lifecycle, now: float, keep_s: float) -> str:
    """Why a firing symptom can't be said to hold at `now`, as a sentence without its stop; empty if it holds."""
    if life.verdict is Verdict.CLEAR:
        clear, kept = format_duration(life.verdict_for_s), format_duration(keep_s)
        return f"The condition has been clear for {clear}; it is kept for {kept} in case it comes back"
    if life.verdict is Verdict.UNKNOWN:
        since = (
            ""
            if life.unknown_since is None
            else f" for {format_duration(max(now - life.unknown_since, 0.0))}"
        )
        return f"Whether it still holds can't be told{since}: {life.reason}"
    return ""


def finding_status(state: State, now: float) -> list[dict[str, Any]]:
    """The findings of a target as plain data, each with whether it holds at `now` (monotonic) and why not."""
    lives = {(key, name): life for key, name, life in lifecycles(state)}
    found = []
    for one in findings(state):
        id_ = one.symptom.id
        why = why_not_firing(lives[one.key, id_], now, state.limits[f"{id_}.keep"])
        found.append(report.finding(one, now_wall=state.wall) | {"current": not why, "reason": why or None})
    return found
