"""What every request passes first: who may ask, HEAD as GET without the body, compression, headers."""

from __future__ import annotations

import base64
import binascii
import hmac
from dataclasses import dataclass
from typing import TYPE_CHECKING

from fastapi.responses import JSONResponse

from kvwatch.sidecar.serving.negotiation import takes_gzip

if TYPE_CHECKING:
    from collections.abc import Iterable

    from starlette.types import ASGIApp, Message, Receive, Scope, Send

OPEN_PATHS = frozenset({"/healthz", "/readyz"})
"""Answered without a token: an orchestrator's probes carry none."""
_ENCODINGS = b"accept-encoding"
_HEADERS = (
    (b"x-content-type-options", b"nosniff"),
    (b"x-frame-options", b"DENY"),
    (b"referrer-policy", b"no-referrer"),
    (b"cross-origin-resource-policy", b"same-origin"),
    (b"cache-control", b"no-store"),
)
_POLICY = (b"content-security-policy", b"default-src 'none'; frame-ancestors 'none'")
"""For every answer that has none of its own: nothing in it is to be run or loaded."""
MOST_HEADERS, MOST_BYTES = 100, 16 << 10
"""Headers of a request, and bytes of its headers and path together; browsers and proxies send two dozen, and 2 kB."""


_CHALLENGES = ('Basic realm="kvwatch", charset="UTF-8"', "Bearer")
"""Basic is what a browser asks its user for; programs send the token as a bearer's."""


@dataclass(slots=True)
class TokenAuth:
    """Who may ask: who sends the token, which a reload may have changed; None lets everyone in."""

    token: str | None = None

    def admits(self, headers: Iterable[tuple[bytes, bytes]]) -> bool:
        """Whether one who sends these headers may ask; takes as long for a wrong token as for the right one."""
        if self.token is None:
            return True
        given = [value for name, value in headers if name == b"authorization"]
        return len(given) == 1 and hmac.compare_digest(_token_in(given[0]), self.token.encode())


class Middleware:
    """ASGI middleware."""

    def __init__(self, app: ASGIApp, gate: TokenAuth) -> None:
        self._app = app
        self._gate = gate

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return

        async def sending(message: Message) -> None:
            if message["type"] == "http.response.start":
                given = list(message.get("headers", ()))
                policy = () if any(name == _POLICY[0] for name, _ in given) else (_POLICY,)
                message["headers"] = [*given, *_HEADERS, *policy]
            await send(message)

        if _too_much(scope):
            said = f"more than {MOST_HEADERS} headers, or more than {MOST_BYTES} bytes of them and the path"
            await JSONResponse({"error": said}, 431)(scope, receive, sending)
            return
        if scope["path"] not in OPEN_PATHS and not self._gate.admits(scope["headers"]):
            await _refusal()(scope, receive, sending)
            return
        if scope["method"] == "HEAD":
            scope = {**scope, "method": "GET"}  # the server leaves the body out
        await self._app({**scope, "headers": _settled(scope["headers"])}, receive, sending)


def _too_much(scope: Scope) -> bool:
    headers = scope["headers"]
    size = (
        len(scope["path"])
        + len(scope["query_string"])
        + sum(len(name) + len(value) for name, value in headers)
    )
    return len(headers) > MOST_HEADERS or size > MOST_BYTES


def _settled(headers: Iterable[tuple[bytes, bytes]]) -> list[tuple[bytes, bytes]]:
    """The headers of a request, with the encoding to use in place of those that are accepted.

    What compresses the answers only looks for the word, and would find it in ``gzip;q=0``.
    """
    accepted = [value.decode("latin-1") for name, value in headers if name == _ENCODINGS]
    others = [(name, value) for name, value in headers if name != _ENCODINGS]
    return [*others, (_ENCODINGS, b"gzip")] if takes_gzip(accepted) else others


def _refusal() -> JSONResponse:
    answer = JSONResponse(
        {
            "error": "a token is needed: send the header 'Authorization: Bearer TOKEN',"
            " or in a browser give it as the password, with any user name"
        },
        status_code=401,
    )
    for challenge in _CHALLENGES:
        answer.headers.append("WWW-Authenticate", challenge)
    return answer


def _token_in(header: bytes) -> bytes:
    """The token in an Authorization header: a bearer's, or the password of Basic; empty if there is none."""
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
