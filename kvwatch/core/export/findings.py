"""Findings: the firing symptoms with all that a person needs to act, most urgent first."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from kvwatch.core.judgement.lifecycle import Lifecycle, Stage
from kvwatch.core.judgement.state import State
from kvwatch.core.judgement.symptoms import BY_ID, Evidence, Severity, Symptom
from kvwatch.core.model.snapshot import EngineKey, Snapshot

_ORDER = {Severity.CRITICAL: 0, Severity.WARNING: 1, Severity.INFO: 2}


@dataclass(frozen=True, slots=True)
class Finding:
    """A firing symptom. It fires since `since` (monotonic seconds), for `firing_s` seconds.

    `explained_by` are firing symptoms that cause it; fix those first. `actions` are in order and name only options
    that this vLLM has.
    """

    key: EngineKey
    symptom: Symptom
    since: float
    firing_s: float
    evidence: Evidence
    actions: tuple[str, ...]
    explained_by: tuple[str, ...]


def findings(state: State) -> tuple[Finding, ...]:
    """The present findings of a target: causes before effects, then by severity, oldest first."""
    causes = causes_of(state)
    found = []
    for key, name, life in lifecycles(state):
        if life.stage is Stage.FIRING:
            symptom, now = BY_ID[name], state.now or 0.0
            since = now if life.since is None else life.since
            actions, by = _actions(state, key, symptom), explained_by(key, name, causes)
            found.append(Finding(key, symptom, since, max(now - since, 0.0), life.evidence, actions, by))
    return tuple(sorted(found, key=lambda f: (bool(f.explained_by), _ORDER[f.symptom.severity], f.since)))


Causes = Mapping[EngineKey, Sequence[str]]
"""Symptoms that may explain others, by engine or target."""


def causes_of(state: State) -> Causes:
    """The symptoms that may explain others: firing, firing before they became unknown, or pending if that
    suffices."""
    found: dict[EngineKey, list[str]] = {}
    for key, name, life in lifecycles(state):
        early = life.stage is Stage.PENDING and BY_ID[name].explains_while_pending
        if life.still_firing or early:
            found.setdefault(key, []).append(name)
    return found


def explained_by(key: EngineKey, symptom: str, causes: Causes) -> tuple[str, ...]:
    """The causes that explain a symptom: those of the same engine, or if either is of the whole target."""
    target = EngineKey(key.target)
    keys = causes if key == target else (target, key)
    names = (name for one in keys for name in causes.get(one, ()))
    return tuple(dict.fromkeys(name for name in names if symptom in BY_ID[name].explains))


def lifecycles(state: State) -> Iterator[tuple[EngineKey, str, Lifecycle]]:
    """All symptoms of a target and of its engines."""
    for name, life in state.symptoms.items():
        yield EngineKey(state.target), name, life
    for key, engine in state.engines.items():
        for name, life in engine.symptoms.items():
            yield key, name, life


def _actions(state: State, key: EngineKey, symptom: Symptom) -> tuple[str, ...]:
    if (cause := symptom.log_cause(state.log)) is not None and cause.actions:
        return cause.actions
    engine = state.engines.get(key) or next(iter(state.engines.values()), None)
    snapshot = engine.snapshot if engine else Snapshot(key)
    return tuple(action.text for action in symptom.actions_for(snapshot))
