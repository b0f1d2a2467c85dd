"""The web server: a socket of our own, and a uvicorn that leaves signals and logs alone and stops when told."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import socket
import ssl
import time
from collections.abc import Iterator
from typing import TYPE_CHECKING

import uvicorn

from kvwatch.sidecar.http_client import ClientError, use_pair
from kvwatch.sidecar.log import log_event
from kvwatch.sidecar.serving.hardening.bounded_socket import BATCH, BoundedSocket
from kvwatch.sidecar.serving.hardening.connection import ASK_S, IDLE_S, Connection
from kvwatch.sidecar.serving.middleware import MOST_BYTES

if TYPE_CHECKING:
    from collections.abc import Callable

    from fastapi import FastAPI

    from kvwatch.settings import Settings

_GRACE_S = 0.6
"""How long answers under way may take to finish at the stop."""
_QUEUE = 128
"""How many connections the kernel keeps until they are accepted."""
_TELL_EVERY_S = 60.0
_TICK_S = 1.0


def listen(host: str, port: int) -> BoundedSocket:
    """A listening socket; `CannotServe` if the address can't be had."""
    where = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
    try:
        _check(host)
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        return BoundedSocket(socket.create_server((host, port), family=family, backlog=_QUEUE))
    except (OSError, ValueError) as error:  # the latter of what can't be the name of a host
        why = (error.strerror if isinstance(error, OSError) else None) or str(error)
        raise ClientError(
            f"can't listen on {where}: {why.lower()}; choose another with --host and --port"
        ) from None


def _check(host: str) -> None:
    """Raises ValueError for what can't be the name of a host; a socket that was made for it would be left open."""
    host.encode("idna")
    if "\0" in host:
        raise ValueError("no name of a host has a zero in it")


class _Server(uvicorn.Server):
    def __init__(self, config: uvicorn.Config, door: BoundedSocket) -> None:
        super().__init__(config)
        self.serves = asyncio.Event()
        self._leaving = asyncio.Event()
        self._door = door
        self._told: tuple[int, float] | None = None
        """How many had been turned away when that was last told, and when."""
        door.known = lambda: {one.fileno for one in self._connections()}
        door.busy = lambda: {one.fileno for one in self._connections() if one.answering}

    def _connections(self) -> Iterator[Connection]:
        return (one for one in self.server_state.connections if isinstance(one, Connection))

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        self._door.listen(_QUEUE)  # what uvicorn gives to the event loop is how many it accepts in one go
        self.serves.set()

    def leave(self) -> None:
        """Has it stop: no new connections, and those that answer may finish."""
        self.should_exit = True
        self._leaving.set()

    async def main_loop(self) -> None:
        """A tick a second. uvicorn's own looks ten times a second whether to stop: a fifth of what kvwatch cost."""
        while not await self.on_tick(0):
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._leaving.wait(), _TICK_S)

    async def on_tick(self, counter: int) -> bool:
        self._door.sweep(ASK_S)
        self._tell()
        return await super().on_tick(counter)

    def _tell(self) -> None:
        """Says that connections were turned away, at most once a minute."""
        count, at = self._told or (0, 0.0)
        now = time.monotonic()
        if self._door.turned_away > count and (self._told is None or now - at >= _TELL_EVERY_S):
            self._told = (self._door.turned_away, now)
            log_event(
                logging.WARNING,
                "too many connections: those that asked nothing for longest were closed",
                most=self._door.most,
                closed=self._door.turned_away - count,
            )

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield  # the service has its own


class HttpServer:
    """Serves an application on a socket until stopped."""

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
            backlog=BATCH,
            timeout_keep_alive=int(IDLE_S),
            h11_max_incomplete_event_size=MOST_BYTES,
            ssl_certfile=settings.tls_cert,
            ssl_keyfile=settings.tls_key,
        )
        self.renewal(settings)
        config.load()
        self._tls = config.ssl
        self._server = _Server(config, sock)
        host, port = sock.getsockname()[:2]
        scheme = "https" if settings.tls_cert else "http"
        self.url = f"{scheme}://[{host}]:{port}" if ":" in host else f"{scheme}://{host}:{port}"

    def renewal(self, settings: Settings) -> Callable[[], None]:
        """What has it serve with the certificate of these settings; `CannotServe`, at once, if that can't be used."""
        cert, key = settings.tls_cert, settings.tls_key
        if cert is None:
            return lambda: None
        try:
            use_pair(ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER), cert, key)
        except OSError as error:  # what ssl raises is one, too
            raise ClientError(f"can't use the certificate {cert} and its key: {error}") from None
        return lambda: None if self._tls is None else use_pair(self._tls, cert, key)

    async def run(self, started: Callable[[], None]) -> None:
        """Serves until `stop`, or until something breaks."""
        serving = asyncio.create_task(self._server.serve(sockets=[self._sock]))
        served = asyncio.create_task(self._server.serves.wait())
        try:
            await asyncio.wait({serving, served}, return_when=asyncio.FIRST_COMPLETED)
            if served.done():
                started()
            await asyncio.shield(serving)
        except asyncio.CancelledError:
            await self._stop(serving)
            raise
        finally:
            served.cancel()

    async def _stop(self, serving: asyncio.Task[None]) -> None:
        """Closes what is idle at once, and what is still being answered after the grace."""
        self._server.leave()
        done, _ = await asyncio.wait({serving}, timeout=_GRACE_S)
        if not done:
            for connection in list(self._server.server_state.connections):
                if connection.transport is not None:
                    connection.transport.abort()
            serving.cancel()
            await asyncio.wait({serving}, timeout=0.2)
