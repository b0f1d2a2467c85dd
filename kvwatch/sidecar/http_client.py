"""The HTTP client for one server: TLS, credentials, limits on bodies, and the kind of each failure."""

from __future__ import annotations

import base64
import errno
import ipaddress
import socket
import ssl
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

import httpx

from kvwatch import __version__
from kvwatch.core.model.outcome import Failure
from kvwatch.text.redact import secrets_of

if TYPE_CHECKING:
    from pathlib import Path

    from kvwatch.settings import ServerSettings

USER_AGENT = f"kvwatch/{__version__}"
EXCERPT_BYTES = 2048
"""Bytes of a bad answer that are kept."""
_KEEPALIVE_S = 4.0
"""Below the 5 s after which vLLM closes an idle connection, so that no closed one is reused."""


class BodyError(Exception):
    """A body is too long, not in its declared encoding, or of a bad status; `excerpt` is its beginning."""

    def __init__(self, kind: Failure, detail: str, excerpt: bytes = b"") -> None:
        super().__init__(detail)
        self.kind = kind
        self.excerpt = excerpt


def client_for(server: ServerSettings) -> httpx.AsyncClient:
    """A client for one server. It ignores proxies and credentials of the environment: servers are near."""
    return httpx.AsyncClient(
        verify=_verification(server),
        trust_env=False,
        follow_redirects=False,
        limits=httpx.Limits(max_connections=4, max_keepalive_connections=2, keepalive_expiry=_KEEPALIVE_S),
    )


def _verification(server: ServerSettings) -> ssl.SSLContext | bool:
    if urlsplit(server.url).scheme != "https":
        return False  # saves 20 ms and 2 MiB of CA certificates for plain HTTP
    if server.insecure_tls:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    else:
        context = ssl.create_default_context(cafile=None if server.ca_file is None else str(server.ca_file))
    if server.cert_file is not None:
        load_certificate(context, server.cert_file, server.key_file)
    return context


def load_certificate(context: ssl.SSLContext, cert: Path, key: Path | None) -> None:
    """Loads a certificate into a context; OSError if it can't be used. Never prompts for a passphrase."""
    context.load_cert_chain(cert, key, password=lambda: b"")


def timeouts(total_s: float) -> httpx.Timeout:
    """Timeouts for each step of a request that `asyncio.timeout` limits as a whole.

    Connect and handshake have a shorter limit: a client that is cancelled during a handshake leaks the socket.
    """
    return httpx.Timeout(total_s, connect=0.4 * total_s)


def is_loopback(host: str) -> bool:
    """Whether a host name or address is of this machine."""
    if host == "localhost" or host.endswith(".localhost"):
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def classify(error: BaseException) -> tuple[Failure, str]:
    """The kind of failure of a transport exception, and one line for people."""
    chain = list(_chain(error))
    for one in chain:
        if isinstance(one, UnicodeEncodeError) and one.encoding != "idna":
            return Failure.CONNECTION, "the request can't be sent: a header is not ASCII"
        if isinstance(one, socket.gaierror | UnicodeError):
            return Failure.DNS, f"the host name can't be resolved: {_line(one)}"
        if isinstance(one, ssl.SSLError) and not isinstance(
            one, ssl.SSLWantReadError | ssl.SSLWantWriteError
        ):
            return Failure.TLS, f"TLS failed: {_line(one)}"
    if isinstance(error, ValueError):
        return Failure.CONNECTION, f"the request can't be made: {_line(error)}"
    for one in chain:
        if isinstance(one, ConnectionRefusedError) or getattr(one, "errno", None) == errno.ECONNREFUSED:
            return Failure.REFUSED, "connection refused: nothing listens there"
    if any(isinstance(one, TimeoutError | httpx.TimeoutException) for one in chain):
        return Failure.TIMEOUT, "no complete answer in time"
    return Failure.CONNECTION, f"the connection failed: {_line(chain[-1]) or _line(error)}"


def _chain(error: BaseException) -> Iterator[BaseException]:
    """An exception and all its causes."""
    todo: list[BaseException] = [error]
    seen: set[int] = set()
    while todo:
        one = todo.pop(0)
        if id(one) in seen:
            continue
        seen.add(id(one))
        yield one
        if isinstance(one, BaseExceptionGroup):
            todo += one.exceptions
        todo += [cause for cause in (one.__cause__, one.__context__) if cause is not None]


def _line(error: BaseException) -> str:
    if isinstance(error, httpx.LocalProtocolError):
        return "the request can't be sent"  # its text would quote the headers, the token among them
    words = " ".join(str(error).split())
    return (words or type(error).__name__)[:200]


class Decoder:
    """Decodes a body piece by piece, up to a limit; its methods may raise `BodyError`.

    A small gzip body can hold gigabytes, so at most one byte beyond the limit is decompressed.
    """

    def __init__(self, encoding: str, limit: int) -> None:
        self._limit = limit
        self._size = 0
        self._parts: list[bytes] = []
        encoding = encoding.strip().lower()
        self._inflate: zlib._Decompress | None = None
        if encoding in {"gzip", "x-gzip", "deflate"}:
            self._inflate = zlib.decompressobj(wbits=47)  # detects gzip or zlib by the header
        elif encoding not in {"", "identity"}:
            detail = f"the body has the encoding {encoding[:40]!r}, which kvwatch does not accept"
            raise BodyError(Failure.MALFORMED, detail)

    def feed(self, piece: bytes) -> None:
        """Takes bytes from the connection."""
        if self._inflate is None:
            self._add(piece)
            return
        try:
            while piece and not self._inflate.eof:
                self._add(self._inflate.decompress(piece, self._limit - self._size + 1))
                piece = self._inflate.unconsumed_tail
        except zlib.error as error:
            raise self._error(Failure.MALFORMED, f"the body can't be decompressed: {error}") from None

    def _add(self, plain: bytes) -> None:
        self._size += len(plain)
        self._parts.append(plain)
        if self._size > self._limit:
            raise self._error(Failure.TOO_LARGE, f"the body is longer than the limit of {self._limit} bytes")

    def _error(self, kind: Failure, detail: str) -> BodyError:
        excerpt = b""
        for part in self._parts:
            excerpt += part[: EXCERPT_BYTES - len(excerpt)]
            if len(excerpt) == EXCERPT_BYTES:
                break
        return BodyError(kind, detail, excerpt)

    def body(self) -> bytes:
        """The whole body, at its end."""
        if self._inflate is not None and not self._inflate.eof and self._size:
            raise self._error(Failure.MALFORMED, "the compressed body is incomplete")
        return b"".join(self._parts)


class ClientError(Exception):
    """An address or a certificate can't be used; the text says why, in one line."""


def usable_client(server: ServerSettings, what: str) -> httpx.AsyncClient:
    """A client for a server; `ClientError` if its certificates can't be used. `what` names the server's kind."""
    try:
        return client_for(server)
    except OSError as error:  # ssl.SSLError is one, too
        files = ", ".join(str(path) for path in (server.ca_file, server.cert_file, server.key_file) if path)
        raise ClientError(f"can't use {files} for {what} {server.name}: {error}") from None


_UNSENDABLE = "token can't be sent: it must be printable ASCII without spaces around it"


@dataclass(frozen=True, slots=True)
class Credentials:
    """`headers` for every request, or the `problem` that prevents any; `secrets` are redacted from all texts."""

    headers: dict[str, str]
    secrets: tuple[str, ...]
    problem: str = ""


def credentials_of(server: ServerSettings, whose: str) -> Credentials:
    """Credentials for a server: a bearer token, or user and password (RFC 7617, in UTF-8).

    `whose` names it in texts.
    """
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
    """Whether a header can carry it; otherwise every request would fail without a clear cause."""
    return token.isascii() and token.isprintable() and token == token.strip()
