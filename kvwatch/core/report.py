"""State as plain data for JSON: the same words for `replay --json`, `check --json` and the HTTP API.

Signals and derived numbers are named as their exported metric without the ``kvwatch_`` prefix; a labelled one
as ``name{label="value"}``, a histogram as ``name_count`` and ``name_sum``. Seconds called ``t`` are monotonic,
those called ``at`` are unix time.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from kvwatch.core.findings import Finding, findings
from kvwatch.core.lifecycle import Lifecycle
from kvwatch.core.signals import BY_NAME
from kvwatch.core.snapshot import CacheConfig, EngineKey, Histogram, Snapshot
from kvwatch.core.state import EngineState, Event, State, Transition


def identity(key: EngineKey) -> dict[str, str]:
    """The labels of a key; a key of the whole target has no model and no engine."""
    return {k: v for k, v in zip(("target", "model_name", "engine"), key, strict=True) if v or k == "target"}


def signals(snapshot: Snapshot) -> dict[str, float]:
    """Every signal's number, flat."""
    flat: dict[str, float] = {}
    for name, value in snapshot.values.items():
        if isinstance(value, Histogram):
            flat[f"{name}_count"] = value.count
            flat[f"{name}_sum"] = value.sum
        elif isinstance(value, Mapping):
            label = BY_NAME[name].dimension
            flat.update({f'{name}{{{label}="{k}"}}': v for k, v in value.items()})
        else:
            flat[name] = value
    return flat


def config(found: CacheConfig) -> dict[str, Any]:
    """What vLLM says of its cache; None where it does not."""
    if not found.known:
        return {}
    return {name: getattr(found, name) for name in CacheConfig.__slots__ if name != "known"}


def clean(value: Any) -> Any:
    """`value` with what JSON has no word for (NaN, infinities) as None."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {str(k): clean(v) for k, v in value.items()}
    if isinstance(value, list | tuple | set | frozenset):
        return [clean(v) for v in value]
    return value


def engine(state: EngineState) -> dict[str, Any]:
    """One engine: signals, what is missing and why, derived numbers, configuration, regime and its times."""
    derived = state.derived
    return identity(state.key) | {
        "generation": state.snapshot.generation,
        "signals": signals(state.snapshot),
        "missing": dict(state.snapshot.missing),
        "caveats": dict(state.snapshot.caveats),
        "derived": {**derived.values, **dict.fromkeys(derived.unknown)},
        "unknown": dict(derived.unknown),
        "untrusted": dict(derived.untrusted),
        "at_least": sorted(derived.at_least),
        "config": config(state.snapshot.config),
        "regime": str(state.regime),
        "regime_seconds": {str(regime): seconds for regime, seconds in state.regime_seconds.items()},
        "symptoms": {name: lifecycle(life) for name, life in state.symptoms.items()},
    }


def lifecycle(life: Lifecycle) -> dict[str, Any]:
    return {
        "state": str(life.stage),
        "since": life.since,
        "evidence": dict(life.evidence),
        **({"reason": life.reason} if life.reason else {}),
    }


def finding(found: Finding, *, now_wall: float | None) -> dict[str, Any]:
    """A finding with all that a person needs to act."""
    since = None if now_wall is None else now_wall - found.firing_s
    return identity(found.key) | {
        "symptom": found.symptom.id,
        "title": found.symptom.title,
        "severity": str(found.symptom.severity),
        "firing_seconds": found.firing_s,
        "since_at": since,
        "evidence": dict(found.evidence),
        "meaning": found.symptom.meaning,
        "causes": list(found.symptom.causes),
        "actions": list(found.actions),
        "explained_by": list(found.explained_by),
    }


def transition(change: Transition, *, start: float) -> dict[str, Any]:
    """A transition; `t` in seconds from `start`."""
    return identity(change.key) | {
        "t": round(change.t - start, 3),
        "at": change.wall,
        "symptom": change.symptom,
        "from": str(change.before),
        "to": str(change.after),
        "evidence": dict(change.evidence),
        **({"reason": change.reason} if change.reason else {}),
    }


def event(found: Event) -> dict[str, Any]:
    return identity(found.key) | {"at": found.wall, "event": found.kind, "detail": dict(found.detail)}


def target(state: State) -> dict[str, Any]:
    """A target whole."""
    return {
        "target": state.target,
        "up": state.up,
        "failure": None
        if state.error is None
        else {"kind": str(state.error.kind), "detail": state.error.detail},
        "scrapes": dict(state.outcomes),
        "restarts": state.restarts,
        "unknown_families": list(state.unknown_families),
        "server": signals(state.server) if state.server else {},
        "engines": [engine(one) for one in state.engines.values()],
        "symptoms": {name: lifecycle(life) for name, life in state.symptoms.items()},
        "findings": [finding(f, now_wall=state.wall) for f in findings(state)],
        "events": [event(e) for e in state.events],
    }
