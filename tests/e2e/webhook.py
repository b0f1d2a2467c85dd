"""A real Alertmanager that sends what it is told to a webhook of ours."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import httpx
import yaml

from tests.support.stack import answers, free_port, process
from tests.support.waiting import until


@dataclass
class Webhook:
    """What an Alertmanager sent, each with the time it came (unix seconds)."""

    url: str
    messages: list[tuple[float, dict[str, Any]]] = field(default_factory=list)

    def first(self, alert: str, status: str) -> tuple[float, dict[str, Any]] | None:
        """The first message in which an alert of this name has this status, and that alert."""
        for at, message in list(self.messages):
            for one in message["alerts"]:
                if one["labels"]["alertname"] == alert and one["status"] == status:
                    return at, one
        return None

    def count(self, alert: str, status: str) -> int:
        """In how many messages an alert of this name has this status."""
        return sum(
            any(one["labels"]["alertname"] == alert and one["status"] == status for one in message["alerts"])
            for _, message in list(self.messages)
        )


@contextmanager
def webhook() -> Iterator[Webhook]:
    """A receiver of notifications, while the block runs."""

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            received.messages.append((time.time(), json.loads(body)))
            self.send_response(200)
            self.send_header("Content-Length", "0")
            self.end_headers()

        def log_message(self, *_: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    received = Webhook(f"http://127.0.0.1:{server.server_port}/")
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield received
    finally:
        server.shutdown()
        thread.join(10)
        server.server_close()


@dataclass
class Alertmanager:
    """A real Alertmanager that can be started and killed; the same port and storage each time.

    Without a `config` it tells the receiver of everything at once, by target and symptom.
    """

    folder: Path
    receiver: Webhook
    port: int = field(default_factory=free_port)
    config: Mapping[str, Any] | None = None

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    @contextmanager
    def running(self) -> Iterator[None]:
        """The process, ready."""
        config = self.folder / "alertmanager.yml"
        config.write_text(yaml.safe_dump(dict(self.config or self._everything())), encoding="utf-8")
        command = (
            "alertmanager",
            f"--config.file={config}",
            f"--storage.path={self.folder / 'am'}",
            f"--web.listen-address=127.0.0.1:{self.port}",
            "--cluster.listen-address=",
        )
        with process(self.folder / "alertmanager.log", *command):
            until("ready Alertmanager", lambda: answers(f"{self.url}/-/ready"), 30, 0.05)
            yield

    def _everything(self) -> dict[str, Any]:
        waits = {"group_wait": "0s", "group_interval": "1s", "repeat_interval": "1h"}
        hook = {"url": self.receiver.url, "send_resolved": True}
        return {
            "route": {"receiver": "hook", "group_by": ["target", "symptom"], **waits},
            "receivers": [{"name": "hook", "webhook_configs": [hook]}],
        }

    def alerts(self) -> list[dict[str, Any]]:
        """The alerts that it has now."""
        found: list[dict[str, Any]] = httpx.get(f"{self.url}/api/v2/alerts", timeout=5).json()
        return found
