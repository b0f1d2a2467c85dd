"""The HTTP client, and what can go wrong between two machines put into words of one closed set."""

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

from kvwatch.core.model.outcome import Failure
from kvwatch.text.redact import secrets_of

if TYPE_CHECKING:
    from pathlib import Path

    from kvwatch.settings import ServerSettings

EXCERPT_BYTES = 2048
"""How much of a bad answer is kept to look at."""
_KEEPALIVE_S = 4.0
"""Shorter than the 5 s after which vLLM closes an idle connection, so that none is used that it just closed."""


class BodyError(Exception):
    """A body that is longer than allowed or not in the encoding it claims; `excerpt` is its beginning."""

    def __init__(self, kind: Failure, detail: str, excerpt: bytes = b"") -> None:
        super().__init__(detail)
        self.kind = kind
        self.excerpt = excerpt


def client_for(server: ServerSettings) -> httpx.AsyncClient:
    """A client for one server. Proxies and credentials of the environment are left alone: servers are near."""
    return httpx.AsyncClient(
        verify=_verification(server),
        trust_env=False,
        follow_redirects=False,
        limits=httpx.Limits(max_connections=4, max_keepalive_connections=2, keepalive_expiry=_KEEPALIVE_S),
    )


def _verification(server: ServerSettings) -> ssl.SSLContext | bool:
    if urlsplit(server.url).scheme != "https":
        return False  # no certificates to read for plain HTTP: 20 ms and 2 MiB less
    if server.insecure_tls:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    else:
        context = ssl.create_default_context(cafile=None if server.ca_file is None else str(server.ca_file))
    if server.cert_file is not None:
        use_pair(context, server.cert_file, server.key_file)
    return context


def use_pair(context: ssl.SSLContext, cert: Path, key: Path | None) -> None:
    """Has a context show a certificate; OSError if it or its key can't be used. Nobody is asked for a passphrase."""
    context.load_cert_chain(cert, key, password=lambda: b"")


def timeouts(total_s: float) -> httpx.Timeout:
    """The limits of one step each, for a request that `asyncio.timeout` limits as a whole.

    Connecting and the handshake end by their own limits, before the whole does: cancelled from outside in the
    middle of a handshake, the client would leave the socket open.
    """
    return httpx.Timeout(total_s, connect=0.4 * total_s)


def is_loopback(host: str) -> bool:
    """Whether a host name or address is this machine's own."""
    if host == "localhost" or host.endswith(".localhost"):
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def classify(error: BaseException) -> tuple[Failure, str]:
    """Which failure an exception of the transport is, and one line that says so."""
    chain = list(_chain(error))
    for one in chain:
        if isinstance(one, UnicodeEncodeError) and one.encoding != "idna":
            return Failure.CONNECTION, "the request can't be sent: a header of it is not ASCII"
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
            return Failure.REFUSED, "the connection was refused: nothing listens there"
    if any(isinstance(one, TimeoutError | httpx.TimeoutException) for one in chain):
        return Failure.TIMEOUT, "no whole answer in time"
    return Failure.CONNECTION, f"the connection failed: {_line(chain[-1]) or _line(error)}"


def _chain(error: BaseException) -> Iterator[BaseException]:
    """An exception, what caused it, and what caused that."""
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
    """Undoes a content encoding piece by piece and refuses to grow beyond a limit, before memory is taken.

    A small gzip body can hold gigabytes; so no more is unpacked than one byte beyond the limit. Every method
    may raise `BadBody`.
    """

    def __init__(self, encoding: str, limit: int) -> None:
        self._limit = limit
        self._size = 0
        self._parts: list[bytes] = []
        encoding = encoding.strip().lower()
        self._inflate: zlib._Decompress | None = None
        if encoding in {"gzip", "x-gzip", "deflate"}:
            self._inflate = zlib.decompressobj(wbits=47)  # gzip or zlib, whichever its header says
        elif encoding not in {"", "identity"}:
            raise BodyError(
                Failure.MALFORMED, f"the body is encoded as {encoding[:40]!r}, which was not asked for"
            )

    def feed(self, piece: bytes) -> None:
        """Takes what came off the wire."""
        if self._inflate is None:
            self._add(piece)
            return
        try:
            while piece and not self._inflate.eof:
                self._add(self._inflate.decompress(piece, self._limit - self._size + 1))
                piece = self._inflate.unconsumed_tail
        except zlib.error as error:
            raise self._bad(Failure.MALFORMED, f"the body is not what its encoding says: {error}") from None

    def _add(self, plain: bytes) -> None:
        self._size += len(plain)
        self._parts.append(plain)
        if self._size > self._limit:
            raise self._bad(Failure.TOO_LARGE, f"the body is longer than the {self._limit} bytes allowed")

    def _bad(self, kind: Failure, detail: str) -> BodyError:
        beginning = b""
        for part in self._parts:
            beginning += part[: EXCERPT_BYTES - len(beginning)]
            if len(beginning) == EXCERPT_BYTES:
                break
        return BodyError(kind, detail, beginning)

    @property
    def so_far(self) -> bytes:
        """What came until now, decoded."""
        return b"".join(self._parts)

    def body(self) -> bytes:
        """What came, now that nothing more will."""
        if self._inflate is not None and not self._inflate.eof and self._size:
            raise self._bad(Failure.MALFORMED, "the compressed body ends too early")
        return self.so_far


class ClientError(Exception):
    """An address or a certificate can't be used; the text says why, in one line."""


def usable_client(server: ServerSettings, what: str) -> httpx.AsyncClient:
    """A client for a server; `CannotServe` if its certificates can't be used."""
    try:
        return client_for(server)
    except OSError as error:  # what ssl raises is one, too
        files = ", ".join(str(path) for path in (server.ca_file, server.cert_file, server.key_file) if path)
        raise ClientError(f"can't use {files} for {what} {server.name}: {error}") from None


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
