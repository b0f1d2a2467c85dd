"""Drives `advance` as a poller does, with time that a test says."""

from collections import Counter
from dataclasses import dataclass, field

from kvwatch.core.export.findings import Finding, findings
from kvwatch.core.history.regimes import Regime
from kvwatch.core.judgement.lifecycle import Stage
from kvwatch.core.judgement.pipeline import advance, next_pace
from kvwatch.core.judgement.policy import Policy
from kvwatch.core.judgement.state import EngineState, State, Transition, initial
from kvwatch.core.model.gpu import GpuReading
from kvwatch.core.model.outcome import Failure, Outcome, Pace, Scrape, ScrapeError
from kvwatch.core.model.server_info import ServerInfo
from tests.support.pages import RECORDINGS, Server, polls

WALL = 1_800_000_000.0


@dataclass
class Watch:
    """One watched target; `now` moves with every outcome.

    What fires changes only with a transition; `turns` are what was found at each moment that had one.
    """

    policy: Policy = field(default_factory=Policy)
    now: float = 1000.0
    interval: float = 1.0
    state: State = field(init=False)
    transitions: list[Transition] = field(default_factory=list)
    turns: list[tuple[float, tuple[Finding, ...]]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.state = initial("t", self.policy)

    def outcome(self, outcome: Outcome, after: float | None = None) -> State:
        """An outcome, `after` seconds since the one before."""
        self.now += self.interval if after is None else after
        self.state, changes = advance(self.state, outcome, self.now)
        self.transitions += changes
        if changes:
            self.turns.append((self.now, findings(self.state)))
        return self.state

    def see(
        self,
        *servers: Server,
        after: float | None = None,
        pace: Pace = Pace.FULL,
        narrowed: bool = False,
        facts: ServerInfo | None = None,
        gpu: GpuReading | None = None,
    ) -> State:
        """A page of a server (of several: as ranks of one)."""
        body = "".join(server.page for server in servers).encode()
        scrape = Scrape(body, WALL + self.now, 0.001, self.interval, pace, narrowed, facts=facts, gpu=gpu)
        return self.outcome(scrape, after)

    def fail(self, kind: Failure = Failure.REFUSED, after: float | None = None) -> State:
        return self.fail_saying(kind, "nothing there", after)

    def fail_saying(self, kind: Failure, detail: str, after: float | None = None) -> State:
        """A failure with what is told of it."""
        return self.outcome(ScrapeError(kind, detail, WALL + self.now, 0.001, self.interval), after)

    @property
    def engine(self) -> EngineState:
        """The one engine."""
        (found,) = self.state.engines.values()
        return found

    def derived(self, name: str) -> float | None:
        return self.engine.derived.get(name)

    @property
    def regime(self) -> Regime:
        return self.engine.regime

    def stage(self, symptom: str) -> Stage:
        """Where a symptom of the one engine, or of the target, is."""
        if symptom in self.state.symptoms:
            return self.state.symptoms[symptom].stage
        return self.engine.symptoms[symptom].stage

    def fired(self, symptom: str) -> bool:
        """Whether it ever fired."""
        return self.first_fired(symptom) is not None

    def first_fired(self, symptom: str) -> float | None:
        """When it first fired, by the clock of `now`."""
        fired = (t.t for t in self.transitions if t.symptom == symptom and t.after is Stage.FIRING)
        return next(fired, None)

    def all_fired(self) -> dict[str, float]:
        """Everything that ever fired, and when first."""
        names = [t.symptom for t in self.transitions if t.after is Stage.FIRING]
        return {name: at for name in dict.fromkeys(names) if (at := self.first_fired(name)) is not None}

    def found(self, at: float | None = None) -> tuple[Finding, ...]:
        """What fires now; or what fired at a moment, with the evidence of the last change before it."""
        if at is None:
            return findings(self.state)
        return next((found for t, found in reversed(self.turns) if t <= at), ())

    def regimes(self) -> Counter[Regime]:
        """Seconds in each regime, of all engines together."""
        seconds: Counter[Regime] = Counter()
        for engine in self.state.engines.values():
            for regime, spent in engine.regime_seconds.items():
                seconds[regime] += spent  # type: ignore[assignment]  # Counter[T] counts; seconds are fractions
        return seconds


def replayed(
    name: str, policy: Policy | None = None, *, facts: ServerInfo | None = None, until: float | None = None
) -> Watch:
    """A watch that saw a recording (`until` so many seconds, else whole), by the recording's own clock and with the
    paces it would have asked for; `facts` as if `/v1/models` had been asked."""
    watch = Watch(policy or Policy(), now=0.0)
    began: float | None = None
    for poll in polls(RECORDINGS / f"{name}.jsonl.gz"):
        began = poll["t"] if began is None else began
        now = poll["t"] - began
        if until is not None and now > until:
            break
        outcome: Outcome = ScrapeError(Failure.REFUSED, "recorded", poll["t"])
        if poll["status"] == 200:
            pace = next_pace(watch.state, now)
            outcome = Scrape(poll["body"].encode(), poll["t"], pace=pace, facts=facts)
        watch.outcome(outcome, after=now - watch.now)
    return watch
