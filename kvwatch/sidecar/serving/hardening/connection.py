"""One client's connection: an HTTP connection that may not take for ever, neither to ask nor to read."""

from __future__ import annotations

import asyncio

import h11
from uvicorn.protocols.http.h11_impl import H11Protocol

ASK_S = 10.0
"""How long a client may take to send a whole request, from its first byte or the beginning of the connection."""
READ_S = 30.0
"""How long it may take until it has read the answer."""
IDLE_S = 75.0
"""How long a connection without a request is kept for the next: longer than a scrape a minute needs."""


class Connection(H11Protocol):
    """uvicorn's connection with a deadline for whatever is under way."""

    ask_s = ASK_S
    read_s = READ_S

    _deadline: asyncio.TimerHandle | None = None
    _for: str = ""

    @property
    def fileno(self) -> int:
        """Of its socket; -1 once that is closed."""
        sock = self.transport.get_extra_info("socket")
        return -1 if sock is None else int(sock.fileno())

    @property
    def answering(self) -> bool:
        """Whether it has a whole request, or part of its body, that is not answered yet."""
        return self._asked and not self.cycle.response_complete

    @property
    def _asked(self) -> bool:
        """Whether a request has come yet."""
        return getattr(self, "cycle", None) is not None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._watch()

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        self._watch()

    def on_response_complete(self) -> None:
        self._stop_watching()  # the next request, if it is there already, has its own time
        super().on_response_complete()
        self._watch()

    def connection_lost(self, exc: Exception | None) -> None:
        self._stop_watching()
        super().connection_lost(exc)

    def _watch(self) -> None:
        """Sets the deadline of what is under way now; one that runs for the same already stays."""
        what = self._under_way()
        if what == self._for:
            return
        self._stop_watching()
        if what and not self.transport.is_closing():
            self._for = what
            seconds = self.read_s if what == "read" else self.ask_s
            self._deadline = self.loop.call_later(seconds, self._expired)

    def _expired(self) -> None:
        if self._under_way() == self._for:
            self.transport.abort()
        else:
            self._watch()  # what was to be read has been read meanwhile

    def _under_way(self) -> str:
        if self.conn.their_state is h11.SEND_BODY:
            return "ask"
        if self.answering or self.transport.get_write_buffer_size():
            return "read"
        began = bool(self.conn.trailing_data[0])
        return "ask" if began or not self._asked else ""

    def _stop_watching(self) -> None:
        self._for = ""
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None
