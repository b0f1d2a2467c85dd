"""Time in regimes and above usage marks, booked without loss.

Of the time between two outcomes half belongs to the regime found at either end, and what nobody watched
(beyond a gap) is `unknown`. So the seconds of an engine add up to the time since kvwatch first saw it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace

from kvwatch.core.history.regimes import Regime
from kvwatch.core.judgement.state import USAGE_MARKS, EngineState, State

_MIN_GAP_S = 10.0


def gap_s(interval_s: float) -> float:
    """Seconds between two good samples beyond which there is a gap between them."""
    return max(_MIN_GAP_S, 3 * interval_s)


def _plus(seconds: Mapping[Regime, float], shares: Iterable[tuple[Regime, float]]) -> Mapping[Regime, float]:
    after = dict(seconds)
    for regime, held in shares:
        if held > 0:
            after[regime] = after.get(regime, 0.0) + held
    return after


def with_regime_seconds(before: State, after: State, now: float, interval_s: float) -> State:
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
