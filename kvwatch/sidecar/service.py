"""The composition root: builds all parts, runs them, and stops them.

kvwatch serves before it reaches vLLM: the readiness of its pod must not depend on vLLM.
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
from kvwatch.sidecar.daemon_threads import DnsExecutor
from kvwatch.sidecar.http_client import ClientError
from kvwatch.sidecar.log import configure_logging, log_event
from kvwatch.sidecar.polling.gpu_reader import running_gpu_reader
from kvwatch.sidecar.polling.server_log import FollowLog
from kvwatch.sidecar.reload import Reloader, ServiceParts
from kvwatch.sidecar.serving.app import build
from kvwatch.sidecar.serving.collector import registry_of
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
    """Runs the sidecar until a signal or `stop`; returns an exit code.

    `ready` is called with the URL once kvwatch serves. `read` reads the settings again for a reload by
    SIGHUP, and may raise `SettingsError`; without it there is no reload. `follow` opens the log of a server;
    without it no log is read.
    """
    configure_logging(settings.log_format, settings.log_level)
    asyncio.get_running_loop().set_default_executor(DnsExecutor())
    clock = clock or SystemClock()
    stop, hangup = stop or asyncio.Event(), asyncio.Event()
    store, auth = Store(), TokenAuth(settings.api_token.get_secret_value() if settings.api_token else None)
    app = build(store, registry_of(store, clock), clock, auth=auth)
    try:
        with (
            contextlib.closing(listen(settings.host, settings.port)) as sock,
            _signals(stop, read and hangup),
        ):
            web = HttpServer(app, settings, sock)
            async with (
                running_gpu_reader(settings, clock) as gpus,
                task_set() as notifiers,
                task_set() as pollers,
            ):
                reloader = Reloader(ServiceParts(store, clock, web, auth, gpus, pollers, notifiers, follow))
                await reloader.start(settings)
                reloading = reloader.reload_on(hangup, read) if read else None
                return await _run_until(stop, web, settings, ready, reloading)
    except ClientError as error:
        log_event(logging.ERROR, str(error))
        return CANNOT_SERVE


async def _run_until(
    stop: asyncio.Event,
    web: HttpServer,
    settings: Settings,
    ready: Callable[[str], None] | None,
    reloading: Coroutine[Any, Any, None] | None,
) -> int:
    """Serves and reloads until `stop` is set, or until the web server fails."""

    def started() -> None:
        targets = {target.name: shown_url(target.url) for target in settings.targets}
        log_event(logging.INFO, "kvwatch serves", version=__version__, url=web.url, targets=targets)
        if ready is not None:
            ready(web.url)

    others: list[asyncio.Task[Any]] = [asyncio.create_task(stop.wait())]
    if reloading:
        others.append(asyncio.create_task(reloading, name="reload"))
    serving = asyncio.create_task(web.run(started))
    await asyncio.wait({serving, others[0]}, return_when=asyncio.FIRST_COMPLETED)
    failed = serving.done() and not stop.is_set()
    for task in (serving, *others):
        task.cancel()
    ends = await asyncio.gather(serving, *others, return_exceptions=True)
    if failed:
        log_event(logging.ERROR, f"kvwatch stops: {ends[0] or 'the web server ended'}")
        return BROKEN
    log_event(logging.INFO, "kvwatch stops")
    return OK


@contextlib.contextmanager
def _signals(stop: asyncio.Event, hangup: asyncio.Event | None) -> Iterator[None]:
    """While the block runs, SIGTERM and SIGINT set `stop`, and SIGHUP sets `hangup`.

    Then the old handlers are back.
    """
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
