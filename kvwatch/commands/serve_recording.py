"""The recorded vLLM of `kvwatch demo` alone, for a kvwatch and a Prometheus of one's own."""

from __future__ import annotations

import asyncio
import time
from importlib.resources import as_file, files
from typing import TYPE_CHECKING

from kvwatch.commands.live import stopped_by_signals
from kvwatch.commands.output import complain, print_json, say

if TYPE_CHECKING:
    from collections.abc import Callable

    from kvwatch.playback import Playback

PORT = 8000
"""Where vLLM itself serves by default."""


def playback(now: Callable[[], float], on_round: Callable[[int], None] | None = None) -> Playback:
    """The recording that comes with kvwatch as a server, played over and over by the clock `now`."""
    from kvwatch.playback import Playback
    from kvwatch.recording import read

    with as_file(files("kvwatch") / "data" / "demo.jsonl.gz") as path:
        return Playback(read(path), now, loop=True, on_round=on_round)


async def serve(host: str, port: int, seconds: float | None, *, as_json: bool) -> int:
    """Serves it at its own pace until a signal or the end of `seconds`; an exit code."""
    async with stopped_by_signals() as stop, playback(time.monotonic) as server:
        try:
            url = await server.start(host, port)
        except OSError as error:
            why = error.strerror or error
            complain(f"can't serve on {host}:{port}: {why}; choose others with --host and --port")
            return 2
        if seconds is not None:
            asyncio.get_running_loop().call_later(seconds, stop.set)
        if as_json:
            print_json({"metrics": url}, indent=None)
        else:
            say(f"A recorded vLLM serves {url} until Ctrl-C.", flush=True)
        await stop.wait()
    return 0
