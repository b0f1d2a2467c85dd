"""The listening socket that bounds how many connections are open, whatever clients do.

Theory of operation
    Every connection takes a file descriptor, and one that kvwatch has not got is one with which it can't scrape.
    So only so many are held (`most`, at most half of what the process may open). One more than that is let in
    at the expense of the one that has been open longest and is not being answered, so that a flood of connections
    that say nothing does not keep out who asks. If the process has no descriptor left all the same, the connection is
    taken with one held back for that, and closed: the event loop never sees the error, which it would log and
    retry without end.

    A connection is closed by `shutdown`: the event loop, which owns it, then sees its end and lets go of it.
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

MOST_CONNECTIONS = 100
BATCH = 8
"""How many are accepted in one go at most; so many may be open beyond `most` for a moment, twice over."""
_NONE_LEFT = frozenset({errno.EMFILE, errno.ENFILE})


def most_connections() -> int:
    """How many connections may be open, by what the process may open at all."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return MOST_CONNECTIONS if soft == resource.RLIM_INFINITY else max(min(MOST_CONNECTIONS, soft // 2), 1)


@dataclass(slots=True)
class _Held:
    connection: socket.socket
    since: float
    ending: bool = False

    def shut(self) -> None:
        self.ending = True
        with contextlib.suppress(OSError):  # its client was faster
            self.connection.shutdown(socket.SHUT_RDWR)


class BoundedSocket(socket.socket):
    """Accepts as a socket does. `known` and `busy` say which descriptors a protocol has, and which it answers."""

    def __init__(self, sock: socket.socket, most: int | None = None) -> None:
        super().__init__(fileno=sock.detach())
        self.most = most or most_connections()
        self.busy: Callable[[], Container[int]] = frozenset
        self.known: Callable[[], Container[int]] = frozenset
        self.turned_away = 0
        self._open: dict[int, _Held] = {}
        self._spare: int | None = os.open(os.devnull, os.O_RDONLY)

    def accept(self) -> tuple[socket.socket, Any]:
        """The next connection; BlockingIOError if there is none, or none that can be held."""
        try:
            connection, address = super().accept()
        except OSError as error:
            if error.errno in _NONE_LEFT and self._turn_one_away():
                raise BlockingIOError(errno.EAGAIN, "no file descriptor left") from None
            raise
        self._forget_closed()
        if len(self._open) >= self.most + 2 * BATCH or (
            len(self._open) >= self.most and not self._make_room()
        ):
            self.turned_away += 1
            connection.close()
            raise BlockingIOError(errno.EAGAIN, "too many connections")
        self._open[connection.fileno()] = _Held(connection, time.monotonic())
        return connection, address

    def close(self) -> None:
        super().close()
        if self._spare is not None:
            os.close(self._spare)
            self._spare = None

    def sweep(self, longest_s: float) -> None:
        """Closes what has been open for so long and is in no protocol's hands yet: handshakes that never end."""
        self._forget_closed()
        known, now = self.known(), time.monotonic()
        for fileno, held in self._open.items():
            if now - held.since >= longest_s and fileno not in known:
                held.shut()

    def _forget_closed(self) -> None:
        self._open = {n: held for n, held in self._open.items() if held.connection.fileno() == n}

    def _make_room(self) -> bool:
        """Closes the connection that has been open longest and is not being answered; whether there was one."""
        busy = self.busy()
        for fileno, held in self._open.items():
            if not held.ending and fileno not in busy:
                held.shut()
                self.turned_away += 1
                return True
        return False

    def _turn_one_away(self) -> bool:
        """Takes a connection with the descriptor held back, and closes it; whether that went well."""
        if self._spare is None:
            return False
        os.close(self._spare)
        self._spare = None
        with contextlib.suppress(OSError):
            super().accept()[0].close()
            self.turned_away += 1
        with contextlib.suppress(OSError):
            self._spare = os.open(os.devnull, os.O_RDONLY)
        return self._spare is not None
