"""Drives `advance` as a poller does, with time that a test says."""

from dataclasses import dataclass, field

from kvwatch.core.lifecycle import Stage
from kvwatch.core.outcome import Failure, Outcome, Pace, Scrape, ScrapeError
from kvwatch.core.pipeline import advance
from kvwatch.core.policy import Policy
from kvwatch.core.regimes import Regime
from kvwatch.core.state import EngineState, State, Transition, initial
from tests.core.pages import Server

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
        self, *servers: Server, after: float | None = None, pace: Pace = Pace.FULL, narrowed: bool = False
    ) -> State:
        """A page of a server (of several: as ranks of one)."""
        body = "".join(server.page for server in servers).encode()
        scrape = Scrape(body, WALL + self.now, 0.001, self.interval, pace, narrowed)
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
