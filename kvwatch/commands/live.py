"""One live server, scraped for a while: what `check` and `record` have in common."""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import signal
from collections.abc import AsyncIterator, Callable, Collection, Coroutine, Mapping
from dataclasses import replace
from typing import Any

from kvwatch.commands import options
from kvwatch.commands.output import complain
from kvwatch.core.model.outcome import Outcome, Pace, Scrape
from kvwatch.core.model.server_info import ServerInfo
from kvwatch.settings import Settings, SettingsError, TargetSettings, load
from kvwatch.settings.server_urls import parse_target, same_server
from kvwatch.settings.target_settings import with_overrides

TARGET_FLAGS = (
    "token_file",
    "username",
    "password_file",
    "ca_file",
    "cert_file",
    "key_file",
    "insecure_tls",
    "max_num_seqs",
    "gpus",
)
_PLACEHOLDER = {"gpus": "GPUS", "username": "NAME"}
_SETTINGS = ("config", "interval_s", "timeout_s", "max_body_bytes", "gpu", "gpu_url", "gpu_interval_s")


def add(parser: argparse.ArgumentParser, *more: str) -> None:
    """The server's URL, how to reach it, and the settings named beside the usual ones."""
    parser.add_argument(
        "url",
        metavar="URL",
        nargs="?",
        help="where the server's metrics are; /metrics and http:// may be left out"
        " (default: the target of the settings, else http://localhost:8000/metrics)",
    )
    add_target_flags(parser)
    options.add_settings(parser, (*_SETTINGS, *more))


def add_target_flags(
    parser: argparse.ArgumentParser | argparse._ArgumentGroup, *, but: Collection[str] = ()
) -> None:
    """How to reach the server, and what it can't tell of itself; `but` names those that are left out."""
    for name in TARGET_FLAGS:
        if name in but:
            continue
        described = TargetSettings.model_fields[name].description
        flag = f"--{name.replace('_', '-')}"
        if name == "insecure_tls":
            parser.add_argument(flag, action="store_true", default=None, help=described)
        elif name == "max_num_seqs":
            parser.add_argument(flag, metavar="REQUESTS", type=options.requests, help=described)
        else:
            parser.add_argument(flag, metavar=_PLACEHOLDER.get(name, "FILE"), help=described)


def settings_of(args: argparse.Namespace) -> tuple[Settings, TargetSettings]:
    """The settings that the command uses (those it takes, and of the judgement all or none), and the one target
    they name.

    A URL that is that of a configured target means that one, with all that the settings say of it; what is given
    on the command line beside it comes first.
    """
    given = options.given(args)
    wrong: tuple[str, ...] = ()
    used = {"targets", *_SETTINGS} | (options.JUDGEMENT if hasattr(args, "thresholds") else set())
    extra = {name: value for name in TARGET_FLAGS if (value := getattr(args, name)) is not None}
    if args.url is not None:
        asked, wrong = _configured(given, parse_target(args.url) | extra)
        given["targets"] = [asked]
    settings = options.load_noted(given, used=used)
    for problem in wrong:
        complain(f"not used here, but wrong: {problem}")
    if len(settings.targets) > 1:
        urls = " or ".join(target.url for target in settings.targets)
        raise SettingsError([f"the settings name several servers: give the URL of one, {urls}"])
    (target,) = settings.targets
    if args.url is None and extra:
        settings = load(given | {"targets": [with_overrides(target, extra)]}, used=used)
        (target,) = settings.targets
    return settings, target


def _configured(given: Mapping[str, Any], asked: Mapping[str, Any]) -> tuple[dict[str, Any], tuple[str, ...]]:
    """What is `asked` for, with what the settings say of a target of that URL, the one of that name before others.

    And what is wrong with the settings, if they can't be searched: the target meant may be among them.
    """
    try:
        known = load(given, used={"config", "targets"}).targets
    except SettingsError as error:
        return dict(asked), error.problems
    same = [target for target in known if same_server(target.url, asked["url"])]
    if not same:
        return dict(asked), ()
    found = next((target for target in same if target.name == asked.get("name")), same[0])
    return with_overrides(found, {name: value for name, value in asked.items() if value != ""}), ()


@contextlib.asynccontextmanager
async def stopped_by_signals() -> AsyncIterator[asyncio.Event]:
    """An event that Ctrl-C and SIGTERM set."""
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    signals = (signal.SIGINT, signal.SIGTERM)
    for one in signals:
        loop.add_signal_handler(one, stop.set)
    try:
        yield stop
    finally:
        for one in signals:
            loop.remove_signal_handler(one)


def count(seconds: float, settings: Settings) -> int:
    """How many scrapes that makes, the first one at once."""
    return int(seconds / settings.interval_s + 1e-6) + 1


class _Asking:
    """Asks once, beside the scrapes, what the other endpoints of a server say."""

    def __init__(self) -> None:
        self._task: asyncio.Task[ServerInfo] | None = None
        self._taken = False

    def take(self, ask: Callable[[], Coroutine[Any, Any, ServerInfo]]) -> ServerInfo | None:
        """What they said, the first time that it is known."""
        if self._task is None:
            self._task = asyncio.create_task(ask())
        if self._taken or not self._task.done():
            return None
        self._taken = True
        return self._task.result()

    def end(self) -> None:
        if self._task is not None:
            self._task.cancel()


async def scrapes(
    target: TargetSettings,
    settings: Settings,
    stop: asyncio.Event,
    *,
    seconds: float | None,
    pace: Callable[[float], Pace] = lambda _: Pace.FULL,
) -> AsyncIterator[tuple[float, Outcome]]:
    """Whole pages, an interval apart, with their monotonic time and what was read meanwhile of the GPUs and, once it
    answers, of the server's other endpoints, until the time is over or `stop` is set."""
    from kvwatch.sidecar.clock import SystemClock
    from kvwatch.sidecar.daemon_threads import DnsExecutor
    from kvwatch.sidecar.http_client import ClientError, usable_client
    from kvwatch.sidecar.polling.gpu_reader import running_gpu_reader
    from kvwatch.sidecar.polling.scrape import Scraper

    asyncio.get_running_loop().set_default_executor(
        DnsExecutor()
    )  # nobody waits for a name server at the end
    clock = SystemClock()
    try:
        client = usable_client(target, "target")
    except ClientError as error:
        raise SettingsError([str(error)]) from None
    async with client, running_gpu_reader(settings, clock) as gpus, contextlib.AsyncExitStack() as stack:
        scraper, feed = Scraper(target, settings, client), gpus.feed()
        asking = _Asking()
        stack.callback(asking.end)
        due = start = clock.now()
        while not stop.is_set():
            found = await scraper.scrape(pace(clock.now()))
            now = clock.now()
            found = replace(found, interval_s=settings.interval_s, gpu=feed.take(now))
            if isinstance(found, Scrape):
                found = replace(found, facts=asking.take(scraper.facts))
            yield now, found
            due = max(due + settings.interval_s, clock.now())
            if seconds is not None and due > start + seconds + 1e-3:
                return
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(stop.wait(), due - clock.now())
