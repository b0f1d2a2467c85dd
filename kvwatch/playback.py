"""Serves a recording over HTTP, with the answers of the recorded server, at its own pace or another.

Only ``GET /metrics`` is served, always with the whole page; any other path gives 404, as on a vLLM without
narrowing. While the recorded server was not reachable, connections are closed without an answer.
"""

from __future__ import annotations

import asyncio
import contextlib
import zlib
from bisect import bisect_right
from collections.abc import Callable, Iterable
from types import TracebackType
from typing import Self

from kvwatch.recording import Record, RecordingError, Skipped, with_spacing

_TEXT = "text/plain; version=0.0.4; charset=utf-8"
_LONGEST_REQUEST = 16 << 10
_REASONS = {200: "OK", 404: "Not Found", 405: "Method Not Allowed", 503: "Service Unavailable"}


class Playback:
    """A recording as a server. It starts at the first request.

    `now` is its clock, in seconds; a clock five times as fast plays five times as fast. With `loop` it starts
    again at the end, counts `rounds` and calls `on_round`; otherwise it stays at the last record.
    """

    def __init__(
        self,
        records: Iterable[Record | Skipped],
        now: Callable[[], float],
        *,
        loop: bool = False,
        on_round: Callable[[int], None] | None = None,
    ) -> None:
        paced = [(item, spacing) for item, spacing in with_spacing(records) if isinstance(item, Record)]
        if not paced:
            raise RecordingError("the recording has no readable record")
        kept = [record for record, _ in paced]
        self._times = [record.t - kept[0].t for record in kept]
        self._answers = [
            (record.status, zlib.compress(record.body, 1), record.content_type or _TEXT) for record in kept
        ]
        self.duration_s = self._times[-1] + paced[-1][1]
        self._now = now
        self._loop = loop
        self._on_round = on_round
        self._began: float | None = None
        self.rounds = 0
        self._server: asyncio.Server | None = None
        self._open: dict[asyncio.Task[None], asyncio.StreamWriter] = {}

    # -- which record -----------------------------------------------------------------------------------------------

    def position(self) -> float:
        """Seconds into the recording."""
        if self._began is None:
            self._began = self._now()
        elapsed = max(self._now() - self._began, 0.0)
        if not self._loop:
            return min(elapsed, self.duration_s)
        rounds, elapsed = divmod(elapsed, self.duration_s)
        if int(rounds) != self.rounds:
            self.rounds = int(rounds)
            if self._on_round is not None:
                self._on_round(self.rounds)
        return elapsed

    def _current(self) -> tuple[int, bytes, str]:
        status, packed, kind = self._answers[max(bisect_right(self._times, self.position() + 1e-6) - 1, 0)]
        return status, zlib.decompress(packed), kind

    # -- HTTP ------------------------------------------------------------------------------------------------------

    async def start(self, host: str = "127.0.0.1", port: int = 0) -> str:
        """Starts to listen; returns the URL of the metrics."""
        self._server = await asyncio.start_server(self._serve, host, port, limit=_LONGEST_REQUEST)
        bound = self._server.sockets[0].getsockname()[1]
        return f"http://{host}:{bound}/metrics"

    async def close(self) -> None:
        if self._server is not None:
            self._server.close()
            for writer in self._open.values():
                writer.close()
            await asyncio.gather(*self._open, return_exceptions=True)
            await self._server.wait_closed()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task: asyncio.Task[None] = asyncio.current_task()  # type: ignore[assignment]  # called as a task
        self._open[task] = writer
        try:
            with contextlib.suppress(OSError, asyncio.IncompleteReadError, asyncio.LimitOverrunError):
                while self._answer(await reader.readuntil(b"\r\n\r\n"), writer):
                    await writer.drain()
            writer.close()
            with contextlib.suppress(OSError):
                await writer.wait_closed()
        finally:
            del self._open[task]

    def _answer(self, request: bytes, writer: asyncio.StreamWriter) -> bool:
        """Answers a request; returns whether the connection stays open."""
        method, _, rest = request.split(b"\r\n", 1)[0].partition(b" ")
        path = rest.partition(b" ")[0].partition(b"?")[0]
        status, body, kind = 405, b"", _TEXT
        if method == b"GET":
            status, body, kind = self._current() if path == b"/metrics" else (404, b"not found\n", _TEXT)
        if status == 0:
            return False
        head = (
            f"HTTP/1.1 {status} {_REASONS.get(status, 'Recorded')}\r\n"
            f"Content-Type: {kind}\r\nContent-Length: {len(body)}\r\n\r\n"
        )
        writer.write(head.encode() + body)
        return b"connection: close" not in request.lower()
