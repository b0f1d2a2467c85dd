"""The composition root: builds everything, starts it, and stops it.

Serving does not wait for vLLM: kvwatch may be what keeps a pod from being ready, and must not be.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import signal
import threading
from collections.abc import Callable, Coroutine, Iterator
from typing import TYPE_CHECKING, Any

from kvwatch import __version__
from kvwatch.sidecar.clock import Clock, SystemClock
from kvwatch.sidecar.http_client import ClientError
from kvwatch.sidecar.log import configure_logging, log_event
from kvwatch.sidecar.polling.gpu_reader import read_beside
from kvwatch.sidecar.polling.server_log import FollowLog
from kvwatch.sidecar.reload import ReloadableParts, Reloader
from kvwatch.sidecar.serving.app import build
from kvwatch.sidecar.serving.collector import registry_of
from kvwatch.sidecar.serving.hardening.dns_executor import DnsExecutor
from kvwatch.sidecar.serving.http_server import HttpServer, listen
from kvwatch.sidecar.serving.middleware import TokenAuth
from kvwatch.sidecar.store import Store
from kvwatch.sidecar.task_group import task_set
from kvwatch.text.redact import shown_url

if TYPE_CHECKING:
    from kvwatch.settings import Settings

OK, BROKEN, CANNOT_SERVE = 0, 1, 2
"""Exit codes of `serve`."""


async def serve(
    settings: Settings,
    *,
    clock: Clock | None = None,
    stop: asyncio.Event | None = None,
    ready: Callable[[str], None] | None = None,
    read: Callable[[], Settings] | None = None,
    follow: FollowLog | None = None,
) -> int:
    """Runs the sidecar until a signal or `stop`; calls `ready` with its URL once it serves. An exit code.

    `read` reads the settings anew, for a reload by SIGHUP; it may raise `SettingsError`. Without it there is none.
    `follow` follows the log of a server; without it none is read.
    """
    configure_logging(settings.log_format, settings.log_level)
    asyncio.get_running_loop().set_default_executor(DnsExecutor())
    clock = clock or SystemClock()
    stop, hangup = stop or asyncio.Event(), asyncio.Event()
    store, gate = Store(), TokenAuth(settings.api_token.get_secret_value() if settings.api_token else None)
    app = build(store, registry_of(store, clock), clock, gate=gate)
    try:
        with (
            contextlib.closing(listen(settings.host, settings.port)) as sock,
            _signals(stop, read and hangup),
        ):
            web = HttpServer(app, settings, sock)
            async with read_beside(settings, clock) as gpus, task_set() as notifiers, task_set() as pollers:
                follower = Reloader(
                    ReloadableParts(store, clock, web, gate, gpus, pollers, notifiers, follow)
                )
                await follower.begin(settings)
                reloading = follower.reload_when(hangup, read) if read else None
                return await _until(stop, web, settings, ready, reloading)
    except ClientError as error:
        log_event(logging.ERROR, str(error))
        return CANNOT_SERVE


async def _until(
    stop: asyncio.Event,
    web: HttpServer,
    settings: Settings,
    ready: Callable[[str], None] | None,
    beside: Coroutine[Any, Any, None] | None,
) -> int:
    """Serves, and does what is to be done beside that, until told to stop, or until serving breaks."""

    def started() -> None:
        targets = {target.name: shown_url(target.url) for target in settings.targets}
        log_event(logging.INFO, "kvwatch serves", version=__version__, url=web.url, targets=targets)
        if ready is not None:
            ready(web.url)

    aside = [asyncio.create_task(beside, name="reload")] if beside else []
    serving = asyncio.create_task(web.run(started))
    stopping = asyncio.create_task(stop.wait())
    done, pending = await asyncio.wait({serving, stopping}, return_when=asyncio.FIRST_COMPLETED)
    for task in (*pending, *aside):
        task.cancel()
    await asyncio.gather(*pending, *aside, return_exceptions=True)
    if serving in done and not stop.is_set():
        why = serving.exception() or "the web server ended"
        log_event(logging.ERROR, f"kvwatch can't go on: {why}")
        return BROKEN
    log_event(logging.INFO, "kvwatch stops")
    return OK


@contextlib.contextmanager
def _signals(stop: asyncio.Event, hangup: asyncio.Event | None) -> Iterator[None]:
    """SIGTERM and SIGINT set `stop`, and SIGHUP `hangup`, while the block runs; then they do what they did before."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    loop = asyncio.get_running_loop()
    events = {signal.SIGTERM: stop, signal.SIGINT: stop} | ({signal.SIGHUP: hangup} if hangup else {})
    before = {one: signal.getsignal(one) for one in events}
    for one, event in events.items():
        loop.add_signal_handler(one, event.set)
    try:
        yield
    finally:
        for one, handler in before.items():
            loop.remove_signal_handler(one)
            signal.signal(one, handler)
