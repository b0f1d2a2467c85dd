"""A server on a real socket with everything that a bad neighbour does, one path each, switched on and off at will."""

from __future__ import annotations

import asyncio
import contextlib
import gzip
import re
import struct
import threading
import time
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import cache

from tests.support.loopback import Asked, Handler, always, narrowed, pages, send, serving

HEALTHY = "0.32.0--b-healthy.jsonl.gz"
TWO_ENGINES = "0.32.0--j-data-parallel-2.jsonl.gz"
RESTARTS_EVERY_S, RESTARTS_FOR_S = 10.0, 5.0
Change = Callable[[bytes], bytes]


@dataclass(frozen=True)
class Fault:
    """What a neighbour does. `kinds`: the failures that it may be counted as; none: its pages are read all the same.

    `known` says whether kvwatch still knows its engine's usage meanwhile.
    """

    name: str
    text: str
    kinds: tuple[str, ...]
    handler: Handler
    known: bool = False


# -- good pages, and what can be made of them ------------------------------------------------------------------------


@dataclass
class Recorded:
    """Pages of a real server, as time goes on; narrowed where that is asked for, as vLLM does."""

    recording: str
    change: Change = bytes
    began: float = field(default_factory=time.monotonic)

    def page(self) -> bytes:
        recorded = _recorded(self.recording)
        return self.change(recorded[min(int(time.monotonic() - self.began), len(recorded) - 1)])

    async def __call__(self, asked: Asked, writer: asyncio.StreamWriter) -> None:
        page = self.page()
        await send(writer, narrowed(page, asked.names) if asked.names else page)


@cache
def _recorded(recording: str) -> list[bytes]:
    return pages(recording)


def of_engines(page: bytes, keys: list[tuple[str, str]]) -> bytes:
    """A page whose series of engine 0 stand there once for each (model name, engine)."""
    lines = []
    for line in page.splitlines(keepends=True):
        if b'engine="0"' not in line or line.startswith(b"#"):
            lines.append(line)
            continue
        for model, engine in keys:
            one = re.sub(rb'model_name="[^"]*"', lambda _, m=model: b'model_name="%s"' % m.encode(), line)  # type: ignore[misc]
            lines.append(one.replace(b'engine="0"', b'engine="%s"' % engine.encode()))
    return b"".join(lines)


def _numbers(page: bytes, value: Callable[[str], str]) -> bytes:
    """A page with other values."""
    lines = (
        line
        if line.startswith("#") or not line
        else f"{line.rpartition(' ')[0]} {value(line.rpartition(' ')[2])}"
        for line in page.decode().split("\n")
    )
    return "\n".join(lines).encode()


class Backwards:
    """Counters that are less at every look."""

    def __init__(self) -> None:
        self.looks = 0

    def __call__(self, page: bytes) -> bytes:
        self.looks += 1
        return _numbers(page, lambda number: str(float(number) / self.looks))


class Passing:
    """Four engines, of other models at every look."""

    def __init__(self) -> None:
        self.looks = 0

    def __call__(self, page: bytes) -> bytes:
        self.looks += 1
        return of_engines(page, [(f"model-{self.looks}-{n}", "0") for n in range(4)])


def contradictory(page: bytes) -> bytes:
    """Every series once more, with another value."""
    return page + _numbers(page, lambda number: str(float(number) + 1))


# -- what is no page -------------------------------------------------------------------------------------------------


async def _hangs(_: Asked, writer: asyncio.StreamWriter) -> None:
    writer.write(b"HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\nContent-Length: 50000\r\n\r\n")
    await writer.drain()
    await asyncio.sleep(60)


async def _drips(_: Asked, writer: asyncio.StreamWriter) -> None:
    writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 50000\r\n\r\n")
    for _byte in range(60):
        writer.write(b"#")
        await writer.drain()
        await asyncio.sleep(1)


async def _silent(_: Asked, __: asyncio.StreamWriter) -> None:
    await asyncio.sleep(60)


async def _continues(_: Asked, writer: asyncio.StreamWriter) -> None:
    while True:
        writer.write(b"HTTP/1.1 100 Continue\r\n\r\n")
        await writer.drain()
        await asyncio.sleep(0.05)


async def _headers(_: Asked, writer: asyncio.StreamWriter) -> None:
    writer.write(b"HTTP/1.1 200 OK\r\n")
    for n in range(200_000):
        writer.write(b"X-%d: x\r\n" % n)
        await writer.drain()


async def _cuts(_: Asked, writer: asyncio.StreamWriter) -> None:
    writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 50000\r\n\r\n" + _recorded(HEALTHY)[0][:20_000])
    await writer.drain()
    writer.transport.abort()


async def _resets(_: Asked, writer: asyncio.StreamWriter) -> None:
    writer.transport.abort()


async def _chatters(_: Asked, writer: asyncio.StreamWriter) -> None:
    writer.write(b"SSH-2.0-OpenSSH_9.2\r\n" * 20)
    await writer.drain()
    writer.close()


def _streams(piece: bytes, times: int) -> Handler:
    """A body of a piece over and over."""

    async def handler(_: Asked, writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % (len(piece) * times))
        for _time in range(times):
            writer.write(piece)
            await writer.drain()

    return handler


class Restarting:
    """A server that is a new process every few seconds, and not there in between."""

    def __init__(self) -> None:
        self.began = time.monotonic()

    async def __call__(self, asked: Asked, writer: asyncio.StreamWriter) -> None:
        life, age = divmod(time.monotonic() - self.began, RESTARTS_EVERY_S)
        if age < RESTARTS_FOR_S:
            writer.transport.abort()
            return
        page = _recorded(HEALTHY)[int(age) + 30]
        started = b"process_start_time_seconds %d" % (1_700_000_000 + life)
        page = re.sub(rb"(?m)^process_start_time_seconds .*$", started, page)
        await send(writer, narrowed(page, asked.names) if asked.names else page)


_SAMPLES = b"".join(b'vllm:num_requests_running{engine="%d",model_name="m"} 1.0\n' % n for n in range(10_000))
_MANY = b"".join(b'vllm:num_requests_running{engine="%d"} 1\n' % n for n in range(200_000))
_MIB, _GIB = 1 << 20, 1 << 30
_GZIP = {"Content-Encoding": "gzip"}


def _label(size: int) -> bytes:
    return _recorded(HEALTHY)[0] + b'vllm:num_requests_running{engine="9",model_name="%s"} 1.0\n' % (
        b"x" * size
    )


def _packed(page: bytes) -> Handler:
    return always(gzip.compress(page), headers=_GZIP)


async def _sends_a_bomb(_: Asked, writer: asyncio.StreamWriter) -> None:
    await send(writer, _bomb(), headers=_GZIP)


@cache
def _bomb() -> bytes:
    """A GiB of empty lines as gzip. After a full flush each MiB packs into the same bytes, so one is packed."""
    piece, packer, crc = b"\n" * _MIB, zlib.compressobj(9, zlib.DEFLATED, -zlib.MAX_WBITS), 0
    packed = packer.compress(piece) + packer.flush(zlib.Z_FULL_FLUSH)
    for _ in range(_GIB // _MIB):
        crc = zlib.crc32(piece, crc)
    head = b"\x1f\x8b\x08" + bytes(6) + b"\xff"
    return head + packed * (_GIB // _MIB) + packer.flush() + struct.pack("<II", crc, _GIB)


FAULTS: tuple[Fault, ...] = (
    Fault("silent", "takes the request and says nothing", ("timeout",), _silent),
    Fault("hangs", "hangs after the headers", ("timeout",), _hangs),
    Fault("drips", "a byte a second", ("timeout",), _drips),
    Fault("continues", "100 Continue without end", ("timeout",), _continues),
    Fault("headers", "200,000 headers", ("connection", "timeout"), _headers),
    Fault(
        "two-gigabytes",
        "a body of 2 GB",
        ("too_large", "timeout"),
        _streams(b"# " + b"x" * 65_533 + b"\n", 2 * _GIB >> 16),
    ),
    Fault("five-million", "5 million samples", ("too_large", "timeout"), _streams(_SAMPLES, 500)),
    Fault("many-samples", "200,000 samples in 9 MB", ("too_large", "timeout"), always(_MANY)),
    Fault("label-20mb", "a label of 20 MB", ("too_large", "timeout"), always(_label(20_000_000))),
    Fault("label-2mb", "a label of 2 MB", ("too_large",), always(_label(2_000_000))),
    Fault(
        "utf-8",
        "bytes that are not UTF-8",
        ("malformed",),
        always(_recorded(HEALTHY)[0].replace(b"tiny", b"\xff\xfe")),
    ),
    Fault("gzip-unasked", "gzip, which was not asked for", (), _packed(_recorded(HEALTHY)[5]), known=True),
    Fault("gzip-bomb", "1 GB in 1 MB of gzip", ("too_large",), _sends_a_bomb),
    Fault(
        "gzip-broken",
        "gzip that is none",
        ("malformed",),
        always(b"no", headers={"Content-Encoding": "gzip"}),
    ),
    Fault(
        "brotli",
        "an encoding that was not asked for",
        ("malformed",),
        always(b"?", headers={"Content-Encoding": "br"}),
    ),
    Fault(
        "redirect",
        "a redirect to another host",
        ("http_status",),
        always(b"", "302 Found", {"Location": "http://127.0.0.2:1/metrics"}),
    ),
    Fault(
        "redirects",
        "redirects to itself, without end",
        ("http_status",),
        always(b"", "302 Found", {"Location": "/redirects/metrics/"}),
    ),
    Fault(
        "error-500",
        "HTTP 500, with a page of a megabyte",
        ("http_status",),
        always(b"x" * 1_000_000, "500 Oh"),
    ),
    Fault(
        "html",
        "200 with a page for people",
        ("not_vllm",),
        always(b"<html>hello</html>", headers={"Content-Type": "text/html"}),
    ),
    Fault("json", "200 with JSON", ("not_vllm", "malformed"), always(b'{"object": "list"}\n')),
    Fault(
        "content-type",
        "the right page as image/png",
        (),
        always(_recorded(HEALTHY)[5], headers={"Content-Type": "image/png"}),
        known=True,
    ),
    Fault("empty", "200 and nothing", ("empty",), always(b"")),
    Fault("cut", "the connection cut in the middle of the page", ("connection",), _cuts),
    Fault("reset", "connections reset", ("connection",), _resets),
    Fault("ssh", "something that speaks no HTTP", ("connection",), _chatters),
    Fault("twice", "every series twice, with two values", (), Recorded(HEALTHY, contradictory)),
    Fault("nan", "NaN everywhere", (), Recorded(HEALTHY, lambda page: _numbers(page, lambda _: "NaN"))),
    Fault("backwards", "counters that run backwards", (), Recorded(HEALTHY, Backwards()), known=True),
    Fault(
        "odd-name",
        "a model name with quotes and line breaks",
        (),
        Recorded(HEALTHY, lambda page: of_engines(page, [(r"a\"b\nc\\d{e}=\" 1", "0")])),
        known=True,
    ),
    Fault(
        "engines-64",
        "64 engines",
        (),
        Recorded(TWO_ENGINES, lambda page: of_engines(page, [("m", str(n)) for n in (0, *range(2, 65))])),
        known=True,
    ),
    Fault(
        "come-and-go", "four engines, other ones at every look", (), Recorded(HEALTHY, Passing()), known=True
    ),
    Fault("restarts", "a new process every 10 s, away for 5", ("connection",), Restarting()),
)


class Neighbourhood:
    """All of them behind one port, and one that is always good, at ``/NAME/metrics``; bad while `bad` is set."""

    def __init__(self) -> None:
        self.bad = False
        self.port = 0
        self._good = {name: Recorded(HEALTHY) for name in ("good", *(one.name for one in FAULTS))}
        self._bad = {one.name: one.handler for one in FAULTS}
        self._loop = asyncio.new_event_loop()
        self._end = asyncio.Event()
        self.answered: dict[str, float] = {}
        """When each first gave a whole good page since `answered` was last cleared."""

    def url(self, name: str) -> str:
        return f"http://127.0.0.1:{self.port}/{name}/metrics"

    async def __call__(self, asked: Asked, writer: asyncio.StreamWriter) -> None:
        name = asked.path.split("/")[1]
        bad = self._bad.get(name) if self.bad else None
        if bad is not None:
            await bad(asked, writer)
        elif asked.path.rstrip("/").endswith("/metrics"):
            await self._good[name](asked, writer)
            self.answered.setdefault(name, time.monotonic())
        else:
            await send(writer, b"{}", "404 Not Found")

    async def _serve(self, serves: threading.Event) -> None:
        async with serving(self) as server:
            self.port = server.port
            serves.set()
            await self._end.wait()

    @contextlib.contextmanager
    def open(self) -> Iterator[Neighbourhood]:
        """Serves while the block runs, from a thread of its own."""
        serves = threading.Event()
        thread = threading.Thread(target=self._loop.run_until_complete, args=(self._serve(serves),))
        thread.start()
        try:
            assert serves.wait(10)
            yield self
        finally:
            self._loop.call_soon_threadsafe(self._end.set)
            thread.join()
            self._loop.close()
