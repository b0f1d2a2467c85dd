"""What a row of the symptom table is made of, and what its judge sees and says."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from kvwatch.core.history.integrals import Integral, integral_over
from kvwatch.core.history.regimes import Regime
from kvwatch.core.history.window import Sample, Windows, weights
from kvwatch.core.judgement.derived import Derived
from kvwatch.core.judgement.thresholds import Threshold
from kvwatch.core.model.gpu import GpuWindow
from kvwatch.core.model.log_verdict import LogVerdict
from kvwatch.core.model.outcome import Failure
from kvwatch.core.model.snapshot import CacheConfig, EngineKey, Histogram, Snapshot
from kvwatch.core.model.timed_rows import History


class Verdict(StrEnum):
    CLEAR = "clear"
    ACTIVE = "active"
    UNKNOWN = "unknown"


class Severity(StrEnum):
    """By what users feel: critical wakes someone, warning tells someone, info is context."""

    CRITICAL = "critical"
    WARNING = "warning"
    INFO = "info"


class Scope(StrEnum):
    ENGINE = "engine"
    TARGET = "target"


Evidence = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Judgement:
    """A verdict and the numbers it rests on; `reason` says why it is unknown."""

    verdict: Verdict
    evidence: Evidence = field(default_factory=dict)
    reason: str = ""


@dataclass(frozen=True, slots=True)
class Action:
    """One thing to do, a sentence that begins with what to do.

    `flag` is the option of vLLM that it names. It is shown only to generations (`v0`, `v1`) that have the option;
    with `feature`, only to servers whose metrics tell that they have it; and only where what the server says of its
    cache leaves something to do (`given`).
    """

    text: str
    flag: str = ""
    generations: tuple[str, ...] = ("v0", "v1")
    feature: str = ""
    given: Callable[[CacheConfig], bool] = lambda _: True

    def fits(self, snapshot: Snapshot) -> bool:
        return (
            snapshot.generation in self.generations
            and (not self.feature or self.feature in snapshot.features)
            and self.given(snapshot.config)
        )


@dataclass(frozen=True, slots=True)
class EngineView:
    """What the judges of an engine see, all of them the same one. Windows are cut and weighed once.

    `max_model_len` is the longest request that the server takes, tokens; `ceiling` a stated --max-num-seqs; `age_s`
    how long ago the server started. `stale_gauges`: the clients of all that the gauges show have gone.
    """

    snapshot: Snapshot
    derived: Derived
    regime: Regime
    windows: Windows
    integrals: History[Integral]
    now: float
    limits: Mapping[str, float]
    scraped: bool
    """False while the target is not scraped: everything about the engine is old, so unknown."""
    max_model_len: float | None = None
    ceiling: float | None = None
    age_s: float | None = None
    stale_gauges: bool = False
    lifetime: Mapping[str, Histogram] = field(default_factory=dict)
    """Histograms since the server's start, as on the newest full page."""
    firing: frozenset[str] = frozenset()
    """Symptoms of this engine that fired at the sample before."""
    _rows: dict[float, list[Sample]] = field(default_factory=dict, repr=False, compare=False)
    _held: dict[float, list[tuple[Sample, float]]] = field(default_factory=dict, repr=False, compare=False)
    _spent: dict[float, Mapping[str, float]] = field(default_factory=dict, repr=False, compare=False)
    memo: dict[Any, Any] = field(default_factory=dict, repr=False, compare=False)
    """What several judges ask for, worked out once (`tools`)."""

    def samples(self, window: float) -> list[Sample]:
        """The samples of the last so many seconds, and the one before them."""
        if window not in self._rows:
            self._rows[window] = self.windows.samples.since(self.now - window)
        return self._rows[window]

    def held(self, window: float) -> list[tuple[Sample, float]]:
        """The samples of the last so many seconds with the seconds that each stands for."""
        if window not in self._held:
            self._held[window] = weights(self.samples(window), self.now - window)
        return self._held[window]

    def spent(self, window: float) -> Mapping[str, float]:
        """Seconds of the last so many, by regime and by what else is counted (`kvwatch.core.history.integrals`)."""
        if window not in self._spent:
            self._spent[window] = integral_over(self.integrals, self.now - window)
        return self._spent[window]


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
    """What a judge of a target sees. `engines` are those on the newest page, or, while it is not scraped, on the last
    good one. `ever_up`: it answered at least once since kvwatch began."""

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
    """Requests refused since the server's start, by limit; None if this vLLM does not count them."""
    gpu: GpuWindow
    restart: Restart | None
    log: LogVerdict | None
    now: float
    limits: Mapping[str, float]


@dataclass(frozen=True, slots=True)
class Symptom:
    """One row of the table.

    `when` is the condition in words, with the row's thresholds (and ``for``, ``keep``) in braces; `fires_when` fills
    them in.
    `for_s`: how long the verdict must be active before it fires; `keep_s`: how long it must be clear before
    it is over (damps flapping). `causes` most likely first, `actions` in the order to try. `explains` names
    symptoms that this one accounts for when it fires, with `explains_while_pending` already while it is pending.
    `told` finds, in what the server's log tells, why it is so: its actions then come in place of these.
    `origin` is where condition and thresholds come from.
    """

    id: str
    title: str
    when: str
    severity: Severity
    scope: Scope
    for_s: float
    keep_s: float
    judge: Callable[[Any], Judgement]
    meaning: str
    causes: tuple[str, ...]
    actions: tuple[Action, ...]
    origin: str
    thresholds: tuple[Threshold, ...] = ()
    explains: tuple[str, ...] = ()
    explains_while_pending: bool = False
    told: Callable[[LogVerdict | None], LogVerdict | None] = lambda _: None

    def fires_when(self, limits: Mapping[str, float]) -> str:
        """The condition in words, with the thresholds that are in force."""
        units = {threshold.name: threshold.unit for threshold in self.thresholds}

        def said(match: re.Match[str]) -> str:
            name = f"{self.id}.{match[1]}"
            seconds = match[1] in {"for", "keep"} or units[name] == "seconds"
            return f"{limits[name]:g}{' s' if seconds else ''}"

        return re.sub(r"\{(\w+)\}", said, self.when)

    def actions_for(self, snapshot: Snapshot) -> tuple[Action, ...]:
        return tuple(action for action in self.actions if action.fits(snapshot))
