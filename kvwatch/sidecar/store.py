"""The only mutable state of the sidecar: the newest State of each target, and what happened lately.

A State is immutable and replaced whole, so a reader sees one instant of a target or another, never a mixture.
Everything here is touched from one event loop.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from types import MappingProxyType

from kvwatch.core.catalogue import Deliveries
from kvwatch.core.outcome import Failure
from kvwatch.core.state import State, Transition

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
        self._deliveries: dict[str, Deliveries] = {}
        self._waiting: list[asyncio.Event] = []

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

    def delivered(self, sent: Deliveries) -> None:
        """Puts what an Alertmanager was sent in the place of what was known before."""
        self._deliveries[sent.alertmanager] = sent

    # -- what a reader sees ------------------------------------------------------------------------------------

    def state(self, target: str) -> State:
        """One target's newest State; KeyError for a target that is not watched."""
        return self._states[target]

    def states(self) -> Mapping[str, State]:
        """Every target's newest State, in the order of the settings."""
        return MappingProxyType(self._states)

    def poll_stats(self, target: str) -> PollStats:
        return self._stats.get(target, PollStats())

    def deliveries(self) -> tuple[Deliveries, ...]:
        """What each Alertmanager was sent, in the order of the settings."""
        return tuple(self._deliveries.values())

    def transitions(self) -> tuple[Transition, ...]:
        """The latest transitions of all targets, oldest first."""
        return tuple(self._transitions)

    def failures(self) -> tuple[FailedScrape, ...]:
        """The latest failures of all targets, oldest first."""
        found = (failure for kept in self._failures.values() for failure in kept)
        return tuple(sorted(found, key=lambda failure: failure.wall))
