"""HTTP in: one page of one target, whole or narrowed to names, and facts from its other endpoints.

Theory of operation
    vLLM serves its metrics from the event loop that also serves its users, and collects them at every request.
    ``/metrics/?name[]=…`` (with the slash) makes it collect, format and send only the named samples.
    `Accept` requests the plain text format: others can turn the colons of vLLM's names into underscores.

    `Scraper.scrape` returns a `ScrapeError` for every failure of the network or the server. It raises nothing, and
    neither shows a secret nor reads more than the limit.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any
from urllib.parse import quote, urljoin, urlsplit, urlunsplit

import httpx

from kvwatch.core.model.outcome import Failure, Pace, Scrape, ScrapeError
from kvwatch.core.model.server_info import ServerInfo, server_info_from
from kvwatch.sidecar.clock import Clock, SystemClock
from kvwatch.sidecar.http_client import (
    EXCERPT_BYTES,
    USER_AGENT,
    BodyError,
    Decoder,
    classify,
    credentials_of,
    is_loopback,
    timeouts,
)
from kvwatch.text.redact import redact

if TYPE_CHECKING:
    from kvwatch.settings import Settings, TargetSettings

_ERRORS = (httpx.HTTPError, httpx.InvalidURL, httpx.StreamError, OSError, ValueError)
_PAGE = "text/plain; version=0.0.4"
_CACHED = 16
_REDIRECTS = frozenset({301, 302, 303, 307, 308})
_FACTS_TIMEOUT_S = 2.0
_MAX_FACTS_BYTES = 1 << 20


@dataclass(frozen=True, slots=True)
class BadAnswer(ScrapeError):  # noqa: N818 - a value, like its base class
    """A failure with the beginning of the server's answer, if there was one."""

    excerpt: bytes = b""


@dataclass(frozen=True, slots=True)
class _Answer:
    status: int
    headers: httpx.Headers
    body: bytes


class Scraper:
    """Scrapes one target. `clock` measures how long an answer took; timeouts are real seconds."""

    def __init__(
        self,
        target: TargetSettings,
        settings: Settings,
        client: httpx.AsyncClient,
        clock: Clock | None = None,
    ) -> None:
        self._url = target.url
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
        """A page at a pace: whole, or narrowed to the samples of these names."""
        started = self._clock.now()
        if self._credentials.problem:
            return self._failed(Failure.CONNECTION, self._credentials.problem, started)
        try:
            async with asyncio.timeout(self._timeout_s):
                answer = await self._page(names)
        except BodyError as bad:
            return self._failed(bad.kind, str(bad), started, bad.excerpt)
        except _ERRORS as error:
            self._moved = None
            kind, detail = classify(error)
            if kind is Failure.TIMEOUT:
                detail = f"no complete answer within {self._timeout_s:g} s"
            return self._failed(kind, detail, started)
        return Scrape(
            body=answer.body,
            wall=self._clock.wall(),
            duration_s=self._clock.now() - started,
            pace=pace,
            narrowed=names is not None,
            content_type=answer.headers.get("content-type", ""),
        )

    def _failed(self, kind: Failure, detail: str, started: float, excerpt: bytes = b"") -> ScrapeError:
        took = self._clock.now() - started
        return BadAnswer(kind, redact(detail, self.secrets), self._clock.wall(), took, excerpt=excerpt)

    async def facts(self) -> ServerInfo:
        """Version and longest requests, from ``/version`` and ``/v1/models``. Never raises.

        Unknown facts are None.
        """
        version, models = await self._json("/version"), await self._json("/v1/models")
        listed = models.get("data") if isinstance(models, dict) else None
        entries = [one for one in listed if isinstance(one, dict)] if isinstance(listed, list) else []
        return server_info_from(
            version.get("version") if isinstance(version, dict) else None,
            ((one.get("id"), one.get("max_model_len")) for one in entries),
        )

    async def _json(self, path: str) -> Any:
        """The JSON at a path below the server's root; None if it can't be had."""
        parts = urlsplit(self._url)
        root = parts.path.rstrip("/").removesuffix("/metrics")
        url = urlunsplit((parts.scheme, parts.netloc, root + path, "", ""))
        if self._credentials.problem:
            return None
        try:
            async with asyncio.timeout(_FACTS_TIMEOUT_S):
                answer = await self._get(self._request(url, "application/json"), _MAX_FACTS_BYTES)
            return json.loads(answer.body) if answer.status == 200 else None
        except (*_ERRORS, RecursionError, BodyError):
            return None

    async def _page(self, names: Sequence[str] | None) -> _Answer:
        url = self._narrowed(tuple(names)) if names is not None else self._moved or self._url
        answer = await self._get(self._request(url, _PAGE), self._limit)
        if answer.status in _REDIRECTS:
            location = _same_origin(url, answer.headers.get("location", ""))
            if location is None:
                detail = (
                    f"the server redirects ({answer.status}) to another host, which kvwatch does not follow"
                )
                raise BodyError(Failure.HTTP_STATUS, detail, answer.body)
            answer = await self._get(self._request(location, _PAGE), self._limit)
            if names is None and answer.status == 200:
                self._moved = location
        if answer.status != 200:
            self._moved = None
            detail = f"the server answers with HTTP status {answer.status}"
            raise BodyError(Failure.HTTP_STATUS, detail, answer.body)
        return answer

    def _narrowed(self, names: tuple[str, ...]) -> str:
        """The narrowed URL, cached."""
        if names not in self._urls:
            if len(self._urls) >= _CACHED:
                self._urls.clear()
            self._urls[names] = narrowed_url(self._url, names)
        return self._urls[names]

    def _request(self, url: str, accept: str) -> httpx.Request:
        """A request, cached: httpx checks each character of a URL and each header at every build."""
        if (url, accept) not in self._requests:
            if len(self._requests) >= _CACHED:
                self._requests.clear()
            headers = {"Accept": accept, "Accept-Encoding": self._encoding, "User-Agent": USER_AGENT}
            self._requests[url, accept] = self._client.build_request(
                "GET", url, headers=headers | self._credentials.headers, timeout=self._timeouts
            )
        return self._requests[url, accept]

    async def _get(self, request: httpx.Request, limit: int) -> _Answer:
        """GET, repeated on a new connection if the server had closed the kept one."""
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
                encoding = answer.headers.get("content-encoding", "")
                decoder = Decoder(encoding, limit if good else EXCERPT_BYTES)
                async for piece in answer.aiter_raw():
                    decoder.feed(piece)
                body = decoder.body()
            except BodyError as bad:
                if good:
                    raise
                body = bad.excerpt  # only the beginning of an error page is kept
            return _Answer(answer.status_code, answer.headers, body)


def narrowed_url(url: str, names: Sequence[str]) -> str:
    """The URL of a page with these names only; with a slash at the end, where vLLM mounts the app."""
    parts = urlsplit(url)
    filters = "&".join(f"name[]={quote(name, safe=':')}" for name in names)
    query = f"{parts.query}&{filters}" if parts.query else filters
    return urlunsplit((parts.scheme, parts.netloc, parts.path.rstrip("/") + "/", query, ""))


def _same_origin(url: str, location: str) -> str | None:
    """The target of a redirect, if it is on the same server."""
    try:
        target = urljoin(url, location)
        a, b = httpx.URL(url), httpx.URL(target)
    except (httpx.InvalidURL, ValueError):
        return None
    return target if (a.scheme, a.host, a.port) == (b.scheme, b.host, b.port) else None
