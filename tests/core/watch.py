"""Drives `advance` as a poller does, with time that a test says."""

from dataclasses import dataclass, field

from kvwatch.core.lifecycle import Stage
from kvwatch.core.outcome import Facts, Failure, Outcome, Pace, Scrape, ScrapeError
from kvwatch.core.pipeline import advance, next_pace
from kvwatch.core.policy import Policy
from kvwatch.core.regimes import Regime
from kvwatch.core.state import EngineState, State, Transition, initial
from tests.core.pages import RECORDINGS, Server, polls

WALL = 1_800_000_000.0


@dataclass
class Watch:
    """One watched target; `now` moves with every outcome."""

    policy: Policy = field(default_factory=Policy)
    now: float = 1000.0
    interval: float = 1.0
    state: State = field(init=False)
    transitions: list[Transition] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.state = initial("t", self.policy)

    def outcome(self, outcome: Outcome, after: float | None = None) -> State:
        """An outcome, `after` seconds since the one before."""
        self.now += self.interval if after is None else after
        self.state, changes = advance(self.state, outcome, self.now)
        self.transitions += changes
        return self.state

    def see(
        self,
        *servers: Server,
        after: float | None = None,
        pace: Pace = Pace.FULL,
        narrowed: bool = False,
        facts: Facts | None = None,
    ) -> State:
        """A page of a server (of several: as ranks of one)."""
        body = "".join(server.page for server in servers).encode()
        scrape = Scrape(body, WALL + self.now, 0.001, self.interval, pace, narrowed, facts=facts)
        return self.outcome(scrape, after)

    def fail(self, kind: Failure = Failure.REFUSED, after: float | None = None) -> State:
        return self.outcome(ScrapeError(kind, "nothing there", WALL + self.now, 0.001, self.interval), after)

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
        return any(t.symptom == symptom and t.after is Stage.FIRING for t in self.transitions)


def replayed(name: str, policy: Policy | None = None) -> Watch:
    """A watch that saw a whole recording, by the recording's own clock and with the paces it would have asked for."""
    watch = Watch(policy or Policy(), now=0.0)
    began: float | None = None
    for poll in polls(RECORDINGS / f"{name}.jsonl.gz"):
        began = poll["t"] if began is None else began
        now = poll["t"] - began
        outcome: Outcome = ScrapeError(Failure.REFUSED, "recorded", poll["t"])
        if poll["status"] == 200:
            outcome = Scrape(poll["body"].encode(), poll["t"], pace=next_pace(watch.state, now))
        watch.outcome(outcome, after=now - watch.now)
    return watch
