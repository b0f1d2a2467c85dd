"""One task per target: scrape, advance, publish, and again. It never dies and keeps its beat.

A tick is `_tick`: choose what to ask for, ask, let `advance` judge, publish. Around it is the rhythm (back-off
while the server is down) and a net that catches whatever nobody thought of. Facts from other endpoints are
read by a task of their own and travel with the next page, readings of the GPUs with the next outcome.

A large page is judged in a thread: one of many megabytes, good or bad, takes seconds, in which the event loop would
scrape no other target and answer nobody. Of all pollers that share a `turn` one does so at a time: threads share the
interpreter, and what a page takes to be read they would take all at once.
"""

from __future__ import annotations

import asyncio
import contextlib
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
from kvwatch.sidecar.clock import Clock
from kvwatch.sidecar.http_client import EXCERPT_BYTES
from kvwatch.sidecar.log import ProblemLog, Reachability, log_changes, log_narrowing
from kvwatch.sidecar.log_throttle import RateLimiter
from kvwatch.sidecar.polling.gpu_reader import GpuFeed
from kvwatch.sidecar.polling.isolated_call import CallTimeout, IsolatedCall
from kvwatch.sidecar.polling.narrowing import HELD, Narrowing, fault_of, is_late, same_lack
from kvwatch.sidecar.polling.pacing import AT_ONCE, Backoff, DutyCycle, Rhythm, Start
from kvwatch.sidecar.serving.hardening.malloc_trim import trim_malloc
from kvwatch.sidecar.store import FailedScrape, Store
from kvwatch.text.redact import redact

if TYPE_CHECKING:
    from kvwatch.settings import Settings

FACTS_EVERY_S = 600.0
_BREATH_S = 0.05
"""The least time between two ticks, whatever the rest says."""
_LARGE_BYTES = 256 << 10
"""Larger pages are judged in a thread: those of ten engines and more, which would hold up the loop too long."""
_JUDGED_WITHIN_S = 60.0
_OURS = "kvwatch itself failed at this scrape; its log says how"

Judge = Callable[[State, Outcome, float], tuple[State, tuple[Transition, ...]]]


class ScrapeSource(Protocol):
    """Where pages come from; `kvwatch.sidecar.polling.scrape.Scraper` is the one."""

    secrets: tuple[str, ...]

    async def scrape(self, pace: Pace, names: Sequence[str] | None = None) -> Scrape | ScrapeError: ...

    async def facts(self) -> ServerInfo: ...


class Poller:
    """Watches one target, from a state on. `judge` is the one seam, `advance`."""

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
        start: Start = AT_ONCE,
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
        self._aside = IsolatedCall("judge a large page", turn)
        self._narrowing = Narrowing(settings.narrow)
        self._duty = DutyCycle(settings.interval_s, settings.max_interval_s, settings.duty_cycle)
        self._backoff = Backoff(settings.backoff_max_s, random or Random())  # noqa: S311 - jitter, no secret
        self._waited_s = settings.interval_s
        self._facts: ServerInfo | None = None
        self._facts_asked: tuple[float, int] | None = None
        self._facts_task: asyncio.Task[None] | None = None
        self._complaints = ProblemLog()
        self._reachability = Reachability()
        self._comings = RateLimiter()
        store.publish(state)

    async def run(self) -> None:
        """Polls until cancelled."""
        try:
            if self._start.first_s > 0:
                await self._clock.sleep(self._start.first_s)
            rhythm = Rhythm(self._clock.now(), self._duty.interval_s * (self._start.phase - 0.5))
            while True:
                started = self._clock.now()
                good = False
                try:
                    good = await self._tick()
                except Exception as error:  # noqa: BLE001 - the net: watching goes on whatever happens
                    self._unexpected(error)
                due = self._next(rhythm, started, good=good)
                await self._clock.sleep(max(due - self._clock.now(), _BREATH_S))
        finally:
            if self._facts_task is not None:
                self._facts_task.cancel()

    def _next(self, rhythm: Rhythm, started: float, *, good: bool) -> float:
        """When the next tick is due."""
        interval = self._duty.interval_s
        if not good:
            self._waited_s = self._backoff.failed(interval)
            return rhythm.restart(started, self._waited_s)
        if self._backoff.succeeded():
            due, missed = rhythm.restart(started, interval), 0
        else:
            due, missed = rhythm.next(self._clock.now(), interval)
        self._waited_s = interval
        if missed:
            self._store.count(self.target, missed_ticks=missed)
        return due

    # -- one tick ----------------------------------------------------------------------------------------------

    async def _tick(self) -> bool:
        """Scrapes, judges, publishes. Whether a page came that could be read."""
        self._store.count(self.target, polls=1)
        self._ask_for_facts()
        try:
            outcome = await self._ask()
        except Exception as error:  # noqa: BLE001 - a failure like any other, to whoever reads the state
            self._unexpected(error)
            outcome = ScrapeError(Failure.CONNECTION, _OURS, self._clock.wall())
        answer = outcome
        outcome, now = self._stamped(outcome), self._clock.now()
        before = self._state
        state, transitions = await self._judged(before, outcome, now)
        self._state = state
        self._store.publish(state, transitions)
        self._reachability.see(state)
        log_changes(before, state, transitions, self._comings)
        if self._gpus is not None:
            self._gpus.tell(self.target, state.gpu)
        if state.error is not None:
            kind, detail = state.error.kind, state.error.detail
            self._store.failed(FailedScrape(self.target, outcome.wall, kind, detail, self._excerpt(answer)))
            if kind is Failure.TOO_LARGE:
                del answer, outcome
                with contextlib.suppress(CallTimeout):
                    await self._aside.call(trim_malloc, _JUDGED_WITHIN_S)
            return False
        if isinstance(outcome, Scrape):
            await self._learn(outcome, now)
        return True

    async def _judged(
        self, before: State, outcome: Outcome, now: float
    ) -> tuple[State, tuple[Transition, ...]]:
        """What `judge` says; an outcome that breaks it is a failure. Holds no secret that a server said back."""
        try:
            if isinstance(outcome, Scrape) and len(outcome.body) > _LARGE_BYTES:
                state, transitions = await self._aside.call(
                    partial(self._judge, before, outcome, now), _JUDGED_WITHIN_S
                )
            else:
                state, transitions = self._judge(before, outcome, now)
        except CallTimeout as hangs:
            slow = ScrapeError(Failure.TOO_LARGE, f"the page takes too long to read: {hangs}", outcome.wall)
            return self._judge(before, replace(slow, interval_s=outcome.interval_s), now)
        except Exception as mistake:  # noqa: BLE001 - old values must not stand as new ones
            self._unexpected(mistake)
            wall, took, interval = outcome.wall, outcome.duration_s, outcome.interval_s
            return self._judge(before, ScrapeError(Failure.MALFORMED, _OURS, wall, took, interval), now)
        error = state.error
        if error is None:
            return state, transitions
        detail = redact(error.detail, self._source.secrets)
        if detail == error.detail:
            return state, transitions
        hidden = replace(error, detail=detail, gpu=outcome.gpu, log=outcome.log)
        return self._judge(before, hidden, now)  # evidence quotes it

    async def _ask(self) -> Outcome:
        """The page that is due: narrowed if that works, whole otherwise, at once if it just ceased to work."""
        now = self._clock.now()
        pace = next_pace(self._state, now)
        names = self._narrowing.names(self._state, pace, now)
        outcome = await self._source.scrape(pace, names)
        why = self._narrowing.objection(outcome, names)
        if not why:
            return outcome
        if not is_late(outcome):
            whole = await self._source.scrape(pace, None)
            if isinstance(whole, ScrapeError):
                return whole  # it is not the narrowing that fails
            if isinstance(outcome, Scrape) and same_lack(outcome.body, whole.body, names or ()):
                return whole  # the server itself has fewer series than before
            outcome = whole
        self._narrowing.probed(self._state, False, now)
        log_narrowing(self.target, in_use=False, why=redact(why, self._source.secrets))
        return outcome

    def _stamped(self, outcome: Outcome) -> Outcome:
        """With the time of day, the spacing kept (back-off counts), facts and a reading of the GPUs that came in
        meanwhile, and what the log tells.

        What a server said with an error does not go into the state.
        """
        wall, spacing = self._clock.wall(), max(self._duty.interval_s, self._waited_s)
        gpu = None if self._gpus is None else self._gpus.take(self._clock.now())
        log = self._told()
        if isinstance(outcome, ScrapeError):
            return ScrapeError(outcome.kind, outcome.detail, wall, outcome.duration_s, spacing, gpu, log)
        facts, self._facts = self._facts, None
        return replace(outcome, wall=wall, interval_s=spacing, facts=facts, gpu=gpu, log=log)

    def _told(self) -> LogVerdict | None:
        """What the log tells, if there is one."""
        try:
            return None if self._log is None else self._log()
        except Exception as error:  # noqa: BLE001 - the log is an extra
            self._unexpected(error)
            return None

    async def _learn(self, page: Scrape, now: float) -> None:
        """What a good page tells about the scraping itself: its cost, and whether it can be narrowed."""
        self._duty.took(str(page.pace) if page.narrowed else "whole", page.duration_s)
        if page.narrowed:
            return
        self._narrowing.saw_whole(page.body, now)
        if not self._narrowing.probe_due(self._state, now):
            return
        names = self._narrowing.probe_names(self._state)
        answer = await self._source.scrape(Pace.FULL, names)
        if self._narrowing.postponed(answer, now):
            return
        fault = fault_of(self._state.policy.vocabulary, page.body, names, answer)
        if self._narrowing.probed(self._state, not fault, now):
            why = redact(fault or HELD, self._source.secrets)
            log_narrowing(self.target, in_use=not fault, why=why)

    # -- facts -------------------------------------------------------------------------------------------------

    def _ask_for_facts(self) -> None:
        """Starts to read facts when they are due: at the start, after a restart, every ten minutes."""
        if not self._state.up or (self._facts_task is not None and not self._facts_task.done()):
            return
        now, restarts = self._clock.now(), self._state.restarts
        if self._facts_asked is not None:
            at, of = self._facts_asked
            if of == restarts and now - at < FACTS_EVERY_S:
                return
        self._facts_asked = (now, restarts)
        self._facts_task = asyncio.create_task(self._read_facts())

    async def _read_facts(self) -> None:
        try:
            self._facts = await self._source.facts()
        except Exception as error:  # noqa: BLE001 - facts are an extra
            self._unexpected(error)

    # -- what went wrong ---------------------------------------------------------------------------------------

    def _excerpt(self, outcome: Outcome) -> str:
        """The beginning of what came, to look at."""
        raw = outcome.body if isinstance(outcome, Scrape) else getattr(outcome, "excerpt", b"")
        return redact(raw[:EXCERPT_BYTES].decode("utf-8", "replace"), self._source.secrets)

    def _unexpected(self, error: Exception) -> None:
        self._store.count(self.target, unexpected_errors=1)
        self._complaints.about(error, self._clock.now(), target=self.target)
