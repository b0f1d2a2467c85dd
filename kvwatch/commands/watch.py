"""One target watched from start to end: what `check`, `replay`, `record` and `plan` report of it."""

from __future__ import annotations

from collections import defaultdict
from typing import Any

from kvwatch.core.export import report
from kvwatch.core.export.findings import Finding, findings, lifecycles
from kvwatch.core.judgement.lifecycle import Stage
from kvwatch.core.judgement.pipeline import advance
from kvwatch.core.judgement.policy import Policy
from kvwatch.core.judgement.state import Event, State, Transition, initial
from kvwatch.core.judgement.symptoms import SYMPTOMS, Scope, Verdict
from kvwatch.core.model.outcome import LogReport, Outcome
from kvwatch.core.model.snapshot import EngineKey


class Watch:
    """Feeds outcomes to `advance` and keeps totals.

    The seconds between two outcomes count under the symptoms and regimes at the first of them. Over several engines
    a symptom fires while it fires on any, and is unknown while it is unknown on any.
    """

    def __init__(self, target: str, policy: Policy) -> None:
        self.state = initial(target, policy)
        self.good: State | None = None
        """The state after the newest page that could be read."""
        self.start: float | None = None
        """Monotonic time of the first outcome."""
        self.samples = 0
        self.transitions: list[Transition] = []
        self.events: list[Event] = []
        """The events of the state, and ``down`` and ``up_again``."""
        self._down_since: float | None = None
        self._last_findings: dict[tuple[EngineKey, str], Finding] = {}
        self._firing_s: defaultdict[str, float] = defaultdict(float)
        self._unknown_s: defaultdict[str, float] = defaultdict(float)
        self._first_fired_s: dict[str, float] = {}
        self._vanished_s: defaultdict[str, float] = defaultdict(float)
        """Seconds per regime of engines that vanished."""
        self._firing: set[str] = set()
        self._unknown: set[str] = set()

    def feed(self, outcome: Outcome | LogReport, now: float) -> tuple[Transition, ...]:
        """Judges an outcome at `now` (monotonic seconds). Returns its transitions; appends its events to `events`."""
        before = self.state
        self.state, transitions = advance(before, outcome, now)
        now = self.state.now if self.state.now is not None else now
        self.start = now if self.start is None else self.start
        elapsed = now - before.now if before.now is not None else 0.0
        for symptom in self._firing:
            self._firing_s[symptom] += elapsed
        for symptom in self._unknown:
            self._unknown_s[symptom] += elapsed
        for key in before.engines.keys() - self.state.engines.keys():
            for regime, seconds in before.engines[key].regime_seconds.items():
                self._vanished_s[regime] += seconds
        self.samples += 1
        self.transitions += transitions
        self._add_events(before)
        if self.state.up:
            self.good = self.state
        self._update_symptoms(now - self.start)
        return transitions

    def _add_events(self, before: State) -> None:
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

    def _update_symptoms(self, elapsed: float) -> None:
        """Updates which symptoms fire and which are unknown, `elapsed` seconds after the start."""
        lives = list(lifecycles(self.state))
        self._firing = {name for _, name, life in lives if life.stage is Stage.FIRING}
        if self._firing:
            current = {(one.key, one.symptom.id): one for one in findings(self.state)}
            self._last_findings.update(current)
        self._unknown = {
            name for _, name, life in lives if life.verdict is Verdict.UNKNOWN or life.stage is Stage.UNKNOWN
        }
        if not self.state.engines:
            disabled = self.state.policy.disabled
            self._unknown |= {
                row.id for row in SYMPTOMS if row.scope is Scope.ENGINE and row.id not in disabled
            }
        for symptom in self._firing:
            self._first_fired_s.setdefault(symptom, elapsed)

    @property
    def duration_s(self) -> float:
        return (self.state.now or 0.0) - (self.start or 0.0)

    @property
    def failures(self) -> dict[str, int]:
        """The number of failed scrapes by kind, including pages that could not be parsed."""
        return {kind: count for kind, count in self.state.outcomes.items() if kind != "ok" and count}

    def regimes(self) -> dict[str, float]:
        """Seconds per regime, over all engines, including the time before the first engine was known."""
        total = self._vanished_s.copy()
        for regimes in (
            self.state.regime_seconds_without_engines,
            *(engine.regime_seconds for engine in self.state.engines.values()),
        ):
            for regime, seconds in regimes.items():
                total[str(regime)] += seconds
        return {regime: round(seconds, 3) for regime, seconds in sorted(total.items()) if seconds > 0}

    def last_findings(self) -> list[dict[str, Any]]:
        """The last finding of each symptom that fired, of each engine."""
        return [report.finding(one, now_wall=self.state.wall) for one in self._last_findings.values()]

    def findings(self) -> list[dict[str, Any]]:
        """The present findings."""
        return [report.finding(one, now_wall=self.state.wall) for one in findings(self.state)]

    def pending(self) -> list[tuple[EngineKey, str]]:
        """The pending symptoms."""
        return [(key, name) for key, name, life in lifecycles(self.state) if life.stage is Stage.PENDING]

    def unknown(self) -> list[tuple[EngineKey, str, str]]:
        """The unknown symptoms, each with its engine and the reason."""
        return [
            (key, name, life.reason)
            for key, name, life in lifecycles(self.state)
            if life.verdict is Verdict.UNKNOWN
        ]

    def fired(self, symptom: str) -> bool:
        """Whether a symptom fired at any time, on any engine."""
        return symptom in self._first_fired_s

    def as_data(self) -> dict[str, Any]:
        """Totals, events, transitions and engines for JSON."""
        good = self.good or self.state
        offset, start = report.wall_offset(good), self.start or 0.0
        return {
            "samples": self.samples,
            "failed_scrapes": sum(self.failures.values()),
            "duration_s": round(self.duration_s, 3),
            "events": [report.event(one) | {"t": round(one.t - start, 3)} for one in self.events],
            "transitions": [report.transition(one, start=start) for one in self.transitions],
            "symptoms": {row.id: self._symptom(row.id) for row in SYMPTOMS},
            "regimes": self.regimes(),
            **report.gpus(good),
            "engines": [report.engine(engine, wall_offset=offset) for engine in good.engines.values()],
        }

    def _symptom(self, name: str) -> dict[str, Any]:
        first = self._first_fired_s.get(name)
        return {
            "fired": first is not None,
            "first_fired_s": None if first is None else round(first, 3),
            "firing_s": round(self._firing_s[name], 3),
            "unknown_s": round(self._unknown_s[name], 3),
        }
