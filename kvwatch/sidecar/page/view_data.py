"""The page as data for ``templates/page.html.j2``: findings, targets, events and kvwatch's own cost."""

from __future__ import annotations

import os
import resource
import time
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from kvwatch import __version__
from kvwatch.core.export.alert_names import alert_name
from kvwatch.core.export.finding_text import finding_text
from kvwatch.core.export.findings import Finding, findings, lifecycles
from kvwatch.core.export.report import gpus, seconds_unseen
from kvwatch.core.judgement.lifecycle import Stage
from kvwatch.core.judgement.state import EngineState, Event, State, Transition
from kvwatch.core.judgement.symptoms import Symptom, Verdict
from kvwatch.core.model.snapshot import EngineKey
from kvwatch.sidecar.api_views import why_not_current
from kvwatch.sidecar.page.engine_data import engine_data
from kvwatch.sidecar.page.filters import number, percent
from kvwatch.sidecar.page.links import element_id, engine_url
from kvwatch.sidecar.store import Store
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
_NUMBERS: Mapping[str, tuple[str, Callable[[float | None], str]]] = {
    "KV usage": ("kv_cache_usage_ratio", percent),
    "running": ("requests_running", number),
    "waiting": ("requests_waiting", number),
    "KV demand": ("kv_cache_demand_ratio", partial(number, digits=2)),
    "pressure score": ("cache_pressure_score", partial(number, digits=2)),
}
"""Columns of the table of engines: a signal or derived number, and how to write it."""
_STARTED = time.monotonic()

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
        "now": now,
        "of": of,
        **_findings(shown, found, now, of),
        "targets": (_target(state, found[state.target], detailed, now, of) for state in shown.values()),
        "events": _events(store),
        "events_shown": _EVENTS,
        "cost": _cost(store),
        "endpoints": _ENDPOINTS,
    }


def _detailed(states: Mapping[str, State], found: Found) -> dict[EngineKey, bool]:
    """The engines that are shown in full, and whether each is unfolded."""
    keys = [key for state in states.values() for key in state.engines]
    with_findings = {one.key for of_target in found.values() for one in of_target}
    chosen = sorted(keys, key=lambda key: key not in with_findings)[:_DETAILED]
    return {key: len(keys) <= _OPEN or key in with_findings for key in chosen}


def _findings(states: Mapping[str, State], found: Found, now: float, of: EngineKey | None) -> dict[str, Any]:
    """The findings, causes first; on the page of one engine, its own and those of its whole target."""
    shown: list[tuple[Finding, str]] = []
    unknown = 0
    for state in states.values():
        about = {EngineKey(state.target), *([of] if of else state.engines)}
        lives = {(key, name): life for key, name, life in lifecycles(state) if key in about}
        unknown += sum(life.verdict is Verdict.UNKNOWN for life in lives.values())
        for one in found[state.target]:
            if one.key in about:
                life, keep_s = lives[one.key, one.symptom.id], state.limits[f"{one.symptom.id}.keep"]
                shown.append((one, why_not_current(life, now, keep_s)))
    shown.sort(key=lambda pair: bool(pair[0].explained_by))
    return {
        "headline": _headline(states, [one for one, _ in shown], unknown),
        "findings": (_finding(one, status) for one, status in shown),
        "findings_elsewhere": sum(map(len, found.values())) - len(shown),
    }


def _headline(states: Mapping[str, State], found: Sequence[Finding], unknown: int) -> tuple[str, str]:
    """The state of all targets as a level for its colour and a line; `unknown` symptoms have no verdict."""
    if found:
        causes = [one for one in found if not one.explained_by]
        first = (causes or found)[0].symptom
        count = "1 finding" if len(found) == 1 else f"{len(found)} findings"
        effects = len(found) - len(causes)
        covered = f", {effects} caused by the others" if effects and causes else ""
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
    name = alert_name(one.symptom.id)
    return {
        "text": finding_text(one),
        "id": element_id("finding", *one.key, one.symptom.id),
        "url": engine_url(one.key),
        "status": status,
        "runbook": (name, f"/runbooks/{name.lower()}.md"),
    }


def _target(
    state: State,
    found: Sequence[Finding],
    detailed: Mapping[EngineKey, bool],
    now: float,
    of: EngineKey | None,
) -> dict[str, Any]:
    """A target: its health, a row for each engine, its GPUs, and the `detailed` engines in full."""
    shown = [one for one in state.engines.values() if one.key in detailed]
    symptoms: defaultdict[EngineKey, list[Symptom]] = defaultdict(list)
    for one in found:
        symptoms[one.key].append(one.symptom)
    return {
        "state": state,
        "failed_scrapes": sum(count for kind, count in state.outcomes.items() if kind != "ok"),
        "columns": tuple(_NUMBERS),
        "rows": (_row(state, one, symptoms[one.key], detailed, now, of=of) for one in state.engines.values()),
        "gpus": gpus(state, now)["gpus"],
        "engines": (engine_data(state, one, now, is_open=detailed[one.key]) for one in shown),
        "left_out": 0 if of else len(state.engines) - len(shown),
    }


def _row(
    state: State,
    engine: EngineState,
    symptoms: Sequence[Symptom],
    detailed: Mapping[EngineKey, bool],
    now: float,
    *,
    of: EngineKey | None,
) -> dict[str, Any]:
    """An engine as a row of the table. It links to the engine on this page if it is shown, else to its own page."""
    key, unseen_s = engine.key, seconds_unseen(state, engine, now)
    is_below, elsewhere = key in detailed and of is None, "" if of in {None, key} else "/"
    numbers = {}
    for column, (name, words) in _NUMBERS.items():
        value = engine.snapshot.number(name)
        value = engine.derived.get(name) if value is None else value
        numbers[column] = words(value if unseen_s is None else None)
    return {
        "key": key,
        "url": f"#{element_id('engine', *key)}" if is_below else engine_url(key),
        "is_current": key == of,
        "regime": engine.regime,
        "unseen_s": unseen_s,
        "symptoms": symptoms,
        "finding_url": f"{elsewhere}#{element_id('finding', *key, symptoms[0].id)}" if symptoms else "",
        "numbers": numbers,
    }


def _events(store: Store) -> list[Event | Transition]:
    """Events, and symptoms that started or stopped firing, newest first."""
    changes = [one for one in store.transitions() if Stage.FIRING in {one.before, one.after}]
    events = [one for state in store.states().values() for one in state.events]
    return sorted([*events, *changes], key=lambda one: -one.t)


def _cost(store: Store) -> dict[str, Any]:
    """What kvwatch uses itself, and what its newest scrapes took."""
    used = resource.getrusage(resource.RUSAGE_SELF)
    scraped = [state for state in store.states().values() if state.last]
    return {
        "cpu_share": (used.ru_utime + used.ru_stime) / max(time.monotonic() - _STARTED, 1.0),
        "memory": _memory(),
        "scrapes": [(state.target, state.last, store.poll_stats(state.target)) for state in scraped],
    }


def _memory() -> str:
    """Resident memory of this process, where the system reports it."""
    try:
        resident = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1])
    except (OSError, ValueError, IndexError):
        return NOTHING
    return f"{resident * os.sysconf('SC_PAGE_SIZE') / 2**20:.0f} MiB"
