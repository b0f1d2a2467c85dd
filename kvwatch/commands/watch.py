"""One target watched from a start to an end: what `replay` and `check` tell afterwards."""

from __future__ import annotations

from collections import defaultdict
from typing import Any

from kvwatch.core.export import report
from kvwatch.core.export.findings import findings, lifecycles
from kvwatch.core.judgement.lifecycle import Stage
from kvwatch.core.judgement.pipeline import advance
from kvwatch.core.judgement.policy import Policy
from kvwatch.core.judgement.state import Event, State, Transition, initial
from kvwatch.core.judgement.symptoms import SYMPTOMS, Scope, Verdict
from kvwatch.core.model.outcome import LogReport, Outcome
from kvwatch.core.model.snapshot import EngineKey


class Watch:
    """Feeds outcomes through `advance` and adds up what happened.

    Seconds are those between two outcomes, booked under what was told at the first of them; over several
    engines a symptom fires while it does on any, and is unknown while it can't be told on any.
    """

    def __init__(self, target: str, policy: Policy) -> None:
        self.state = initial(target, policy)
        self.good: State | None = None
        """The state after the newest page that could be read."""
        self.start: float | None = None
        self.samples = 0
        self.transitions: list[Transition] = []
        self.events: list[Event] = []
        """What happened once: those of the state, and ``down`` and ``up_again``."""
        self._down_since: float | None = None
        self._judged = [row for row in SYMPTOMS if row.id not in policy.disabled]
        self._firing: defaultdict[str, float] = defaultdict(float)
        self._unknown: defaultdict[str, float] = defaultdict(float)
        self._first: dict[str, float] = {}
        self._gone: defaultdict[str, float] = defaultdict(float)
        """Seconds per regime of engines that are no longer kept."""
        self._now_firing: set[str] = set()
        self._now_unknown: set[str] = set()

    def take(self, outcome: Outcome | LogReport, now: float) -> tuple[Transition, ...]:
        """Takes an outcome at `now`; the transitions that it brought. Its events are then the last of `events`."""
        before = self.state
        self.state, transitions = advance(before, outcome, now)
        now = self.state.now if self.state.now is not None else now
        if self.start is None:
            self.start = now
        elapsed = now - before.now if before.now is not None else 0.0
        for symptom in self._now_firing:
            self._firing[symptom] += elapsed
        for symptom in self._now_unknown:
            self._unknown[symptom] += elapsed
        for key in before.engines.keys() - self.state.engines.keys():
            for regime, seconds in before.engines[key].regime_seconds.items():
                self._gone[regime] += seconds
        self.samples += 1
        self.transitions += transitions
        self._note_events(before)
        if self.state.up:
            self.good = self.state
        self._look(now)
        return transitions

    def _note_events(self, before: State) -> None:
        """Notes what happened with the newest outcome."""
        now, wall, key = self.state.now or 0.0, self.state.wall or 0.0, EngineKey(self.state.target)
        if self.state.up and self._down_since is not None:
            self.events.append(Event(now, wall, "up_again", key, {"down_seconds": now - self._down_since}))
            self._down_since = None
        old = set(map(id, before.events))
        self.events += [event for event in self.state.events if id(event) not in old]
        if self.state.error is not None and self._down_since is None:
            self._down_since = now
            detail = {"failure": str(self.state.error.kind), "detail": self.state.error.detail}
            self.events.append(Event(now, wall, "down", key, detail))

    def _look(self, now: float) -> None:
        """Notes what fires and what is unknown from here on."""
        assert self.start is not None  # noqa: S101 - set by `take`
        living = list(lifecycles(self.state))
        self._now_firing = {name for _, name, life in living if life.stage is Stage.FIRING}
        self._now_unknown = {
            name for _, name, life in living if life.verdict is Verdict.UNKNOWN or life.stage is Stage.UNKNOWN
        }
        if not self.state.engines:
            self._now_unknown |= {row.id for row in self._judged if row.scope is Scope.ENGINE}
        for symptom in self._now_firing:
            self._first.setdefault(symptom, now - self.start)

    @property
    def duration_s(self) -> float:
        return (self.state.now or 0.0) - (self.start or 0.0)

    @property
    def failures(self) -> dict[str, int]:
        """Outcomes that gave nothing, by kind; pages that could not be read are among them."""
        return {kind: count for kind, count in self.state.outcomes.items() if kind != "ok" and count}

    @property
    def failed(self) -> int:
        return sum(self.failures.values())

    def regimes(self) -> dict[str, float]:
        """Seconds per regime, over all engines, and the time in which no engine was known."""
        seconds = self._gone.copy()
        for held in (
            self.state.regime_seconds_without_engines,
            *(e.regime_seconds for e in self.state.engines.values()),
        ):
            for regime, some in held.items():
                seconds[str(regime)] += some
        return {regime: round(some, 3) for regime, some in sorted(seconds.items()) if some > 0}

    def findings(self) -> list[dict[str, Any]]:
        """What fires at the end."""
        return [report.finding(one, now_wall=self.state.wall) for one in findings(self.state)]

    def pending(self) -> list[tuple[EngineKey, str]]:
        """Symptoms on the way to firing."""
        return [(key, name) for key, name, life in lifecycles(self.state) if life.stage is Stage.PENDING]

    def unknown(self) -> list[tuple[EngineKey, str, str]]:
        """What can't be told at the end, of which engine, and why."""
        return [
            (key, name, life.reason)
            for key, name, life in lifecycles(self.state)
            if life.verdict is Verdict.UNKNOWN
        ]

    def fired(self, symptom: str) -> bool:
        """Whether a symptom ever fired, on any engine."""
        return symptom in self._first

    def as_data(self) -> dict[str, Any]:
        """All of it as plain data for JSON."""
        good = self.good or self.state
        shift = report.wall_offset(good)
        return {
            "samples": self.samples,
            "failed_scrapes": self.failed,
            "duration_s": round(self.duration_s, 3),
            "events": [
                report.event(one) | {"t": round(one.t - (self.start or 0.0), 3)} for one in self.events
            ],
            "transitions": [report.transition(one, start=self.start or 0.0) for one in self.transitions],
            "symptoms": {row.id: self._symptom(row.id) for row in SYMPTOMS},
            "regimes": self.regimes(),
            **report.gpus(good),
            "engines": [report.engine(engine, wall_offset=shift) for engine in good.engines.values()],
        }

    def _symptom(self, name: str) -> dict[str, Any]:
        first = self._first.get(name)
        return {
            "fired": first is not None,
            "first_fired_s": None if first is None else round(first, 3),
            "firing_s": round(self._firing[name], 3),
            "unknown_s": round(self._unknown[name], 3),
        }
