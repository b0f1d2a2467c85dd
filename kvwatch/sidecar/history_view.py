"""The history of engines as columns of numbers, for the JSON API. Read-only."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator, Mapping, Sequence
from operator import attrgetter
from typing import Any

from pydantic import BaseModel, Field

from kvwatch.core.export import report
from kvwatch.core.history.window import HistogramTotals, Sample, histogram_increase, quantile
from kvwatch.core.judgement.derive import MINUTE
from kvwatch.core.judgement.state import EngineState, State
from kvwatch.core.model.signals import WINDOWED
from kvwatch.sidecar.api_views import clean
from kvwatch.sidecar.clock import Clock
from kvwatch.sidecar.store import Store

_FIELDS: dict[str, tuple[str, str]] = {
    "kv_cache_usage_ratio": ("usage", "ratio, 0 to 1"),
    "requests_running": ("running", "requests"),
    "requests_waiting": ("waiting", "requests"),
    "requests_deferred": ("deferred", "requests"),
    "kv_cache_demand_ratio": ("demand", "ratio, 1 is exactly full"),
    "regime": ("regime", "name"),
}
"""Column -> field of a sample, unit."""
UNITS: dict[str, str] = (
    {"at": "unix seconds"}
    | {name: unit for name, (_, unit) in _FIELDS.items()}
    | {counter.name: f"{counter.unit}, increase" for counter in WINDOWED}
)
"""Unit of each column of a history, in order."""

_MAX_SECONDS = 86_400.0
_TTFT = "time_to_first_token_seconds"
_QUANTILES = {"time_to_first_token_p50_seconds": 0.5, "time_to_first_token_p95_seconds": 0.95}
_LATENCY_STEP_S = 10.0
"""Shortest time between two points of a latency: quantiles over a minute change slowly."""
_MIN_REQUESTS = 5
"""First tokens in a minute that a quantile requires. Findings require more; a line shows its own noise."""


class UnknownName(LookupError):  # noqa: N818 - an error of the client
    """A name in a query does not exist; the text lists those that do."""


class HistoryQuery(BaseModel):
    """The parameters of a query; None selects all."""

    target: str | None = Field(None, description="name of one target in the settings; default: all")
    model_name: str | None = Field(None, description="name of one model in vLLM; default: all")
    engine: str | None = Field(None, description="index of one engine in vLLM; default: all")
    seconds: float = Field(
        600.0,
        gt=0,
        le=_MAX_SECONDS,
        description="how far back, in seconds; limited by what is kept (history)",
    )
    latency_seconds: float | None = Field(
        None,
        gt=0,
        le=_MAX_SECONDS,
        description="how far back latencies go, in seconds; default: as `seconds`",
    )
    columns: str | None = Field(None, description="names of columns, separated by commas; default: all")


def history_view(store: Store, clock: Clock, query: HistoryQuery) -> dict[str, Any]:
    """The samples of the selected engines and columns, and their latencies; raises `UnknownName`."""
    target, seconds = query.target, query.seconds
    columns = None if query.columns is None else query.columns.split(",")
    states = store.states()
    for one in columns or ():
        if one not in UNITS:
            raise _unknown("column", one, UNITS)
    units = UNITS if columns is None else {name: unit for name, unit in UNITS.items() if name in columns}
    if target is not None and target not in states:
        raise _unknown("target", target, states)
    chosen = [s for s in states.values() if target is None or s.target == target]
    engines = [(s, e) for s in chosen for e in s.engines.values()]
    for label, value in (("model_name", query.model_name), ("engine", query.engine)):
        if value is None:
            continue
        known = {getattr(e.key, label) for _, e in engines}
        if value not in known:
            raise _unknown(label, value, known)
        engines = [(s, e) for s, e in engines if getattr(e.key, label) == value]
    found = [
        report.identity(e.key)
        | {
            "columns": _columns(s, e, seconds, units),
            "latencies": latencies(s, e, query.latency_seconds or seconds),
        }
        for s, e in engines
    ]
    return clean({"at": clock.wall(), "seconds": seconds, "units": units, "engines": found})


def _unknown(kind: str, name: str, known: Any) -> UnknownName:
    return UnknownName(f"no {kind} {name!r}; known: {', '.join(sorted(known)) or 'none yet'}")


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
        read = attrgetter(_FIELDS[name][0])
        return [read(row) for row in rows]
    return [row.total(name) for row in rows]


def latencies(state: State, engine: EngineState, seconds: float) -> dict[str, list[float | None]]:
    """Quantiles of the time to first token over the last `seconds`, as far back as histograms are kept.

    A point every 10 s, each over the minute before it or since the engine appeared. `at` in unix seconds,
    oldest first.
    """
    found: dict[str, list[float | None]] = {"at": [], **{name: [] for name in _QUANTILES}}
    offset = report.wall_offset(state)
    if state.now is None or offset is None:
        return found
    for process in (*engine.before_restart.histograms, engine.windows.histograms):
        for before, after in _minutes(process.rows(), state.now - seconds):
            seen = histogram_increase([before, after], _TTFT)
            found["at"].append(round(after.t + offset, 3))
            for name, q in _QUANTILES.items():
                estimate = quantile(seen, q) if seen and seen.count >= _MIN_REQUESTS else None
                found[name].append(estimate.value if estimate else None)
    return found


def _minutes(
    rows: Sequence[HistogramTotals], start: float
) -> Iterator[tuple[HistogramTotals, HistogramTotals]]:
    """Pairs of histograms of one vLLM process, a minute apart."""
    times = [row.t for row in rows]
    last = float("-inf")
    for newest, row in enumerate(rows):
        oldest = max(bisect_right(times, row.t - MINUTE) - 1, 0)
        if row.t < start or row.t - last < _LATENCY_STEP_S or newest == oldest:
            continue
        last = row.t
        yield rows[oldest], row
