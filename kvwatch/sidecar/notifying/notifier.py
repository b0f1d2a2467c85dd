"""Tells Alertmanagers directly of what fires: one task each, beside the polling, which it never holds up.

A task is woken by whatever changes a symptom's stage, reads off the store what its Alertmanager must be told
(`kvwatch.core.export.notifications`), posts that, and sleeps until the next
repeat. While an Alertmanager is away the task backs
off; what fires then is read anew at each try. At the stop nothing is told: kvwatch going away ends no fault, and
what is not told again is over at the Alertmanager after three repeats.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import socket
from collections.abc import Sequence
from dataclasses import replace
from random import Random
from typing import TYPE_CHECKING, Protocol
from urllib.parse import urlsplit, urlunsplit

from kvwatch.core.export.catalogue import NotificationCounts
from kvwatch.core.export.notifications import (
    Ledger,
    Notification,
    due_notifications,
    next_repeat,
    prune_ledger,
    record_sent,
)
from kvwatch.sidecar.clock import Clock, SystemClock
from kvwatch.sidecar.log import ProblemLog, log_event
from kvwatch.sidecar.notifying.alertmanager_client import NOT_ARRIVED, OUTCOMES, Undelivered
from kvwatch.sidecar.polling.pacing import Backoff
from kvwatch.sidecar.store import Store

if TYPE_CHECKING:
    from kvwatch.settings import Settings

_LOOK_EVERY_S = 15.0
"""The longest time between two looks at the store, should nothing wake the task."""
_RETRY_S, _RETRY_MAX_S = 1.0, 15.0
TIMEOUT_S = 10.0
"""How long an Alertmanager may take to answer, seconds."""
_BREATH_S = 0.05
_BATCH = 100
"""Alerts in one post."""
_EVERYWHERE = frozenset({"0.0.0.0", "::"})  # noqa: S104 - recognised, not listened on


class Receiver(Protocol):
    """Who is told; `kvwatch.sidecar.notifying.alertmanager_client.Alertmanager` is the one."""

    name: str

    async def post(self, notices: Sequence[Notification]) -> Undelivered | None: ...


class Notifier:
    """Keeps one Alertmanager told of all that fires."""

    def __init__(
        self,
        store: Store,
        receiver: Receiver,
        repeat_s: float,
        *,
        clock: Clock | None = None,
        random: Random | None = None,
    ) -> None:
        self._store = store
        self._receiver = receiver
        self._repeat_s = repeat_s
        self._clock = clock or SystemClock()
        most_s = min(_RETRY_MAX_S, repeat_s)  # or what fires would time out there meanwhile
        self._backoff = Backoff(most_s, random or Random())  # noqa: S311 - jitter, no secret
        self._ledger: Ledger = {}
        self._sent = NotificationCounts(receiver.name, dict.fromkeys(OUTCOMES, 0))
        self._good: bool | None = None
        self._complaints = ProblemLog()
        self._woken = asyncio.Event()
        store.wake(self._woken)
        store.delivered(self._sent)

    async def run(self) -> None:
        """Tells until cancelled."""
        try:
            while True:
                await self._turn()
        finally:
            self._store.leave_asleep(self._woken)

    async def _turn(self) -> None:
        """Tells what is due, and sleeps until there is more to tell or it is time to try again."""
        self._woken.clear()
        good = False
        try:
            good = await self._tell()
        except Exception as error:  # noqa: BLE001 - the net: telling goes on whatever happens
            self._complaints.about(error, self._clock.now(), alertmanager=self._receiver.name)
        if good:
            self._backoff.succeeded()
            await self._rest()
        else:
            await self._clock.sleep(self._backoff.failed(_RETRY_S))  # whatever changes meanwhile

    async def _rest(self) -> None:
        """Sleeps until something changes, or the next repeat is due."""
        now = self._clock.now()
        repeat = next_repeat(self._ledger, self._repeat_s)
        wait_s = _LOOK_EVERY_S if repeat is None else min(repeat - now, _LOOK_EVERY_S)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(max(wait_s, _BREATH_S)):
                await self._woken.wait()

    async def _tell(self) -> bool:
        """Tells what is due; whether all of it arrived."""
        now, repeat_s = self._clock.now(), self._repeat_s
        self._ledger = prune_ledger(self._ledger, now=now, repeat_s=repeat_s)
        states = self._store.states().values()
        notices = due_notifications(states, self._ledger, now=now, wall=self._clock.wall(), repeat_s=repeat_s)
        for start in range(0, len(notices), _BATCH):
            if not await self._post(notices[start : start + _BATCH]):
                return False
        return True

    async def _post(self, notices: Sequence[Notification]) -> bool:
        now = self._clock.now()
        failure = await self._receiver.post(notices)
        self._count("ok" if failure is None else str(failure.kind))
        self._say(failure)
        if failure is not None and failure.kind in NOT_ARRIVED:
            notices = [notice for notice in notices if notice.resolved]
        self._ledger = record_sent(self._ledger, notices, confirmed=failure is None, now=now)
        return failure is None

    def _count(self, outcome: str) -> None:
        counts = {**self._sent.outcomes, outcome: self._sent.outcomes.get(outcome, 0) + 1}
        at = self._clock.wall() if outcome == "ok" else self._sent.last_success
        self._sent = replace(self._sent, outcomes=counts, last_success=at)
        self._store.delivered(self._sent)

    def _say(self, failure: Undelivered | None) -> None:
        """Logs that an Alertmanager can be told, or can't any more; not at every post."""
        good = failure is None
        if good is self._good:
            return
        self._good = good
        name = self._receiver.name
        if failure is None:
            log_event(logging.INFO, "an Alertmanager takes alerts", alertmanager=name)
        else:
            log_event(
                logging.WARNING,
                "an Alertmanager can't be told",
                alertmanager=name,
                failure=str(failure.kind),
                detail=failure.detail,
            )


def page_of(settings: Settings, served: str) -> str:
    """Where people find kvwatch's page: as the settings say, else the URL served, by this host's name."""
    if settings.external_url is not None:
        return settings.external_url
    parts = urlsplit(served)
    host = parts.netloc
    if (parts.hostname or "") in _EVERYWHERE:
        host = f"{socket.gethostname()}:{parts.port}"
    return urlunsplit((parts.scheme, host, "/", "", ""))
