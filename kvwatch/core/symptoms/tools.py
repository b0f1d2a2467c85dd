"""What the judges of several rows have in common."""

from __future__ import annotations

from math import floor, inf, isfinite
from typing import Any

from kvwatch.core.regimes import Regime
from kvwatch.core.symptoms.model import EngineView, Evidence, Judgement, Verdict
from kvwatch.core.window import seconds_where, weights


def judged(when: bool, evidence: Evidence) -> Judgement:
    return Judgement(Verdict.ACTIVE if when else Verdict.CLEAR, evidence)


def clear(**evidence: Any) -> Judgement:
    return Judgement(Verdict.CLEAR, evidence)


def unknown(reason: str) -> Judgement:
    return Judgement(Verdict.UNKNOWN, {}, reason)


def lacks(view: EngineView, *signals: str) -> str:
    """Why an engine can't be judged by these signals; empty if it can."""
    if not view.scraped:
        return "the server is not scraped"
    for name in signals:
        if name in view.snapshot.missing:
            return f"{name}: {view.snapshot.missing[name]}"
    return ""


def gauges(view: EngineView) -> dict[str, Any]:
    """The numbers that every judgement of an engine shows.

    `requests_that_fit` is how many requests of today's mean footprint fill the cache, over a minute:
    (running + waiting) / demand.
    """
    running, waiting = view.snapshot.number("requests_running"), view.snapshot.number("requests_waiting")
    demand = view.derived.get("kv_cache_demand_ratio")
    fit = ((running or 0.0) + (waiting or 0.0)) / demand if demand else inf
    return {
        "kv_cache_usage_ratio": view.snapshot.number("kv_cache_usage_ratio"),
        "requests_running": running,
        "requests_waiting": waiting,
        "kv_cache_demand_ratio": demand,
        "requests_that_fit": floor(fit) if isfinite(fit) else None,
    }


def regime_seconds(view: EngineView, window: float, *regimes: Regime) -> float:
    rows = view.samples(window)
    return seconds_where(weights(rows, view.now - window), lambda row: row.regime in regimes)
