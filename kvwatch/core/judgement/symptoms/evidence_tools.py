"""What the judges of several rows have in common."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import wraps
from math import floor, inf, isfinite
from typing import Any, TypeVar

from kvwatch.core.history.integrals import USAGE, USAGE_KNOWN
from kvwatch.core.history.regimes import Regime
from kvwatch.core.history.window import Minute, Sample, histogram_increase
from kvwatch.core.judgement.derive import FIVE_MINUTES, MINUTE
from kvwatch.core.judgement.percentiles import HOUR
from kvwatch.core.judgement.symptoms.row import EngineView, Evidence, Judgement, Verdict
from kvwatch.core.model.snapshot import EngineKey, Histogram

T = TypeVar("T")

#: Regimes in which requests wait, for whatever: what then delays a first token has a symptom of its own.
WAITING = (
    Regime.KV_LIMITED,
    Regime.SEQUENCE_LIMITED,
    Regime.PREFILL_LIMITED,
    Regime.DEFERRED,
    Regime.STALLED,
)


def computed_once(of: Callable[[EngineView], T]) -> Callable[[EngineView], T]:
    """Works out what several judges of an engine ask for once per sample."""

    @wraps(of)
    def known(view: EngineView) -> T:
        if of not in view.memo:
            view.memo[of] = of(view)
        found: T = view.memo[of]
        return found

    return known


def judge_if(when: bool, evidence: Evidence) -> Judgement:
    return Judgement(Verdict.ACTIVE if when else Verdict.CLEAR, evidence)


def clear(**evidence: Any) -> Judgement:
    return Judgement(Verdict.CLEAR, evidence)


def unknown(reason: str) -> Judgement:
    return Judgement(Verdict.UNKNOWN, {}, reason)


def missing_signals(view: EngineView, *signals: str) -> str:
    """Why an engine can't be judged by these signals; empty if it can."""
    if not view.scraped:
        return "the server is not scraped"
    for name in signals:
        if name in view.snapshot.missing:
            return f"{name}: {view.snapshot.missing[name]}"
    return ""


@computed_once
def gauges(view: EngineView) -> Mapping[str, Any]:
    """The numbers that every judgement of an engine shows.

    Gauges are of the newest moment with anything in the engine, within the memory of symptoms: a symptom that is
    just over is not told with zeros. `requests_that_fit` is how many requests of the last minute's mean footprint
    fill the cache.
    """
    rows = _remembered(view) or view.samples(0.0)
    row = next((row for row in reversed(rows) if row.running or row.waiting), rows[-1])
    return {
        "kv_cache_usage_ratio": row.usage,
        "requests_running": row.running,
        "requests_waiting": row.waiting,
        "kv_cache_demand_ratio": view.derived.get("kv_cache_demand_ratio"),
        "requests_that_fit": _that_fit(view),
    }


def _that_fit(view: EngineView) -> int | None:
    held = view.held(MINUTE)
    usage = sum(row.usage * seconds for row, seconds in held if row.usage is not None and row.running)
    running = sum(row.running * seconds for row, seconds in held if row.usage is not None and row.running)
    fit = running / usage if usage > 0 else inf
    return floor(fit) if isfinite(fit) else None


def recently(view: EngineView, seen: Callable[[Sample], bool]) -> bool:
    """Whether something was seen within `symptom.memory` seconds: what is over does not fire.

    A window remembers longer than its cause lasts; without this a burst would fire after its end.
    """
    return any(map(seen, _remembered(view)))


@computed_once
def _remembered(view: EngineView) -> list[Sample]:
    memory = view.limits["symptom.memory"]
    return [row for row in view.samples(memory) if row.t >= view.now - memory]


def gained(view: EngineView, histogram: str, window: float = FIVE_MINUTES) -> Histogram | None:
    """What a histogram observed within a window, up to the newest full page; None if that can't be told."""
    return histogram_increase(view.windows.histograms.since(view.now - window), histogram)


def windowed_mean(view: EngineView, histogram: str) -> float | None:
    """Mean of what a histogram observed in the last five minutes; None without any."""
    seen = gained(view, histogram)
    return seen.sum / seen.count if seen is not None and seen.count > 0 else None


def minutes_before(view: EngineView, age: float) -> list[Minute]:
    """What was more than so many seconds ago, up to an hour."""
    return [row for row in view.windows.minutes.since(view.now - HOUR) if row.t <= view.now - age]


def engines_lack(engines: Mapping[EngineKey, EngineView], *signals: str) -> str:
    """Why engines can't be judged together by these signals; empty if they can. Of one that was never asked for
    anything some releases show no gauges: it has nothing in it."""
    for key, engine in engines.items():
        if not engine.snapshot.never_used and (reason := missing_signals(engine, *signals)):
            return f"engine {key.engine}: {reason}"
    return ""


def usable_tokens(view: EngineView) -> float | None:
    """Tokens that one request can hold at most: the capacity less one block, which vLLM keeps for itself."""
    capacity = view.derived.get("kv_cache_capacity_tokens")
    return None if capacity is None else capacity - (view.snapshot.config.block_size or 0.0)


def regime_seconds(view: EngineView, window: float, *regimes: Regime) -> float:
    """Seconds of the last `window` in one of the regimes."""
    spent = view.spent(window)
    return sum([spent[regime] for regime in regimes])


def mean_usage(view: EngineView, window: float) -> float:
    """Mean KV usage over a window, by time; 0 where there was none."""
    spent = view.spent(window)
    return spent[USAGE] / spent[USAGE_KNOWN] if spent[USAGE_KNOWN] else 0.0
