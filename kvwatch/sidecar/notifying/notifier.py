"""Notifies Alertmanagers directly: one task per Alertmanager, which never delays polling.

A task wakes when a symptom changes its stage. It reads from the store what is due for its Alertmanager
(`kvwatch.core.export.notifications`), posts it, and sleeps until the next repeat. While an Alertmanager is
down the task backs off, and reads the current findings anew at each try.

At the stop nothing is posted: the end of kvwatch does not resolve a fault. An alert that is not repeated ends
at the Alertmanager after three repeat intervals.
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
from kvwatch.sidecar.clock import Backoff, Clock, SystemClock
from kvwatch.sidecar.log import ProblemLog, log_event
from kvwatch.sidecar.notifying.alertmanager_client import NOT_ARRIVED, OUTCOMES, Undelivered
from kvwatch.sidecar.store import Store

if TYPE_CHECKING:
    from kvwatch.settings import Settings

_MAX_SLEEP_S = 15.0
"""The longest time between two looks at the store if nothing wakes the task."""
_RETRY_S, _MAX_RETRY_S = 1.0, 15.0
TIMEOUT_S = 10.0
"""Timeout of a post, seconds."""
_MIN_SLEEP_S = 0.05
_BATCH = 100
"""Alerts per post."""
_ANY_ADDRESS = frozenset({"0.0.0.0", "::"})  # noqa: S104 - compared with, not listened on


class Receiver(Protocol):
    """Receives notifications: `kvwatch.sidecar.notifying.alertmanager_client.Alertmanager`."""

    name: str

    async def post(self, notifications: Sequence[Notification]) -> Undelivered | None: ...


class Notifier:
    """Keeps one Alertmanager up to date with all firing symptoms."""

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
        # Longer delays than the repeat would let firing alerts expire at the Alertmanager.
        self._backoff = Backoff(min(_MAX_RETRY_S, repeat_s), random)
        self._ledger: Ledger = {}
        self._counts = NotificationCounts(receiver.name, dict.fromkeys(OUTCOMES, 0))
        self._good: bool | None = None
        self._problems = ProblemLog()
        self._changed = asyncio.Event()
        store.subscribe(self._changed)
        store.record_delivery(self._counts)

    async def run(self) -> None:
        """Notifies until cancelled."""
        try:
            while True:
                self._changed.clear()
                good = False
                try:
                    good = await self._post_due()
                except Exception as error:  # noqa: BLE001 - notifying continues whatever happens
                    self._problems.log(error, self._clock.now(), alertmanager=self._receiver.name)
                if good:
                    self._backoff.succeeded()
                    await self._sleep()
                else:
                    await self._clock.sleep(self._backoff.failed(_RETRY_S))  # changes do not shorten it
        finally:
            self._store.unsubscribe(self._changed)

    async def _sleep(self) -> None:
        """Sleeps until a change, or until the next repeat is due."""
        repeat_at = next_repeat(self._ledger, self._repeat_s)
        wait_s = _MAX_SLEEP_S if repeat_at is None else min(repeat_at - self._clock.now(), _MAX_SLEEP_S)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(max(wait_s, _MIN_SLEEP_S)):
                await self._changed.wait()

    async def _post_due(self) -> bool:
        """Posts the notifications that are due; returns whether all were accepted."""
        now, repeat_s = self._clock.now(), self._repeat_s
        self._ledger = prune_ledger(self._ledger, now=now, repeat_s=repeat_s)
        states = self._store.states().values()
        due = due_notifications(states, self._ledger, now=now, wall=self._clock.wall(), repeat_s=repeat_s)
        for start in range(0, len(due), _BATCH):
            if not await self._post(due[start : start + _BATCH]):
                return False
        return True

    async def _post(self, notifications: Sequence[Notification]) -> bool:
        now = self._clock.now()
        failure = await self._receiver.post(notifications)
        self._count("ok" if failure is None else str(failure.kind))
        self._log_status(failure)
        if failure is not None and failure.kind in NOT_ARRIVED:
            notifications = [one for one in notifications if one.resolved]
        self._ledger = record_sent(self._ledger, notifications, confirmed=failure is None, now=now)
        return failure is None

    def _count(self, outcome: str) -> None:
        counts = {**self._counts.outcomes, outcome: self._counts.outcomes.get(outcome, 0) + 1}
        at = self._clock.wall() if outcome == "ok" else self._counts.last_success
        self._counts = replace(self._counts, outcomes=counts, last_success=at)
        self._store.record_delivery(self._counts)

    def _log_status(self, failure: Undelivered | None) -> None:
        """Logs each change between accepting and failing once."""
        before, self._good = self._good, failure is None
        if self._good is before:
            return
        name = self._receiver.name
        if failure is None:
            again = "" if before is None else " again"
            log_event(logging.INFO, f"Alertmanager accepts alerts{again}", alertmanager=name)
        else:
            fields = {"failure": str(failure.kind), "detail": failure.detail}
            log_event(logging.WARNING, "Alertmanager accepts no alerts", alertmanager=name, **fields)


def page_url(settings: Settings, served: str) -> str:
    """The URL of kvwatch's page for people: `external_url`, else the served URL with this host's name."""
    if settings.external_url is not None:
        return settings.external_url
    parts = urlsplit(served)
    host = parts.netloc
    if (parts.hostname or "") in _ANY_ADDRESS:
        host = f"{socket.gethostname()}:{parts.port}"
    return urlunsplit((parts.scheme, host, "/", "", ""))
