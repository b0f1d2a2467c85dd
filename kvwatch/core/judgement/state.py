"""All that kvwatch knows of one target at one moment. Immutable; `pipeline.advance` returns the next one."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from kvwatch.core.exposition.normalise import PageNormaliser
from kvwatch.core.history.before_restart import BeforeRestart
from kvwatch.core.history.integrals import Integral
from kvwatch.core.history.regimes import Regime
from kvwatch.core.history.window import CounterTotal, Windows
from kvwatch.core.judgement.derived import Derived
from kvwatch.core.judgement.lifecycle import Lifecycle, Stage
from kvwatch.core.judgement.policy import Policy
from kvwatch.core.judgement.symptoms import Evidence, Restart, limits_of
from kvwatch.core.judgement.thresholds import Limits
from kvwatch.core.model.gpu import GpuWindow
from kvwatch.core.model.log_verdict import LogVerdict
from kvwatch.core.model.outcome import Failure, ScrapeError
from kvwatch.core.model.server_info import ServerInfo
from kvwatch.core.model.snapshot import EngineKey, Histogram, Snapshot
from kvwatch.core.model.timed_rows import History

FAILING_MEMORY_S = 60.0
"""Time constant of `State.failing_share`, seconds."""
USAGE_MARKS = (0.9, 0.95, 0.99)
"""The seconds with KV cache usage at or above each of these are counted."""
USAGE_BOUNDS = (0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.85, 0.9, 0.95, 0.98, 0.99, 1.0)
"""Upper bounds of the histogram of sampled usage."""


@dataclass(frozen=True, slots=True)
class Transition:
    """A change of a symptom's stage. `t` is in monotonic seconds, `wall` in unix seconds."""

    t: float
    wall: float
    key: EngineKey
    symptom: str
    before: Stage
    after: Stage
    evidence: Evidence
    reason: str = ""


@dataclass(frozen=True, slots=True)
class Event:
    """A single event: ``restart``, ``engine_appeared``, ``engine_vanished`` or ``several_servers`` (several answer in
    turn behind one address, so increases are unknown)."""

    t: float
    wall: float
    kind: str
    key: EngineKey
    detail: Evidence = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class UsageTally:
    """A histogram of sampled KV usage: counts by bucket (`USAGE_BOUNDS` and above, not cumulative) and the sum."""

    counts: tuple[int, ...] = (0,) * (len(USAGE_BOUNDS) + 1)
    sum: float = 0.0

    def add(self, usage: float) -> UsageTally:
        i = next((i for i, bound in enumerate(USAGE_BOUNDS) if usage <= bound), len(USAGE_BOUNDS))
        counts = self.counts
        return UsageTally((*counts[:i], counts[i] + 1, *counts[i + 1 :]), self.sum + usage)


@dataclass(frozen=True, slots=True)
class EngineState:
    """One engine. Counted seconds never decrease, whatever vLLM does. Times are monotonic seconds.

    `seen_at` is when the engine was last on a good page. Seconds by regime are complete up to `booked_until`.
    """

    key: EngineKey
    snapshot: Snapshot
    regime: Regime
    booked_until: float
    seen_at: float
    windows: Windows = field(default_factory=Windows)
    integrals: History[Integral] = field(default_factory=History)
    before_restart: BeforeRestart = field(default_factory=BeforeRestart)
    totals: Mapping[str, CounterTotal] = field(default_factory=dict)
    """Counter totals by the names of `TRACKED`."""
    raw_histograms: Mapping[str, Histogram] = field(default_factory=dict)
    histogram_totals: Mapping[str, Histogram] = field(default_factory=dict)
    covered: float = 0.0
    derived: Derived = field(default_factory=Derived)
    regime_seconds: Mapping[Regime, float] = field(default_factory=dict)
    usage_seconds: Mapping[float, float] = field(default_factory=dict)
    usage_tally: UsageTally = field(default_factory=UsageTally)
    progress_at: float | None = None
    prompt_at: float | None = None
    busy_since: float | None = None
    disconnects: float = 0.0
    """Requests whose clients disconnected while the engine last worked: answers beyond finished requests."""
    stale_gauges: bool = False
    """The gauges still show requests whose clients have all disconnected."""
    symptoms: Mapping[str, Lifecycle] = field(default_factory=dict)
    transitions: Mapping[tuple[str, Stage], int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class LastScrape:
    """Numbers about the newest scrape itself. Durations are in seconds."""

    duration_s: float
    interval_s: float
    body_bytes: int
    narrowed: bool


@dataclass(frozen=True, slots=True)
class State:
    """All that kvwatch knows of one target. `now` is the time of the newest outcome in monotonic seconds."""

    target: str
    policy: Policy
    limits: Limits = field(repr=False)
    interpreter: PageNormaliser = field(repr=False, compare=False)
    now: float | None = None
    wall: float | None = None
    up: bool | None = None
    error: ScrapeError | None = None
    failing_since: float | None = None
    failing_share: float = 0.0
    """Exponentially weighted share of recent time in which scrapes failed (`FAILING_MEMORY_S`)."""
    last_error: ScrapeError | None = None
    good_at: float | None = None
    full_at: float | None = None
    outcomes: Mapping[str, int] = field(default_factory=dict)
    last: LastScrape | None = None
    engines: Mapping[EngineKey, EngineState] = field(default_factory=dict)
    server: Snapshot | None = None
    unknown_families: tuple[str, ...] = ()
    left_out: int = 0
    """Series on the newest whole page that are not read because they exceed a limit."""
    exposed: tuple[str, ...] = ()
    configured: bool = False
    facts: ServerInfo | None = None
    gpu: GpuWindow = field(default_factory=GpuWindow)
    log: LogVerdict | None = None
    """The verdict on the server's starts, from its log."""
    restart: Restart | None = None
    restarts: int = 0
    switched_at: float | None = None
    """When the answering process last changed: by a restart, or because several servers share one address."""
    regime_without_engines: Regime = Regime.UNKNOWN
    """The regime of the target while none of its engines is known."""
    regime_seconds_without_engines: Mapping[Regime, float] = field(default_factory=dict)
    symptoms: Mapping[str, Lifecycle] = field(default_factory=dict)
    transitions: Mapping[tuple[str, Stage], int] = field(default_factory=dict)
    events: tuple[Event, ...] = ()

    @property
    def failure(self) -> Failure | None:
        return self.error.kind if self.error else None


def initial(target: str, policy: Policy | None = None) -> State:
    """The state before the first scrape. Raises ValueError if a threshold of the policy is unknown or out of
    range."""
    policy = policy or Policy()
    return State(
        target=target,
        policy=policy,
        limits=limits_of(policy.thresholds),
        interpreter=PageNormaliser(policy.vocabulary, target),
        outcomes={"ok": 0} | {str(kind): 0 for kind in Failure},
    )


def with_policy(state: State, policy: Policy, *, same_log: bool = True) -> State:
    """The state under another policy. History and counts stay; the next outcome is judged by the new policy.

    With another log (`same_log` is false) the log's verdict is dropped. Raises ValueError if a threshold of the
    policy is unknown or out of range.
    """
    return replace(
        state,
        policy=policy,
        limits=limits_of(policy.thresholds),
        interpreter=PageNormaliser(policy.vocabulary, state.target),  # the old one may be reading a page
        log=state.log if same_log else None,
    )
