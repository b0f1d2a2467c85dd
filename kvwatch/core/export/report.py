"""A state as plain data for JSON: the same for the commands, the HTTP API, the page and the log.

Signals and derived numbers have the name of their metric without the prefix ``kvwatch_``: a labelled one as
``name{label="value"}``, a histogram as ``name_count`` and ``name_sum``. Times called ``t`` are monotonic seconds,
those called ``at`` are unix seconds.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from kvwatch.core.export.findings import Finding, findings
from kvwatch.core.judgement.lifecycle import Lifecycle
from kvwatch.core.judgement.state import EngineState, Event, State, Transition
from kvwatch.core.model.signals import BY_NAME
from kvwatch.core.model.snapshot import CacheConfig, EngineKey, Histogram, Snapshot
from kvwatch.text.numbers import format_duration


def identity(key: EngineKey) -> dict[str, str]:
    """The labels of a key; the key of a whole target has no model and no engine."""
    return {k: v for k, v in zip(("target", "model_name", "engine"), key, strict=True) if v or k == "target"}


def signals(snapshot: Snapshot) -> dict[str, float]:
    """The numbers of all signals, flat."""
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
    """vLLM's cache configuration; None is unknown."""
    if not found.known:
        return {}
    return {name: getattr(found, name) for name in CacheConfig.__slots__ if name not in {"known", "labels"}}


def json_safe(value: Any) -> Any:
    """`value` with None in place of NaN and infinities, which JSON does not have."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {str(k): json_safe(v) for k, v in value.items()}
    if isinstance(value, list | tuple | set | frozenset):
        return [json_safe(v) for v in value]
    return value


def seconds_unseen(state: State, one: EngineState, now: float | None = None) -> float | None:
    """Seconds since an engine was last on a good page, at `now` (monotonic seconds; default: the newest outcome).

    None if the newest outcome is a good page with the engine on it: only then are its numbers current.
    """
    if state.up and one.seen_at == state.good_at:
        return None
    now = state.now if now is None else now
    return max((one.seen_at if now is None else now) - one.seen_at, 0.0)


def wall_offset(state: State) -> float | None:
    """The difference from the state's monotonic times to unix seconds; None before the first outcome."""
    return None if state.wall is None or state.now is None else state.wall - state.now


def engine(
    state: EngineState, *, unseen_s: float | None = None, wall_offset: float | None = None
) -> dict[str, Any]:
    """One engine: signals, missing signals with reasons, derived numbers, configuration, regime and its times.

    With `unseen_s` (from `seconds_unseen`) its numbers are not current and are left out. `wall_offset` is from the
    function of that name.
    """
    numbers = _numbers(state) if unseen_s is None else _no_numbers(state, unseen_s)
    return (
        identity(state.key)
        | {"generation": state.snapshot.generation}
        | numbers
        | {
            "config": config(state.snapshot.config),
            "regime": str(state.regime),
            "regime_seconds": {str(regime): seconds for regime, seconds in state.regime_seconds.items()},
            "symptoms": _symptoms(state.symptoms, wall_offset),
        }
    )


def _numbers(state: EngineState) -> dict[str, Any]:
    derived = state.derived
    return {
        "signals": signals(state.snapshot),
        "missing": dict(state.snapshot.missing),
        "caveats": dict(state.snapshot.caveats),
        "derived": {**derived.values, **dict.fromkeys(derived.unknown)},
        "unknown": dict(derived.unknown),
        "untrusted": dict(derived.untrusted),
        "at_least": sorted(derived.at_least),
    }


def _no_numbers(state: EngineState, unseen_s: float) -> dict[str, Any]:
    why = f"not scraped for {format_duration(unseen_s)}"
    derived = (*state.derived.values, *state.derived.unknown)
    return {
        "signals": {},
        "missing": {**state.snapshot.missing, **dict.fromkeys(state.snapshot.values, why)},
        "caveats": {},
        "derived": dict.fromkeys(derived),
        "unknown": dict.fromkeys(derived, why),
        "untrusted": {},
        "at_least": [],
    }


def lifecycle(life: Lifecycle, *, wall_offset: float | None) -> dict[str, Any]:
    """The state of a symptom; `since_at` is None before the first judgement."""
    return {
        "state": str(life.stage),
        "since_at": None if life.since is None or wall_offset is None else life.since + wall_offset,
        "evidence": dict(life.evidence),
        **({"reason": life.reason} if life.reason else {}),
    }


def _symptoms(lives: Mapping[str, Lifecycle], wall_offset: float | None) -> dict[str, Any]:
    return {name: lifecycle(life, wall_offset=wall_offset) for name, life in lives.items()}


def finding(found: Finding, *, now_wall: float | None) -> dict[str, Any]:
    """A finding with all that a person needs to act."""
    since = None if now_wall is None else now_wall - found.firing_s
    return identity(found.key) | {
        "symptom": found.symptom.id,
        "title": found.symptom.title,
        "severity": str(found.severity),
        "firing_seconds": found.firing_s,
        "since_at": since,
        "evidence": dict(found.evidence),
        "meaning": found.symptom.meaning,
        "causes": list(found.symptom.causes),
        **found.advice.as_data(),
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


def gpus(state: State, now: float | None = None) -> dict[str, Any]:
    """The GPUs of a target at `now` (monotonic seconds; default: the newest outcome), or why none is known."""
    now = (state.now or 0.0) if now is None else now
    window = state.gpu
    source = window.reading.source if window.reading else ""
    return {
        "gpus": [
            {
                "gpu": one.label,
                "uuid": one.uuid,
                "name": one.name,
                "source": source,
                "sm_active_ratio": one.sm_active,
                "dram_active_ratio": one.dram_active,
                "utilization_ratio": one.utilization,
                "memory_used_bytes": one.memory_used_bytes,
                "memory_free_bytes": one.memory_free_bytes,
            }
            for one in window.current(now)
        ],
        "gpus_missing": window.why_unknown(now) or None,
    }


def target(state: State, now: float | None = None) -> dict[str, Any]:
    """All of a target at `now` (monotonic seconds; default: the newest outcome). Only current numbers are
    included."""
    error, shift = state.error, wall_offset(state)
    return {
        "target": state.target,
        "up": state.up,
        "failure": None if error is None else {"kind": str(error.kind), "detail": error.detail},
        "scrapes": dict(state.outcomes),
        "restarts": state.restarts,
        "unknown_families": list(state.unknown_families),
        "series_left_out": state.left_out,
        "server": signals(state.server) if state.server and state.up else {},
        **gpus(state, now),
        "engines": [
            engine(one, unseen_s=seconds_unseen(state, one, now), wall_offset=shift)
            for one in state.engines.values()
        ],
        "symptoms": _symptoms(state.symptoms, shift),
        "findings": [finding(f, now_wall=state.wall) for f in findings(state)],
        "events": [event(e) for e in state.events],
    }
