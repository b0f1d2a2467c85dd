"""How kvwatch makes itself known to a server: the header that says so, and the words that nobody may see."""

from __future__ import annotations

import base64
from dataclasses import dataclass
from typing import TYPE_CHECKING

from kvwatch.sidecar.redact import secrets_of

if TYPE_CHECKING:
    from kvwatch.settings import ServerSettings

_UNSENDABLE = "token can't be sent: it must be printable ASCII, without a space at its beginning or end"


@dataclass(frozen=True, slots=True)
class Credentials:
    """`headers` to send with every request; or `problem`, why none can be sent. `secrets` are taken out of whatever
    is shown."""

    headers: dict[str, str]
    secrets: tuple[str, ...]
    problem: str = ""


def credentials_of(server: ServerSettings, whose: str) -> Credentials:
    """What a server is sent: a bearer token, or user and password (RFC 7617, in UTF-8). `whose` names it."""
    token = server.token.get_secret_value() if server.token else None
    if token is not None:
        secrets = secrets_of(server.url, token)
        if not _sendable(token):
            return Credentials({}, secrets, f"{whose} {_UNSENDABLE}")
        return Credentials({"Authorization": f"Bearer {token}"}, secrets)
    if server.username is None or server.password is None:
        return Credentials({}, secrets_of(server.url))
    password = server.password.get_secret_value()
    pair = base64.b64encode(f"{server.username}:{password}".encode()).decode("ascii")
    return Credentials({"Authorization": f"Basic {pair}"}, secrets_of(server.url, password, pair))


def _sendable(token: str) -> bool:
    """Whether a header can hold it; what can't would fail every request, and name no cause."""
    return token.isascii() and token.isprintable() and token == token.strip()
