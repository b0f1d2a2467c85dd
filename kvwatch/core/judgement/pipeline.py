"""The entry point: `advance(state, outcome, now) -> (state, transitions)`. Pure.

The poller calls it with live scrapes, `replay` with recorded ones, `check` for half a minute, `explain` with numbers
from a log. All judgement happens here; everything downstream only reads the `State` that it returns.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from math import exp

from kvwatch.core.exposition.normalise import NormalisedPage
from kvwatch.core.exposition.parser import ExpositionError
from kvwatch.core.exposition.series_map import MAX_ENGINES
from kvwatch.core.history.regimes import Regime
from kvwatch.core.judgement.accounting import with_regime_seconds
from kvwatch.core.judgement.engine_step import (
    engine_after_page,
    raw_counters,
    with_derived,
    with_histograms,
    with_new_history,
    with_regime,
    with_slow_signals,
    without_values,
)
from kvwatch.core.judgement.judge import count_transitions, judge_symptoms
from kvwatch.core.judgement.state import FAILING_MEMORY_S, EngineState, Event, LastScrape, State, Transition
from kvwatch.core.judgement.symptoms import Restart
from kvwatch.core.model.gpu import GpuWindow
from kvwatch.core.model.outcome import REACHABLE, LogReport, Outcome, Pace, Scrape, ScrapeError
from kvwatch.core.model.snapshot import EngineKey, Snapshot

_RESTART_RESETS = 2
"""This many counters that reset at once are a restart; a single one is only its own reset."""
_MIN_STARTUP_S = 20.0
"""No vLLM starts this fast. Another process sooner than this is another server behind the same address."""
_EVENT_REPEAT_S = 600.0
"""The event ``several_servers`` repeats at most this often."""


def next_pace(state: State, now: float) -> Pace:
    """The pace of the next scrape: FULL if the buckets are due, else FAST."""
    if state.full_at is None or not state.up or now - state.full_at >= state.policy.full_interval_s - 0.05:
        return Pace.FULL
    return Pace.FAST


def advance(state: State, outcome: Outcome | LogReport, now: float) -> tuple[State, tuple[Transition, ...]]:
    """The state after an outcome at `now` (monotonic seconds), and the transitions that it caused.

    Never raises, whatever the bytes are. `now` is clamped so that it never decreases.
    """
    now = now if state.now is None else max(now, state.now)
    error: ScrapeError | None = None
    page: NormalisedPage | None = None
    if isinstance(outcome, Scrape):
        try:
            page = state.interpreter.read(outcome.body, openmetrics="openmetrics" in outcome.content_type)
        except ExpositionError as bad:
            error = ScrapeError(bad.kind, str(bad), outcome.wall, outcome.duration_s, outcome.interval_s)
    elif isinstance(outcome, LogReport):
        page = NormalisedPage(outcome.engines, Snapshot(EngineKey(state.target)), (), (), configured=True)
    else:
        error = replace(outcome, gpu=None, log=None)
    before = state
    if page is not None and not isinstance(outcome, ScrapeError):
        state = _after_page(state, page, outcome, now)
    elif error is not None:
        state = _after_failure(state, error, now)
    state = with_regime_seconds(before, state, now, outcome.interval_s)
    elapsed = 0.0 if before.now is None else now - before.now
    state = replace(
        state,
        now=now,
        failing_share=_failing_share(before.failing_share, state.up is False, elapsed),
        last_error=error or before.last_error,
        wall=outcome.wall,
        gpu=_gpu_window(state, outcome, now),
        log=outcome.log or state.log,
        last=LastScrape(
            duration_s=outcome.duration_s,
            interval_s=outcome.interval_s,
            body_bytes=len(outcome.body) if isinstance(outcome, Scrape) else 0,
            narrowed=isinstance(outcome, Scrape) and outcome.narrowed,
        ),
    )
    state = judge_symptoms(state, now)
    return count_transitions(before, state, now)


def _gpu_window(state: State, outcome: Outcome | LogReport, now: float) -> GpuWindow:
    """The GPU window with the outcome's reading, if it has one."""
    if outcome.gpu is None:
        return state.gpu
    policy = state.policy
    return state.gpu.with_reading(
        outcome.gpu, now, wanted=policy.gpus, interval_s=outcome.interval_s, keep_s=policy.history_s
    )


def _failing_share(before: float, failing: bool, elapsed: float) -> float:
    """The share of failing time after `elapsed` more seconds that failed or did not."""
    return before + (1.0 - exp(-elapsed / FAILING_MEMORY_S)) * (float(failing) - before)


# -- a good page ----------------------------------------------------------------------------------


def _after_page(state: State, page: NormalisedPage, scrape: Scrape | LogReport, now: float) -> State:
    narrowed = isinstance(scrape, Scrape) and scrape.narrowed
    full = isinstance(scrape, LogReport) or scrape.pace is Pace.FULL
    partial = narrowed and not full
    raw = {key: raw_counters(snapshot, page.server) for key, snapshot in page.engines.items()}
    resets = max((_resets(state.engines[key], raw[key]) for key in raw if key in state.engines), default=0)
    other = _is_other_process(state, page, resets)
    alternating = other and state.switched_at is not None and now - state.switched_at < _MIN_STARTUP_S
    restart = _restart(state, resets, now) if other and not alternating else None
    events = list(state.events)
    if alternating and not any(e.kind == "several_servers" and now - e.t < _EVENT_REPEAT_S for e in events):
        events.append(Event(now, scrape.wall, "several_servers", EngineKey(state.target)))
    if restart is not None:
        detail = {
            "unseen_seconds": restart.unseen_s,
            "counters_that_fell": restart.counters_fell,
            "cache_pressure_before": restart.pressure_before,
            "kv_cache_usage_before_ratio": restart.usage_before,
        }
        events.append(Event(now, scrape.wall, "restart", EngineKey(state.target), detail))
    engines = dict(state.engines)
    for key, on_page in page.engines.items():
        engine = engines.get(key)
        if engine is None:
            events.append(Event(now, scrape.wall, "engine_appeared", key))
            engine = EngineState(key, on_page, Regime.UNKNOWN, now, now)
        elif other:
            engine = with_new_history(engine, now, state.policy.history_s)
        snapshot = with_slow_signals(on_page, engine.snapshot) if partial else on_page
        counters = raw[key]
        engine = engine_after_page(engine, snapshot, counters, state, interval_s=scrape.interval_s, now=now)
        engines[key] = with_derived(
            with_histograms(engine, on_page, now) if full else engine, state, now, full=full
        )
    for key in set(engines) - set(page.engines):
        if now - engines[key].seen_at > state.policy.history_s:
            events.append(Event(now, scrape.wall, "engine_vanished", key))
            del engines[key]
        else:
            engines[key] = with_regime(without_values(engines[key]), Regime.UNKNOWN)
    for key in sorted(set(engines) - set(page.engines), key=lambda gone: engines[gone].seen_at):
        if len(engines) <= MAX_ENGINES:
            break
        events.append(Event(now, scrape.wall, "engine_vanished", key))
        del engines[key]
    server = page.server if not (partial and state.server) else with_slow_signals(page.server, state.server)
    return replace(
        state,
        up=True,
        error=None,
        failing_since=None,
        good_at=now,
        full_at=now if full else None if other else state.full_at,
        outcomes={**state.outcomes, "ok": state.outcomes["ok"] + 1},
        engines=engines,
        server=server,
        unknown_families=state.unknown_families if narrowed else page.unknown_families,
        left_out=state.left_out if narrowed else page.left_out,
        exposed=state.exposed if narrowed else page.exposed,
        configured=page.configured or (partial and state.configured),
        facts=scrape.facts or state.facts,
        restart=restart or state.restart,
        restarts=state.restarts + (restart is not None),
        switched_at=now if other else state.switched_at,
        regime_without_engines=Regime.UNKNOWN,
        events=tuple(events[-state.policy.max_events :]),
    )


def _resets(engine: EngineState, raw: Mapping[str, float]) -> int:
    """How many signals have counters that were reset."""
    known = ((name, value) for name, value in raw.items() if name in engine.totals)
    return len({name.partition("/")[0] for name, value in known if engine.totals[name].is_reset(value)})


def _is_other_process(state: State, page: NormalisedPage, resets: int) -> bool:
    """Whether another process answers than before: its start time changed, or several counters were reset at once."""
    before = state.server.number("engine_start_time_seconds") if state.server else None
    after = page.server.number("engine_start_time_seconds")
    moved = before is not None and after is not None and abs(after - before) > 1.0
    return moved or resets >= _RESTART_RESETS


def _restart(state: State, resets: int, now: float) -> Restart:
    """A restart, with the numbers just before it."""
    last = [row for engine in state.engines.values() if (row := engine.windows.samples.last) is not None]
    scores = [
        score for e in state.engines.values() if (score := e.derived.get("cache_pressure_score")) is not None
    ]
    return Restart(
        at=now,
        counters_fell=resets,
        usage_before=max((row.usage for row in last if row.usage is not None), default=None),
        pressure_before=max(scores, default=None),
        waiting_before=sum(row.waiting for row in last if row.waiting is not None) if last else None,
        unseen_s=now - state.good_at if state.good_at is not None else 0.0,
    )


# -- a failed scrape -----------------------------------------------------------------------------------


def _after_failure(state: State, error: ScrapeError, now: float) -> State:
    regime = Regime.UNKNOWN if error.kind in REACHABLE else Regime.DOWN
    same = state.error is not None and (state.error.kind in REACHABLE) == (error.kind in REACHABLE)
    return replace(
        state,
        up=False,
        error=error,
        failing_since=state.failing_since if same and state.failing_since is not None else now,
        outcomes={**state.outcomes, str(error.kind): state.outcomes.get(str(error.kind), 0) + 1},
        engines={key: with_regime(engine, regime) for key, engine in state.engines.items()},
        regime_without_engines=regime,
    )
