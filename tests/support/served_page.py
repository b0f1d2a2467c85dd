"""kvwatch's application on a socket, with a store that a test fills from recordings of real servers."""

from __future__ import annotations

import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

import uvicorn

from kvwatch.core.judgement.pipeline import advance
from kvwatch.core.judgement.state import initial
from kvwatch.core.model.outcome import Failure, Scrape, ScrapeError
from kvwatch.sidecar.serving.app import build
from kvwatch.sidecar.serving.collector import registry_of
from kvwatch.sidecar.store import Store
from tests.support.loopback import TurnedClock, pages
from tests.support.stack import answers, free_port
from tests.support.waiting import until

SATURATED = "0.32.0--c-kv-saturation.jsonl.gz"
TWO_ENGINES = "0.32.0--j-data-parallel-2.jsonl.gz"
HEALTHY = "0.32.0--b-healthy.jsonl.gz"
_OF_AN_ENGINE = b'engine="0"'


@dataclass
class Served:
    """A kvwatch whose time advances by a second with each page that is played to it."""

    store: Store = field(default_factory=Store)
    clock: TurnedClock = field(default_factory=TurnedClock)
    port: int = field(default_factory=free_port)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}/"

    def play(self, bodies: list[bytes], target: str = "vllm") -> None:
        """Lets a server answer with these pages, one a second."""
        for body in bodies:
            self._take(Scrape(body, self.clock.wall() + 1, interval_s=1.0), target)

    def fail(self, seconds: int, target: str = "vllm", detail: str = "nothing listens") -> None:
        """Lets the scrapes of a server fail for so long."""
        for _ in range(seconds):
            self._take(ScrapeError(Failure.REFUSED, detail, self.clock.wall() + 1), target)

    def _take(self, outcome: Scrape | ScrapeError, target: str) -> None:
        self.clock.time += 1
        before = self.store.states().get(target) or initial(target)
        self.store.publish(*advance(before, outcome, self.clock.time))

    @contextmanager
    def serving(self) -> Iterator[None]:
        """Serves within the block, on the same port each time."""
        app = build(self.store, registry_of(self.store, self.clock), self.clock)
        config = uvicorn.Config(
            app, port=self.port, log_config=None, lifespan="off", timeout_graceful_shutdown=1
        )
        server = uvicorn.Server(config)
        thread = threading.Thread(target=server.run)
        thread.start()
        try:
            until("answer of the page", lambda: answers(f"{self.url}healthz"), 15, 0.05)
            yield
        finally:
            server.should_exit = True
            thread.join(10)


def saturated(served: Served, upto: int = 70) -> None:
    """A real server during saturation."""
    served.play(pages(SATURATED)[:upto])


def again(bodies: list[bytes]) -> list[bytes]:
    """The pages as if from a new process of the same server."""
    return [re.sub(rb"(process_start_time_seconds) \S+", rb"\1 1.9e9", body) for body in bodies]


def ranks(count: int, sick: int) -> list[bytes]:
    """A server with `count` data-parallel engines. The `sick` one is saturated; the others are nearly idle."""
    found = []
    for sick_page, healthy_page in zip(pages(SATURATED)[:72], pages(HEALTHY), strict=False):
        whole = [line for line in sick_page.splitlines() if _OF_AN_ENGINE not in line]
        own = [line for line in sick_page.splitlines() if _OF_AN_ENGINE in line]
        other = [line for line in healthy_page.splitlines() if _OF_AN_ENGINE in line]
        for rank in range(count):
            name = b'engine="%d"' % rank
            whole += [line.replace(_OF_AN_ENGINE, name) for line in (own if rank == sick else other)]
        found.append(b"\n".join(whole) + b"\n")
    return found
