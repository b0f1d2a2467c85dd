"""An HTTP connection with deadlines for sending a request and for reading the answer.

Fault tests: ``test_a_connection_that_does_not_send_a_whole_request_in_time_is_closed`` and
``test_a_connection_that_does_not_read_its_answer_is_closed`` fail with uvicorn's own connection.
"""

from __future__ import annotations

import asyncio

import h11
from uvicorn.protocols.http.h11_impl import H11Protocol

REQUEST_S = 10.0
"""Deadline for a whole request, from its first byte or the start of the connection."""
READ_S = 30.0
"""Deadline for reading the answer."""
IDLE_S = 75.0
"""How long an idle connection is kept: longer than the interval of a scrape per minute."""


class Connection(H11Protocol):
    """uvicorn's connection with a deadline for the current step."""

    request_s = REQUEST_S
    read_s = READ_S

    _deadline: asyncio.TimerHandle | None = None
    _timed_step: str = ""

    @property
    def fileno(self) -> int:
        """The file descriptor of its socket; -1 if closed."""
        sock = self.transport.get_extra_info("socket")
        return -1 if sock is None else int(sock.fileno())

    @property
    def answering(self) -> bool:
        """Whether a request, whole or with part of its body, is not answered yet."""
        return self._requested and not self.cycle.response_complete

    @property
    def _requested(self) -> bool:
        """Whether there has been a request yet."""
        return getattr(self, "cycle", None) is not None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._update_deadline()

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        self._update_deadline()

    def on_response_complete(self) -> None:
        self._cancel_deadline()  # a pipelined request gets its own deadline
        super().on_response_complete()
        self._update_deadline()

    def connection_lost(self, exc: Exception | None) -> None:
        self._cancel_deadline()
        super().connection_lost(exc)

    def _update_deadline(self) -> None:
        """Sets the deadline of the current step; one that runs for this step stays."""
        step = self._step()
        if step == self._timed_step:
            return
        self._cancel_deadline()
        if step and not self.transport.is_closing():
            self._timed_step = step
            seconds = self.read_s if step == "read" else self.request_s
            self._deadline = self.loop.call_later(seconds, self._expired)

    def _expired(self) -> None:
        if self._step() == self._timed_step:
            self.transport.abort()
        else:
            self._update_deadline()  # the client has read the answer meanwhile

    def _step(self) -> str:
        """What the client has to do next: send a request, read the answer, or nothing."""
        if self.conn.their_state is h11.SEND_BODY:
            return "send"
        if self.answering or self.transport.get_write_buffer_size():
            return "read"
        began = bool(self.conn.trailing_data[0])
        return "send" if began or not self._requested else ""

    def _cancel_deadline(self) -> None:
        self._timed_step = ""
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None
