"""Findings: the firing symptoms with all that a person needs to act, most urgent first."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from kvwatch.core.judgement.advice.choose import Advice
from kvwatch.core.judgement.lifecycle import Lifecycle, Stage
from kvwatch.core.judgement.state import State
from kvwatch.core.judgement.symptoms import BY_ID, Evidence, Severity, Symptom
from kvwatch.core.model.snapshot import EngineKey

_ORDER = {Severity.CRITICAL: 0, Severity.WARNING: 1, Severity.INFO: 2}


@dataclass(frozen=True, slots=True)
class Finding:
    """A firing symptom. It fires since `since` (monotonic seconds), for `firing_s` seconds.

    `explained_by` are firing symptoms that cause it; fix those first. `advice` is what to do, in order.
    """

    key: EngineKey
    symptom: Symptom
    since: float
    firing_s: float
    evidence: Evidence
    advice: Advice
    explained_by: tuple[str, ...]
    severity: Severity


def findings(state: State) -> tuple[Finding, ...]:
    """The present findings of a target: causes before effects, then by severity, oldest first."""
    causes = causes_of(state)
    found = []
    for key, name, life in lifecycles(state):
        if life.stage is Stage.FIRING:
            symptom, now = BY_ID[name], state.now or 0.0
            since = now if life.since is None else life.since
            severity, by = life.severity or symptom.severity, explained_by(key, name, causes)
            firing_s = max(now - since, 0.0)
            found.append(Finding(key, symptom, since, firing_s, life.evidence, life.advice, by, severity))
    return tuple(sorted(found, key=lambda f: (bool(f.explained_by), _ORDER[f.severity], f.since)))


Causes = Mapping[EngineKey, Sequence[str]]
"""Symptoms that may explain others, by engine or target."""


def causes_of(state: State) -> Causes:
    """The symptoms that may explain others: those that fire, or fired before they became unknown."""
    found: dict[EngineKey, list[str]] = {}
    for key, name, life in lifecycles(state):
        if life.still_firing:
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
