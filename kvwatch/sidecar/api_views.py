"""The store as plain data, for the JSON API and the page. Read-only."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from kvwatch import __version__
from kvwatch.core.export import report
from kvwatch.core.export.findings import findings, lifecycles
from kvwatch.core.judgement.lifecycle import Lifecycle
from kvwatch.core.judgement.state import State
from kvwatch.core.judgement.symptoms import Verdict
from kvwatch.sidecar.clock import Clock
from kvwatch.sidecar.store import Store
from kvwatch.text.numbers import format_duration


def state_view(store: Store, clock: Clock) -> dict[str, Any]:
    """Everything kvwatch knows."""
    now = clock.now()
    targets = [
        report.target(one, now)
        | {"findings": target_findings(one, now), "polling": _polling(store, one, now)}
        for one in store.states().values()
    ]
    return clean({"version": __version__, "at": clock.wall(), "targets": targets})


def _polling(store: Store, one: State, now: float) -> dict[str, Any]:
    last = one.last
    return asdict(store.poll_stats(one.target)) | {
        "interval_seconds": last.interval_s if last else None,
        "duration_seconds": last.duration_s if last else None,
        "narrowed": last.narrowed if last else None,
        "age_seconds": None if one.good_at is None else max(now - one.good_at, 0.0),
    }


def findings_view(store: Store, clock: Clock) -> dict[str, Any]:
    """The firing symptoms of all targets."""
    now = clock.now()
    found = [finding for one in store.states().values() for finding in target_findings(one, now)]
    return clean({"at": clock.wall(), "findings": found})


def target_findings(state: State, now: float) -> list[dict[str, Any]]:
    """The findings of a target, each with whether it is current at `now` (monotonic), and why not."""
    lives = {(key, name): life for key, name, life in lifecycles(state)}
    found = []
    for one in findings(state):
        id_ = one.symptom.id
        why = why_not_current(lives[one.key, id_], now, state.limits[f"{id_}.keep"])
        found.append(report.finding(one, now_wall=state.wall) | {"current": not why, "reason": why or None})
    return found


def why_not_current(life: Lifecycle, now: float, keep_s: float) -> str:
    """Why a firing symptom's condition does not hold at `now`, without a full stop; empty if it holds."""
    if life.verdict is Verdict.CLEAR:
        clear, kept = format_duration(life.verdict_for_s), format_duration(keep_s)
        return f"The condition has been clear for {clear}; the finding stays for {kept} in case it returns"
    if life.verdict is Verdict.UNKNOWN:
        if life.unknown_since is None:
            return f"The condition is unknown: {life.reason}"
        since = format_duration(max(now - life.unknown_since, 0.0))
        return f"The condition has been unknown for {since}: {life.reason}"
    return ""


def events_view(store: Store, clock: Clock) -> dict[str, Any]:
    """Events and transitions, oldest first."""
    happened = sorted((e for one in store.states().values() for e in one.events), key=lambda e: e.t)
    changes = store.transitions()
    start = changes[0].t if changes else 0.0
    return clean(
        {
            "at": clock.wall(),
            "events": [report.event(e) for e in happened],
            "transitions": [report.transition(c, start=start) for c in changes],
        }
    )


def failures_view(store: Store) -> dict[str, Any]:
    """The latest failed scrapes."""
    return {
        "failures": [
            {"target": f.target, "at": f.wall, "kind": str(f.kind), "detail": f.detail, "excerpt": f.excerpt}
            for f in store.failures()
        ]
    }


def clean(data: dict[str, Any]) -> dict[str, Any]:
    """Data without NaN and infinities, which JSON does not have."""
    cleaned: dict[str, Any] = report.json_safe(data)
    return cleaned
