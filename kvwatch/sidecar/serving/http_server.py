"""The web server: uvicorn on a bounded socket, without its handling of signals and logs.

kvwatch calls uvicorn's `startup`, `on_tick` and `shutdown` itself: `serve` installs signal handlers, and
wakes ten times a second, which was a fifth of kvwatch's processor time.
"""

from __future__ import annotations

import asyncio
import logging
import socket
import ssl
import time
from typing import TYPE_CHECKING

import uvicorn

from kvwatch.sidecar.http_client import ClientError, load_certificate
from kvwatch.sidecar.log import log_event
from kvwatch.sidecar.serving.hardening.bounded_socket import BATCH, BoundedSocket
from kvwatch.sidecar.serving.hardening.connection import IDLE_S, REQUEST_S, Connection
from kvwatch.sidecar.serving.middleware import MAX_BYTES

if TYPE_CHECKING:
    from collections.abc import Callable

    from fastapi import FastAPI

    from kvwatch.settings import Settings

_GRACE_S = 0.6
"""How long requests in progress may take at the stop."""
_BACKLOG = 128
_LOG_EVERY_S = 60.0
_TICK_S = 1.0


def listen(host: str, port: int) -> BoundedSocket:
    """A listening socket; `ClientError` if the address can't be used."""
    try:
        _check(host)
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        return BoundedSocket(socket.create_server((host, port), family=family, backlog=_BACKLOG))
    except (OSError, ValueError) as error:  # ValueError: not a host name
        why = (error.strerror if isinstance(error, OSError) else None) or str(error)
        message = (
            f"can't listen on {_address(host, port)}: {why.lower()}; choose another with --host and --port"
        )
        raise ClientError(message) from None


def _check(host: str) -> None:
    """Raises ValueError if it is no host name; `create_server` would leak a socket."""
    host.encode("idna")
    if "\0" in host:
        raise ValueError("a host name has no zero byte")


def _address(host: str, port: int) -> str:
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


class HttpServer:
    """Serves an application on a socket until cancelled."""

    def __init__(self, app: FastAPI, settings: Settings, sock: BoundedSocket) -> None:
        self._sock = sock
        self._tls: ssl.SSLContext | None = None
        config = uvicorn.Config(
            app,
            lifespan="off",
            log_config=None,
            access_log=False,
            server_header=False,
            proxy_headers=False,
            ws="none",
            loop="none",
            http=Connection,
            backlog=BATCH,  # uvicorn passes it to asyncio, which accepts so many at once
            timeout_keep_alive=int(IDLE_S),
            h11_max_incomplete_event_size=MAX_BYTES,
            ssl_certfile=settings.tls_cert,
            ssl_keyfile=settings.tls_key,
        )
        self.renewal(settings)
        config.load()
        self._tls = config.ssl
        self._server = uvicorn.Server(config)
        self._server.lifespan = config.lifespan_class(config)
        sock.known = lambda: {one.fileno for one in self._connections()}
        sock.busy = lambda: {one.fileno for one in self._connections() if one.answering}
        self._logged: tuple[int, float] | None = None
        """How many connections had been closed at the last log line, and when that was."""
        host, port = sock.getsockname()[:2]
        self.url = f"{'https' if settings.tls_cert else 'http'}://{_address(host, port)}"

    def _connections(self) -> list[Connection]:
        return [one for one in self._server.server_state.connections if isinstance(one, Connection)]

    def renewal(self, settings: Settings) -> Callable[[], None]:
        """A function that loads the certificate of these settings; `ClientError` now if it can't be used."""
        cert, key = settings.tls_cert, settings.tls_key
        if cert is None:
            return lambda: None
        try:
            load_certificate(ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER), cert, key)
        except OSError as error:  # ssl.SSLError is one, too
            raise ClientError(f"can't use the certificate {cert} and its key: {error}") from None
        return lambda: None if self._tls is None else load_certificate(self._tls, cert, key)

    async def run(self, started: Callable[[], None]) -> None:
        """Serves until cancelled, or until uvicorn fails; `started` is called once it serves."""
        await self._server.startup([self._sock])
        try:
            self._sock.listen(_BACKLOG)  # asyncio has set it to BATCH
            await self._server.on_tick(0)  # sets the Date header
            started()
            while True:
                await asyncio.sleep(_TICK_S)
                await self._server.on_tick(0)
                self._sock.sweep(REQUEST_S)
                self._log_closed()
        finally:
            await self._stop()

    async def _stop(self) -> None:
        """Closes idle connections at once, and those being answered after the grace."""
        stopping = asyncio.create_task(self._server.shutdown([self._sock]))
        done, _ = await asyncio.wait({stopping}, timeout=_GRACE_S)
        if not done:
            for connection in list(self._server.server_state.connections):
                if connection.transport is not None:
                    connection.transport.abort()
            stopping.cancel()
            await asyncio.wait({stopping}, timeout=0.2)

    def _log_closed(self) -> None:
        """Logs that connections were closed, at most once a minute."""
        count, at = self._logged or (0, 0.0)
        closed, now = self._sock.closed_connections, time.monotonic()
        if closed > count and (self._logged is None or now - at >= _LOG_EVERY_S):
            self._logged = (closed, now)
            message = "too many connections; the longest idle ones are closed"
            log_event(logging.WARNING, message, most=self._sock.most, closed=closed - count)
