"""What every request passes first: who may ask, HEAD as GET without the body, and headers for all answers."""

from __future__ import annotations

import hmac
from typing import TYPE_CHECKING

from fastapi.responses import JSONResponse

if TYPE_CHECKING:
    from starlette.types import ASGIApp, Message, Receive, Scope, Send

OPEN_PATHS = frozenset({"/healthz", "/readyz"})
"""Answered without a token: an orchestrator's probes carry none."""
_HEADERS = (
    (b"x-content-type-options", b"nosniff"),
    (b"referrer-policy", b"no-referrer"),
    (b"cache-control", b"no-store"),
)


class Front:
    """ASGI middleware. `token` None lets everyone in."""

    def __init__(self, app: ASGIApp, token: str | None = None) -> None:
        self._app = app
        self._expected = None if token is None else f"Bearer {token}".encode()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return

        async def sending(message: Message) -> None:
            if message["type"] == "http.response.start":
                message["headers"] = [*message.get("headers", ()), *_HEADERS]
            await send(message)

        if scope["path"] not in OPEN_PATHS and not self._may_ask(scope):
            answer = JSONResponse(
                {"error": "a bearer token is needed: send the header 'Authorization: Bearer TOKEN'"},
                status_code=401,
                headers={"WWW-Authenticate": "Bearer"},
            )
            await answer(scope, receive, sending)
            return
        if scope["method"] == "HEAD":
            scope = {**scope, "method": "GET"}  # the server leaves the body out
        await self._app(scope, receive, sending)

    def _may_ask(self, scope: Scope) -> bool:
        if self._expected is None:
            return True
        given = [value for name, value in scope["headers"] if name == b"authorization"]
        return len(given) == 1 and hmac.compare_digest(_normal(given[0]), self._expected)


def _normal(header: bytes) -> bytes:
    """The header with the scheme, which has no case, as we write it."""
    scheme, _, rest = header.partition(b" ")
    return b"Bearer " + rest.strip() if scheme.lower() == b"bearer" else header
