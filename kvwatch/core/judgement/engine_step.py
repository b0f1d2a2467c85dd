"""One engine, from what was known of it and a good page to what is known now."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from kvwatch.core.history.integrals import integrate
from kvwatch.core.history.regimes import Instant, Regime, regime_of
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
from kvwatch.core.judgement.percentiles import LATENCIES, LENGTHS, labelled
from kvwatch.core.judgement.state import EngineState, State
from kvwatch.core.model.outcome import Pace
from kvwatch.core.model.signals import BY_NAME, SIGNALS, Level
from kvwatch.core.model.snapshot import Histogram, Snapshot
from kvwatch.core.model.timed_rows import History

_LADDERS_KEPT_S, _MINUTES_KEPT_S, _MINUTE_S = 330.0, 3660.0, 60.0
#: So soon after the last progress, clients that go away leave an engine that works, and its gauges behind.
_PARTING_S = 3.0
#: Counters whose movement shows that the engine works. Usage counts too: a hung engine's does not move.
_PROGRESS = ("generation_tokens_total", "prompt_tokens_total", "iteration_tokens", "requests_finished_total")


def raw_counters(engine: Snapshot, server: Snapshot) -> dict[str, float]:
    """The tracked counters as exposed, by the names of `TRACKED`."""
    found = {}
    for name in TRACKED:
        signal, _, part = name.partition("/")
        snapshot = server if BY_NAME[signal].level is Level.TARGET else engine
        histogram = snapshot.histogram(signal)
        if histogram is not None:
            found[name] = histogram.sum if part == "sum" else histogram.count
            continue
        value = snapshot.part(signal, part) if part else snapshot.number(signal)
        if value is not None:
            found[name] = value
    return found


def with_new_history(engine: EngineState, now: float, keep_s: float) -> EngineState:
    """An engine whose history ended: what it was does not count for the new process, and is kept to be shown."""
    old = engine.snapshot
    return replace(
        engine,
        snapshot=Snapshot(engine.key, generation=old.generation, features=old.features),
        windows=Windows(),
        integrals=History(),
        past=engine.past.ended(engine.windows, keep_s),
        climbs={},
        raw_ladders={},
        climbed_ladders={},
        covered=0.0,
        derived=Derived(),
        progress_at=None,
        prompt_at=None,
        busy_since=None,
        parted=0.0,
        seen_at=now,
    )


def with_slow_signals(narrow: Snapshot, before: Snapshot) -> Snapshot:
    """A narrow snapshot, completed by what the last full one said of what was not asked for.

    Only that: a signal that was asked for and is gone stays missing.
    """
    values = dict(narrow.values)
    missing = dict(narrow.missing)
    for signal in SIGNALS:
        name, old, new = signal.name, before.values.get(signal.name), values.get(signal.name)
        if isinstance(old, Histogram) and isinstance(new, Histogram):
            if not new.bounds:
                values[name] = old  # buckets, sum and count of one moment
        elif signal.pace is Pace.FULL and name in missing:
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
    """An engine that is no longer on the page has no values."""
    gone = dict.fromkeys(engine.snapshot.values, "the engine is no longer on the page")
    return replace(
        engine, snapshot=replace(engine.snapshot, values={}, missing={**engine.snapshot.missing, **gone})
    )


def in_regime(engine: EngineState, regime: Regime) -> EngineState:
    """The engine in a regime."""
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
    """One engine after one good page: `snapshot` is what is known of it, `raw` the tracked counters on that page."""
    last = engine.windows.samples.last
    gap = last is None or now - last.t > gap_s(interval_s)
    covered = engine.covered + (0.0 if last is None or gap else now - last.t)
    climbs = {**engine.climbs} | {
        name: engine.climbs[name].step(value, gap=gap) if name in engine.climbs else CounterTotal(value)
        for name, value in raw.items()
    }
    usage, running, waiting = _gauges(snapshot)
    deferred = snapshot.part("requests_waiting_by_reason", "deferred") or 0.0
    progress_at, prompt_at = _progress(engine, raw, usage, now)
    parted = _parted(engine, climbs, raw, progress_at, interval_s=interval_s, now=now)
    asleep = snapshot.part("engine_sleep_state", "awake") == 0.0
    busy = not asleep and ((running or 0.0) > 0 or (waiting or 0.0) > 0)
    began = engine.busy_since is None or (gap and progress_at == now)  # nobody saw what was between
    busy_since = None if not busy else now if began else engine.busy_since
    wanted = demand(usage, running, waiting)
    recent = engine.windows.samples.since(now - state.limits["regime.plateau"])
    at = Instant(
        usage=usage,
        running=running,
        waiting=waiting,
        deferred=deferred,
        demand=wanted,
        asleep=asleep,
        cold=snapshot.cold,
        since_progress=None if progress_at is None else now - progress_at,
        since_prompt=None if prompt_at is None else now - prompt_at,
        busy_for=0.0 if busy_since is None else now - busy_since,
        abandoned=len(state.engines) <= 1
        and _abandoned(snapshot, parted, (running or 0.0) + (waiting or 0.0), progress_at, now),
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
        wanted,
        regime.value,
        _totals(climbs, raw, last),
    )
    engine = in_regime(engine, regime)
    return replace(
        engine,
        snapshot=snapshot,
        seen_at=now,
        climbs=climbs,
        covered=covered,
        progress_at=progress_at,
        prompt_at=prompt_at,
        busy_since=busy_since,
        parted=parted,
        abandoned=at.abandoned,
        usage_tally=engine.usage_tally if usage is None else engine.usage_tally.add(usage),
        windows=replace(
            engine.windows,
            samples=engine.windows.samples.append(sample, state.policy.history_s),
        ),
        integrals=integrate(engine.integrals, sample),
        past=engine.past.kept(now - state.policy.history_s),
    )


def _totals(
    climbs: Mapping[str, CounterTotal], raw: Mapping[str, float], last: Sample | None
) -> tuple[float | None, ...]:
    """The tracked counters as a sample has them; the very ones of the last sample while nothing moves."""
    totals = tuple([climbs[name].total if name in raw else None for name in TRACKED])
    return last.climbs if last is not None and last.climbs == totals else totals


def with_derived(engine: EngineState, state: State, now: float, *, full: bool) -> EngineState:
    """With the derived numbers of its newest sample."""
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
    """Usage, running and everything that waits: v0's swapped out requests wait too."""
    waiting = snapshot.number("requests_waiting")
    if waiting is not None:
        waiting += snapshot.number("requests_swapped") or 0.0
    return snapshot.number("kv_cache_usage_ratio"), snapshot.number("requests_running"), waiting


def _progress(
    engine: EngineState, raw: Mapping[str, float], usage: float | None, now: float
) -> tuple[float | None, float | None]:
    """When the engine, and when a prompt, was last seen to move; None where no counter is there to tell.

    What has not moved across a gap has not moved.
    """

    def moved(name: str) -> bool:
        return name in raw and (name not in engine.climbs or engine.climbs[name].raw != raw[name])

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


def _parted(
    engine: EngineState,
    climbs: Mapping[str, CounterTotal],
    raw: Mapping[str, float],
    progress_at: float | None,
    *,
    interval_s: float,
    now: float,
) -> float:
    """Answers of the server beyond the requests that the engine finished, since just before its last progress.

    Those are of clients that went away while it still worked.
    """
    names = ("http_responses_total", "requests_finished_total")
    if any(name not in raw or name not in engine.climbs for name in names) or progress_at is None:
        return 0.0
    answered, finished = (climbs[name].total - engine.climbs[name].total for name in names)
    beyond = max(answered - finished, 0.0)
    if progress_at == now:
        return beyond
    soon = now - progress_at <= max(_PARTING_S, 1.5 * interval_s)
    return engine.parted + beyond if soon else engine.parted


def _abandoned(
    snapshot: Snapshot, parted: float, present: float, progress_at: float | None, now: float
) -> bool:
    """Whether the gauges show requests whose clients have all gone: before vLLM 0.10.2 they keep their last values.

    An engine that hangs has clients that wait, or that give up later.
    """
    if "gauges follow aborts" in snapshot.features or progress_at is None or present <= 0:
        return False
    return parted >= present and now - progress_at >= _PARTING_S


def _long_prompt(engine: EngineState, snapshot: Snapshot) -> float | None:
    """The share of the cache that a long recent prompt takes; None if lengths or capacity are unknown."""
    length = engine.derived.get(labelled("request_prompt_tokens_percentile", 0.95))
    capacity, _ = capacity_tokens(snapshot)
    return length / capacity if length is not None and capacity else None


def with_histograms(engine: EngineState, snapshot: Snapshot, now: float) -> EngineState:
    """Takes the histograms of a full page into their windows.

    Buckets come seldom by design, so what they gained since the last full page is theirs, gap or not.
    """
    raw = {
        name: value
        for name, value in snapshot.values.items()
        if isinstance(value, Histogram) and value.bounds
    }
    climbed = {
        name: add_to_total(engine.raw_ladders.get(name), engine.climbed_ladders.get(name), value)
        for name, value in raw.items()
    }
    ladders = engine.windows.ladders.append(HistogramTotals(now, climbed), _LADDERS_KEPT_S)
    minutes, sample = engine.windows.minutes, engine.windows.samples.last
    newest = minutes.last
    if newest is None or now - newest.t >= _MINUTE_S or len(minutes) < 8:
        lengths = {name: climbed[name] for name in LENGTHS if name in climbed}
        ttft = engine.derived.get(labelled(LATENCIES["time_to_first_token_seconds"], 0.95))
        minutes = minutes.append(Minute(now, lengths, sample.climbs if sample else (), ttft), _MINUTES_KEPT_S)
    return replace(
        engine,
        raw_ladders=raw,
        climbed_ladders=climbed,
        windows=replace(engine.windows, ladders=ladders, minutes=minutes),
    )
