"""Starts replicas of vLLM's routes as processes, and proxies before them that are in the way."""

from __future__ import annotations

import contextlib
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import httpx

from tests.support.stack import answers
from tests.support.waiting import until

ROOT = Path(__file__).parents[3]


@dataclass(frozen=True)
class Replica:
    """A running replica: its address and its process."""

    url: str
    process: subprocess.Popen[str]


@contextmanager
def replica(
    *, engines: int = 1, processes: int = 1, slow: bool = False, folder: Path | None = None
) -> Iterator[Replica]:
    """A server with vLLM's routes while the block runs; `folder` is where several processes share their numbers."""
    command = [
        sys.executable,
        "-m",
        "tests.support.replica.server",
        f"--engines={engines}",
        f"--processes={processes}",
    ]
    env = {"PROMETHEUS_MULTIPROC_DIR": str(folder)} if folder else {}
    if slow:
        command.append("--slow")
    with subprocess.Popen(command, cwd=ROOT, env=env, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            url = process.stdout.readline().strip()
            until("answer of the replica", lambda: answers(f"{url}/metrics"), 60)
            yield Replica(url, process)
        finally:
            process.terminate()


#: What a proxy makes of a path with its query: what it asks for instead, and where it sends the client, if it does.
Rewrite = Callable[[str], tuple[str, str]]


def passes(path: str) -> tuple[str, str]:
    """A proxy that leaves everything as it is."""
    return path, ""


def drops_the_query(path: str) -> tuple[str, str]:
    """A proxy that asks for the path alone, as a rewrite rule does that forgets the rest."""
    return path.partition("?")[0], ""


def strips_the_slash(path: str) -> tuple[str, str]:
    """A proxy that asks without the slash at the end, with the query."""
    where, mark, query = path.partition("?")
    return where.rstrip("/") + mark + query, ""


def redirects_the_slash(path: str) -> tuple[str, str]:
    """A proxy that sends who asks with the slash to the address without it."""
    where, mark, query = path.partition("?")
    return path, where.rstrip("/") + mark + query if where.endswith("/") else ""


@contextmanager
def proxy(behind: str, rewrite: Rewrite) -> Iterator[tuple[str, list[str]]]:
    """A proxy before a server: its address, and what it was asked for so far."""
    asked: list[str] = []

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            asked.append(self.path)
            path, elsewhere = rewrite(self.path)
            if elsewhere:
                self._send(308, b"", {"Location": elsewhere})
                return
            answer = client.get(f"{behind}{path}", headers={"Accept": self.headers.get("Accept", "*/*")})
            self._send(answer.status_code, answer.content, {"Content-Type": answer.headers["content-type"]})

        def _send(self, status: int, body: bytes, headers: dict[str, str]) -> None:
            self.send_response(status)
            for name, value in {**headers, "Content-Length": str(len(body))}.items():
                self.send_header(name, value)
            self.end_headers()
            with contextlib.suppress(ConnectionError):  # who asked has given up
                self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            """Says nothing."""

    with httpx.Client(timeout=10) as client, ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        server.daemon_threads = True
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}", asked
        finally:
            server.shutdown()
            thread.join(10)
