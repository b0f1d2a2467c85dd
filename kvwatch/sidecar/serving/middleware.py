"""Middleware for every request: authentication, limits, HEAD as GET, content negotiation, security headers."""

from __future__ import annotations

import base64
import binascii
import hmac
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

from fastapi.responses import JSONResponse

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from starlette.types import ASGIApp, Message, Receive, Scope, Send

OPEN_PATHS = frozenset({"/healthz", "/readyz"})
"""Paths that need no token: the probes of an orchestrator send none."""
MAX_HEADERS, MAX_BYTES = 100, 16 << 10
"""Headers of a request, and bytes of its headers and path. Browsers and proxies send about 24 and 2 kB."""
_ENCODINGS = b"accept-encoding"
_HEADERS = (
    (b"x-content-type-options", b"nosniff"),
    (b"x-frame-options", b"DENY"),
    (b"referrer-policy", b"no-referrer"),
    (b"cross-origin-resource-policy", b"same-origin"),
    (b"cache-control", b"no-store"),
)
_POLICY = (b"content-security-policy", b"default-src 'none'; frame-ancestors 'none'")
"""For answers without their own policy: browsers run and load nothing."""
_CHALLENGES = ('Basic realm="kvwatch", charset="UTF-8"', "Bearer")
"""Browsers prompt for Basic; programs send the token as Bearer."""
_QUALITY = re.compile(r"[01](\.[0-9]{0,3})?")
_OPENMETRICS_VERSIONS = frozenset({"", "1.0", "1.0.0"})
"""Accepted versions of OpenMetrics; empty if the client names none."""


# -- authentication ----------------------------------------------------------------------------------------------


@dataclass(slots=True)
class TokenAuth:
    """Admits requests with the token, which a reload may change; None admits all."""

    token: str | None = None

    def admits(self, headers: Iterable[tuple[bytes, bytes]]) -> bool:
        """Whether a request with these headers is admitted; compares the token in constant time."""
        if self.token is None:
            return True
        values = [value for name, value in headers if name == b"authorization"]
        return len(values) == 1 and hmac.compare_digest(_token_in(values[0]), self.token.encode())


def _token_in(header: bytes) -> bytes:
    """The token in an Authorization header: the Bearer token or the Basic password; empty without one."""
    scheme, _, rest = header.partition(b" ")
    rest = rest.strip()
    if scheme.lower() == b"bearer":
        return rest
    if scheme.lower() != b"basic":
        return b""
    try:
        return base64.b64decode(rest, validate=True).partition(b":")[2]
    except binascii.Error:
        return b""


def _unauthorized() -> JSONResponse:
    answer = JSONResponse(
        {
            "error": "token required: send the header 'Authorization: Bearer TOKEN',"
            " or in a browser enter it as the password of any user"
        },
        status_code=401,
    )
    for challenge in _CHALLENGES:
        answer.headers.append("WWW-Authenticate", challenge)
    return answer


# -- the middleware ----------------------------------------------------------------------------------------------


class Middleware:
    """ASGI middleware."""

    def __init__(self, app: ASGIApp, auth: TokenAuth) -> None:
        self._app = app
        self._auth = auth

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return

        async def send_with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                own = list(message.get("headers", ()))
                policy = () if any(name == _POLICY[0] for name, _ in own) else (_POLICY,)
                message["headers"] = [*own, *_HEADERS, *policy]
            await send(message)

        if _too_large(scope):
            error = f"more than {MAX_HEADERS} headers, or more than {MAX_BYTES} bytes of headers and path"
            await JSONResponse({"error": error}, 431)(scope, receive, send_with_headers)
            return
        if scope["path"] not in OPEN_PATHS and not self._auth.admits(scope["headers"]):
            await _unauthorized()(scope, receive, send_with_headers)
            return
        if scope["method"] == "HEAD":
            scope = {**scope, "method": "GET"}  # uvicorn omits the body
        await self._app({**scope, "headers": _negotiated(scope["headers"])}, receive, send_with_headers)


def _too_large(scope: Scope) -> bool:
    headers = scope["headers"]
    size = (
        len(scope["path"])
        + len(scope["query_string"])
        + sum(len(name) + len(value) for name, value in headers)
    )
    return len(headers) > MAX_HEADERS or size > MAX_BYTES


def _negotiated(headers: Iterable[tuple[bytes, bytes]]) -> list[tuple[bytes, bytes]]:
    """The headers of a request with the encoding to use instead of the accepted ones.

    Starlette's GZipMiddleware only searches for the word, and would find it in ``gzip;q=0``.
    """
    accepted = [value.decode("latin-1") for name, value in headers if name == _ENCODINGS]
    others = [(name, value) for name, value in headers if name != _ENCODINGS]
    return [*others, (_ENCODINGS, b"gzip")] if accepts_gzip(accepted) else others


# -- content negotiation: headers may contain anything; nonsense is ignored, nothing raises ----------------------


def prefers_openmetrics(accept: str) -> bool:
    """Whether to answer in OpenMetrics 1.0: the client names it, with at least the quality of plain text."""
    openmetrics = plain = 0.0
    for name, parameters in _items(accept):
        if name == "application/openmetrics-text" and parameters.get("version", "") in _OPENMETRICS_VERSIONS:
            openmetrics = max(openmetrics, _quality(parameters))
        elif name == "text/plain":
            plain = max(plain, _quality(parameters))
    return openmetrics > 0 and openmetrics >= plain


def accepts_gzip(accept_encodings: Iterable[str]) -> bool:
    """Whether gzip is named, with a quality above zero."""
    qualities = [_quality(rest) for name, rest in _items(",".join(accept_encodings)) if name == "gzip"]
    return bool(qualities) and min(qualities) > 0


def _items(header: str) -> Iterator[tuple[str, dict[str, str]]]:
    """The items of a header, each a name and its parameters, in lower case."""
    for item in header.lower().split(","):
        name, *rest = (part.strip() for part in item.split(";"))
        pairs = (part.partition("=") for part in rest)
        yield name, {key.strip(): value.strip().strip('"') for key, _, value in pairs}


def _quality(parameters: dict[str, str]) -> float:
    """From 0 (not acceptable) to 1, the default; a malformed quality counts as the default."""
    given = parameters.get("q", "1")
    return min(float(given), 1.0) if _QUALITY.fullmatch(given) else 1.0
