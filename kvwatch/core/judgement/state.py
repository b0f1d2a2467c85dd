"""What kvwatch knows of one target at one instant. Immutable; replaced whole by `pipeline.advance`."""

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
from kvwatch.core.model.outcome import Failure, ScrapeError, ServerInfo
from kvwatch.core.model.snapshot import EngineKey, Histogram, Snapshot
from kvwatch.core.model.timed_rows import History

#: Time constant of the share of failing time, seconds.
FAILING_MEMORY_S = 60.0
#: Usage marks above which seconds are counted.
USAGE_MARKS = (0.9, 0.95, 0.99)
#: Upper bounds of the histogram of sampled usage.
USAGE_BOUNDS = (0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.85, 0.9, 0.95, 0.98, 0.99, 1.0)


@dataclass(frozen=True, slots=True)
class Transition:
    """A symptom went from one stage to another. `t` monotonic seconds, `wall` unix seconds."""

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
    """Something that happened once: ``restart``, ``engine_appeared``, ``engine_vanished``, ``several_servers``
    (they answer in turn behind one address, so that no increase can be told)."""

    t: float
    wall: float
    kind: str
    key: EngineKey
    detail: Evidence = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class UsageTally:
    """Samples of KV usage by bucket (`USAGE_BOUNDS`, not cumulative, one more for above), and their sum."""

    counts: tuple[int, ...] = (0,) * (len(USAGE_BOUNDS) + 1)
    sum: float = 0.0

    def add(self, usage: float) -> UsageTally:
        i = next((i for i, bound in enumerate(USAGE_BOUNDS) if usage <= bound), len(USAGE_BOUNDS))
        counts = self.counts
        return UsageTally((*counts[:i], counts[i] + 1, *counts[i + 1 :]), self.sum + usage)


@dataclass(frozen=True, slots=True)
class EngineState:
    """One engine. Counted seconds never fall and are never reset, whatever vLLM does.

    `seen_at` is when it was last on a good page (monotonic seconds).
    """

    key: EngineKey
    snapshot: Snapshot
    regime: Regime
    accounted_to: float
    seen_at: float
    windows: Windows = field(default_factory=Windows)
    integrals: History[Integral] = field(default_factory=History)
    past: BeforeRestart = field(default_factory=BeforeRestart)
    climbs: Mapping[str, CounterTotal] = field(default_factory=dict)
    raw_ladders: Mapping[str, Histogram] = field(default_factory=dict)
    climbed_ladders: Mapping[str, Histogram] = field(default_factory=dict)
    covered: float = 0.0
    derived: Derived = field(default_factory=Derived)
    regime_seconds: Mapping[Regime, float] = field(default_factory=dict)
    usage_seconds: Mapping[float, float] = field(default_factory=dict)
    usage_tally: UsageTally = field(default_factory=UsageTally)
    progress_at: float | None = None
    prompt_at: float | None = None
    busy_since: float | None = None
    parted: float = 0.0
    """Requests whose clients went away while the engine last worked, beyond those it finished."""
    abandoned: bool = False
    """All that the gauges still show has gone."""
    symptoms: Mapping[str, Lifecycle] = field(default_factory=dict)
    transitions: Mapping[tuple[str, Stage], int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class LastScrape:
    """The newest scrape, as numbers about kvwatch's own work. Durations in seconds."""

    duration_s: float
    interval_s: float
    body_bytes: int
    narrowed: bool


@dataclass(frozen=True, slots=True)
class State:
    """Everything about one target. `now` is the time of the newest outcome, monotonic seconds."""

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
    """Share of lately's time in which scrapes failed, exponentially weighted (`FAILING_MEMORY_S`)."""
    last_error: ScrapeError | None = None
    good_at: float | None = None
    full_at: float | None = None
    outcomes: Mapping[str, int] = field(default_factory=dict)
    last: LastScrape | None = None
    engines: Mapping[EngineKey, EngineState] = field(default_factory=dict)
    server: Snapshot | None = None
    unknown_families: tuple[str, ...] = ()
    left_out: int = 0
    """Series on the newest whole page that are not read because they are beyond the limits."""
    exposed: tuple[str, ...] = ()
    configured: bool = False
    facts: ServerInfo | None = None
    gpu: GpuWindow = field(default_factory=GpuWindow)
    log: LogVerdict | None = None
    """What the server's own log tells of its starts."""
    restart: Restart | None = None
    restarts: int = 0
    switched_at: float | None = None
    """When another process than before last answered: a restart, or several servers behind one address."""
    unattended: Regime = Regime.UNKNOWN
    """The regime of the target while no engine of it is known."""
    unattended_seconds: Mapping[Regime, float] = field(default_factory=dict)
    symptoms: Mapping[str, Lifecycle] = field(default_factory=dict)
    transitions: Mapping[tuple[str, Stage], int] = field(default_factory=dict)
    events: tuple[Event, ...] = ()

    @property
    def failure(self) -> Failure | None:
        return self.error.kind if self.error else None


def initial(target: str, policy: Policy | None = None) -> State:
    """The state before the first scrape. ValueError if a threshold of the policy is unknown or out of range."""
    policy = policy or Policy()
    return State(
        target=target,
        policy=policy,
        limits=limits_of(policy.thresholds),
        interpreter=PageNormaliser(policy.vocabulary, target),
        outcomes={"ok": 0} | {str(kind): 0 for kind in Failure},
    )


def judged_by(state: State, policy: Policy, *, same_log: bool = True) -> State:
    """The state under another policy: what was seen and counted stays, and is judged anew with the next outcome. What
    another log told is not of this server any more.

    ValueError if a threshold of the policy is unknown or out of range.
    """
    return replace(
        state,
        policy=policy,
        limits=limits_of(policy.thresholds),
        interpreter=PageNormaliser(policy.vocabulary, state.target),  # the other may still be reading
        log=state.log if same_log else None,
    )
