"""HTTP in: one page of one target, whole or narrowed to names, or the failure that it came to.

Theory of operation
    vLLM serves its metrics from the event loop that also serves its users, and collects them at every request.
    ``/metrics/?name[]=…`` (with the slash) makes it collect, format and send only what is asked for.
    `Accept` asks for the plain text format: another one can turn the colons of vLLM's names into underscores.

    Whatever the network or the other side does ends as a `ScrapeError` with a kind. Nothing else leaves
    `Scraper.scrape`: no exception, no secret, no body beyond the limit.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING
from urllib.parse import quote, urljoin, urlsplit, urlunsplit

import httpx

from kvwatch import __version__
from kvwatch.core.model.outcome import Failure, Pace, Scrape, ScrapeError
from kvwatch.core.model.server_info import ServerInfo
from kvwatch.sidecar.clock import Clock, SystemClock
from kvwatch.sidecar.http_client import (
    EXCERPT_BYTES,
    BodyError,
    Decoder,
    classify,
    credentials_of,
    is_loopback,
    timeouts,
)
from kvwatch.sidecar.polling.server_info import HttpAnswer, read_server_info
from kvwatch.text.redact import redact

if TYPE_CHECKING:
    from kvwatch.settings import Settings, TargetSettings

USER_AGENT = f"kvwatch/{__version__}"
_PAGE = "text/plain; version=0.0.4"
_KEPT = 16
_REDIRECTS = frozenset({301, 302, 303, 307, 308})


@dataclass(frozen=True, slots=True)
class BadAnswer(ScrapeError):  # noqa: N818 - a value, like what it extends
    """A failure in which the server may have said something; `excerpt` is the beginning of it."""

    excerpt: bytes = b""


@dataclass(frozen=True, slots=True)
class _Answer:
    status: int
    headers: httpx.Headers
    body: bytes


class Scraper:
    """Scrapes one target. `clock` tells how long an answer took; time-outs are real seconds whatever it says."""

    def __init__(
        self,
        target: TargetSettings,
        settings: Settings,
        client: httpx.AsyncClient,
        clock: Clock | None = None,
    ) -> None:
        self._target = target
        self._client = client
        self._clock = clock or SystemClock()
        self._timeout_s = settings.effective_timeout_s
        self._timeouts = timeouts(self._timeout_s)
        self._limit = settings.max_body_bytes
        near = is_loopback(urlsplit(target.url).hostname or "")
        self._encoding = "identity" if near else "gzip"
        self._moved: str | None = None
        self._urls: dict[tuple[str, ...], str] = {}
        self._requests: dict[tuple[str, str], httpx.Request] = {}
        self._credentials = credentials_of(target, "the target's")
        self.secrets = self._credentials.secrets

    async def scrape(self, pace: Pace, names: Sequence[str] | None = None) -> Scrape | ScrapeError:
        """A page at a pace: whole, or with no more than the samples of these names."""
        started = self._clock.now()
        if self._credentials.problem:
            return self._failed(Failure.CONNECTION, self._credentials.problem, started)
        try:
            async with asyncio.timeout(self._timeout_s):
                answer = await self._page(names)
        except BodyError as bad:
            return self._failed(bad.kind, str(bad), started, bad.excerpt)
        except (httpx.HTTPError, httpx.InvalidURL, httpx.StreamError, OSError, ValueError) as error:
            self._moved = None
            kind, detail = classify(error)
            if kind is Failure.TIMEOUT:
                detail = f"no whole answer within {self._timeout_s:g} s"
            return self._failed(kind, detail, started)
        return Scrape(
            body=answer.body,
            wall=self._clock.wall(),
            duration_s=self._clock.now() - started,
            pace=pace,
            narrowed=names is not None,
            content_type=answer.headers.get("content-type", ""),
        )

    async def facts(self) -> ServerInfo:
        """What ``/version`` and ``/v1/models`` say; empty where they do not answer as vLLM does."""
        if self._credentials.problem:
            return ServerInfo()
        return await read_server_info(self._target.url, self._fact)

    def _failed(self, kind: Failure, detail: str, started: float, excerpt: bytes = b"") -> ScrapeError:
        took = self._clock.now() - started
        return BadAnswer(kind, redact(detail, self.secrets), self._clock.wall(), took, excerpt=excerpt)

    def _headers(self, accept: str) -> dict[str, str]:
        headers = {"Accept": accept, "Accept-Encoding": self._encoding, "User-Agent": USER_AGENT}
        return headers | self._credentials.headers

    async def _page(self, names: Sequence[str] | None) -> _Answer:
        url = self._narrowed(tuple(names)) if names is not None else self._moved or self._target.url
        answer = await self._get(self._request(url, _PAGE), self._limit)
        if answer.status in _REDIRECTS:
            there = _same_origin(url, answer.headers.get("location", ""))
            if there is None:
                detail = f"the answer is a redirect ({answer.status}) to another host, which is not followed"
                raise BodyError(Failure.HTTP_STATUS, detail, answer.body)
            answer = await self._get(self._request(there, _PAGE), self._limit)
            if names is None and answer.status == 200:
                self._moved = there
        if answer.status != 200:
            self._moved = None
            raise BodyError(Failure.HTTP_STATUS, f"the answer is HTTP status {answer.status}", answer.body)
        return answer

    def _narrowed(self, names: tuple[str, ...]) -> str:
        """Where these names are asked for; there are but a few such addresses, and they are kept."""
        if names not in self._urls:
            if len(self._urls) >= _KEPT:
                self._urls.clear()
            self._urls[names] = narrowed_url(self._target.url, names)
        return self._urls[names]

    def _request(self, url: str, accept: str) -> httpx.Request:
        """A request, built once and sent again and again: httpx looks at each character of an address, and at each
        header."""
        if (url, accept) not in self._requests:
            if len(self._requests) >= _KEPT:
                self._requests.clear()
            headers = self._headers(accept)
            self._requests[url, accept] = self._client.build_request(
                "GET", url, headers=headers, timeout=self._timeouts
            )
        return self._requests[url, accept]

    async def _get(self, request: httpx.Request, limit: int) -> _Answer:
        """GET; once more, on a new connection, if the one kept open turns out to be closed."""
        try:
            return await self._fetch(request, limit)
        except httpx.RemoteProtocolError as error:
            if "without sending a response" not in str(error):
                raise
            return await self._fetch(request, limit)

    async def _fetch(self, request: httpx.Request, limit: int) -> _Answer:
        async with contextlib.aclosing(await self._client.send(request, stream=True)) as answer:
            good = answer.status_code == 200
            try:
                decoder = Decoder(
                    answer.headers.get("content-encoding", ""), limit if good else EXCERPT_BYTES
                )
                async for piece in answer.aiter_raw():
                    decoder.feed(piece)
                body = decoder.body()
            except BodyError as bad:
                if good:
                    raise
                body = bad.excerpt  # an error page is only looked at, and only its beginning
            return _Answer(answer.status_code, answer.headers, body)

    async def _fact(self, url: str) -> HttpAnswer:
        """The JSON at a URL of the server."""
        answer = await self._get(self._request(url, "application/json"), 1 << 20)
        return answer.status, answer.body


def narrowed_url(url: str, names: Sequence[str]) -> str:
    """The URL that answers with samples of these names only: with a slash, as vLLM's mounted app has it."""
    parts = urlsplit(url)
    asked = "&".join(f"name[]={quote(name, safe=':')}" for name in names)
    query = f"{parts.query}&{asked}" if parts.query else asked
    return urlunsplit((parts.scheme, parts.netloc, parts.path.rstrip("/") + "/", query, ""))


def _same_origin(here: str, location: str) -> str | None:
    """Where a redirect leads, if that is on the same server."""
    try:
        there = urljoin(here, location)
        a, b = httpx.URL(here), httpx.URL(there)
    except (httpx.InvalidURL, ValueError):
        return None
    return there if (a.scheme, a.host, a.port) == (b.scheme, b.host, b.port) else None
