"""The page as plain data for ``templates/page.html.j2``: findings, targets, events and kvwatch's own cost."""

from __future__ import annotations

import os
import resource
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from kvwatch import __version__
from kvwatch.core.export.alert_names import alert_name
from kvwatch.core.export.findings import Finding, findings, lifecycles
from kvwatch.core.export.report import gpus, seconds_unseen
from kvwatch.core.judgement.lifecycle import Stage
from kvwatch.core.judgement.state import EngineState, Event, State, Transition
from kvwatch.core.judgement.symptoms import Evidence, Verdict
from kvwatch.core.model.snapshot import EngineKey
from kvwatch.sidecar.page.engine_data import engine_data
from kvwatch.sidecar.page.filters import number, percent
from kvwatch.sidecar.page.links import element_id, engine_url, place
from kvwatch.sidecar.serving.finding_status import why_not_firing
from kvwatch.sidecar.store import Store
from kvwatch.text.evidence import evidence_rows, evidence_title, format_evidence, format_value
from kvwatch.text.numbers import NOTHING

REFRESH_S = 5
"""How often a browser without scripts reloads the page, seconds."""
_DETAILED = 8
"""At most this many engines are shown in full, those with findings first."""
_OPEN = 2
"""With more engines than this, only those with findings are unfolded."""
_EVENTS = 20
"""At most this many events are shown."""
_ENDPOINTS = (
    *("/metrics", "/api/v1/state", "/api/v1/findings", "/api/v1/events", "/api/v1/history"),
    *("/debug/last-failures", "/openapi.json", "/healthz", "/readyz"),
)
_CHANGES = {Stage.FIRING: "is firing", Stage.INACTIVE: "resolved", Stage.UNKNOWN: "is unknown"}
_STARTED = time.monotonic()
_MIB = 2**20

Found = Mapping[str, tuple[Finding, ...]]
"""The findings of each target, causes before effects."""


def page_data(store: Store, now: float, of: EngineKey | None = None) -> dict[str, Any]:
    """The page of all engines, or that of one engine. `now` is monotonic; KeyError if there is no such engine.

    Targets and engines are prepared one by one while the template renders, so that no step takes long. States are
    immutable: all of them show the same moment.
    """
    states = dict(store.states())
    found = {state.target: findings(state) for state in states.values()}
    if of is None:
        shown, detailed = states, _detailed(states, found)
    else:
        shown, detailed = {of.target: states[of.target]}, {states[of.target].engines[of].key: True}
    return {
        "version": __version__,
        "refresh_s": REFRESH_S,
        "is_engine_page": of is not None,
        "title": f"{place(of)} – kvwatch" if of else "kvwatch",
        **_findings(shown, found, now, of),
        "targets": (_target(state, found[state.target], detailed, now, of) for state in shown.values()),
        "events": _events(store, now),
        "cost": _cost(store),
        "endpoints": _ENDPOINTS,
    }


def _detailed(states: Mapping[str, State], found: Found) -> dict[EngineKey, bool]:
    """The engines that are shown in full, and whether each is unfolded."""
    keys = [key for state in states.values() for key in state.engines]
    with_findings = {one.key for of_target in found.values() for one in of_target}
    chosen = sorted(keys, key=lambda key: key not in with_findings)[:_DETAILED]
    return {key: len(keys) <= _OPEN or key in with_findings for key in chosen}


# -- findings ----------------------------------------------------------------------------------------------------


def _findings(states: Mapping[str, State], found: Found, now: float, of: EngineKey | None) -> dict[str, Any]:
    """The findings, causes first; on the page of one engine, its own and those of its whole target."""
    about = None if of is None else {of, EngineKey(of.target)}
    shown: list[tuple[Finding, str]] = []
    unknown = 0
    for state in states.values():
        lives = {(key, name): life for key, name, life in lifecycles(state) if about is None or key in about}
        unknown += sum(life.verdict is Verdict.UNKNOWN for life in lives.values())
        shown += [
            (one, why_not_firing(lives[one.key, one.symptom.id], now, state.limits[f"{one.symptom.id}.keep"]))
            for one in found[state.target]
            if (one.key, one.symptom.id) in lives
        ]
    shown.sort(key=lambda pair: bool(pair[0].explained_by))
    level, text = _headline(states, [one for one, _ in shown], unknown)
    return {
        "headline": {"level": level, "text": text},
        "findings": (_finding(one, status) for one, status in shown),
        "findings_elsewhere": sum(map(len, found.values())) - len(shown),
    }


def _headline(states: Mapping[str, State], found: list[Finding], unknown: int) -> tuple[str, str]:
    """The state of all targets as a level for its colour and a line; `unknown` symptoms have no verdict."""
    if found:
        roots = [one for one in found if not one.explained_by]
        first = (roots or found)[0].symptom
        count = "1 finding" if len(found) == 1 else f"{len(found)} findings"
        effects = len(found) - len(roots)
        covered = f", {effects} caused by the others" if effects and roots else ""
        return first.severity, f"{count}{covered}. First: {first.title}."
    if down := [state.target for state in states.values() if state.up is False]:
        return "warning", f"No finding yet, but scrapes fail: {', '.join(down)}."
    if any(state.up is None for state in states.values()):
        return "", "Not scraped yet."
    if unknown:
        symptoms = "1 symptom is" if unknown == 1 else f"{unknown} symptoms are"
        return "good", f"No finding. {symptoms} unknown; the engines below show why."
    return "good", "No finding."


def _finding(one: Finding, status: str) -> dict[str, Any]:
    symptom, name = one.symptom, alert_name(one.symptom.id)
    return {
        "id": element_id("finding", *one.key, symptom.id),
        "symptom": symptom.id,
        "severity": symptom.severity,
        "title": symptom.title,
        "where": place(one.key),
        "url": engine_url(one.key),
        "firing_s": one.firing_s,
        "status": status,
        "explained_by": one.explained_by,
        "meaning": symptom.meaning,
        "actions": one.actions,
        "evidence": _evidence(one.evidence),
        "causes": symptom.causes,
        "runbook": {"name": name, "url": f"/runbooks/{name.lower()}.md"},
    }


def _evidence(evidence: Evidence) -> list[dict[str, Any]]:
    """Each measured number beside its threshold, as words and by the name that it has in the API; None without."""
    return [
        {
            "title": evidence_title(row.title),
            "measured": row.judged
            and {"name": row.judged[0], "value": format_value(row.title, row.judged[1])},
            "threshold": row.limit and {"name": row.limit[0], "value": format_value(row.title, row.limit[1])},
        }
        for row in evidence_rows(evidence)
    ]


# -- targets -----------------------------------------------------------------------------------------------------


def _target(
    state: State,
    found: tuple[Finding, ...],
    detailed: Mapping[EngineKey, bool],
    now: float,
    of: EngineKey | None,
) -> dict[str, Any]:
    """A target: its health, a row for each engine, its GPUs, and the `detailed` engines in full."""
    shown = [one for one in state.engines.values() if one.key in detailed]
    return {
        "name": state.target,
        "health": _health(state, now),
        "number_columns": tuple(_numbers(None)),
        "rows": [
            _row(
                state,
                one,
                [f for f in found if f.key == one.key],
                now,
                of=of,
                is_detailed=one.key in detailed,
            )
            for one in state.engines.values()
        ],
        "gpus": [(gpu["gpu"], _gpu_activity(gpu)) for gpu in gpus(state, now)["gpus"]],
        "engines": (engine_data(state, one, now, is_open=detailed[one.key]) for one in shown),
        "engines_left_out": 0 if of else len(state.engines) - len(shown),
    }


def _health(state: State, now: float) -> dict[str, Any]:
    def ago(t: float | None) -> float | None:
        return None if t is None else now - t

    last = state.last
    return {
        "is_scraped": state.up is not None,
        "error": state.error,
        "failing_s": ago(state.failing_since),
        "good_s": ago(state.good_at),
        "interval_s": last.interval_s if last else None,
        "narrowed": bool(last and last.narrowed),
        "failed": sum(count for kind, count in state.outcomes.items() if kind != "ok"),
        "scrapes": sum(state.outcomes.values()),
    }


def _row(
    state: State,
    engine: EngineState,
    found: list[Finding],
    now: float,
    *,
    of: EngineKey | None,
    is_detailed: bool,
) -> dict[str, Any]:
    """An engine as a row. It links to the engine on this page if that `is_detailed`, else to its own page."""
    key, unseen_s = engine.key, seconds_unseen(state, engine, now)
    elsewhere = "/" if of not in {None, key} else ""
    return {
        "model": key.model_name or "(no name)",
        "engine": key.engine,
        "url": f"#{element_id('engine', *key)}" if is_detailed and of is None else engine_url(key),
        "is_current": key == of,
        "regime": engine.regime,
        "unseen_s": unseen_s,
        "finding": found[0].symptom if found else None,
        "finding_url": f"{elsewhere}#{element_id('finding', *key, found[0].symptom.id)}" if found else None,
        "more_findings": len(found) - 1,
        "numbers": _numbers(engine if unseen_s is None else None),
    }


def _numbers(engine: EngineState | None) -> dict[str, str]:
    """The numbers of a row by column; dashes for an engine that is not scraped now."""

    def value(name: str) -> float | None:
        return engine.snapshot.number(name) if engine else None

    def derived(name: str) -> float | None:
        return engine.derived.get(name) if engine else None

    return {
        "KV usage": percent(value("kv_cache_usage_ratio")),
        "running": number(value("requests_running")),
        "waiting": number(value("requests_waiting")),
        "KV demand": number(derived("kv_cache_demand_ratio"), 2),
        "pressure score": number(derived("cache_pressure_score"), 2),
    }


def _gpu_activity(gpu: Mapping[str, Any]) -> str:
    shares = {
        "SMs active": gpu["sm_active_ratio"],
        "memory active": gpu["dram_active_ratio"],
        "utilization": gpu["utilization_ratio"],
    }
    return ", ".join(f"{name} {percent(share)}" for name, share in shares.items() if share is not None)


# -- events and cost ---------------------------------------------------------------------------------------------


def _events(store: Store, now: float) -> dict[str, Any]:
    """Events, and symptoms that started or stopped firing, newest first."""
    changes = [one for one in store.transitions() if Stage.FIRING in {one.before, one.after}]
    events = [one for state in store.states().values() for one in state.events]
    both: list[Event | Transition] = sorted([*events, *changes], key=lambda one: -one.t)
    return {
        "total": len(both),
        "newest": [
            {"wall": one.wall, "ago_s": now - one.t, "where": place(one.key)}
            | (_event(one) if isinstance(one, Event) else _change(one))
            for one in both[:_EVENTS]
        ],
    }


def _event(one: Event) -> dict[str, str]:
    details = ", ".join(
        format_evidence(name, value) for name, value in one.detail.items() if value is not None
    )
    return {"symptom": "", "text": one.kind.replace("_", " ") + (f" ({details})" if details else "")}


def _change(one: Transition) -> dict[str, str]:
    return {"symptom": one.symptom, "text": _CHANGES.get(one.after, one.after)}


def _cost(store: Store) -> dict[str, Any]:
    """What kvwatch uses itself, and what its newest scrapes took."""
    used = resource.getrusage(resource.RUSAGE_SELF)
    scrapes = []
    for state in store.states().values():
        if last := state.last:
            stats = store.poll_stats(state.target)
            share = last.duration_s / max(last.interval_s, last.duration_s, 1e-9)
            scrapes.append({"target": state.target, "last": last, "share": share, "stats": stats})
    return {
        "cpu_share": (used.ru_utime + used.ru_stime) / max(time.monotonic() - _STARTED, 1.0),
        "memory": _memory(),
        "scrapes": scrapes,
    }


def _memory() -> str:
    """Resident memory of this process, where the system reports it."""
    try:
        resident = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1])
    except (OSError, ValueError, IndexError):
        return NOTHING
    return f"{resident * os.sysconf('SC_PAGE_SIZE') / _MIB:.0f} MiB"
