"""The only mutable state of the sidecar:

the newest State of each target, recent transitions and failures, counters.

A State is immutable and replaced as a whole, so a reader sees one instant of a target. Only the event loop's thread
uses the store.
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
"""Failures kept of each target, so that a target that is down does not displace those of others."""
EXCERPT_CHARACTERS = 2048


@dataclass(frozen=True, slots=True)
class PollStats:
    """Counters of a poller since the start."""

    polls: int = 0
    missed_ticks: int = 0
    unexpected_errors: int = 0


@dataclass(frozen=True, slots=True)
class FailedScrape:
    """A failed scrape. `wall` unix seconds; `excerpt` the beginning of the answer, as text without secrets."""

    target: str
    wall: float
    kind: Failure
    detail: str
    excerpt: str = ""


class Store:
    """States, transitions, failures and counters of all targets and Alertmanagers."""

    def __init__(self, states: Iterable[State] = ()) -> None:
        self._states = {state.target: state for state in states}
        self._stats = dict.fromkeys(self._states, PollStats())
        self._transitions: deque[Transition] = deque(maxlen=TRANSITIONS_KEPT)
        self._failures: dict[str, deque[FailedScrape]] = {}
        self._deliveries: dict[str, NotificationCounts] = {}
        self._subscribers: list[asyncio.Event] = []
        self._reloads = ReloadCounts({"ok": 0, "failed": 0})

    # -- written by pollers ------------------------------------------------------------------------------------

    def publish(self, state: State, transitions: Iterable[Transition] = ()) -> None:
        """Replaces the State of a target; wakes subscribers if there are transitions or new events."""
        before, changes = self._states.get(state.target), tuple(transitions)
        self._states[state.target] = state
        self._stats.setdefault(state.target, PollStats())
        self._transitions.extend(changes)
        if changes or before is None or before.events != state.events:
            for event in self._subscribers:
                event.set()

    def record_failure(self, failure: FailedScrape) -> None:
        """Keeps a failed scrape."""
        kept = self._failures.setdefault(failure.target, deque(maxlen=FAILURES_KEPT))
        kept.append(replace(failure, excerpt=failure.excerpt[:EXCERPT_CHARACTERS]))

    def count(
        self, target: str, *, polls: int = 0, missed_ticks: int = 0, unexpected_errors: int = 0
    ) -> None:
        """Adds to the counters of a target."""
        old = self.poll_stats(target)
        self._stats[target] = PollStats(
            old.polls + polls, old.missed_ticks + missed_ticks, old.unexpected_errors + unexpected_errors
        )

    # -- written by notifiers ----------------------------------------------------------------------------------

    def subscribe(self, event: asyncio.Event) -> None:
        """Sets the event from now on whenever a symptom changes its stage, or an engine appears or vanishes."""
        self._subscribers.append(event)

    def unsubscribe(self, event: asyncio.Event) -> None:
        self._subscribers.remove(event)

    def record_delivery(self, counts: NotificationCounts) -> None:
        """Replaces the counters of an Alertmanager."""
        self._deliveries[counts.alertmanager] = counts

    # -- written by reloads ------------------------------------------------------------------------------------

    def keep(self, targets: Collection[str], alertmanagers: Collection[str]) -> None:
        """Drops all targets and Alertmanagers but these, and puts the targets in this order."""
        self._states = {name: self._states[name] for name in targets if name in self._states}
        self._stats = {name: stats for name, stats in self._stats.items() if name in self._states}
        self._failures = {name: kept for name, kept in self._failures.items() if name in self._states}
        self._deliveries = {name: sent for name, sent in self._deliveries.items() if name in alertmanagers}

    def record_reload(self, *, good: bool, wall: float) -> None:
        """Counts a reload of the settings at `wall` (unix seconds)."""
        outcome, old = "ok" if good else "failed", self._reloads
        counts = {**old.outcomes, outcome: old.outcomes[outcome] + 1}
        self._reloads = ReloadCounts(counts, good, wall if good else old.last_success)

    def record_start(self, wall: float) -> None:
        """Sets the time of the first settings, unix seconds."""
        self._reloads = replace(self._reloads, last_success=wall)

    # -- read --------------------------------------------------------------------------------------------------

    def state(self, target: str) -> State:
        """The newest State of a target; KeyError if it is not watched."""
        return self._states[target]

    def states(self) -> Mapping[str, State]:
        """The newest State of each target, in the order of the settings."""
        return MappingProxyType(self._states)

    def poll_stats(self, target: str) -> PollStats:
        return self._stats.get(target, PollStats())

    def deliveries(self) -> tuple[NotificationCounts, ...]:
        """The counters of each Alertmanager, in the order of the settings."""
        return tuple(self._deliveries.values())

    def reloads(self) -> ReloadCounts:
        return self._reloads

    def transitions(self) -> tuple[Transition, ...]:
        """The latest transitions of all targets, oldest first."""
        return tuple(self._transitions)

    def failures(self) -> tuple[FailedScrape, ...]:
        """The latest failures of all targets, oldest first."""
        found = (failure for kept in self._failures.values() for failure in kept)
        return tuple(sorted(found, key=lambda failure: failure.wall))
