"""Counts the seconds in each regime and above each usage mark, without loss.

Of the time between two outcomes half belongs to the regime at either end. Time beyond a gap belongs to `unknown`. So
the seconds of an engine add up to the time since kvwatch first saw it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace

from kvwatch.core.history.regimes import Regime
from kvwatch.core.judgement.state import USAGE_MARKS, EngineState, State

_MIN_GAP_S = 10.0


def gap_s(interval_s: float) -> float:
    """Seconds between two good samples above which there is a gap between them."""
    return max(_MIN_GAP_S, 3 * interval_s)


def with_regime_seconds(before: State, after: State, now: float, interval_s: float) -> State:
    """The state with the time since the previous outcome added to the regimes at its two ends."""
    limit = gap_s(interval_s)
    engines = {}
    for key, engine in after.engines.items():
        old = before.engines.get(key)
        if old is None:
            engines[key] = engine
            continue
        shares, half = _shares(old.regime, engine.regime, now - old.booked_until, limit)
        usages = (_live_usage(before, old), _live_usage(after, engine))
        engines[key] = replace(
            engine,
            booked_until=now,
            regime_seconds=_add(engine.regime_seconds, shares),
            usage_seconds={
                mark: engine.usage_seconds.get(mark, 0.0)
                + half * sum(u is not None and u >= mark for u in usages)
                for mark in USAGE_MARKS
            },
        )
    seconds = after.regime_seconds_without_engines
    if not before.engines and before.now is not None:
        regimes = before.regime_without_engines, after.regime_without_engines
        seconds = _add(seconds, _shares(*regimes, now - before.now, limit)[0])
    return replace(after, engines=engines, regime_seconds_without_engines=seconds)


def _shares(
    old: Regime, new: Regime, elapsed: float, limit: float
) -> tuple[tuple[tuple[Regime, float], ...], float]:
    """The elapsed seconds by regime, and half of those that were watched."""
    half = min(elapsed, limit) / 2
    return ((old, half), (new, half), (Regime.UNKNOWN, elapsed - 2 * half)), half


def _add(seconds: Mapping[Regime, float], shares: Iterable[tuple[Regime, float]]) -> Mapping[Regime, float]:
    after = dict(seconds)
    for regime, more in shares:
        if more > 0:
            after[regime] = after.get(regime, 0.0) + more
    return after


def _live_usage(state: State, engine: EngineState) -> float | None:
    return engine.snapshot.number("kv_cache_usage_ratio") if state.up else None
