"""Scrapes of one live server: what `check`, `record` and `plan --url` share."""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import signal
from collections.abc import AsyncIterator, Callable, Collection, Mapping
from dataclasses import replace
from typing import Any

from kvwatch.commands import options
from kvwatch.commands.output import print_error
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
    """Adds the URL, the options that describe the server, the settings of scraping, and the settings `more`."""
    parser.add_argument(
        "url",
        metavar="URL",
        nargs="?",
        help="URL of the metrics; http:// and /metrics may be left out"
        " (default: the target in the settings, else http://localhost:8000/metrics)",
    )
    add_target_flags(parser)
    options.add_settings(parser, (*_SETTINGS, *more))


def add_target_flags(
    parser: argparse.ArgumentParser | argparse._ArgumentGroup, *, but: Collection[str] = ()
) -> None:
    """Adds the options that describe one server: credentials, TLS, its GPUs. `but` are left out."""
    for name in TARGET_FLAGS:
        if name in but:
            continue
        more: dict[str, Any] = {"metavar": _PLACEHOLDER.get(name, "FILE")}
        if name == "insecure_tls":
            more = {"action": "store_true", "default": None}
        elif name == "max_num_seqs":
            more = {"metavar": "REQUESTS", "type": options.requests}
        description = TargetSettings.model_fields[name].description
        parser.add_argument(f"--{name.replace('_', '-')}", help=description, **more)


def settings_of(args: argparse.Namespace) -> tuple[Settings, TargetSettings]:
    """The settings that the command uses, and the one target.

    If the URL is that of a configured target, the settings of that target apply. Options on the command line
    override them.

    Raises:
        SettingsError: a setting is wrong, or the settings name several servers and the command line names none.
    """
    values = options.setting_values(args)
    problems: tuple[str, ...] = ()
    used = {"targets", *_SETTINGS} | (options.JUDGEMENT if hasattr(args, "thresholds") else set())
    flags = {name: value for name in TARGET_FLAGS if (value := getattr(args, name)) is not None}
    if args.url is not None:
        target_values, problems = _with_configured(values, parse_target(args.url) | flags)
        values["targets"] = [target_values]
    settings = options.load_settings(values, used=used)
    for problem in problems:
        print_error(f"not used here, but wrong: {problem}")
    if len(settings.targets) > 1:
        urls = " or ".join(target.url for target in settings.targets)
        raise SettingsError([f"the settings name several servers: give the URL of one, {urls}"])
    (target,) = settings.targets
    if args.url is None and flags:
        settings = load(values | {"targets": [with_overrides(target, flags)]}, used=used)
        (target,) = settings.targets
    return settings, target


def _with_configured(
    values: Mapping[str, Any], target: Mapping[str, Any]
) -> tuple[dict[str, Any], tuple[str, ...]]:
    """`target` on top of the configured target with its URL; of several, the one with its name.

    Also returns the problems of the settings: if they can't be loaded, the configured target may be among them.
    """
    try:
        known = load(values, used={"config", "targets"}).targets
    except SettingsError as error:
        return dict(target), error.problems
    same = [one for one in known if same_server(one.url, target["url"])]
    if not same:
        return dict(target), ()
    found = next((one for one in same if one.name == target.get("name")), same[0])
    return with_overrides(found, {name: value for name, value in target.items() if value != ""}), ()


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
    """The number of scrapes in `seconds`; the first is at 0 s."""
    return int(seconds / settings.interval_s + 1e-6) + 1


async def scrapes(
    target: TargetSettings,
    settings: Settings,
    *,
    seconds: float | None,
    pace: Callable[[float], Pace] = lambda _: Pace.FULL,
) -> AsyncIterator[tuple[float, Outcome]]:
    """Scrapes at the configured interval, each with its monotonic time, for `seconds` or until a signal.

    An outcome carries the GPU readings since the last one. One of them carries what `/version` and `/v1/models`
    answered; these requests run beside the scrapes and never delay them.
    """
    from kvwatch.sidecar.clock import SystemClock
    from kvwatch.sidecar.daemon_threads import DnsExecutor
    from kvwatch.sidecar.http_client import ClientError, usable_client
    from kvwatch.sidecar.polling.gpu_reader import running_gpu_reader
    from kvwatch.sidecar.polling.scrape import Scraper

    loop = asyncio.get_running_loop()
    loop.set_default_executor(DnsExecutor())  # a pending DNS lookup does not delay the exit
    clock = SystemClock()
    try:
        client = usable_client(target, "target")
    except ClientError as error:
        raise SettingsError([str(error)]) from None
    async with (
        stopped_by_signals() as stop,
        client,
        running_gpu_reader(settings, clock) as gpus,
        contextlib.AsyncExitStack() as stack,
    ):
        scraper, feed = Scraper(target, settings, client), gpus.feed()
        server_info: asyncio.Task[ServerInfo] | None = None
        reported = False
        due = start = clock.now()
        while not stop.is_set():
            outcome = await scraper.scrape(pace(clock.now()))
            now = clock.now()
            outcome = replace(outcome, interval_s=settings.interval_s, gpu=feed.take(now))
            if isinstance(outcome, Scrape) and server_info is None:
                server_info = asyncio.create_task(scraper.facts())
                stack.callback(server_info.cancel)
            elif (
                isinstance(outcome, Scrape)
                and server_info is not None
                and server_info.done()
                and not reported
            ):
                outcome, reported = replace(outcome, facts=server_info.result()), True
            yield now, outcome
            due = max(due + settings.interval_s, clock.now())
            if seconds is not None and due > start + seconds + 1e-3:
                return
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(stop.wait(), due - clock.now())
