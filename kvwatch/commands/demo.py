"""`kvwatch demo`: the real sidecar on a recording of a real incident, which comes with kvwatch."""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import logging
import socket
import time
from importlib.resources import as_file, files
from typing import TYPE_CHECKING, Any

from kvwatch.commands import options, terminal_text
from kvwatch.commands.live import stopped_by_signals
from kvwatch.commands.output import draw, print_error, print_json, say
from kvwatch.settings import Settings, TargetSettings

if TYPE_CHECKING:
    from collections.abc import Callable

    from kvwatch.playback import Playback

HELP = "run the sidecar on a recorded incident; needs no vLLM and no GPU"
EPILOG = """\
examples:
  kvwatch demo                 then open http://127.0.0.1:9477/
  kvwatch demo --for 20s       exits after 20 s
  kvwatch demo --server-only   the recorded vLLM alone, on port 8000, for a kvwatch and a Prometheus of your own

The recording is of a real vLLM whose KV cache runs full: requests queue, are preempted and recomputed. kvwatch plays
it at five times the real speed (with --server-only at the real speed), and watches it as `kvwatch run` does.

exit codes:
  0  ended by Ctrl-C or --for
  1  serving failed
  2  the address can't be used
"""
_SPEED = 5.0
_PORT = Settings.model_fields["port"].default
_SERVER_PORT = 8000
"""The default port of vLLM."""
_POLL_S = 0.2
_TARGET = "demo"
_NEXT = "kvwatch check http://localhost:8000"


def add(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--port",
        type=options.port,
        help=f"port to serve on (default: {_PORT}, with --server-only {_SERVER_PORT})",
    )
    parser.add_argument("--host", default="127.0.0.1", help="address to serve on (default: 127.0.0.1)")
    parser.add_argument("--server-only", action="store_true", help="serve the recorded vLLM only")
    options.add_for(parser, "exit after this time, for example 20s (default: at Ctrl-C)")
    parser.add_argument("--json", action="store_true", help="print JSON instead of text, one object per line")


def main(args: argparse.Namespace) -> int:
    try:
        return asyncio.run(_serve_recording(args) if args.server_only else _demo(args))
    except KeyboardInterrupt:
        return 0


def _playback(now: Callable[[], float], on_round: Callable[[int], None] | None = None) -> Playback:
    """The recording as a server that repeats it forever, timed by the clock `now`."""
    from kvwatch.playback import Playback
    from kvwatch.recording import read

    with as_file(files("kvwatch") / "data" / "demo.jsonl.gz") as path:
        return Playback(read(path), now, loop=True, on_round=on_round)


async def _serve_recording(args: argparse.Namespace) -> int:
    """Serves the recorded vLLM at its own speed."""
    port = _SERVER_PORT if args.port is None else args.port
    async with stopped_by_signals() as stop, _playback(time.monotonic) as server:
        try:
            url = await server.start(args.host, port)
        except OSError as error:
            why = error.strerror or error
            print_error(f"can't serve on {args.host}:{port}: {why}; choose others with --host and --port")
            return 2
        if args.seconds is not None:
            asyncio.get_running_loop().call_later(args.seconds, stop.set)
        _print(args, f"The recorded vLLM serves {url} until Ctrl-C.", metrics=url)
        await stop.wait()
    return 0


async def _demo(args: argparse.Namespace) -> int:
    from kvwatch.sidecar.clock import ScaledClock, SystemClock
    from kvwatch.sidecar.service import serve

    clock = ScaledClock(SystemClock(), _SPEED)
    playback = _playback(
        clock.now,
        lambda n: _print(
            args, "\n-- the recording starts again, which looks like a restart of vLLM --", round=n
        ),
    )
    stop = asyncio.Event()
    if args.seconds is not None:
        asyncio.get_running_loop().call_later(args.seconds, stop.set)
    wanted = _PORT if args.port is None else args.port
    port = _free_port(args.host, wanted)
    if port != wanted and wanted:
        _print(args, f"Port {wanted} is in use; using port {port}.", port_in_use=wanted, port=port)
    narrator = _Narrator(args)
    async with playback:
        url = await playback.start()
        settings = Settings(
            targets=[TargetSettings(url=url, name=_TARGET)],
            interval_s=1.0,
            timeout_s=0.9,
            duty_cycle=0.5,
            host=args.host,
            port=port,
            log_level="error",
            gpu="off",  # the recording has no GPU data, and this machine's GPUs are not the server's
        )
        tasks: list[asyncio.Task[None]] = []

        def ready(at: str) -> None:
            logging.getLogger("kvwatch").setLevel(logging.CRITICAL)  # the narrator prints what happens
            tasks.append(asyncio.create_task(narrator.run(at)))
            tasks[0].add_done_callback(lambda _: stop.set())

        try:
            code = await serve(settings, clock=clock, stop=stop, ready=ready)
        finally:
            for task in tasks:
                task.cancel()
                with contextlib.suppress(asyncio.CancelledError):
                    await task  # raises its error, for example a broken pipe
    if tasks:
        narrator.print_summary()
    return code


def _free_port(host: str, port: int) -> int:
    """`port` if it is free, else another free one."""
    for candidate in (port, 0):
        with (
            socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET) as probe,
            contextlib.suppress(OSError),
        ):
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind((host, candidate))
            return int(probe.getsockname()[1])
    return 0


def _print(args: argparse.Namespace, text: str, **data: Any) -> None:
    """Prints `text`, or with --json `data` on one line."""
    if args.json:
        print_json(data, indent=None)
    else:
        say(text, flush=True)


class _Narrator:
    """Prints what the sidecar's API reports: the first finding in full, later changes as one line each."""

    def __init__(self, args: argparse.Namespace) -> None:
        self._args = args
        self._start: float | None = None
        """Unix time of the first scrape, by the demo's clock."""
        self._last = 0.0
        self._fired: dict[str, int] = {}

    async def run(self, url: str) -> None:
        import httpx

        self._print_intro(url)
        async with httpx.AsyncClient(base_url=url, trust_env=False, timeout=5) as client:
            while True:
                await asyncio.sleep(_POLL_S)
                try:
                    history = (await client.get("/api/v1/events")).json()
                    findings = (await client.get("/api/v1/findings")).json()["findings"]
                except (httpx.HTTPError, ValueError, KeyError):
                    continue
                if self._start is None and history["events"]:
                    self._start = history["events"][0]["at"]
                for change in history["transitions"]:
                    if change["at"] > self._last:
                        present = [one for one in findings if one["symptom"] == change["symptom"]]
                        self._print_change(change, present)
                self._last = max([self._last, *(change["at"] for change in history["transitions"])])

    def _print_intro(self, url: str) -> None:
        text = f"""\
kvwatch demo: a recording of a real vLLM whose KV cache is full, at {_SPEED:g} times its speed.

  page      {url}/
  metrics   {url}/metrics
  findings  {url}/api/v1/findings

The clocks in the page, /metrics and the API also run {_SPEED:g} times as fast. Rates and durations are those of the
recording; times of day run ahead.
The first finding fires after some seconds and is printed in full, later changes as one line. Ctrl-C ends the demo.
"""
        urls = {"page": f"{url}/", "metrics": f"{url}/metrics", "findings": f"{url}/api/v1/findings"}
        _print(self._args, text, **urls, clock_speed=_SPEED)

    def _print_change(self, change: dict[str, Any], findings: list[dict[str, Any]]) -> None:
        start = change["at"] if self._start is None else self._start
        text = terminal_text.transition(change | {"t": change["at"] - start})
        _print(self._args, text, transition=change, findings=findings)
        if change["to"] != "firing":
            return
        symptom = change["symptom"]
        if not (self._fired or self._args.json):
            from kvwatch.commands.terminal_layout import lay_out_finding

            for one in findings:
                say()
                draw(lay_out_finding(one))
            say(flush=True)
        self._fired[symptom] = self._fired.get(symptom, 0) + 1

    def print_summary(self) -> None:
        fired = ", ".join(f"{name} ({n}×)" if n > 1 else name for name, n in self._fired.items())
        text = f"\nFired in this demo: {fired or 'nothing yet; the first finding needs about 10 s'}."
        text += f"\nTry it on your own server:\n  {_NEXT}"
        _print(self._args, text, fired=self._fired, next=_NEXT)
