"""What watching costs a real vLLM under load: ``make bench-live``. Opt-in.

Start a vLLM on this machine that `--url` and `--pid` name (the process of its API server), for instance
``vllm serve MODEL --max-model-len 2048 --max-num-seqs 16``. Clients in a closed loop stream answers from it while it
is not watched, watched every second, and watched five times a second, in turn and again, so that what else happens on
the machine falls on all three alike. Of each turn: the processor time of the API server per generated token, the time
to the first token and between tokens.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from urllib.parse import urlsplit

import httpx
from tqdm import tqdm

from tests.benchmarks.costs import cpu_s
from tests.benchmarks.rows import HISTORY, Row, remember, table
from tests.support.stack import free_port, kvwatch

#: How often the server is watched, seconds; None not at all.
WATCHES: dict[str, float | None] = {"not watched": None, "every 1 s": 1.0, "every 0.2 s": 0.2}
_SETTLE_S = 4.0


@dataclass(frozen=True)
class Live:
    """The server, and its load."""

    url: str
    pid: int
    model: str
    clients: int


@dataclass
class Served:
    """What clients saw: seconds to each first token and between tokens."""

    first: list[float] = field(default_factory=list)
    between: list[float] = field(default_factory=list)
    server_s: float = 0.0
    watcher_s: float = 0.0
    seconds: float = 0.0

    @property
    def tokens(self) -> int:
        return len(self.first) + len(self.between)


async def stream(host: str, port: int, model: str, served: Served, seed: int) -> None:
    """One request whose answer is streamed, token by token."""
    asked = {
        "model": model,
        "prompt": [300 + (seed * 31 + n * 7) % 3000 for n in range(64)],
        "max_tokens": 64,
        "ignore_eos": True,
        "stream": True,
    }
    body = json.dumps(asked).encode()
    head = f"POST /v1/completions HTTP/1.1\r\nHost: {host}\r\nContent-Type: application/json\r\nConnection: close\r\n"
    reader, writer = await asyncio.open_connection(host, port)
    try:
        last, first = time.perf_counter(), True
        writer.write(f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body)
        while line := await reader.readline():
            if line.startswith(b"data: {"):
                now = time.perf_counter()
                (served.first if first else served.between).append(now - last)
                last, first = now, False
    finally:
        writer.close()


async def load(live: Live, seconds: float, served: Served) -> None:
    """Clients in a closed loop, for so long; then they finish what they began."""
    where, end = urlsplit(live.url), time.perf_counter() + seconds

    async def client(seed: int) -> None:
        while time.perf_counter() < end:
            await stream(where.hostname or "127.0.0.1", where.port or 80, live.model, served, seed)
            seed += live.clients

    await asyncio.gather(*(client(seed) for seed in range(live.clients)))


def turn(live: Live, every: float | None, seconds: float) -> Served:
    """A turn of load, watched so often."""
    served = Served()
    with ExitStack() as running, tempfile.TemporaryDirectory() as folder:
        watcher = None
        if every is not None:
            paced = (f"--interval={every:g}", f"--port={free_port()}", "--host=127.0.0.1", "--gpu=off")
            watcher = running.enter_context(
                kvwatch(Path(folder) / "log", "run", f"--targets={live.url}", *paced)
            )
            time.sleep(_SETTLE_S)
        began, before = time.perf_counter(), cpu_s(live.pid)
        mine = cpu_s(watcher.pid) if watcher else 0.0
        asyncio.run(load(live, seconds, served))
        served.server_s = cpu_s(live.pid) - before
        served.watcher_s = cpu_s(watcher.pid) - mine if watcher else 0.0
        served.seconds = time.perf_counter() - began
    return served


def number(served: Served, of: str) -> float:
    """One number of a turn, seconds."""
    if of == "server":
        return served.server_s / served.tokens
    seconds = sorted(served.first if of == "TTFT" else served.between)
    return seconds[int(len(seconds) * (0.99 if of == "p99 ITL" else 0.5))]


def rows(found: dict[str, list[Served]]) -> Iterator[Row]:
    """Each turn beside that of its round that was not watched: the median of these ratios, and all of them."""
    for how, turns in found.items():
        if how == "not watched":
            continue
        for of, name in (
            ("server", "processor time of the API server a token"),
            ("ITL", "median time between tokens"),
            ("p99 ITL", "p99 of the time between tokens"),
            ("TTFT", "median time to first token"),
        ):
            alone = [number(one, of) for one in found["not watched"]]
            watched = [number(one, of) for one in turns]
            ratios = [one / other for one, other in zip(watched, alone, strict=True)]
            told = ", ".join(f"{ratio:.2f}" for ratio in ratios)
            detail = f"medians {median(alone) * 1e3:.2f} and {median(watched) * 1e3:.2f} ms; by round {told}"
            yield Row(f"live vLLM, watched {how} / not watched: {name}", median(ratios), "", detail)
        own = median(one.watcher_s / one.seconds for one in turns)
        yield Row(
            f"live vLLM, watched {how}: processor time of kvwatch", own * 1e3, "ms/s", f"{len(turns)} turns"
        )


def main() -> int:
    options = argparse.ArgumentParser(description="What watching costs a real vLLM under load.")
    options.add_argument("--url", default="http://127.0.0.1:8000")
    options.add_argument("--pid", type=int, required=True, help="of the process of vLLM's API server")
    options.add_argument("--rounds", type=int, default=5)
    options.add_argument("--seconds", type=float, default=15.0, help="of each turn")
    options.add_argument("--clients", type=int, default=4)
    chosen = options.parse_args()
    model = str(httpx.get(f"{chosen.url}/v1/models", timeout=10).json()["data"][0]["id"])
    found: dict[str, list[Served]] = {how: [] for how in WATCHES}
    live = Live(chosen.url, chosen.pid, model, chosen.clients)
    turn(live, None, chosen.seconds / 2)  # its caches are warm from here on
    for n in tqdm(range(chosen.rounds), disable=not sys.stderr.isatty(), unit="round"):
        first = n % len(WATCHES)  # who comes first in a round changes
        for how in (*list(WATCHES)[first:], *list(WATCHES)[:first]):
            found[how].append(turn(live, WATCHES[how], chosen.seconds))
    told = list(rows(found))
    remember(told)
    print(table(told))
    print(f"\nremembered in {HISTORY}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
