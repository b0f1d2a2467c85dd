"""Findings: the symptoms that fire, with everything a person needs to act, most urgent first."""

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
    """A firing symptom. `firing_s` is for how long; `explained_by` names firing symptoms that account for it,
    which are what to act on. `actions` are in order and name only options that this vLLM has."""

    key: EngineKey
    symptom: Symptom
    since: float
    firing_s: float
    evidence: Evidence
    actions: tuple[str, ...]
    explained_by: tuple[str, ...]


def findings(state: State) -> tuple[Finding, ...]:
    """What fires on a target now: causes before effects, then by severity."""
    firing = {(key, name): life for key, name, life in lifecycles(state) if life.stage is Stage.FIRING}
    causes = causes_of(state)
    found = []
    for (key, name), life in firing.items():
        symptom = BY_ID[name]
        by = explained_by(key, name, causes)
        since = life.since if life.since is not None else state.now or 0.0
        found.append(
            Finding(
                key,
                symptom,
                since,
                max((state.now or 0.0) - since, 0.0),
                life.evidence,
                _actions(state, key, symptom),
                by,
            )
        )
    return tuple(sorted(found, key=lambda f: (bool(f.explained_by), _ORDER[f.symptom.severity], f.since)))


Causes = Mapping[EngineKey, Sequence[str]]
"""Symptoms that account for others, by whose they are."""


def causes_of(state: State) -> Causes:
    """What accounts for others: symptoms that fire, go on unseen, or do so already while pending."""
    found: dict[EngineKey, list[str]] = {}
    for key, name, life in lifecycles(state):
        early = life.stage is Stage.PENDING and BY_ID[name].explains_while_pending
        if life.goes_on or early:
            found.setdefault(key, []).append(name)
    return found


def explained_by(key: EngineKey, symptom: str, causes: Causes) -> tuple[str, ...]:
    """Which of the causes account for a symptom: of the same engine, or where either is of the whole target."""
    whole = EngineKey(key.target)
    keys = causes if key == whole else (whole, key)
    names = (name for one in keys for name in causes.get(one, ()))
    return tuple(dict.fromkeys(name for name in names if symptom in BY_ID[name].explains))


def lifecycles(state: State) -> Iterator[tuple[EngineKey, str, Lifecycle]]:
    """Every symptom of a target and of its engines."""
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
