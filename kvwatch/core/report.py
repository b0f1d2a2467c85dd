"""State as plain data for JSON, and its values in words: the same for the commands, the HTTP API, page and log.

Signals and derived numbers are named as their exported metric without the ``kvwatch_`` prefix; a labelled one
as ``name{label="value"}``, a histogram as ``name_count`` and ``name_sum``. Seconds called ``t`` are monotonic,
those called ``at`` are unix time.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

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
    return {name: getattr(found, name) for name in CacheConfig.__slots__ if name not in {"known", "labels"}}


def clean(value: Any) -> Any:
    """`value` with what JSON has no word for (NaN, infinities) as None."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {str(k): clean(v) for k, v in value.items()}
    if isinstance(value, list | tuple | set | frozenset):
        return [clean(v) for v in value]
    return value


def unseen(state: State, one: EngineState, now: float | None = None) -> float | None:
    """Seconds since an engine was last on a good page, at `now` (monotonic; else at the newest outcome).

    None if it was on the newest outcome, which was a good page: only then are its numbers those of now.
    """
    if state.up and one.seen_at == state.good_at:
        return None
    now = state.now if now is None else now
    return max((one.seen_at if now is None else now) - one.seen_at, 0.0)


def offset(state: State) -> float | None:
    """What to add to a monotonic time of the state for unix seconds; None before the first outcome."""
    return None if state.wall is None or state.now is None else state.wall - state.now


def engine(
    state: EngineState, *, unseen_s: float | None = None, wall_offset: float | None = None
) -> dict[str, Any]:
    """One engine: signals, what is missing and why, derived numbers, configuration, regime and its times.

    With `unseen_s`, what `unseen` says, its numbers are not those of now and none is told; without, they are
    those of the newest good page. `wall_offset`, what `offset` says, makes times of monotonic ones.
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
    why = f"not scraped for {duration(unseen_s)}"
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
    """Where a symptom is; `since_at` is None before the first judgement."""
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


def gpus(state: State, now: float | None = None) -> dict[str, Any]:
    """The GPUs of a target at `now` (monotonic; else at the newest outcome), or why none is known."""
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
            for one in window.now(now)
        ],
        "gpus_missing": window.why_none(now) or None,
    }


def target(state: State, now: float | None = None) -> dict[str, Any]:
    """A target whole, at `now` (monotonic; else at the newest outcome). Only numbers of now are told."""
    error, shift = state.error, offset(state)
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
            engine(one, unseen_s=unseen(state, one, now), wall_offset=shift) for one in state.engines.values()
        ],
        "symptoms": _symptoms(state.symptoms, shift),
        "findings": [finding(f, now_wall=state.wall) for f in findings(state)],
        "events": [event(e) for e in state.events],
    }


# -- in words -----------------------------------------------------------------------------------------------------

NOTHING = "–"
"""What stands for a number that is not there."""


_LIMIT = "threshold_"
_WINDOW = "window_seconds"
"""Over what was looked: held against nothing."""


def parted(evidence: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """The numbers that were judged, and those that they were judged by, under the same names; what is empty says
    nothing."""
    found = {name: value for name, value in evidence.items() if value not in ("", [], (), {})}
    judged = {name: value for name, value in found.items() if not name.startswith(_LIMIT)}
    limits = {name.removeprefix(_LIMIT): value for name, value in found.items() if name.startswith(_LIMIT)}
    return judged, limits


class Fact(NamedTuple):
    """A number of the evidence and what it was held against, each with its name; None where one of them is missing.

    `title` is the name that says what it is.
    """

    title: str
    judged: tuple[str, Any] | None
    limit: tuple[str, Any] | None


def facts(evidence: Mapping[str, Any]) -> list[Fact]:
    """The numbers that were judged, each with its threshold: that of the same name, else the only one that its name
    ends in; thresholds of which that can't be told come last."""
    judged, limits = parted(evidence)
    against = {name: name for name in limits if name in judged}
    for name in limits.keys() - against.keys():
        ends = [one for one in judged if one.endswith(f"_{name}") and one not in {*limits, _WINDOW}]
        if len(ends) == 1:
            against[name] = ends[0]
    held = {one: (_LIMIT + name, limits[name]) for name, one in against.items()}
    return [Fact(name, (name, value), held.get(name)) for name, value in judged.items()] + [
        Fact(name, None, (_LIMIT + name, value)) for name, value in limits.items() if name not in against
    ]


def fact(name: str, value: Any) -> str:
    """A number of the evidence with its name, in words."""
    return f"{worded(name)} {spoken(name, value)}".lstrip()


def worded(name: str) -> str:
    """What a number of the evidence is called in words; empty if it is only a unit, which is said with the value."""
    plain_name, _, label = name.partition("{")
    if _is_timed(plain_name):
        plain_name = plain_name.removesuffix("seconds").removesuffix("_")
    words = plain_name.removesuffix("_percentile").replace("_", " ")
    return f"{words} p{label.split(_QUOTE)[1]}" if label else words


def titled(name: str) -> str:
    """What a number of the evidence is called at the head of a line; of one that is only a unit, what it measures."""
    words = worded(name) or "time"
    return " ".join(_SHORT.get(word.lower(), word) for word in (words[:1].upper() + words[1:]).split())


_SHORT = {word.lower(): word for word in ("KV", "TTFT", "ITL", "GPU", "SM", "LoRA")}
_QUOTE = '"'


def spoken(name: str, value: Any) -> str:
    """A value of the evidence for people; what its name ends in says what it is."""
    if isinstance(value, Mapping):
        return ", ".join(f"{key} {spoken(str(key), one)}" for key, one in value.items()) or "none"
    if isinstance(value, list | tuple | set | frozenset):
        return _listed(spoken(name, one) for one in value)
    timed = _is_timed(name.partition("{")[0]) or name == "seconds_ago"
    if timed and isinstance(value, int | float) and not isinstance(value, bool):
        return duration(value)
    return number(value)


def _is_timed(name: str) -> bool:
    return name == "seconds" or name.endswith("_seconds")


def number(value: Any) -> str:
    """A value short, for people: three digits, or all of those before the point; never an exponent."""
    if isinstance(value, bool) or value is None:
        return {True: "yes", False: "no", None: NOTHING}[value]
    if isinstance(value, int | float):
        return _short(value)
    if isinstance(value, Mapping):
        return ", ".join(f"{name} {number(one)}" for name, one in value.items()) or "none"
    if isinstance(value, list | tuple | set | frozenset):
        return _listed(map(number, value))
    return str(value)


def _short(value: float) -> str:
    if not math.isfinite(value):
        return NOTHING
    size = abs(value)
    if size >= 999.5:
        return f"{value:,.0f}"
    if 0 < size < 0.0005:
        return "about 0"
    return f"{value:.3f}".rstrip("0").rstrip(".") if size < 0.01 else f"{value:.3g}"


def _listed(words: Iterable[str]) -> str:
    return ", ".join(words) or "none"


def duration(seconds: float) -> str:
    """A time span for people: ``0.25 s``, ``47 s``, ``4 min``, ``1:02:03``."""
    if not math.isfinite(seconds):
        return NOTHING
    if abs(seconds) < 119.5:
        return f"{_short(seconds)} s" if abs(seconds) < 10 else f"{seconds:.0f} s"
    if abs(seconds) < 3570:
        return f"{seconds / 60:.0f} min"
    minutes, rest = divmod(round(abs(seconds)), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{'-' if seconds < 0 else ''}{hours}:{minutes:02}:{rest:02}"


def plain(value: float) -> str:
    """A number for machines: six digits, or all of those before the point; never an exponent."""
    if not math.isfinite(value):
        return "unknown"
    if abs(value) >= 1e5:
        return f"{value:.0f}"
    short = f"{value:.6g}"
    return f"{value:.9f}".rstrip("0").rstrip(".") if "e" in short else short
