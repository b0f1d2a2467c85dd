"""The store as plain data, for the HTTP interface. Reads only."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from operator import attrgetter
from typing import Any

from kvwatch import __version__
from kvwatch.core.export import report
from kvwatch.core.history.window import Sample
from kvwatch.core.judgement.state import EngineState, State
from kvwatch.core.model.signals import WINDOWED
from kvwatch.sidecar.clock import Clock
from kvwatch.sidecar.serving.finding_status import finding_status
from kvwatch.sidecar.serving.latencies import latencies
from kvwatch.sidecar.store import Store

_GAUGES: dict[str, str] = {
    "at": "unix seconds",
    "kv_cache_usage_ratio": "ratio, 0 to 1",
    "requests_running": "requests",
    "requests_waiting": "requests",
    "requests_deferred": "requests",
    "kv_cache_demand_ratio": "ratio, 1 is exactly full",
    "regime": "name",
}
#: The fields of a sample behind them.
_FIELDS: dict[str, str] = {
    "kv_cache_usage_ratio": "usage",
    "requests_running": "running",
    "requests_waiting": "waiting",
    "requests_deferred": "deferred",
    "kv_cache_demand_ratio": "demand",
    "regime": "regime",
}
UNITS: dict[str, str] = _GAUGES | {counter.name: f"{counter.unit}, increase" for counter in WINDOWED}
"""Unit of each column of a history, in their order."""


class UnknownName(LookupError):  # noqa: N818 - the asker's error, not ours
    """Something was asked for that is not there; the text says what there is."""


def state(store: Store, clock: Clock) -> dict[str, Any]:
    """Everything."""
    now = clock.now()
    targets = [
        report.target(one, now) | {"findings": finding_status(one, now), "polling": _polling(store, one, now)}
        for one in store.states().values()
    ]
    return _clean({"version": __version__, "at": clock.wall(), "targets": targets})


def _polling(store: Store, one: State, now: float) -> dict[str, Any]:
    stats = store.poll_stats(one.target)
    last = one.last
    return {
        "polls": stats.polls,
        "missed_ticks": stats.missed_ticks,
        "unexpected_errors": stats.unexpected_errors,
        "interval_seconds": last.interval_s if last else None,
        "duration_seconds": last.duration_s if last else None,
        "narrowed": last.narrowed if last else None,
        "age_seconds": None if one.good_at is None else max(now - one.good_at, 0.0),
    }


def all_findings(store: Store, clock: Clock) -> dict[str, Any]:
    """What fires, over all targets."""
    now = clock.now()
    found = [finding for one in store.states().values() for finding in finding_status(one, now)]
    return _clean({"at": clock.wall(), "findings": found})


def events(store: Store, clock: Clock) -> dict[str, Any]:
    """Events and transitions, oldest first."""
    happened = sorted((e for one in store.states().values() for e in one.events), key=lambda e: e.t)
    changes = store.transitions()
    start = changes[0].t if changes else 0.0
    return _clean(
        {
            "at": clock.wall(),
            "events": [report.event(e) for e in happened],
            "transitions": [report.transition(c, start=start) for c in changes],
        }
    )


def history(
    store: Store,
    clock: Clock,
    *,
    seconds: float,
    latency_seconds: float | None = None,
    target: str | None = None,
    model_name: str | None = None,
    engine: str | None = None,
    columns: Sequence[str] | None = None,
) -> dict[str, Any]:
    """The samples of the engines and the columns asked for, and latencies as far back as `latency_seconds`, else as
    those. `UnknownName` if a name fits none."""
    states = store.states()
    for one in columns or ():
        if one not in UNITS:
            raise _unknown("column", one, UNITS)
    units = UNITS if columns is None else {name: unit for name, unit in UNITS.items() if name in columns}
    if target is not None and target not in states:
        raise _unknown("target", target, states)
    chosen = [s for s in states.values() if target is None or s.target == target]
    engines = [(s, e) for s in chosen for e in s.engines.values()]
    for what, asked in (("model_name", model_name), ("engine", engine)):
        if asked is None:
            continue
        known = {getattr(e.key, what) for _, e in engines}
        if asked not in known:
            raise _unknown(what, asked, known)
        engines = [(s, e) for s, e in engines if getattr(e.key, what) == asked]
    found = [
        report.identity(e.key)
        | {
            "columns": _columns(s, e, seconds, units),
            "latencies": latencies(s, e, latency_seconds or seconds),
        }
        for s, e in engines
    ]
    return _clean({"at": clock.wall(), "seconds": seconds, "units": units, "engines": found})


def _unknown(what: str, asked: str, known: Any) -> UnknownName:
    names = ", ".join(sorted(known)) or "none yet"
    return UnknownName(f"no {what} is called {asked!r}; known: {names}")


def _columns(
    one: State, engine: EngineState, seconds: float, wanted: Mapping[str, str]
) -> dict[str, list[Any]]:
    offset = report.wall_offset(one)
    if one.now is None or offset is None:
        return {name: [] for name in wanted}
    rows = engine.before_restart.with_current(engine.windows, one.now - seconds)
    return {name: _column(name, rows, offset) for name in wanted}


def _column(name: str, rows: Sequence[Sample], offset: float) -> list[Any]:
    if name == "at":
        return [round(row.t + offset, 3) for row in rows]
    if name in _FIELDS:
        read = attrgetter(_FIELDS[name])
        return [read(row) for row in rows]
    return [row.total(name) for row in rows]


def failures(store: Store) -> dict[str, Any]:
    """The latest scrapes that gave nothing."""
    return {
        "failures": [
            {"target": f.target, "at": f.wall, "kind": str(f.kind), "detail": f.detail, "excerpt": f.excerpt}
            for f in store.failures()
        ]
    }


def _clean(data: dict[str, Any]) -> dict[str, Any]:
    cleaned: dict[str, Any] = report.json_safe(data)
    return cleaned
