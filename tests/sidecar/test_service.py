"""The whole service on real sockets: it serves at once, stops at once, and says in a line why it can't start."""

from __future__ import annotations

import asyncio
import contextlib
import io
import logging
import os
import resource
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest

from kvwatch.settings import Settings, TargetSettings
from kvwatch.sidecar.daemon_threads import DnsExecutor
from kvwatch.sidecar.http_client import ClientError
from kvwatch.sidecar.service import serve
from kvwatch.sidecar.serving.hardening.bounded_socket import BoundedSocket
from kvwatch.sidecar.serving.hardening.connection import Connection
from kvwatch.sidecar.serving.http_server import listen
from tests.support.certificates import self_signed
from tests.support.loopback import Loopback, VllmLike, pages, serving
from tests.support.machine import has_ipv6
from tests.support.waiting import until

HEALTHY = "0.32.0--b-healthy.jsonl.gz"
TWO_ENGINES = "0.32.0--j-data-parallel-2.jsonl.gz"
NOBODY = "http://localhost:1/metrics"


@dataclass
class Running:
    """A service that serves; `end` is its exit code, once it ended."""

    url: str
    stop: asyncio.Event
    end: asyncio.Task[int]

    async def stopped(self) -> float:
        """Stops it and gives the seconds that took."""
        started = time.monotonic()
        self.stop.set()
        assert await asyncio.wait_for(asyncio.shield(self.end), 5) == 0
        return time.monotonic() - started


def settings_of(*targets: str, **more: Any) -> Settings:
    named = [TargetSettings(name=f"vllm-{n}", url=url) for n, url in enumerate(targets)]
    return Settings.model_validate(
        {"targets": named, "host": "127.0.0.1", "port": 0, "interval_s": 0.1} | more
    )


@asynccontextmanager
async def running(settings: Settings) -> AsyncIterator[Running]:
    stop, ready = asyncio.Event(), asyncio.get_running_loop().create_future()
    end = asyncio.create_task(serve(settings, stop=stop, ready=ready.set_result))
    url = await asyncio.wait_for(ready, 20)
    service = Running(url, stop, end)
    try:
        yield service
    finally:
        stop.set()
        await end


async def once_up(client: httpx.AsyncClient, url: str, ups: list[bool]) -> dict[str, Any]:
    """The state, once the targets are up and down as they should be."""
    state: dict[str, Any] = {}
    for _ in range(400):
        state = (await client.get(f"{url}/api/v1/state")).json()
        if [target["up"] for target in state["targets"]] == ups:
            return state
        await asyncio.sleep(0.02)
    raise AssertionError(state)


def test_it_watches_every_target() -> None:
    async def run() -> tuple[dict[str, Any], str]:
        async with (
            serving(VllmLike(pages(HEALTHY))) as one,
            serving(VllmLike(pages(TWO_ENGINES))) as two,
            running(settings_of(one.url, two.url)) as service,
            httpx.AsyncClient() as client,
        ):
            state = await once_up(client, service.url, [True, True])
            return state, (await client.get(f"{service.url}/metrics")).text

    state, metrics = asyncio.run(run())
    assert [len(target["engines"]) for target in state["targets"]] == [1, 2]
    assert 'kvwatch_up{target="vllm-0"} 1.0' in metrics
    assert 'kvwatch_up{target="vllm-1"} 1.0' in metrics


def test_one_target_that_hangs_holds_up_no_other_and_not_the_serving() -> None:
    async def run() -> dict[str, Any]:
        async def hangs(*_: object) -> None:
            await asyncio.sleep(5)

        async with (
            serving(hangs) as one,
            serving(VllmLike(pages(HEALTHY))) as two,
            running(settings_of(one.url, two.url)) as service,
            httpx.AsyncClient() as client,
        ):
            return await once_up(client, service.url, [False, True])

    slow, quick = asyncio.run(run())["targets"]
    assert slow["failure"]["kind"] == "timeout"
    assert quick["scrapes"]["ok"] >= 1


def test_it_serves_while_there_is_no_vllm_and_notices_when_there_is() -> None:
    async def run() -> None:
        with socket.socket() as sock:
            sock.bind(("127.0.0.1", 0))
            port = sock.getsockname()[1]
        async with (
            running(settings_of(f"http://127.0.0.1:{port}/metrics")) as service,
            httpx.AsyncClient() as client,
        ):
            assert (await client.get(f"{service.url}/readyz")).status_code == 200
            assert "kvwatch_up" in (await client.get(f"{service.url}/metrics")).text
            vllm = VllmLike(pages(HEALTHY))

            async def handler(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
                await reader.readuntil(b"\r\n\r\n")
                writer.write(b"HTTP/1.1 200 OK\r\nConnection: close\r\n\r\n" + vllm.recorded[0])
                writer.close()

            server = await asyncio.start_server(handler, "127.0.0.1", port)
            await once_up(client, service.url, [True])
            server.close()

    asyncio.run(run())


def test_it_stops_within_a_second_whoever_holds_connections() -> None:
    async def run() -> float:
        async with (
            serving(VllmLike(pages(HEALTHY))) as vllm,
            running(settings_of(vllm.url)) as service,
            httpx.AsyncClient() as client,
        ):
            await client.get(f"{service.url}/metrics")  # kept open
            port = httpx.URL(service.url).port
            _, silent = await asyncio.open_connection("127.0.0.1", port)  # never asks
            _, half = await asyncio.open_connection("127.0.0.1", port)
            half.write(b"GET /metrics HTTP/1.1\r\nHost: x\r\n")  # never ends its question
            _, greedy = await asyncio.open_connection("127.0.0.1", port)
            greedy.write(b"GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n" * 200)  # never reads an answer
            await asyncio.sleep(0.1)
            took = await service.stopped()
            for writer in (silent, half, greedy):
                writer.close()
            return took

    assert asyncio.run(run()) < 1.0


def test_it_stops_while_its_target_hangs() -> None:
    async def hangs(*_: object) -> None:
        await asyncio.sleep(5)

    async def run() -> float:
        async with serving(hangs) as vllm, running(settings_of(vllm.url, interval_s=10)) as service:
            await asyncio.sleep(0.05)
            return await service.stopped()

    assert asyncio.run(run()) < 1.0


@contextmanager
def process_of(program: str) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """A program that serves, as a process of its own, and the URL that it prints."""
    with subprocess.Popen(
        [sys.executable, "-W", "error", "-c", program],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdout is not None
        yield process, process.stdout.readline().strip()


def ended(process: subprocess.Popen[str], one: signal.Signals) -> tuple[str, float]:
    """What a process logged that was told to end, and how many seconds it took."""
    assert process.stderr is not None
    started = time.monotonic()
    process.send_signal(one)
    assert process.wait(timeout=20) == 0
    return process.stderr.read(), time.monotonic() - started


_HANGING_NAMES = """
import socket, sys, time
real = socket.getaddrinfo
def hangs(host, *more, **named):
    if str(host).endswith(".invalid"):
        time.sleep(30)
    return real(host, *more, **named)
socket.getaddrinfo = hangs
"""


@pytest.mark.parametrize("one", [signal.SIGTERM, signal.SIGINT])
def test_it_stops_while_names_are_looked_up_that_nobody_answers(one: signal.Signals) -> None:
    """Stopped and gone: the interpreter does not wait for the threads either."""
    targets = "http://a.invalid:1/metrics,http://b.invalid:1/metrics"
    program = _HANGING_NAMES + _PROGRAM.replace(NOBODY, targets)

    def both_down(url: str) -> bool:
        targets_now = httpx.get(f"{url}/api/v1/state").json()["targets"]
        return [target["up"] for target in targets_now] == [False, False]

    with process_of(program) as (process, url):
        until("look-up given up", lambda: both_down(url), within_s=20)
        logged, took = ended(process, one)
    assert took < 5, took  # on a machine that may be busy; the look-ups take 30
    assert "Traceback" not in logged


def test_look_ups_that_nobody_answers_do_not_pile_up() -> None:
    async def run() -> None:
        held = threading.Event()
        lookups = DnsExecutor(most=2)
        loop = asyncio.get_running_loop()
        hanging = [loop.run_in_executor(lookups, held.wait) for _ in range(2)]
        with pytest.raises(socket.gaierror, match="too many look-ups"):
            await loop.run_in_executor(lookups, held.wait)
        hanging[0].cancel()
        held.set()
        assert await hanging[1]
        for _ in range(100):
            await asyncio.sleep(0.01)
            with contextlib.suppress(socket.gaierror):
                assert await loop.run_in_executor(lookups, int, "7") == 7
                break
        with pytest.raises(ValueError, match="invalid literal"):
            await loop.run_in_executor(lookups, int, "x")

    asyncio.run(run())


# -- many connections -------------------------------------------------------------------------------------------

_CROWDED = """
import resource
resource.setrlimit(resource.RLIMIT_NOFILE, (128, 128))
"""


async def lines_until(words: bytes, stream: asyncio.StreamReader) -> bytes:
    """What is written up to the line with these words, which must come within ten seconds."""
    said = b""
    async with asyncio.timeout(10):
        while words not in said:
            line = await stream.readline()
            assert line, f"it ended without {words!r}"
            said += line
    return said


@pytest.mark.parametrize("says", [b"", b"GET /metrics HTTP/1.1\r\nHost: x\r\n"])
@pytest.mark.parametrize("tls", [False, True])
def test_a_flood_of_connections_that_ask_nothing_keeps_nobody_out(
    says: bytes, tls: bool, tmp_path: Path
) -> None:
    async def run(url: str, vllm: Loopback) -> None:
        port = httpx.URL(url).port
        assert port is not None
        flood = []
        async with httpx.AsyncClient(verify=False) as client:  # noqa: S501
            for _ in range(300):
                sock = socket.socket()
                sock.setblocking(False)
                with contextlib.suppress(BlockingIOError):
                    sock.connect(("127.0.0.1", port))
                flood.append(sock)
            await asyncio.sleep(0.3)
            for sock in flood:
                with contextlib.suppress(OSError):
                    sock.send(says)
            asked = len(vllm.asked)
            for _ in range(10):
                assert (await client.get(f"{url}/healthz", timeout=5)).status_code == 200
                await asyncio.sleep(0.05)
            state = (await client.get(f"{url}/api/v1/state", timeout=5)).json()
            assert state["targets"][0]["up"]
            for _ in range(100):
                if len(vllm.asked) > asked + 3:
                    break
                await asyncio.sleep(0.05)
            assert len(vllm.asked) > asked + 3
        for sock in flood:
            sock.close()

    async def around() -> str:
        async with serving(VllmLike(pages(HEALTHY))) as vllm:
            extra = ""
            if tls:
                cert, key = self_signed(tmp_path)
                extra = f"tls_key={str(key)!r}, tls_cert={str(cert)!r}, "
            program = _CROWDED + _PROGRAM.replace(NOBODY, vllm.url).replace(
                "port=0", f"port=0, {extra}interval_s=0.1"
            )
            process = await asyncio.create_subprocess_exec(
                sys.executable, "-c", program, stdout=subprocess.PIPE, stderr=subprocess.PIPE
            )
            assert process.stdout is not None
            assert process.stderr is not None
            said = b""
            try:
                url = (await process.stdout.readline()).decode().strip()
                await run(url, vllm)
                said = await lines_until(b"too many connections", process.stderr)  # told of now and then
            finally:
                process.send_signal(signal.SIGTERM)
                _, rest = await process.communicate()
            assert process.returncode == 0
            return (said + rest).decode()

    logged = asyncio.run(around())
    assert logged.count("\n") < 20, logged[:3000]
    assert "too many connections" in logged
    assert "Traceback" not in logged


@pytest.mark.parametrize(
    ("says", "status"),
    [
        (b"GET /healthz HTTP/1.1\r\nHost: x\r\nX: " + b"x" * 40_000 + b"\r\n\r\n", b"431"),
        (b"GET /" + b"x" * 40_000 + b" HTTP/1.1\r\nHost: x\r\n\r\n", b"431"),
        (b"GET /healthz HTTP/1.1\r\nHost: x\r\n" + b"a: 1\r\n" * 150 + b"\r\n", b"431"),
        (b"POST /healthz HTTP/1.1\r\nHost: x\r\nContent-Length: 9000000000\r\n\r\n" + b"x" * 60_000, b"405"),
    ],
    ids=["a header of 40 kB", "a path of 40 kB", "150 headers", "a body of 9 GB"],
)
def test_a_request_that_is_too_large_is_refused_at_once(says: bytes, status: bytes) -> None:
    async def run() -> tuple[bytes, int]:
        async with running(settings_of(NOBODY)) as service, httpx.AsyncClient() as client:
            reader, writer = await asyncio.open_connection("127.0.0.1", httpx.URL(service.url).port)
            writer.write(says)
            answer = await asyncio.wait_for(reader.readuntil(b"\r\n"), 5)
            writer.close()
            return answer, (await client.get(f"{service.url}/healthz")).status_code

    answer, still = asyncio.run(run())
    assert answer.split()[1] == status
    assert still == 200


@pytest.mark.parametrize(
    ("says", "ends"),
    [
        (b"", True),
        (b"GET /healthz HTTP/1.1\r\nHost: x\r\n", True),
        (b"POST /healthz HTTP/1.1\r\nHost: x\r\nContent-Length: 9\r\n\r\n", True),
        (b"GET /healthz HTTP/1.1\r\nHost: x\r\n\r\nGET /", True),
        (b"GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n", False),
    ],
)
def test_a_connection_that_does_not_send_a_whole_request_in_time_is_closed(
    says: bytes, ends: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Connection, "request_s", 0.3)

    async def run() -> bool:
        async with running(settings_of(NOBODY)) as service:
            reader, writer = await asyncio.open_connection("127.0.0.1", httpx.URL(service.url).port)
            writer.write(says)
            try:
                await asyncio.wait_for(reader.read(), 1.0)
            except TimeoutError:
                return False
            except ConnectionError:
                return True
            finally:
                writer.close()
            return True

    assert asyncio.run(run()) is ends


def test_a_connection_that_does_not_read_its_answer_is_closed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Connection, "read_s", 0.3)

    async def run() -> None:
        async with running(settings_of(NOBODY)) as service:
            sock = socket.socket()
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            sock.connect(("127.0.0.1", httpx.URL(service.url).port))
            sock.setblocking(False)
            sock.send(b"GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n" * 500)
            for _ in range(100):
                await asyncio.sleep(0.05)
                try:
                    sock.send(b"G")
                except (ConnectionError, BrokenPipeError):
                    break
                except BlockingIOError:
                    continue
            else:
                raise AssertionError("it is still open")
            sock.close()

    asyncio.run(run())


def test_room_is_made_by_who_waits_longest_and_is_not_being_answered() -> None:
    listener = BoundedSocket(listen("127.0.0.1", 0), most=3)
    with contextlib.ExitStack() as held:
        held.callback(listener.close)
        clients: list[socket.socket] = []
        taken: list[socket.socket] = []
        listener.busy = lambda: {taken[0].fileno()}
        for _ in range(4):
            clients.append(held.enter_context(socket.create_connection(listener.getsockname(), timeout=2)))
            taken.append(held.enter_context(listener.accept()[0]))
        assert clients[1].recv(1) == b""
        listener.known = lambda: {taken[0].fileno()}
        listener.sweep(60.0)
        listener.sweep(0.0)  # handshakes that take too long
        assert [client.recv(1) for client in clients[2:]] == [b"", b""]
        clients[0].settimeout(0.05)
        with pytest.raises(TimeoutError):
            clients[0].recv(1)
        listener.busy = lambda: {one.fileno() for one in taken}
        clients.append(held.enter_context(socket.create_connection(listener.getsockname(), timeout=2)))
        with pytest.raises(BlockingIOError):
            listener.accept()
        assert clients[-1].recv(1) == b""
    assert listener.closed_connections == 2


def test_without_a_file_descriptor_left_a_connection_is_taken_and_closed() -> None:
    listener = listen("127.0.0.1", 0)
    listener.setblocking(False)
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    with socket.create_connection(listener.getsockname()) as client:
        used = max(int(path.name) for path in Path("/proc/self/fd").iterdir())
        fillers = []
        try:
            resource.setrlimit(resource.RLIMIT_NOFILE, (used + 1, before[1]))
            with contextlib.suppress(OSError):
                while True:
                    fillers.append(os.open(os.devnull, os.O_RDONLY))
            with pytest.raises(BlockingIOError):
                listener.accept()
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, before)
            for filler in fillers:
                os.close(filler)
        client.settimeout(2)
        assert client.recv(1) == b""
    assert listener.closed_connections == 1
    listener.close()


def told(capsys: pytest.CaptureFixture[str]) -> str:
    line: str = capsys.readouterr().err
    assert line.count("\n") == 1, line
    assert "Traceback" not in line
    return line


def test_a_port_in_use_is_one_line_and_exit_code_2(capsys: pytest.CaptureFixture[str]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        assert asyncio.run(serve(settings_of(NOBODY, port=port))) == 2
        line = told(capsys)
    assert f"127.0.0.1:{port}" in line
    assert "in use" in line


@pytest.mark.parametrize("host", ["no.such.host.invalid", "192.0.2.1"])
def test_an_address_that_is_not_ours_is_one_line_and_exit_code_2(
    host: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert asyncio.run(serve(settings_of(NOBODY, host=host))) == 2
    assert host in told(capsys)


def test_a_certificate_that_is_none_is_one_line_and_exit_code_2(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (bad := tmp_path / "cert.pem").write_text("no certificate")
    assert asyncio.run(serve(settings_of(NOBODY, tls_cert=bad, tls_key=bad))) == 2
    assert str(bad) in told(capsys)


def test_certificates_of_a_target_that_are_none_are_one_line_and_exit_code_2(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (bad := tmp_path / "ca.pem").write_text("no certificate")
    target = TargetSettings(name="a", url="https://localhost:1/metrics", ca_file=bad)
    settings = settings_of(NOBODY).model_copy(update={"targets": [target]})
    assert asyncio.run(serve(settings)) == 2
    line = told(capsys)
    assert str(bad) in line
    assert "target a" in line


def test_it_serves_over_tls(tmp_path: Path) -> None:
    cert, key = self_signed(tmp_path)

    async def run() -> int:
        async with (
            running(settings_of(NOBODY, tls_cert=cert, tls_key=key)) as service,
            httpx.AsyncClient(verify=False) as client,  # noqa: S501 - its own certificate
        ):
            assert service.url.startswith("https://")
            return (await client.get(f"{service.url}/metrics")).status_code

    assert asyncio.run(run()) == 200


def test_it_serves_on_ipv6_or_says_that_it_cannot() -> None:
    settings = settings_of(NOBODY, host="::1")

    async def run() -> int:
        async with running(settings) as service, httpx.AsyncClient() as client:
            return (await client.get(f"{service.url}/healthz")).status_code

    if has_ipv6():
        assert asyncio.run(run()) == 200
    else:
        assert asyncio.run(serve(settings)) == 2


def test_requests_are_not_logged_and_broken_ones_break_nothing() -> None:
    async def run() -> str:
        async with running(settings_of(NOBODY)) as service, httpx.AsyncClient() as client:
            logged = io.StringIO()
            handler = logging.getLogger("kvwatch").handlers[0]
            assert isinstance(handler, logging.StreamHandler)
            handler.setStream(logged)
            reader, writer = await asyncio.open_connection("127.0.0.1", httpx.URL(service.url).port)
            writer.write(b"\x16\x03\x01 nonsense\r\n\r\n")
            await reader.read()
            writer.close()
            for _ in range(5):
                assert (await client.get(f"{service.url}/metrics")).status_code == 200
            return logged.getvalue()

    assert "/metrics" not in asyncio.run(run()).replace(NOBODY, "")


_PROGRAM = """
import asyncio, sys
from kvwatch.settings import Settings
from kvwatch.sidecar.service import serve
settings = Settings(host="127.0.0.1", port=0, targets="http://localhost:1/metrics")
sys.exit(asyncio.run(serve(settings, ready=lambda url: print(url, flush=True))))
"""


@pytest.mark.parametrize("one", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_stops_it_cleanly(one: signal.Signals) -> None:
    with process_of(_PROGRAM) as (process, url):
        assert httpx.get(f"{url}/healthz").status_code == 200
        logged, _ = ended(process, one)
    assert "kvwatch stops" in logged
    assert "Traceback" not in logged


def test_the_service_imports_nothing_that_only_commands_for_people_need() -> None:
    script = "import sys, kvwatch.sidecar.service; print(*{name.partition('.')[0] for name in sys.modules})"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert "httpx" in done.stdout.split()
    assert not {"rich", "pygments", "yaml", "tqdm"} & set(done.stdout.split())


@pytest.mark.parametrize("host", ["\udcff", "a\0b", f"{'a' * 70}.example", "no such host"])
def test_what_can_be_no_host_is_said_in_a_line(host: str) -> None:
    with pytest.raises(ClientError, match="choose another with --host and --port"):
        listen(host, 0)
