"""The next state of one engine after a good page."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from kvwatch.core.history.integrals import integrate
from kvwatch.core.history.regimes import Regime, RegimeInputs, regime_of
from kvwatch.core.history.window import (
    TRACKED,
    CounterTotal,
    HistogramTotals,
    Minute,
    Sample,
    Windows,
    add_to_total,
)
from kvwatch.core.judgement.accounting import gap_s
from kvwatch.core.judgement.derive import capacity_tokens, demand, derive
from kvwatch.core.judgement.derived import Derived
from kvwatch.core.judgement.percentiles import LATENCIES, LENGTHS, percentile_name
from kvwatch.core.judgement.state import EngineState, State
from kvwatch.core.model.outcome import Pace
from kvwatch.core.model.signals import SIGNALS, WINDOWED, SignalScope
from kvwatch.core.model.snapshot import Histogram, Snapshot
from kvwatch.core.model.timed_rows import History

_HISTOGRAMS_KEPT_S, _MINUTES_KEPT_S, _MINUTE_S = 330.0, 3660.0, 60.0
_MIN_MINUTES = 8
"""Until this many rows exist, every full page adds one."""
_DISCONNECT_S = 3.0
"""A client that disconnects this soon after the last progress leaves a working engine and its gauges behind."""
_PROGRESS = ("generation_tokens_total", "prompt_tokens_total", "iteration_tokens", "requests_finished_total")
"""Counters whose increase shows that the engine works. A change of KV usage does too: it is constant in a hung
engine."""
_SLOW = frozenset(signal.name for signal in SIGNALS if signal.pace is Pace.FULL)


def raw_counters(engine: Snapshot, server: Snapshot) -> dict[str, float]:
    """The windowed counters as exposed, by name."""
    found = {}
    for name, signal, part, _ in WINDOWED:
        snapshot = server if signal.scope is SignalScope.TARGET else engine
        histogram = snapshot.histogram(signal.name)
        if histogram is not None:
            found[name] = histogram.sum if part == "sum" else histogram.count
            continue
        value = snapshot.part(signal.name, part) if part else snapshot.number(signal.name)
        if value is not None:
            found[name] = value
    return found


def with_new_history(engine: EngineState, now: float, keep_s: float) -> EngineState:
    """The engine with an empty history after a restart; its old history is kept for display."""
    old = engine.snapshot
    return replace(
        engine,
        snapshot=Snapshot(engine.key, generation=old.generation, features=old.features),
        windows=Windows(),
        integrals=History(),
        before_restart=engine.before_restart.with_process(engine.windows, keep_s),
        totals={},
        raw_histograms={},
        histogram_totals={},
        covered=0.0,
        derived=Derived(),
        progress_at=None,
        prompt_at=None,
        busy_since=None,
        disconnects=0.0,
        seen_at=now,
    )


def with_slow_signals(narrow: Snapshot, before: Snapshot) -> Snapshot:
    """A narrowed snapshot, completed with the slow signals of the last full one.

    A signal that was requested and is gone stays missing.
    """
    values = dict(narrow.values)
    missing = dict(narrow.missing)
    for signal in SIGNALS:
        name = signal.name
        old, new = before.values.get(name), values.get(name)
        if isinstance(old, Histogram) and isinstance(new, Histogram):
            if not new.bounds:
                values[name] = old  # so that buckets, sum and count are of one moment
        elif name in _SLOW and name in missing:
            if old is not None:
                values[name] = old
                del missing[name]
            elif name in before.missing:
                missing[name] = before.missing[name]
    config = narrow.config if narrow.config.known else before.config
    if config.known:
        missing.pop("cache_config", None)
    return replace(
        narrow,
        values=values,
        missing=missing,
        config=config,
        features=narrow.features | before.features,
        generation=before.generation,
    )


def without_values(engine: EngineState) -> EngineState:
    """The engine without values, because it is no longer on the page."""
    gone = dict.fromkeys(engine.snapshot.values, "the engine is no longer on the page")
    return replace(
        engine, snapshot=replace(engine.snapshot, values={}, missing={**engine.snapshot.missing, **gone})
    )


def with_regime(engine: EngineState, regime: Regime) -> EngineState:
    return engine if engine.regime is regime else replace(engine, regime=regime)


def engine_after_page(
    engine: EngineState,
    snapshot: Snapshot,
    raw: Mapping[str, float],
    state: State,
    *,
    interval_s: float,
    now: float,
) -> EngineState:
    """One engine after one good page, whose windowed counters are `raw`; `snapshot` may include older slow
    signals."""
    last = engine.windows.samples.last
    gap = last is None or now - last.t > gap_s(interval_s)
    covered = engine.covered + (0.0 if last is None or gap else now - last.t)
    totals = {**engine.totals} | {
        name: engine.totals[name].add(value, gap=gap) if name in engine.totals else CounterTotal(value)
        for name, value in raw.items()
    }
    usage, running, waiting = _gauges(snapshot)
    deferred = snapshot.part("requests_waiting_by_reason", "deferred") or 0.0
    progress_at, prompt_at = _progress(engine, raw, usage, now)
    disconnects = _disconnects(engine, totals, raw, progress_at, interval_s=interval_s, now=now)
    asleep = snapshot.part("engine_sleep_state", "awake") == 0.0
    busy = not asleep and ((running or 0.0) > 0 or (waiting or 0.0) > 0)
    began = engine.busy_since is None or (gap and progress_at == now)  # it may have been idle during the gap
    busy_since = None if not busy else now if began else engine.busy_since
    demand_now = demand(usage, running, waiting)
    recent = engine.windows.samples.since(now - state.limits["regime.plateau"])
    at = RegimeInputs(
        usage=usage,
        running=running,
        waiting=waiting,
        deferred=deferred,
        demand=demand_now,
        asleep=asleep,
        cold=snapshot.cold,
        since_progress=None if progress_at is None else now - progress_at,
        since_prompt=None if prompt_at is None else now - prompt_at,
        busy_for=0.0 if busy_since is None else now - busy_since,
        stale_gauges=len(state.engines) <= 1
        and _has_stale_gauges(snapshot, disconnects, (running or 0.0) + (waiting or 0.0), progress_at, now),
        ceiling=state.policy.max_num_seqs,
        long_prompt=_long_prompt(engine, snapshot),
    )
    regime = regime_of(at, recent, state.limits, now)
    sample = Sample(
        now,
        covered,
        usage,
        running,
        waiting,
        deferred,
        demand_now,
        regime.value,
        _sample_totals(totals, raw, last),
    )
    engine = with_regime(engine, regime)
    return replace(
        engine,
        snapshot=snapshot,
        seen_at=now,
        totals=totals,
        covered=covered,
        progress_at=progress_at,
        prompt_at=prompt_at,
        busy_since=busy_since,
        disconnects=disconnects,
        stale_gauges=at.stale_gauges,
        usage_tally=engine.usage_tally if usage is None else engine.usage_tally.add(usage),
        windows=replace(
            engine.windows,
            samples=engine.windows.samples.append(sample, state.policy.history_s),
        ),
        integrals=integrate(engine.integrals, sample),
        before_restart=engine.before_restart.without_before(now - state.policy.history_s),
    )


def _sample_totals(
    totals: Mapping[str, CounterTotal], raw: Mapping[str, float], last: Sample | None
) -> tuple[float | None, ...]:
    """The totals of a sample; the last sample's own tuple while nothing changes, to save memory."""
    found = tuple([totals[name].total if name in raw else None for name in TRACKED])
    return last.totals if last is not None and last.totals == found else found


def with_derived(engine: EngineState, state: State, now: float, *, full: bool) -> EngineState:
    """The engine with the derived numbers of its newest sample."""
    derived = derive(
        engine.snapshot,
        engine.windows,
        engine.derived,
        state.policy,
        state.limits,
        now=now,
        full=full,
        progress_at=engine.progress_at,
    )
    return replace(engine, derived=derived)


def _gauges(snapshot: Snapshot) -> tuple[float | None, float | None, float | None]:
    """KV usage, running and waiting requests; v0's swapped out requests are waiting too."""
    waiting = snapshot.number("requests_waiting")
    if waiting is not None:
        waiting += snapshot.number("requests_swapped") or 0.0
    return snapshot.number("kv_cache_usage_ratio"), snapshot.number("requests_running"), waiting


def _progress(
    engine: EngineState, raw: Mapping[str, float], usage: float | None, now: float
) -> tuple[float | None, float | None]:
    """When any progress, and when prompt tokens, were last seen to move; None without such a counter.

    A counter with the same value on both sides of a gap has not moved.
    """

    def moved(name: str) -> bool:
        return name in raw and (name not in engine.totals or engine.totals[name].raw != raw[name])

    last = engine.windows.samples.last
    usage_moved = last is not None and usage is not None and usage != last.usage
    progress_at = prompt_at = None
    if any(name in raw for name in _PROGRESS):
        any_moved = usage_moved or any(moved(name) for name in _PROGRESS)
        progress_at = now if any_moved or engine.progress_at is None else engine.progress_at
    if "prompt_tokens_total" in raw:
        prompt_moved = moved("prompt_tokens_total") or engine.prompt_at is None
        prompt_at = now if prompt_moved else engine.prompt_at
    return progress_at, prompt_at


def _disconnects(
    engine: EngineState,
    totals: Mapping[str, CounterTotal],
    raw: Mapping[str, float],
    progress_at: float | None,
    *,
    interval_s: float,
    now: float,
) -> float:
    """The server's answers beyond the requests that the engine finished, since just before its last progress.

    These are clients that disconnected while the engine still worked.
    """
    names = ("http_responses_total", "requests_finished_total")
    if any(name not in raw or name not in engine.totals for name in names) or progress_at is None:
        return 0.0
    answered, finished = (totals[name].total - engine.totals[name].total for name in names)
    beyond = max(answered - finished, 0.0)
    if progress_at == now:
        return beyond
    soon = now - progress_at <= max(_DISCONNECT_S, 1.5 * interval_s)
    return engine.disconnects + beyond if soon else engine.disconnects


def _has_stale_gauges(
    snapshot: Snapshot, disconnects: float, present: float, progress_at: float | None, now: float
) -> bool:
    """Whether the gauges show requests whose clients all disconnected: before vLLM 0.10.2 they keep their last
    values.

    The clients of a hung engine still wait, or disconnect later.
    """
    if "gauges follow aborts" in snapshot.features or progress_at is None or present <= 0:
        return False
    return disconnects >= present and now - progress_at >= _DISCONNECT_S


def _long_prompt(engine: EngineState, snapshot: Snapshot) -> float | None:
    """The share of the cache that a long recent prompt needs; None if lengths or capacity are unknown."""
    length = engine.derived.get(percentile_name("request_prompt_tokens_percentile", 0.95))
    capacity, _ = capacity_tokens(snapshot)
    return length / capacity if length is not None and capacity else None


def with_histograms(engine: EngineState, snapshot: Snapshot, now: float) -> EngineState:
    """The engine with the histograms of a full page in its windows.

    Buckets are read rarely by design, so their increase since the last full page counts, gap or not.
    """
    raw = {
        name: value
        for name, value in snapshot.values.items()
        if isinstance(value, Histogram) and value.bounds
    }
    totals = {
        name: add_to_total(engine.raw_histograms.get(name), engine.histogram_totals.get(name), value)
        for name, value in raw.items()
    }
    histograms = engine.windows.histograms.append(HistogramTotals(now, totals), _HISTOGRAMS_KEPT_S)
    minutes, sample = engine.windows.minutes, engine.windows.samples.last
    newest = minutes.last
    if newest is None or now - newest.t >= _MINUTE_S or len(minutes) < _MIN_MINUTES:
        lengths = {name: totals[name] for name in LENGTHS if name in totals}
        ttft = engine.derived.get(percentile_name(LATENCIES["time_to_first_token_seconds"], 0.95))
        minutes = minutes.append(Minute(now, lengths, sample.totals if sample else (), ttft), _MINUTES_KEPT_S)
    return replace(
        engine,
        raw_histograms=raw,
        histogram_totals=totals,
        windows=replace(engine.windows, histograms=histograms, minutes=minutes),
    )
