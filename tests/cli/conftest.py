"""Real processes and real HTTP on loopback: the kvwatch command, and a recording played back as a server."""

import asyncio
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from kvwatch.playback import Playback
from kvwatch.recording import read

ROOT = Path(__file__).resolve().parents[2]
RECORDINGS = ROOT / "tests" / "replay" / "recordings"

Kvwatch = Callable[..., subprocess.CompletedProcess[str]]
Serve = Callable[..., str]


@pytest.fixture(scope="session")
def command() -> list[str]:
    return [sys.executable, "-W", "error", "-m", "kvwatch"]


@pytest.fixture(scope="session")
def environ() -> dict[str, str]:
    """The environment without settings of kvwatch, so that the machine's own do not count."""
    return {name: value for name, value in os.environ.items() if not name.startswith("KVWATCH_")}


@pytest.fixture
def kvwatch(command: list[str], environ: dict[str, str]) -> Kvwatch:
    def run(*words: object, timeout: float = 60, **variables: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [*command, *map(str, words)],
            capture_output=True,
            text=True,
            timeout=timeout,
            env=environ | variables,
            check=False,
        )

    return run


@pytest.fixture
def unread(command: list[str], environ: dict[str, str]) -> Kvwatch:
    """Runs kvwatch with a standard output that nobody reads any more."""

    def run(*words: object) -> subprocess.CompletedProcess[str]:
        reader, writer = os.pipe()
        os.close(reader)
        try:
            return subprocess.run(
                [*command, *map(str, words)],
                stdout=writer,
                stderr=subprocess.PIPE,
                text=True,
                timeout=60,
                env=environ,
                check=False,
            )
        finally:
            os.close(writer)

    return run


@pytest.fixture
def serve() -> Iterator[Serve]:
    """Serves a recording at a speed, from so many of its seconds on; gives the URL of its metrics."""
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever)
    thread.start()
    playing: list[Playback] = []

    def start(path: Path | str, *, speed: float = 1, begin: float = 0, loop_it: bool = False) -> str:
        begun: float | None = None

        def now() -> float:
            nonlocal begun
            if begun is None:
                begun = time.monotonic()
                return 0.0
            return begin + (time.monotonic() - begun) * speed

        playback = Playback(read(path), now, loop=loop_it)
        playing.append(playback)
        return asyncio.run_coroutine_threadsafe(playback.start(), loop).result(5)

    yield start
    for playback in playing:
        asyncio.run_coroutine_threadsafe(playback.close(), loop).result(5)
    loop.call_soon_threadsafe(loop.stop)
    thread.join(5)
    loop.close()


@pytest.fixture(scope="session")
def recordings() -> Path:
    return RECORDINGS
