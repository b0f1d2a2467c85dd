"""The only mutable state of the sidecar: the newest State of each target, and what happened lately.

A State is immutable and replaced whole, so a reader sees one instant of a target or another, never a mixture.
Everything here is touched from one event loop.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, replace
from types import MappingProxyType

from kvwatch.core.export.catalogue import NotificationCounts, ReloadCounts
from kvwatch.core.judgement.state import State, Transition
from kvwatch.core.model.outcome import Failure

TRANSITIONS_KEPT = 1000
FAILURES_KEPT = 20
"""Of each target, so that one that is down does not push out what another did."""
EXCERPT_CHARACTERS = 2048


@dataclass(frozen=True, slots=True)
class PollStats:
    """What a poller counted since the start: ticks that scraped, ticks it had to skip, errors nobody expected."""

    polls: int = 0
    missed_ticks: int = 0
    unexpected_errors: int = 0


@dataclass(frozen=True, slots=True)
class FailedScrape:
    """One scrape that gave nothing. `wall` unix seconds; `excerpt` the beginning of what came, as text."""

    target: str
    wall: float
    kind: Failure
    detail: str
    excerpt: str = ""


class Store:
    """What the service knows, for whoever shows it."""

    def __init__(self, states: Iterable[State] = ()) -> None:
        self._states = {state.target: state for state in states}
        self._stats = dict.fromkeys(self._states, PollStats())
        self._transitions: deque[Transition] = deque(maxlen=TRANSITIONS_KEPT)
        self._failures: dict[str, deque[FailedScrape]] = {}
        self._deliveries: dict[str, NotificationCounts] = {}
        self._waiting: list[asyncio.Event] = []
        self._reloads = ReloadCounts({"ok": 0, "failed": 0})

    # -- what a poller does ------------------------------------------------------------------------------------

    def publish(self, state: State, transitions: Iterable[Transition] = ()) -> None:
        """Puts a target's State in the place of the one before; who waits for news is woken if it has any."""
        before, changes = self._states.get(state.target), tuple(transitions)
        self._states[state.target] = state
        self._stats.setdefault(state.target, PollStats())
        self._transitions.extend(changes)
        if changes or before is None or before.events != state.events:
            for event in self._waiting:
                event.set()

    def failed(self, failure: FailedScrape) -> None:
        """Keeps a failure to look at. Secrets must be out of it by now."""
        kept = self._failures.setdefault(failure.target, deque(maxlen=FAILURES_KEPT))
        kept.append(replace(failure, excerpt=failure.excerpt[:EXCERPT_CHARACTERS]))

    def count(
        self, target: str, *, polls: int = 0, missed_ticks: int = 0, unexpected_errors: int = 0
    ) -> None:
        """Adds to a target's counters."""
        before = self.poll_stats(target)
        self._stats[target] = PollStats(
            before.polls + polls,
            before.missed_ticks + missed_ticks,
            before.unexpected_errors + unexpected_errors,
        )

    # -- what a notifier does ----------------------------------------------------------------------------------

    def wake(self, event: asyncio.Event) -> None:
        """Sets the event from now on whenever a symptom changes its stage, or an engine comes or goes."""
        self._waiting.append(event)

    def leave_asleep(self, event: asyncio.Event) -> None:
        """Sets the event no more."""
        self._waiting.remove(event)

    def delivered(self, sent: NotificationCounts) -> None:
        """Puts what an Alertmanager was sent in the place of what was known before."""
        self._deliveries[sent.alertmanager] = sent

    # -- what a reload does ------------------------------------------------------------------------------------

    def keep(self, targets: Collection[str], alertmanagers: Collection[str]) -> None:
        """Forgets all targets and Alertmanagers but these, and has the targets in their order."""
        self._states = {name: self._states[name] for name in targets if name in self._states}
        self._stats = {name: stats for name, stats in self._stats.items() if name in self._states}
        self._failures = {name: kept for name, kept in self._failures.items() if name in self._states}
        self._deliveries = {name: sent for name, sent in self._deliveries.items() if name in alertmanagers}

    def reloaded(self, *, good: bool, wall: float) -> None:
        """Counts that the settings were read anew at `wall` (unix seconds), or could not be used."""
        outcome, before = "ok" if good else "failed", self._reloads
        counts = {**before.outcomes, outcome: before.outcomes[outcome] + 1}
        self._reloads = ReloadCounts(counts, good, wall if good else before.last_success)

    def started(self, wall: float) -> None:
        """Notes when the first settings were read, unix seconds."""
        self._reloads = replace(self._reloads, last_success=wall)

    # -- what a reader sees ------------------------------------------------------------------------------------

    def state(self, target: str) -> State:
        """One target's newest State; KeyError for a target that is not watched."""
        return self._states[target]

    def states(self) -> Mapping[str, State]:
        """Every target's newest State, in the order of the settings."""
        return MappingProxyType(self._states)

    def poll_stats(self, target: str) -> PollStats:
        return self._stats.get(target, PollStats())

    def deliveries(self) -> tuple[NotificationCounts, ...]:
        """What each Alertmanager was sent, in the order of the settings."""
        return tuple(self._deliveries.values())

    def reloads(self) -> ReloadCounts:
        """What became of the settings."""
        return self._reloads

    def transitions(self) -> tuple[Transition, ...]:
        """The latest transitions of all targets, oldest first."""
        return tuple(self._transitions)

    def failures(self) -> tuple[FailedScrape, ...]:
        """The latest failures of all targets, oldest first."""
        found = (failure for kept in self._failures.values() for failure in kept)
        return tuple(sorted(found, key=lambda failure: failure.wall))
