"""Real HTTP servers on loopback, as good or as bad as a test needs them, and a clock that tests turn."""

from __future__ import annotations

import asyncio
import contextlib
import gzip
import json
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import parse_qs

RECORDINGS = Path(__file__).resolve().parents[1] / "replay" / "recordings"


@dataclass(frozen=True)
class Asked:
    """One request as it came."""

    path: str
    query: str
    headers: dict[str, str]
    body: bytes = b""

    @property
    def names(self) -> list[str]:
        return parse_qs(self.query).get("name[]", [])


Handler = Callable[[Asked, asyncio.StreamWriter], Awaitable[None]]


@dataclass
class Loopback:
    """A server on loopback that answers as `handler` says; `asked` is what it was asked so far."""

    handler: Handler
    asked: list[Asked] = field(default_factory=list)
    port: int = 0
    scheme: str = "http"

    @property
    def url(self) -> str:
        return f"{self.scheme}://localhost:{self.port}/metrics"

    async def serve_connection(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(ConnectionError, asyncio.IncompleteReadError, asyncio.CancelledError):
            while not writer.is_closing():
                head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").split("\r\n")
                path, _, query = head[0].split(" ")[1].partition("?")
                headers = dict(line.lower().split(": ", 1) for line in head[1:] if ": " in line)
                body = await reader.readexactly(int(headers.get("content-length", 0)))
                asked = Asked(path, query, headers, body)
                self.asked.append(asked)
                await self.handler(asked, writer)
        writer.close()


@contextlib.asynccontextmanager
async def serving(handler: Handler, *, tls: ssl.SSLContext | None = None) -> AsyncIterator[Loopback]:
    """A server while the block runs."""
    loopback = Loopback(handler, scheme="https" if tls else "http")
    tasks: set[asyncio.Task[None]] = set()
    writers: list[asyncio.StreamWriter] = []

    def connected(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writers.append(writer)
        task = asyncio.create_task(loopback.serve_connection(reader, writer))
        tasks.add(task)
        task.add_done_callback(tasks.discard)

    server = await asyncio.start_server(connected, "127.0.0.1", 0, ssl=tls)
    loopback.port = server.sockets[0].getsockname()[1]
    try:
        yield loopback
    finally:
        server.close()
        running = list(tasks)
        for task in running:
            task.cancel()
        await asyncio.gather(*running, return_exceptions=True)
        for writer in writers:
            writer.transport.abort()
        await asyncio.sleep(0.01)


async def send(
    writer: asyncio.StreamWriter, body: bytes, status: str = "200 OK", headers: dict[str, str] | None = None
) -> None:
    """A whole answer, the connection kept."""
    lines = {"Content-Type": "text/plain", "Content-Length": str(len(body)), **(headers or {})}
    head = "".join(f"{name}: {value}\r\n" for name, value in lines.items())
    writer.write(f"HTTP/1.1 {status}\r\n{head}\r\n".encode() + body)
    await writer.drain()


def always(body: bytes, status: str = "200 OK", headers: dict[str, str] | None = None) -> Handler:
    """A handler that gives every request the same answer."""

    async def handler(_: Asked, writer: asyncio.StreamWriter) -> None:
        await send(writer, body, status, headers)

    return handler


def pages(recording: str) -> list[bytes]:
    """The good pages of a recording of a real server."""
    lines = gzip.decompress((RECORDINGS / recording).read_bytes()).splitlines()
    return [poll["body"].encode() for poll in map(json.loads, lines) if poll["status"] == 200]


def narrowed(page: bytes, names: list[str]) -> bytes:
    """What a server answers that is asked for samples of these names."""
    wanted = {name.encode() for name in names}
    kept = [
        line
        for line in page.split(b"\n")
        if line and not line.startswith(b"#") and line.split(b"{")[0].split(b" ")[0] in wanted
    ]
    return b"".join(line + b"\n" for line in kept)


@dataclass
class VllmLike:
    """A handler that answers with pages of a recording, as vLLM does: narrowed where it is asked so.

    The page is that at `index()`, or moves on by `step` a request. `down` breaks every connection; `narrows`
    False answers narrowed requests with nothing, as vLLM with several API servers does.
    """

    recorded: list[bytes]
    narrows: bool = True
    down: bool = False
    at: int = 0
    step: int = 0
    version: str = "0.32.0"
    index: Callable[[], int] | None = None

    async def __call__(self, asked: Asked, writer: asyncio.StreamWriter) -> None:
        if self.down:
            writer.transport.abort()
        elif asked.path == "/version":
            await send(writer, json.dumps({"version": self.version}).encode())
        elif asked.path == "/v1/models":
            await send(writer, json.dumps({"data": [{"id": "tiny-llama", "max_model_len": 2048}]}).encode())
        else:
            at = self.index() if self.index else self.at
            page = self.recorded[min(at, len(self.recorded) - 1)]
            self.at += self.step
            if asked.names:
                page = narrowed(page, asked.names) if self.narrows else b""
            await send(writer, page)


class TurnedClock:
    """Time stands still but while someone sleeps, which takes none; at `until` sleepers stay asleep."""

    def __init__(self, until: float = 1e9) -> None:
        self.time = 1000.0
        self.until = 1000.0 + until
        self.reached = asyncio.Event()
        self.slept: list[float] = []

    def now(self) -> float:
        return self.time

    def wall(self) -> float:
        return 1_700_000_000.0 + self.time

    async def sleep(self, seconds: float) -> None:
        self.slept.append(seconds)
        if self.time + seconds >= self.until:
            self.reached.set()
            await asyncio.Event().wait()
        self.time += seconds
        await asyncio.sleep(0)

    def go_on(self, seconds: float) -> None:
        """Lets time run for so long from now; who slept at the end of the last run has slept enough."""
        if self.reached.is_set():
            self.time = self.until
        self.reached.clear()
        self.until = self.time + seconds
