"""`kvwatch demo`: the real sidecar on a real incident, played back from a recording that comes with kvwatch."""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import logging
import socket
from typing import Any

from kvwatch.commands import options, serve_recording, terminal_text
from kvwatch.commands.output import print_json, say
from kvwatch.settings import Settings, TargetSettings

HELP = "show kvwatch at work on a recorded incident; needs no vLLM and no GPU"
EPILOG = """\
examples:
  kvwatch demo                 then look at http://127.0.0.1:9477/
  kvwatch demo --for 20s       ends by itself
  kvwatch demo --server-only     the recorded vLLM alone, on port 8000, for a kvwatch and a Prometheus of your own

The recording is of a real vLLM whose KV cache runs full: requests queue, are preempted and computed again. It is
served over HTTP as that vLLM did, and watched by the same sidecar as `kvwatch run`, five times as fast; with
--server-only at its own pace.

exit codes:
  0  ended by Ctrl-C or --for
  1  serving broke down
  2  the address can't be used
"""
_SPEED = 5.0
_PORT = Settings.model_fields["port"].default
_LOOK_EVERY_S = 0.2
_TARGET = "demo"


def add(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--port",
        type=options.port,
        help=f"port to serve on (default: {_PORT}, with --server-only {serve_recording.PORT})",
    )
    parser.add_argument("--host", default="127.0.0.1", help="address to serve on (default: 127.0.0.1)")
    parser.add_argument(
        "--server-only", action="store_true", help="serve the recorded vLLM alone and watch nothing"
    )
    parser.add_argument(
        "--for",
        dest="seconds",
        metavar="TIME",
        type=options.seconds,
        help="end after this time, as 20s (default: at Ctrl-C)",
    )
    parser.add_argument("--json", action="store_true", help="print the same as JSON, one object a line")


def main(args: argparse.Namespace) -> int:
    try:
        if args.server_only:
            port = serve_recording.PORT if args.port is None else args.port
            return asyncio.run(serve_recording.serve(args.host, port, args.seconds, as_json=args.json))
        return asyncio.run(_demo(args, _Sayer(as_json=args.json)))
    except KeyboardInterrupt:
        return 0


class _Sayer:
    """Prints one thing as a line of text or of JSON."""

    def __init__(self, *, as_json: bool) -> None:
        self._json = as_json

    def __call__(self, line: str, **data: Any) -> None:
        if self._json:
            print_json(data, indent=None)
        else:
            say(line, flush=True)


async def _demo(args: argparse.Namespace, say: _Sayer) -> int:
    from kvwatch.sidecar.clock import ScaledClock, SystemClock
    from kvwatch.sidecar.service import serve

    clock = ScaledClock(SystemClock(), _SPEED)
    playback = serve_recording.playback(
        clock.now,
        lambda n: say(
            "\n-- the recording is over and begins anew, which looks like a restart of vLLM --", round=n
        ),
    )
    stop = asyncio.Event()
    if args.seconds is not None:
        asyncio.get_running_loop().call_later(args.seconds, stop.set)
    wanted = _PORT if args.port is None else args.port
    port = _free(args.host, wanted)
    if port != wanted and wanted:
        say(f"Port {wanted} is in use; port {port} is free and taken instead.", port_in_use=wanted, port=port)
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
            gpu="off",  # the recorded server had none, and this machine's are no part of it
        )
        teller: list[asyncio.Task[None]] = []

        def ready(at: str) -> None:
            logging.getLogger("kvwatch").setLevel(logging.CRITICAL)  # what happens is told here, in words
            teller.append(asyncio.create_task(_tell(at, say)))
            teller[0].add_done_callback(lambda _: stop.set())

        try:
            return await serve(settings, clock=clock, stop=stop, ready=ready)
        finally:
            for task in teller:
                task.cancel()
                with contextlib.suppress(asyncio.CancelledError):
                    await task  # raises what ended it, as when nobody reads any more


def _free(host: str, port: int) -> int:
    """`port` if it can be had, else another."""
    for candidate in (port, 0):
        with (
            socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET) as probe,
            contextlib.suppress(OSError),
        ):
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind((host, candidate))
            return int(probe.getsockname()[1])
    return 0


def _say_where(say: _Sayer, url: str) -> None:
    lines = [
        f"kvwatch demo: a real vLLM whose KV cache runs full, recorded, played back {_SPEED:g} times as fast.",
        "",
        f"  page      {url}/",
        f"  metrics   {url}/metrics",
        f"  findings  {url}/api/v1/findings",
        "",
        f"The clocks in the page, /metrics and the API run {_SPEED:g} times as fast, too: rates and durations are",
        "those of the recording, and times of day run ahead of yours.",
        "What it finds is told here as it happens, with the time since the start; the first in some seconds.",
        "Ctrl-C ends it.",
        "",
    ]
    say(
        "\n".join(lines),
        page=f"{url}/",
        metrics=f"{url}/metrics",
        findings=f"{url}/api/v1/findings",
        clock_speed=_SPEED,
    )


async def _tell(url: str, say: _Sayer) -> None:
    """Tells where to look, then each transition as it happens, by what the sidecar's own interface says."""
    import httpx

    _say_where(say, url)
    last, start = 0.0, None
    async with httpx.AsyncClient(base_url=url, trust_env=False, timeout=5) as client:
        while True:
            await asyncio.sleep(_LOOK_EVERY_S)
            try:
                happened = (await client.get("/api/v1/events")).json()
                found = (await client.get("/api/v1/findings")).json()["findings"]
            except (httpx.HTTPError, ValueError, KeyError):
                continue
            if start is None and happened["events"]:
                start = happened["events"][0]["at"]
            for change in happened["transitions"]:
                if change["at"] > last:
                    firing = [one for one in found if one["symptom"] == change["symptom"]]
                    say(_words(change, firing, start or change["at"]), transition=change, findings=firing)
            last = max([last, *(change["at"] for change in happened["transitions"])])


def _words(change: dict[str, Any], firing: list[dict[str, Any]], start: float) -> str:
    at = terminal_text.clock(change["at"] - start)
    symptom, after = change["symptom"], change["to"]
    if after == "firing":
        blocks = [terminal_text.finding(one) for one in firing]
        return "\n".join([f"{at}  {symptom} fires:", *blocks, ""])
    if after == "pending":
        return f"{at}  {symptom} is pending: {terminal_text.evidence(change['evidence'], 4)}"
    if after == "inactive":
        return f"{at}  {symptom} is over"
    return f"{at}  {symptom} can't be told: {change.get('reason', '')}"
