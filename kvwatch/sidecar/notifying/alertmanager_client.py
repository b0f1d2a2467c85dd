"""HTTP out: posts alerts to one Alertmanager (API v2), and classifies failures."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING
from urllib.parse import urlsplit, urlunsplit

import httpx

from kvwatch.core.export.notifications import Notification
from kvwatch.core.model.outcome import Failure
from kvwatch.sidecar.http_client import USER_AGENT, classify, credentials_of, timeouts
from kvwatch.sidecar.log import timestamp
from kvwatch.text.redact import redact

if TYPE_CHECKING:
    from kvwatch.settings import AlertmanagerSettings

NOT_ARRIVED = frozenset({Failure.REFUSED, Failure.DNS, Failure.TLS})
"""Failures after which certainly nothing has arrived."""
OUTCOMES = (
    "ok",
    *map(str, (Failure.REFUSED, Failure.TIMEOUT, Failure.DNS, Failure.TLS)),
    *map(str, (Failure.HTTP_STATUS, Failure.CONNECTION)),
)
"""The outcomes of a post."""
_PATH = "/api/v2/alerts"
_MAX_READ = 64 << 10


@dataclass(frozen=True, slots=True)
class Undelivered:
    """A failed post. `detail` is one line for people, without secrets."""

    kind: Failure
    detail: str


class Alertmanager:
    """Posts to one Alertmanager. `page` is the URL of kvwatch for people; the timeout is in real seconds."""

    def __init__(
        self,
        settings: AlertmanagerSettings,
        client: httpx.AsyncClient,
        *,
        page: str,
        timeout_s: float,
    ) -> None:
        parts = urlsplit(settings.url)
        self._url = urlunsplit((parts.scheme, parts.netloc, parts.path.rstrip("/") + _PATH, parts.query, ""))
        self._client = client
        self._page = page
        self._timeout_s = timeout_s
        self._credentials = credentials_of(settings, "its")
        self.name = settings.name

    async def post(self, notifications: Sequence[Notification]) -> Undelivered | None:
        """Posts alerts; None if they were accepted.

        Returns every failure of the network or the server as a value.
        """
        if self._credentials.problem:
            return Undelivered(Failure.CONNECTION, self._credentials.problem)
        try:
            async with asyncio.timeout(self._timeout_s):
                status = await self._status(body_of(notifications, self._page))
        except (httpx.HTTPError, httpx.InvalidURL, httpx.StreamError, OSError, ValueError) as error:
            kind, detail = classify(error)
            if kind is Failure.TIMEOUT:
                detail = f"no answer within {self._timeout_s:g} s"
            return Undelivered(kind, redact(detail, self._credentials.secrets))
        if 200 <= status < 300:
            return None
        return Undelivered(Failure.HTTP_STATUS, f"it answers with HTTP status {status}")

    async def _status(self, body: bytes) -> int:
        headers = {
            "Content-Type": "application/json",
            "User-Agent": USER_AGENT,
            "Accept-Encoding": "identity",
        } | self._credentials.headers
        request = self._client.stream(
            "POST", self._url, content=body, headers=headers, timeout=timeouts(self._timeout_s)
        )
        async with request as answer:
            read = 0
            async for piece in answer.aiter_raw():  # to the end, so that the connection can be reused
                read += len(piece)
                if read > _MAX_READ:
                    break
            return answer.status_code


def body_of(notifications: Iterable[Notification], page: str) -> bytes:
    """The body of a post."""
    alerts = [
        {
            "labels": one.labels,
            "annotations": dict(one.annotations),
            "startsAt": timestamp(one.starts_at),
            "endsAt": timestamp(one.ends_at),
            "generatorURL": page,
        }
        for one in notifications
    ]
    return json.dumps(alerts).encode()
