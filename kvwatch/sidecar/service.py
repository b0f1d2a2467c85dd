"""The composition root: builds everything, starts it, and stops it.

Serving does not wait for vLLM: kvwatch may be what keeps a pod from being ready, and must not be.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import signal
import socket
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from random import Random
from typing import TYPE_CHECKING

from kvwatch import __version__
from kvwatch.core.state import initial
from kvwatch.sidecar.app import build
from kvwatch.sidecar.clients import usable_client
from kvwatch.sidecar.clock import Clock, SystemClock
from kvwatch.sidecar.collector import registry_of
from kvwatch.sidecar.gpus import read_beside
from kvwatch.sidecar.log import say, set_up
from kvwatch.sidecar.lookups import Lookups
from kvwatch.sidecar.notify import notify_beside, page_of
from kvwatch.sidecar.pacing import start_of
from kvwatch.sidecar.poller import Poller
from kvwatch.sidecar.redact import shown_url
from kvwatch.sidecar.scrape import Scraper
from kvwatch.sidecar.store import Store
from kvwatch.sidecar.web import CannotServe, Web, listen

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
) -> int:
    """Runs the sidecar until a signal or `stop`; calls `ready` with its URL once it serves. An exit code."""
    set_up(settings.log_format, settings.log_level)
    asyncio.get_running_loop().set_default_executor(Lookups())
    clock = clock or SystemClock()
    stop = stop or asyncio.Event()
    store = Store(initial(target.name, settings.policy(target)) for target in settings.targets)
    token = settings.api_token.get_secret_value() if settings.api_token else None
    app = build(store, registry_of(store, clock), clock, token=token)
    try:
        with contextlib.closing(listen(settings.host, settings.port)) as sock, _signals(stop):
            web = Web(app, settings, sock)
            async with (
                notify_beside(settings, store, page_of(settings, web.url)),
                _polling(settings, store, clock),
            ):
                return await _until(stop, web, settings, ready)
    except CannotServe as error:
        say(logging.ERROR, str(error))
        return CANNOT_SERVE


async def _until(
    stop: asyncio.Event, web: Web, settings: Settings, ready: Callable[[str], None] | None
) -> int:
    """Serves until told to stop, or until serving breaks."""

    def started() -> None:
        targets = {target.name: shown_url(target.url) for target in settings.targets}
        say(logging.INFO, "kvwatch serves", version=__version__, url=web.url, targets=targets)
        if ready is not None:
            ready(web.url)

    serving = asyncio.create_task(web.run(started))
    stopping = asyncio.create_task(stop.wait())
    done, pending = await asyncio.wait({serving, stopping}, return_when=asyncio.FIRST_COMPLETED)
    for task in pending:
        task.cancel()
    await asyncio.gather(*pending, return_exceptions=True)
    if serving in done and not stop.is_set():
        why = serving.exception() or "the web server ended"
        say(logging.ERROR, f"kvwatch can't go on: {why}")
        return BROKEN
    say(logging.INFO, "kvwatch stops")
    return OK


@contextlib.asynccontextmanager
async def _polling(settings: Settings, store: Store, clock: Clock) -> AsyncIterator[None]:
    """Polls every target while the block runs."""
    async with contextlib.AsyncExitStack() as clients, read_beside(settings, clock) as gpus:
        tasks, here = [], (socket.gethostname(), str(settings.port))
        for place, target in enumerate(settings.targets):
            client = await clients.enter_async_context(usable_client(target, "target"))
            scraper = Scraper(target, settings, client)
            poller = Poller(
                store.state(target.name),
                scraper,
                store,
                clock,
                settings,
                random=Random(),  # noqa: S311 - jitter, no secret
                gpus=gpus.feed(),
                start=start_of(place, len(settings.targets), settings.interval_s, *here, target.url),
            )
            tasks.append(asyncio.create_task(poller.run(), name=f"poll {target.name}"))
        try:
            yield
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)


@contextlib.contextmanager
def _signals(stop: asyncio.Event) -> Iterator[None]:
    """SIGTERM and SIGINT set `stop`, while the block runs."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    loop = asyncio.get_running_loop()
    for one in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(one, stop.set)
    try:
        yield
    finally:
        for one in (signal.SIGTERM, signal.SIGINT):
            loop.remove_signal_handler(one)
