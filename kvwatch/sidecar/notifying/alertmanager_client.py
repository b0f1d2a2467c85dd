"""HTTP out: alerts to one Alertmanager, by version 2 of its API, or the failure that it came to."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit, urlunsplit

import httpx

from kvwatch.core.export.notifications import Notification
from kvwatch.core.model.outcome import Failure
from kvwatch.sidecar.http_client import classify, credentials_of, timeouts
from kvwatch.sidecar.log import timestamp
from kvwatch.sidecar.polling.scrape import USER_AGENT
from kvwatch.text.redact import redact

if TYPE_CHECKING:
    from kvwatch.settings import AlertmanagerSettings

OUTCOMES = (
    "ok",
    *(
        str(kind)
        for kind in (
            Failure.REFUSED,
            Failure.TIMEOUT,
            Failure.DNS,
            Failure.TLS,
            Failure.HTTP_STATUS,
            Failure.CONNECTION,
        )
    ),
)
"""What a post can come to."""
NOT_ARRIVED = frozenset({Failure.REFUSED, Failure.DNS, Failure.TLS})
"""Failures after which it is sure that nothing arrived."""
_PATH = "/api/v2/alerts"
_MOST_READ = 64 << 10


@dataclass(frozen=True, slots=True)
class Undelivered:
    """A post that failed. `detail` is one line for people, without secrets."""

    kind: Failure
    detail: str


class Alertmanager:
    """Posts to one Alertmanager. `page` is where people find kvwatch; time-outs are real seconds."""

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

    async def post(self, notices: Sequence[Notification]) -> Undelivered | None:
        """Tells of alerts; None if they were taken. Whatever the network or the other side does is a value."""
        if self._credentials.problem:
            return Undelivered(Failure.CONNECTION, self._credentials.problem)
        try:
            async with asyncio.timeout(self._timeout_s):
                status = await self._status(body_of(notices, self._page))
        except (httpx.HTTPError, httpx.InvalidURL, httpx.StreamError, OSError, ValueError) as error:
            kind, detail = classify(error)
            if kind is Failure.TIMEOUT:
                detail = f"no answer within {self._timeout_s:g} s"
            return Undelivered(kind, redact(detail, self._credentials.secrets))
        if 200 <= status < 300:
            return None
        return Undelivered(Failure.HTTP_STATUS, f"the answer is HTTP status {status}")

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
            async for piece in answer.aiter_raw():  # to the end, so that the connection can be used again
                read += len(piece)
                if read > _MOST_READ:
                    break
            return answer.status_code


def body_of(notices: Iterable[Notification], page: str) -> bytes:
    """The body of a post."""
    return json.dumps([_alert(notice, page) for notice in notices]).encode()


def _alert(notice: Notification, page: str) -> dict[str, Any]:
    return {
        "labels": notice.labels,
        "annotations": dict(notice.annotations),
        "startsAt": timestamp(notice.starts_at),
        "endsAt": timestamp(notice.ends_at),
        "generatorURL": page,
    }
