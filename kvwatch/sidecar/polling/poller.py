"""One task per target: scrape, judge with `advance`, publish, repeat.

It never ends on an error and keeps its schedule.

Facts from other endpoints are read by a task of their own and passed on with the next page; GPU readings are
passed on with the next outcome.

A large page is judged in a thread: a page of many megabytes, good or bad, takes seconds, and would block the
event loop for that time. Pollers that share a `turn` judge one at a time: threads share the interpreter, and
the memory of several pages would add up.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import logging
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from random import Random
from typing import TYPE_CHECKING, Protocol

from kvwatch.core.judgement.pipeline import advance, next_pace
from kvwatch.core.judgement.state import State, Transition
from kvwatch.core.model.log_verdict import LogVerdict
from kvwatch.core.model.outcome import Failure, Outcome, Pace, Scrape, ScrapeError
from kvwatch.core.model.server_info import ServerInfo
from kvwatch.sidecar.clock import Backoff, Clock
from kvwatch.sidecar.daemon_threads import CallTimeout, IsolatedCall
from kvwatch.sidecar.http_client import EXCERPT_BYTES
from kvwatch.sidecar.log import ProblemLog, RateLimiter, Reachability, log_changes, log_event
from kvwatch.sidecar.polling.gpu_reader import GpuFeed
from kvwatch.sidecar.polling.narrowing import COMPLETE, Narrowing, is_late, narrowing_fault, same_lack
from kvwatch.sidecar.polling.pacing import NO_OFFSET, DutyCycle, Schedule, StartOffset
from kvwatch.sidecar.store import FailedScrape, Store
from kvwatch.text.redact import redact

if TYPE_CHECKING:
    from kvwatch.settings import Settings

FACTS_EVERY_S = 600.0
_MIN_WAIT_S = 0.05
"""The shortest time between two ticks."""
_LARGE_BYTES = 256 << 10
"""Larger pages, those of about ten engines, are judged in a thread."""
_JUDGE_TIMEOUT_S = 60.0
_OWN_FAILURE = "kvwatch failed at this scrape; see its log"

Judge = Callable[[State, Outcome, float], tuple[State, tuple[Transition, ...]]]


class ScrapeSource(Protocol):
    """A source of pages: `kvwatch.sidecar.polling.scrape.Scraper`."""

    secrets: tuple[str, ...]

    async def scrape(self, pace: Pace, names: Sequence[str] | None = None) -> Scrape | ScrapeError: ...

    async def facts(self) -> ServerInfo: ...


class Poller:
    """Watches one target, beginning with a state. `judge` is `advance`, except in tests."""

    def __init__(
        self,
        state: State,
        source: ScrapeSource,
        store: Store,
        clock: Clock,
        settings: Settings,
        *,
        random: Random | None = None,
        judge: Judge = advance,
        gpus: GpuFeed | None = None,
        log: Callable[[], LogVerdict | None] | None = None,
        start: StartOffset = NO_OFFSET,
        turn: asyncio.Semaphore | None = None,
    ) -> None:
        self.target = state.target
        self._state = state
        self._source = source
        self._store = store
        self._clock = clock
        self._judge = judge
        self._gpus = gpus
        self._log = log
        self._start = start
        self._large_call = IsolatedCall("judge a large page", turn)
        self._narrowing = Narrowing(settings.narrow)
        self._duty = DutyCycle(settings.interval_s, settings.max_interval_s, settings.duty_cycle)
        self._backoff = Backoff(settings.backoff_max_s, random)
        self._waited_s = settings.interval_s
        self._facts: ServerInfo | None = None
        self._facts_read: tuple[float, int] | None = None
        """When facts were last read, and the number of restarts at that time."""
        self._facts_task: asyncio.Task[None] | None = None
        self._problems = ProblemLog()
        self._reachability = Reachability()
        self._limiter = RateLimiter()
        store.publish(state)

    async def run(self) -> None:
        """Polls until cancelled."""
        try:
            if self._start.first_s > 0:
                await self._clock.sleep(self._start.first_s)
            schedule = Schedule(self._clock.now(), self._duty.interval_s * (self._start.phase - 0.5))
            while True:
                started = self._clock.now()
                good = False
                try:
                    good = await self._tick()
                except Exception as error:  # noqa: BLE001 - polling continues whatever happens
                    self._unexpected(error)
                due = self._next(schedule, started, good=good)
                await self._clock.sleep(max(due - self._clock.now(), _MIN_WAIT_S))
        finally:
            if self._facts_task is not None:
                self._facts_task.cancel()

    def _next(self, schedule: Schedule, started: float, *, good: bool) -> float:
        """When the next tick is due."""
        interval = self._duty.interval_s
        if not good:
            self._waited_s = self._backoff.failed(interval)
            return schedule.restart(started, self._waited_s)
        if self._backoff.succeeded():
            due, missed = schedule.restart(started, interval), 0
        else:
            due, missed = schedule.next(self._clock.now(), interval)
        self._waited_s = interval
        if missed:
            self._store.count(self.target, missed_ticks=missed)
        return due

    # -- one tick ----------------------------------------------------------------------------------------------

    async def _tick(self) -> bool:
        """Scrapes, judges, publishes; returns whether there was a readable page."""
        self._store.count(self.target, polls=1)
        self._start_facts()
        try:
            outcome = await self._scrape()
        except Exception as error:  # noqa: BLE001 - becomes a failure like any other
            self._unexpected(error)
            outcome = ScrapeError(Failure.CONNECTION, _OWN_FAILURE, self._clock.wall())
        answer = outcome
        outcome, now = self._complete(outcome), self._clock.now()
        before = self._state
        state, transitions = await self._judge_outcome(before, outcome, now)
        self._state = state
        self._store.publish(state, transitions)
        self._reachability.update(state)
        log_changes(before, state, transitions, self._limiter)
        if self._gpus is not None:
            self._gpus.log_absent(self.target, state.gpu)
        if state.error is not None:
            kind, detail = state.error.kind, state.error.detail
            excerpt = self._excerpt(answer)
            self._store.record_failure(FailedScrape(self.target, outcome.wall, kind, detail, excerpt))
            if kind is Failure.TOO_LARGE:
                del answer, outcome
                with contextlib.suppress(CallTimeout):
                    await self._large_call.run(trim_malloc, _JUDGE_TIMEOUT_S)
            return False
        if isinstance(outcome, Scrape):
            await self._learn(outcome, now)
        return True

    async def _judge_outcome(
        self, before: State, outcome: Outcome, now: float
    ) -> tuple[State, tuple[Transition, ...]]:
        """The judgement of an outcome; one that breaks the judge counts as a failure.

        Redacts secrets in the error.
        """
        try:
            if isinstance(outcome, Scrape) and len(outcome.body) > _LARGE_BYTES:
                judge = partial(self._judge, before, outcome, now)
                state, transitions = await self._large_call.run(judge, _JUDGE_TIMEOUT_S)
            else:
                state, transitions = self._judge(before, outcome, now)
        except CallTimeout as timeout:
            slow = ScrapeError(Failure.TOO_LARGE, f"the page takes too long to read: {timeout}", outcome.wall)
            return self._judge(before, replace(slow, interval_s=outcome.interval_s), now)
        except Exception as error:  # noqa: BLE001 - old values must not pass for new ones
            self._unexpected(error)
            wall, took, interval = outcome.wall, outcome.duration_s, outcome.interval_s
            failure = ScrapeError(Failure.MALFORMED, _OWN_FAILURE, wall, took, interval)
            return self._judge(before, failure, now)
        failed = state.error
        if failed is None:
            return state, transitions
        detail = redact(failed.detail, self._source.secrets)
        if detail == failed.detail:
            return state, transitions
        redacted = replace(failed, detail=detail, gpu=outcome.gpu, log=outcome.log)
        return self._judge(before, redacted, now)  # the evidence quotes it

    async def _scrape(self) -> Outcome:
        """The page that is due: narrowed if that works, else whole; whole at once if narrowing just failed."""
        now = self._clock.now()
        pace = next_pace(self._state, now)
        names = self._narrowing.names(self._state, pace, now)
        outcome = await self._source.scrape(pace, names)
        objection = self._narrowing.objection(outcome, names)
        if not objection:
            return outcome
        if not is_late(outcome):
            whole = await self._source.scrape(pace, None)
            if isinstance(whole, ScrapeError):
                return whole  # the server fails, not the narrowing
            if isinstance(outcome, Scrape) and same_lack(outcome.body, whole.body, names or ()):
                return whole  # the server itself has fewer series than before
            outcome = whole
        self._record_probe(objection, now)
        return outcome

    def _complete(self, outcome: Outcome) -> Outcome:
        """Adds time of day, polling interval (with back-off), new facts, a GPU reading and the log's verdict.

        The excerpt of an error is left out: a server's answer stays out of the state.
        """
        wall, interval = self._clock.wall(), max(self._duty.interval_s, self._waited_s)
        gpu = None if self._gpus is None else self._gpus.take(self._clock.now())
        log = self._log_verdict()
        if isinstance(outcome, ScrapeError):
            return ScrapeError(outcome.kind, outcome.detail, wall, outcome.duration_s, interval, gpu, log)
        facts, self._facts = self._facts, None
        return replace(outcome, wall=wall, interval_s=interval, facts=facts, gpu=gpu, log=log)

    def _log_verdict(self) -> LogVerdict | None:
        try:
            return None if self._log is None else self._log()
        except Exception as error:  # noqa: BLE001 - the log is optional
            self._unexpected(error)
            return None

    async def _learn(self, page: Scrape, now: float) -> None:
        """Learns the cost of a scrape from a good page, and whether narrowing works."""
        self._duty.record(str(page.pace) if page.narrowed else "whole", page.duration_s)
        if page.narrowed:
            return
        self._narrowing.record_whole(page.body, now)
        if not self._narrowing.probe_due(self._state, now):
            return
        names = self._narrowing.probe_names(self._state)
        answer = await self._source.scrape(Pace.FULL, names)
        if not self._narrowing.postpone(answer, now):
            vocabulary = self._state.policy.vocabulary
            self._record_probe(narrowing_fault(vocabulary, page.body, names, answer), now)

    def _record_probe(self, fault: str, now: float) -> None:
        """Records whether narrowing works (no fault), and logs a change."""
        if self._narrowing.record_probe(self._state, not fault, now):
            message = "scrapes fetch the whole page" if fault else "scrapes are narrowed"
            why = redact(fault or COMPLETE, self._source.secrets)
            log_event(logging.INFO, message, target=self.target, narrowed=not fault, why=why)

    # -- facts -------------------------------------------------------------------------------------------------

    def _start_facts(self) -> None:
        """Starts to read facts if they are due: at the start, after a restart, every ten minutes."""
        if not self._state.up or (self._facts_task is not None and not self._facts_task.done()):
            return
        now, restarts = self._clock.now(), self._state.restarts
        if self._facts_read is not None:
            at, restarts_then = self._facts_read
            if restarts_then == restarts and now - at < FACTS_EVERY_S:
                return
        self._facts_read = (now, restarts)
        self._facts_task = asyncio.create_task(self._read_facts())

    async def _read_facts(self) -> None:
        try:
            self._facts = await self._source.facts()
        except Exception as error:  # noqa: BLE001 - facts are optional
            self._unexpected(error)

    # -- failures ----------------------------------------------------------------------------------------------

    def _excerpt(self, outcome: Outcome) -> str:
        """The beginning of the answer, without secrets."""
        raw = outcome.body if isinstance(outcome, Scrape) else getattr(outcome, "excerpt", b"")
        return redact(raw[:EXCERPT_BYTES].decode("utf-8", "replace"), self._source.secrets)

    def _unexpected(self, error: Exception) -> None:
        self._store.count(self.target, unexpected_errors=1)
        self._problems.log(error, self._clock.now(), target=self.target)


def trim_malloc() -> None:
    """Returns free memory to the system, with glibc's ``malloc_trim``; takes some 10 ms.

    C's allocator keeps what was freed, and the limit of a container counts it. So it is called after a page that was
    refused for its size. Needed by ``test_every_fault_is_counted_and_bounded_and_recovered_from``.
    """
    import ctypes  # noqa: PLC0415 - rarely needed

    gc.collect()
    with contextlib.suppress(AttributeError, OSError):  # another allocator
        ctypes.CDLL(None).malloc_trim(0)
