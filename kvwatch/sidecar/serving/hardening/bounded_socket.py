"""The listening socket, which limits the number of open connections whatever clients do.

Theory of operation
    Every connection takes a file descriptor that kvwatch may need for a scrape. So at most `most` connections
    are open, by default 100 and at most half of what the process may open. A connection beyond that displaces
    the oldest one that is not being answered, so a flood of idle connections does not lock others out. If no
    descriptor is left at all, the connection is accepted with a reserved one and closed; the event loop would
    log that error and retry forever.

    A connection is closed by `shutdown`; the event loop, which owns it, then sees its end and closes the
    descriptor.

Fault tests: ``test_a_flood_of_connections_that_ask_nothing_keeps_nobody_out`` fails with a plain socket and
uvicorn's `limit_concurrency`; ``test_without_a_file_descriptor_left_a_connection_is_taken_and_closed`` needs
the reserved one.
"""

from __future__ import annotations

import contextlib
import errno
import os
import resource
import socket
import time
from collections.abc import Callable, Container
from dataclasses import dataclass
from typing import Any

MAX_CONNECTIONS = 100
BATCH = 8
"""Most connections accepted at once. Up to twice as many may be open beyond `most` for a moment."""
_NONE_LEFT = frozenset({errno.EMFILE, errno.ENFILE})


def max_connections() -> int:
    """The limit that follows from the process's limit of open files."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return MAX_CONNECTIONS if soft == resource.RLIM_INFINITY else max(min(MAX_CONNECTIONS, soft // 2), 1)


@dataclass(slots=True)
class _Connection:
    sock: socket.socket
    since: float
    ending: bool = False

    def shut_down(self) -> None:
        self.ending = True
        with contextlib.suppress(OSError):  # the client was faster
            self.sock.shutdown(socket.SHUT_RDWR)


class BoundedSocket(socket.socket):
    """`known` and `busy` return the file descriptors that have a protocol, and those that are being answered."""

    def __init__(self, sock: socket.socket, most: int | None = None) -> None:
        super().__init__(fileno=sock.detach())
        self.most = most or max_connections()
        self.busy: Callable[[], Container[int]] = frozenset
        self.known: Callable[[], Container[int]] = frozenset
        self.closed_connections = 0
        self._open: dict[int, _Connection] = {}
        self._reserved: int | None = os.open(os.devnull, os.O_RDONLY)

    def accept(self) -> tuple[socket.socket, Any]:
        """The next connection; BlockingIOError without one, or without room for it."""
        try:
            sock, address = super().accept()
        except OSError as error:
            if error.errno in _NONE_LEFT and self._close_next():
                raise BlockingIOError(errno.EAGAIN, "no file descriptor left") from None
            raise
        self._drop_closed()
        excess = len(self._open) - self.most
        if excess >= 2 * BATCH or (excess >= 0 and not self._make_room()):
            self.closed_connections += 1
            sock.close()
            raise BlockingIOError(errno.EAGAIN, "too many connections")
        self._open[sock.fileno()] = _Connection(sock, time.monotonic())
        return sock, address

    def close(self) -> None:
        super().close()
        if self._reserved is not None:
            os.close(self._reserved)
            self._reserved = None

    def sweep(self, longest_s: float) -> None:
        """Closes connections that have had no protocol for so long: TLS handshakes that never end."""
        self._drop_closed()
        known, now = self.known(), time.monotonic()
        for fileno, one in self._open.items():
            if now - one.since >= longest_s and fileno not in known:
                one.shut_down()

    def _drop_closed(self) -> None:
        self._open = {n: one for n, one in self._open.items() if one.sock.fileno() == n}

    def _make_room(self) -> bool:
        """Closes the oldest connection that is not being answered; returns whether there was one."""
        busy = self.busy()
        for fileno, one in self._open.items():
            if not one.ending and fileno not in busy:
                one.shut_down()
                self.closed_connections += 1
                return True
        return False

    def _close_next(self) -> bool:
        """Accepts a connection with the reserved descriptor and closes it; returns whether that succeeded."""
        if self._reserved is None:
            return False
        os.close(self._reserved)
        self._reserved = None
        with contextlib.suppress(OSError):
            super().accept()[0].close()
            self.closed_connections += 1
        with contextlib.suppress(OSError):
            self._reserved = os.open(os.devnull, os.O_RDONLY)
        return self._reserved is not None
