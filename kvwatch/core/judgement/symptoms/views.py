"""What a judge sees at one instant: an engine or a whole target, and the measures that judges share."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import wraps
from typing import Any, TypeVar

from kvwatch.core.history.integrals import USAGE, USAGE_KNOWN, Integral, integral_over
from kvwatch.core.history.regimes import Regime
from kvwatch.core.history.window import Minute, Sample, Windows, histogram_increase, weights
from kvwatch.core.judgement.derive import FIVE_MINUTES
from kvwatch.core.judgement.derived import Derived
from kvwatch.core.judgement.fits import Fits, engine_fits
from kvwatch.core.judgement.percentiles import HOUR
from kvwatch.core.judgement.symptoms.row import Judgement
from kvwatch.core.model.gpu import GpuWindow
from kvwatch.core.model.log_verdict import LogVerdict
from kvwatch.core.model.outcome import Failure
from kvwatch.core.model.snapshot import EngineKey, Histogram, Snapshot
from kvwatch.core.model.timed_rows import History

T = TypeVar("T")

WAITING = (
    Regime.KV_LIMITED,
    Regime.SEQUENCE_LIMITED,
    Regime.PREFILL_LIMITED,
    Regime.DEFERRED,
    Regime.STALLED,
)
"""Regimes in which requests wait. Each has a symptom of its own, which covers late first tokens."""


@dataclass(frozen=True, slots=True)
class EngineView:
    """What every judge of an engine sees. Windows are cut and weighted once.

    `max_model_len` is the longest request that the server accepts, tokens; `ceiling` a stated --max-num-seqs; `age_s`
    the seconds since the server started. `stale_gauges`: the clients of all requests in the gauges have gone.
    """

    snapshot: Snapshot
    derived: Derived
    regime: Regime
    windows: Windows
    integrals: History[Integral]
    now: float
    limits: Mapping[str, float]
    scraped: bool
    """False while scrapes of the target fail: everything about the engine is then old, so unknown."""
    max_model_len: float | None = None
    ceiling: float | None = None
    age_s: float | None = None
    stale_gauges: bool = False
    lifetime: Mapping[str, Histogram] = field(default_factory=dict)
    """Histograms since the server's start, as on the newest full page."""
    firing: frozenset[str] = frozenset()
    """Symptoms of this engine that fired at the sample before."""
    _samples: dict[float, list[Sample]] = field(default_factory=dict, repr=False, compare=False)
    _weighted: dict[float, list[tuple[Sample, float]]] = field(
        default_factory=dict, repr=False, compare=False
    )
    _seconds: dict[float, Mapping[str, float]] = field(default_factory=dict, repr=False, compare=False)
    memo: dict[Any, Any] = field(default_factory=dict, repr=False, compare=False)
    """Results of `once_per_sample`."""

    def samples(self, window: float) -> list[Sample]:
        """The samples of the last `window` seconds, and the one before them."""
        if window not in self._samples:
            self._samples[window] = self.windows.samples.since(self.now - window)
        return self._samples[window]

    def weighted_samples(self, window: float) -> list[tuple[Sample, float]]:
        """The samples of the last `window` seconds, each with the seconds that it stands for."""
        if window not in self._weighted:
            self._weighted[window] = weights(self.samples(window), self.now - window)
        return self._weighted[window]

    def seconds_by(self, window: float) -> Mapping[str, float]:
        """The integrals over the last `window` seconds: seconds by regime, and those of `history.integrals`."""
        if window not in self._seconds:
            self._seconds[window] = integral_over(self.integrals, self.now - window)
        return self._seconds[window]

    def regime_seconds(self, window: float, *regimes: Regime) -> float:
        """Seconds of the last `window` in one of the regimes."""
        seconds = self.seconds_by(window)
        return sum([seconds[regime] for regime in regimes])

    def mean_usage(self, window: float) -> float:
        """Mean KV usage over the last `window` seconds, by time; 0 without any sample."""
        seconds = self.seconds_by(window)
        return seconds[USAGE] / seconds[USAGE_KNOWN] if seconds[USAGE_KNOWN] else 0.0

    def recently(self, seen: Callable[[Sample], bool]) -> bool:
        """Whether a sample within `symptom.memory` seconds shows it.

        A window remembers its cause longer than that; without this check a burst would fire after its end.
        """
        return any(map(seen, _recent(self)))

    def observed(self, histogram: str, window: float = FIVE_MINUTES) -> Histogram | None:
        """What a histogram observed in a window, up to the newest full page; None if unknown."""
        return histogram_increase(self.windows.histograms.since(self.now - window), histogram)

    def observed_mean(self, histogram: str) -> float | None:
        """Mean of what a histogram observed in the last five minutes; None without observations."""
        seen = self.observed(histogram)
        return seen.sum / seen.count if seen is not None and seen.count > 0 else None

    def minutes_before(self, age: float) -> list[Minute]:
        """The minutes from an hour ago until `age` seconds ago."""
        return [row for row in self.windows.minutes.since(self.now - HOUR) if row.t <= self.now - age]

    def missing(self, *signals: str) -> str:
        """Why the engine can't be judged by these signals; empty if it can."""
        if not self.scraped:
            return "the server is not scraped"
        for name in signals:
            if name in self.snapshot.missing:
                return f"{name}: {self.snapshot.missing[name]}"
        return ""


@dataclass(frozen=True, slots=True)
class Restart:
    """A restart of vLLM as kvwatch saw it. Times are monotonic seconds."""

    at: float
    counters_fell: int
    usage_before: float | None
    pressure_before: float | None
    waiting_before: float | None
    unseen_s: float
    """Seconds between the last answer before and the first after."""


@dataclass(frozen=True, slots=True)
class TargetView:
    """What a judge of a target sees. `engines` are those of the newest page, or of the last good one while scrapes
    fail. `ever_up`: it answered at least once since kvwatch started."""

    engines: Mapping[EngineKey, EngineView]
    ever_up: bool
    configured: bool
    failure: Failure | None
    detail: str
    failing_for: float
    failing_share: float
    last_failure: Failure | None
    unknown_families: tuple[str, ...]
    rejections: Mapping[str, float] | None
    """Rejected requests since the server's start, by limit; None if this vLLM does not count them."""
    gpu: GpuWindow
    restart: Restart | None
    log: LogVerdict | None
    now: float
    limits: Mapping[str, float]


def once_per_sample(function: Callable[[EngineView], T]) -> Callable[[EngineView], T]:
    """Caches a result that several judges of an engine need."""

    @wraps(function)
    def cached(view: EngineView) -> T:
        if function not in view.memo:
            view.memo[function] = function(view)
        found: T = view.memo[function]
        return found

    return cached


def requires(
    *signals: str,
) -> Callable[[Callable[[EngineView], Judgement]], Callable[[EngineView], Judgement]]:
    """Makes a judge's verdict unknown while the engine is not scraped or lacks one of the signals."""

    def decorate(judge: Callable[[EngineView], Judgement]) -> Callable[[EngineView], Judgement]:
        @wraps(judge)
        def checked(view: EngineView) -> Judgement:
            reason = view.missing(*signals)
            return Judgement.unknown(reason) if reason else judge(view)

        return checked

    return decorate


@once_per_sample
def _recent(view: EngineView) -> list[Sample]:
    """The samples within `symptom.memory` seconds."""
    memory = view.limits["symptom.memory"]
    return [row for row in view.samples(memory) if row.t >= view.now - memory]


@once_per_sample
def gauges(view: EngineView) -> Mapping[str, Any]:
    """The numbers that every judgement of an engine shows.

    They are of the newest sample within `symptom.memory` with a request in the engine, so that a symptom that has
    just ended does not show zeros. `fits` is how many requests fit (`kvwatch.core.judgement.fits`).
    """
    rows = _recent(view) or view.samples(0.0)
    row = next((row for row in reversed(rows) if row.running or row.waiting), rows[-1])
    fits = fits_of(view)
    return {
        "kv_cache_usage_ratio": row.usage,
        "requests_running": row.running,
        "requests_waiting": row.waiting,
        "kv_cache_demand_ratio": view.derived.get("kv_cache_demand_ratio"),
        **({} if fits is None else {"fits": fits.as_data()}),
    }


@once_per_sample
def fits_of(view: EngineView) -> Fits | None:
    """How many requests fit at once."""
    return engine_fits(view.snapshot, view.derived, view.windows, view.lifetime, view.now)


def engines_missing(engines: Mapping[EngineKey, EngineView], *signals: str) -> str:
    """Why engines can't be judged together by these signals; empty if they can.

    Some releases expose no gauges of an engine before its first request; such an engine counts as empty.
    """
    for key, engine in engines.items():
        if not engine.snapshot.never_used and (reason := engine.missing(*signals)):
            return f"engine {key.engine}: {reason}"
    return ""
