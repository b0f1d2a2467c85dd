"""The one seam: `advance(state, outcome, now) -> (state, transitions)`. Pure.

The poller calls it with live scrapes, `replay` with recorded ones, `check` for half a minute, tests with
whatever they like. Everything downstream only reads the `State` it returns. Nothing else decides anything.

Time in a regime is counted without loss: of the time between two outcomes half belongs to the regime found at
either end, and what nobody watched (beyond a gap) is `unknown`. So the seconds of an engine add up to the time
since kvwatch first saw it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace

from kvwatch.core.derive import LENGTHS, Derived, capacity_tokens, demand, derive, labelled
from kvwatch.core.exposition import BadExposition
from kvwatch.core.lifecycle import Lifecycle, Stage, step
from kvwatch.core.normalise import Page
from kvwatch.core.outcome import REACHABLE, Outcome, Pace, Scrape, ScrapeError
from kvwatch.core.regimes import Instant, Regime, regime_of
from kvwatch.core.snapshot import EngineKey, Histogram, Snapshot
from kvwatch.core.state import (
    USAGE_MARKS,
    EngineState,
    Event,
    LastScrape,
    State,
    Transition,
)
from kvwatch.core.symptoms import SYMPTOMS, EngineView, Judgement, Restart, Scope, Symptom, TargetView
from kvwatch.core.window import TRACKED, Climb, Ladders, Sample, Windows, climb_ladder

_MIN_GAP_S = 10.0
_LADDERS_KEPT_S, _LENGTHS_KEPT_S, _LENGTHS_EVERY_S = 330.0, 3660.0, 60.0
#: Counters whose movement shows that the engine works. Usage counts too: a hung engine's does not move.
_PROGRESS = ("generation_tokens_total", "prompt_tokens_total", "iteration_tokens", "requests_finished_total")
_FELL_TOGETHER = 2
"""So many counters falling at once are a restart; one alone is a reset of that one."""


def gap_s(interval_s: float) -> float:
    """Seconds between two good samples beyond which there is a gap between them."""
    return max(_MIN_GAP_S, 3 * interval_s)


def next_pace(state: State, now: float) -> Pace:
    """What the next scrape should ask for: everything when the buckets are due, else what changes fast."""
    if state.full_at is None or not state.up or now - state.full_at >= state.policy.full_interval_s - 0.05:
        return Pace.FULL
    return Pace.FAST


def advance(state: State, outcome: Outcome, now: float) -> tuple[State, tuple[Transition, ...]]:
    """The state after an outcome at `now` (monotonic seconds), and the transitions of symptoms it brought.

    Never raises, whatever the bytes are. Time that runs backwards stands still.
    """
    now = now if state.now is None else max(now, state.now)
    error: ScrapeError | None = None
    page: Page | None = None
    if isinstance(outcome, Scrape):
        try:
            page = state.interpreter.read(outcome.body, openmetrics="openmetrics" in outcome.content_type)
        except BadExposition as bad:
            error = ScrapeError(bad.kind, str(bad), outcome.wall, outcome.duration_s, outcome.interval_s)
    else:
        error = outcome
    before = state
    if page is not None and isinstance(outcome, Scrape):
        state = _answered(state, page, outcome, now)
    elif error is not None:
        state = _failed(state, error, now)
    state = _accounted(before, state, now, outcome.interval_s)
    state = replace(
        state,
        now=now,
        wall=outcome.wall,
        last=LastScrape(
            duration_s=outcome.duration_s,
            interval_s=outcome.interval_s,
            body_bytes=len(outcome.body) if isinstance(outcome, Scrape) else 0,
            samples=len(page.exposed) if page else 0,
            narrowed=isinstance(outcome, Scrape) and outcome.narrowed,
            wall=outcome.wall,
        ),
    )
    state = _judged(state, now)
    return _counted(before, state, now)


# -- time -----------------------------------------------------------------------------------------------------


def _plus(seconds: Mapping[Regime, float], shares: Iterable[tuple[Regime, float]]) -> Mapping[Regime, float]:
    after = dict(seconds)
    for regime, held in shares:
        if held > 0:
            after[regime] = after.get(regime, 0.0) + held
    return after


def _accounted(before: State, after: State, now: float, interval_s: float) -> State:
    """Books the time since the last outcome under the regimes found at its two ends."""
    limit = gap_s(interval_s)
    engines = {}
    for key, engine in after.engines.items():
        old = before.engines.get(key)
        if old is None:
            engines[key] = engine
            continue
        shares, half = _shares(old.regime, engine.regime, now - old.accounted_to, limit)
        usages = (_live_usage(before, old), _live_usage(after, engine))
        engines[key] = replace(
            engine,
            accounted_to=now,
            regime_seconds=_plus(engine.regime_seconds, shares),
            usage_seconds={
                mark: engine.usage_seconds.get(mark, 0.0)
                + half * sum(u is not None and u >= mark for u in usages)
                for mark in USAGE_MARKS
            },
        )
    unattended = after.unattended_seconds
    if not before.engines and before.now is not None:
        shares, _ = _shares(before.unattended, after.unattended, now - before.now, limit)
        unattended = _plus(unattended, shares)
    return replace(after, engines=engines, unattended_seconds=unattended)


def _shares(
    old: Regime, new: Regime, elapsed: float, limit: float
) -> tuple[tuple[tuple[Regime, float], ...], float]:
    """How elapsed time is shared out, and half of what was watched of it."""
    half = min(elapsed, limit) / 2
    return ((old, half), (new, half), (Regime.UNKNOWN, elapsed - 2 * half)), half


def _live_usage(state: State, engine: EngineState) -> float | None:
    return engine.snapshot.number("kv_cache_usage_ratio") if state.up else None


# -- a page that could be read ----------------------------------------------------------------------------------


def _answered(state: State, page: Page, scrape: Scrape, now: float) -> State:
    full = scrape.pace is Pace.FULL
    partial = scrape.narrowed and not full
    fell = {
        key: _fallen(state.engines[key], snapshot)
        for key, snapshot in page.engines.items()
        if key in state.engines
    }
    restart = _restart(state, page, fell, now)
    events = list(state.events)
    if restart is not None:
        detail = {
            "unseen_seconds": restart.unseen_s,
            "counters_that_fell": restart.counters_fell,
            "cache_pressure_before": restart.pressure_before,
            "kv_cache_usage_before_ratio": restart.usage_before,
        }
        events.append(Event(now, scrape.wall, "restart", EngineKey(state.target), detail))
    engines = dict(state.engines)
    for key, snapshot in page.engines.items():
        engine = engines.get(key)
        if engine is None:
            events.append(Event(now, scrape.wall, "engine_appeared", key))
            engine = EngineState(key, snapshot, Regime.UNKNOWN, now, now, now)
        elif restart is not None:
            engine = _fresh(engine, now)
        if partial:
            snapshot = _completed(snapshot, engine.snapshot)
        engines[key] = _engine(engine, snapshot, page.engines[key], state, scrape, now, full=full)
    for key in set(engines) - set(page.engines):
        if now - engines[key].seen_at > state.policy.history_s:
            events.append(Event(now, scrape.wall, "engine_vanished", key))
            del engines[key]
        else:
            engines[key] = _in_regime(_emptied(engines[key]), Regime.UNKNOWN, now)
    server = page.server if not (partial and state.server) else _completed(page.server, state.server)
    return replace(
        state,
        up=True,
        error=None,
        failing_since=None,
        good_at=now,
        full_at=now if full else state.full_at,
        outcomes={**state.outcomes, "ok": state.outcomes["ok"] + 1},
        engines=engines,
        server=server,
        unknown_families=state.unknown_families if scrape.narrowed else page.unknown_families,
        exposed=state.exposed if scrape.narrowed else page.exposed,
        configured=page.configured or (partial and state.configured),
        facts=scrape.facts or state.facts,
        restart=restart or state.restart,
        restarts=state.restarts + (restart is not None),
        unattended=Regime.UNKNOWN,
        events=tuple(events[-state.policy.max_events :]),
    )


def _raw_counters(snapshot: Snapshot) -> dict[str, float]:
    """The tracked counters as exposed, by the names of `TRACKED`."""
    found = {}
    for name in TRACKED:
        signal, _, part = name.partition("/")
        histogram = snapshot.histogram(signal)
        if histogram is not None:
            found[name] = histogram.sum if part == "sum" else histogram.count
            continue
        value = snapshot.part(signal, part) if part else snapshot.number(signal)
        if value is not None:
            found[name] = value
    return found


def _fallen(engine: EngineState, snapshot: Snapshot) -> int:
    return sum(
        1
        for name, raw in _raw_counters(snapshot).items()
        if name in engine.climbs and engine.climbs[name].fell(raw)
    )


def _restart(state: State, page: Page, fell: Mapping[EngineKey, int], now: float) -> Restart | None:
    """The restart that this page shows, if it does: start time moved, or several counters fell at once."""
    before = state.server.number("engine_start_time_seconds") if state.server else None
    after = page.server.number("engine_start_time_seconds")
    moved = before is not None and after is not None and abs(after - before) > 1.0
    fallen = max(fell.values(), default=0)
    if not moved and fallen < _FELL_TOGETHER:
        return None
    last = [row for engine in state.engines.values() if (row := engine.windows.samples.last) is not None]
    scores = [
        score for e in state.engines.values() if (score := e.derived.get("cache_pressure_score")) is not None
    ]
    return Restart(
        at=now,
        counters_fell=fallen,
        started_at=after,
        usage_before=max((row.usage for row in last if row.usage is not None), default=None),
        pressure_before=max(scores, default=None),
        waiting_before=sum(row.waiting for row in last if row.waiting is not None) if last else None,
        unseen_s=now - state.good_at if state.good_at is not None else 0.0,
    )


def _fresh(engine: EngineState, now: float) -> EngineState:
    """An engine whose history ended: what it was does not count for the new process."""
    return replace(
        engine,
        windows=Windows(),
        climbs={},
        raw_ladders={},
        climbed_ladders={},
        covered=0.0,
        derived=Derived(),
        progress_at=None,
        prompt_at=None,
        busy_since=None,
        seen_at=now,
    )


def _completed(narrow: Snapshot, before: Snapshot) -> Snapshot:
    """A narrow snapshot, completed by what the last full one said of signals that were not asked for."""
    values = dict(narrow.values)
    missing = dict(narrow.missing)
    for name, value in before.values.items():
        fresh = values.get(name)
        unasked = (
            isinstance(value, Histogram)
            and value.bounds
            and isinstance(fresh, Histogram)
            and not fresh.bounds
        )
        if unasked or (name in missing and missing[name].startswith("not exposed")):
            values[name] = value
            missing.pop(name, None)
    for name, reason in before.missing.items():
        if name in missing:
            missing[name] = reason
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


def _emptied(engine: EngineState) -> EngineState:
    """An engine that is no longer on the page has no values."""
    gone = dict.fromkeys(engine.snapshot.values, "the engine is no longer on the page")
    return replace(
        engine, snapshot=replace(engine.snapshot, values={}, missing={**engine.snapshot.missing, **gone})
    )


def _in_regime(engine: EngineState, regime: Regime, now: float) -> EngineState:
    if engine.regime is regime:
        return engine
    return replace(engine, regime=regime, regime_since=now)


def _engine(
    engine: EngineState,
    snapshot: Snapshot,
    page: Snapshot,
    state: State,
    scrape: Scrape,
    now: float,
    *,
    full: bool,
) -> EngineState:
    """One engine after one good page. `page` is what was on it, `snapshot` that, completed."""
    last = engine.windows.samples.last
    gap = last is None or now - last.t > gap_s(scrape.interval_s)
    covered = engine.covered + (0.0 if last is None or gap else now - last.t)
    raw = _raw_counters(page)
    climbs = {**engine.climbs} | {
        name: engine.climbs[name].step(value, gap=gap) if name in engine.climbs else Climb(value)
        for name, value in raw.items()
    }
    usage, running, waiting = _gauges(snapshot)
    deferred = snapshot.part("requests_waiting_by_reason", "deferred") or 0.0
    progress_at, prompt_at = _progress(engine, raw, usage, now, gap=gap)
    busy = (running or 0.0) > 0 or (waiting or 0.0) > 0
    busy_since = None if not busy else now if gap or engine.busy_since is None else engine.busy_since
    wanted = demand(usage, running, waiting)
    recent = engine.windows.samples.since(now - state.limits["regime.plateau"])
    at = Instant(
        usage=usage,
        running=running,
        waiting=waiting,
        deferred=deferred,
        demand=wanted,
        asleep=snapshot.part("engine_sleep_state", "awake") == 0.0,
        since_progress=None if progress_at is None else now - progress_at,
        since_prompt=None if prompt_at is None else now - prompt_at,
        busy_for=0.0 if busy_since is None else now - busy_since,
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
        tuple(climbs[name].total if name in raw else None for name in TRACKED),
    )
    engine = replace(
        engine,
        snapshot=snapshot,
        seen_at=now,
        climbs=climbs,
        covered=covered,
        progress_at=progress_at,
        prompt_at=prompt_at,
        busy_since=busy_since,
        usage_tally=engine.usage_tally if usage is None else engine.usage_tally.add(usage),
        windows=replace(
            engine.windows, samples=engine.windows.samples.append(sample, state.policy.history_s)
        ),
    )
    if full:
        engine = _laddered(engine, page, now, gap=gap)
    engine = _in_regime(engine, regime, now)
    derived = derive(
        snapshot,
        engine.windows,
        engine.derived,
        state.policy,
        state.limits,
        now=now,
        full=full,
        progress_at=progress_at,
    )
    return replace(engine, derived=derived)


def _gauges(snapshot: Snapshot) -> tuple[float | None, float | None, float | None]:
    """Usage, running and everything that waits: v0's swapped out requests wait too."""
    waiting = snapshot.number("requests_waiting")
    if waiting is not None:
        waiting += snapshot.number("requests_swapped") or 0.0
    return snapshot.number("kv_cache_usage_ratio"), snapshot.number("requests_running"), waiting


def _progress(
    engine: EngineState, raw: Mapping[str, float], usage: float | None, now: float, *, gap: bool
) -> tuple[float | None, float | None]:
    """When the engine, and when a prompt, was last seen to move."""

    def moved(name: str) -> bool:
        return name in raw and (name not in engine.climbs or engine.climbs[name].raw != raw[name])

    progress_at, prompt_at = engine.progress_at, engine.prompt_at
    last = engine.windows.samples.last
    usage_moved = last is not None and usage is not None and usage != last.usage
    if any(name in raw for name in _PROGRESS) and (
        gap or usage_moved or any(moved(name) for name in _PROGRESS)
    ):
        progress_at = now
    if "prompt_tokens_total" in raw and (gap or moved("prompt_tokens_total")):
        prompt_at = now
    return progress_at, prompt_at


def _long_prompt(engine: EngineState, snapshot: Snapshot) -> float | None:
    """The share of the cache that a long recent prompt takes; None if lengths or capacity are unknown."""
    length = engine.derived.get(labelled("request_prompt_tokens_percentile", 0.95))
    capacity, _ = capacity_tokens(snapshot)
    return length / capacity if length is not None and capacity else None


def _laddered(engine: EngineState, snapshot: Snapshot, now: float, *, gap: bool) -> EngineState:
    """Takes the histograms of a full page into their windows."""
    del gap  # buckets come seldom by design: what they gained since the last full page is theirs
    raw = {
        name: value
        for name, value in snapshot.values.items()
        if isinstance(value, Histogram) and value.bounds
    }
    climbed = {
        name: climb_ladder(engine.raw_ladders.get(name), engine.climbed_ladders.get(name), value, gap=False)
        for name, value in raw.items()
    }
    ladders = engine.windows.ladders.append(Ladders(now, climbed), _LADDERS_KEPT_S)
    lengths = engine.windows.lengths
    newest = lengths.last
    if newest is None or now - newest.t >= _LENGTHS_EVERY_S or len(lengths) < 8:
        lengths = lengths.append(
            Ladders(now, {n: climbed[n] for n in LENGTHS if n in climbed}), _LENGTHS_KEPT_S
        )
    return replace(
        engine,
        raw_ladders=raw,
        climbed_ladders=climbed,
        windows=replace(engine.windows, ladders=ladders, lengths=lengths),
    )


# -- a scrape that gave nothing -----------------------------------------------------------------------------------


def _failed(state: State, error: ScrapeError, now: float) -> State:
    regime = Regime.UNKNOWN if error.kind in REACHABLE else Regime.DOWN
    same = state.error is not None and (state.error.kind in REACHABLE) == (error.kind in REACHABLE)
    return replace(
        state,
        up=False,
        error=error,
        failing_since=state.failing_since if same and state.failing_since is not None else now,
        outcomes={**state.outcomes, str(error.kind): state.outcomes.get(str(error.kind), 0) + 1},
        engines={key: _in_regime(engine, regime, now) for key, engine in state.engines.items()},
        unattended=regime,
    )


# -- symptoms -----------------------------------------------------------------------------------------------------


def _judged(state: State, now: float) -> State:
    rows = [row for row in SYMPTOMS if row.id not in state.policy.disabled]
    engines = {
        key: replace(
            engine,
            symptoms={
                row.id: _stepped(
                    state, row, engine.symptoms.get(row.id), _judge_engine(state, engine, row, now), now
                )
                for row in rows
                if row.scope is Scope.ENGINE
            },
        )
        for key, engine in state.engines.items()
    }
    state = replace(state, engines=engines)
    view = TargetView(
        engines={
            key: e.snapshot for key, e in state.engines.items() if e.seen_at == state.good_at or not state.up
        },
        configured=state.configured,
        failure=state.failure,
        detail=state.error.detail if state.error else "",
        failing_for=now - state.failing_since if state.failing_since is not None else 0.0,
        unknown_families=state.unknown_families,
        restart=state.restart,
        now=now,
        limits=state.limits,
    )
    symptoms = {
        row.id: _stepped(state, row, state.symptoms.get(row.id), row.judge(view), now)
        for row in rows
        if row.scope is Scope.TARGET
    }
    return replace(state, symptoms=symptoms)


def _judge_engine(state: State, engine: EngineState, row: Symptom, now: float) -> Judgement:
    samples = engine.windows.samples
    view = EngineView(
        snapshot=engine.snapshot,
        derived=engine.derived,
        regime=engine.regime,
        samples=lambda window: samples.since(now - window),
        now=now,
        limits=state.limits,
        scraped=bool(state.up),
    )
    return row.judge(view)


def _stepped(
    state: State, row: Symptom, before: Lifecycle | None, judgement: Judgement, now: float
) -> Lifecycle:
    return step(
        before or Lifecycle(),
        judgement,
        now,
        for_s=state.limits[f"{row.id}.for"],
        keep_s=state.limits[f"{row.id}.keep"],
        grace_s=state.policy.unknown_grace_s,
    )


def _counted(before: State, after: State, now: float) -> tuple[State, tuple[Transition, ...]]:
    """Finds what changed stage, counts it, and gives it as transitions."""
    found: list[Transition] = []
    engines = {}
    wall = after.wall or 0.0
    for key, engine in after.engines.items():
        old = before.engines[key].symptoms if key in before.engines else {}
        changes = _changes(key, old, engine.symptoms, now, wall)
        engines[key] = replace(engine, transitions=_tally(engine.transitions, changes)) if changes else engine
        found += changes
    changes = _changes(EngineKey(after.target), before.symptoms, after.symptoms, now, wall)
    found += changes
    after = replace(after, engines=engines, transitions=_tally(after.transitions, changes))
    return after, tuple(found)


def _changes(
    key: EngineKey, old: Mapping[str, Lifecycle], new: Mapping[str, Lifecycle], now: float, wall: float
) -> list[Transition]:
    changes = []
    for symptom, lifecycle in new.items():
        stage = old[symptom].stage if symptom in old else Stage.INACTIVE
        if stage is not lifecycle.stage:
            changes.append(
                Transition(
                    now, wall, key, symptom, stage, lifecycle.stage, lifecycle.evidence, lifecycle.reason
                )
            )
    return changes


def _tally(
    counts: Mapping[tuple[str, Stage], int], changes: Iterable[Transition]
) -> Mapping[tuple[str, Stage], int]:
    after = dict(counts)
    for change in changes:
        where = (change.symptom, change.after)
        after[where] = after.get(where, 0) + 1
    return after
