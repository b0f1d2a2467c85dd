"""What follows the settings while kvwatch runs: pollers, notifiers, the token, the certificate, the log.

A reload (SIGHUP) reads the settings anew from where they came from. They are taken whole or not at all: whatever is
wrong with them leaves those before in force, is said, and counted. A target that is as it was keeps its poller; one
of the same name and URL keeps what was seen and counted of it, whatever else was changed.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable, Coroutine, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from socket import gethostname
from typing import TYPE_CHECKING, Any

from kvwatch.core.judgement.state import State, initial, with_policy
from kvwatch.settings import SettingsError
from kvwatch.sidecar.clock import Clock
from kvwatch.sidecar.http_client import ClientError
from kvwatch.sidecar.log import ProblemLog, configure_logging, log_event
from kvwatch.sidecar.notifying.alertmanager_client import Alertmanager
from kvwatch.sidecar.notifying.notifier import TIMEOUT_S, Notifier, page_of
from kvwatch.sidecar.polling.gpu_reader import GpuReader
from kvwatch.sidecar.polling.pacing import start_of
from kvwatch.sidecar.polling.poller import Poller
from kvwatch.sidecar.polling.scrape import Scraper
from kvwatch.sidecar.polling.server_log import FollowedLog, FollowLog, LogStatus
from kvwatch.sidecar.serving.http_server import HttpServer
from kvwatch.sidecar.serving.middleware import TokenAuth
from kvwatch.sidecar.store import Store
from kvwatch.sidecar.task_group import ChangeSet, ServerTask, TaskSet

if TYPE_CHECKING:
    import httpx

    from kvwatch.settings import AlertmanagerSettings, ServerSettings, Settings, TargetSettings

FIXED = ("host", "port", "gpu", "gpu_url", "gpu_interval_s")
"""Settings that count from the start to the end of the process."""
_TLS = ("tls_cert", "tls_key")
"""Likewise whether there are any; other ones, or new ones in the same files, are taken."""
_OF_A_POLLER = (
    "effective_timeout_s",
    "max_body_bytes",
    "narrow",
    "interval_s",
    "max_interval_s",
    "duty_cycle",
    "backoff_max_s",
)


@dataclass(frozen=True, slots=True)
class ReloadableParts:
    """What is there from the start to the end of the process."""

    store: Store
    clock: Clock
    web: HttpServer
    gate: TokenAuth
    gpus: GpuReader
    pollers: TaskSet
    notifiers: TaskSet
    follow: FollowLog | None = None
    turn: asyncio.Semaphore = field(default_factory=asyncio.Semaphore)
    """Whose it is to judge a large page."""


class Reloader:
    """Keeps the parts as the settings want them."""

    def __init__(self, parts: ReloadableParts) -> None:
        self._parts = parts
        self._settings: Settings | None = None
        self._complaints = ProblemLog()

    async def begin(self, settings: Settings) -> None:
        """Takes the first settings; `CannotServe` if certificates can't be used."""
        await self._take(settings)
        self._parts.store.started(self._parts.clock.wall())

    async def reload_when(self, asked: asyncio.Event, read: Callable[[], Settings]) -> None:
        """Takes what `read` gives whenever `asked` is set, until cancelled."""
        while True:
            await asked.wait()
            asked.clear()
            await self._reload(read)

    async def _reload(self, read: Callable[[], Settings]) -> None:
        good, wall = False, self._parts.clock.wall()
        try:
            settings = read()
            kept = _kept(self._settings, settings)
            changes = await self._take(settings.model_copy(update=kept))
            good = True
        except SettingsError as error:
            _refuse(*error.problems)
        except ClientError as error:
            _refuse(str(error))
        except Exception as error:  # noqa: BLE001 - the net: watching goes on whatever happens
            self._complaints.about(error, self._parts.clock.now())
            _refuse("kvwatch itself failed at reading them; the line before says how")
        else:
            _tell(settings, changes, tuple(kept))
        self._parts.store.reloaded(good=good, wall=wall)

    async def _take(self, settings: Settings) -> ChangeSet:
        """Has everything as these settings say; `CannotServe`, and nothing changed, if certificates can't be used."""
        parts, store = self._parts, self._parts.store
        renew = parts.web.renewal(settings)
        watching = await parts.pollers.prepare(
            {one.name: self._poll(one, settings) for one in settings.targets}
        )
        try:
            telling = await parts.notifiers.prepare(
                {one.name: self._notify(one, settings) for one in settings.alertmanagers}
            )
        except BaseException:
            await watching.give_up()
            raise
        configure_logging(settings.log_format, settings.log_level)
        parts.gate.token = settings.api_token.get_secret_value() if settings.api_token else None
        renew()
        changes = await watching.take_over()
        self._settings = settings
        await telling.take_over()
        store.keep([one.name for one in settings.targets], [one.name for one in settings.alertmanagers])
        return changes

    def _poll(self, target: TargetSettings, settings: Settings) -> ServerTask:
        parts, file = self._parts, settings.log_of(target)
        places = len(settings.targets), settings.interval_s
        start = start_of(
            settings.targets.index(target), *places, gethostname(), str(settings.port), target.url
        )

        def begin(client: httpx.AsyncClient) -> Coroutine[Any, Any, None]:
            log = parts.follow(file) if file and parts.follow else None
            poller = Poller(
                self._state(target, settings),
                Scraper(target, settings, client),
                parts.store,
                parts.clock,
                settings,
                random=Random(),  # noqa: S311 - jitter, no secret
                gpus=parts.gpus.feed(),
                log=LogStatus(target.name, file, log) if file and log else None,
                start=start,
                turn=parts.turn,
            )
            return _run(poller, log)

        policy = settings.policy(target)
        made_from = (
            target,
            policy,
            *(getattr(settings, name) for name in _OF_A_POLLER),
            _files(target),
            file,
        )
        return ServerTask("target", target, made_from, begin)

    def _state(self, target: TargetSettings, settings: Settings) -> State:
        """What is known of a target, if it was watched before under this name and URL; else nothing yet."""
        policy = settings.policy(target)
        for one in self._settings.targets if self._settings else ():
            if one.name == target.name and one.url == target.url:
                same_log = self._settings is not None and self._settings.log_of(one) == settings.log_of(
                    target
                )
                return with_policy(self._parts.store.state(target.name), policy, same_log=same_log)
        return initial(target.name, policy)

    def _notify(self, one: AlertmanagerSettings, settings: Settings) -> ServerTask:
        store, repeat_s, page = (
            self._parts.store,
            settings.notify_repeat_s,
            page_of(settings, self._parts.web.url),
        )

        def begin(client: httpx.AsyncClient) -> Coroutine[Any, Any, None]:
            receiver = Alertmanager(one, client, page=page, timeout_s=min(TIMEOUT_S, repeat_s))
            return Notifier(store, receiver, repeat_s).run()

        return ServerTask("Alertmanager", one, (one, repeat_s, page, _files(one)), begin)


async def _run(poller: Poller, log: FollowedLog | None) -> None:
    with log or contextlib.nullcontext():
        await poller.run()


def _files(server: ServerSettings) -> tuple[bytes, ...]:
    """What is in the files that its client reads: they may have been written anew."""
    found = []
    for path in (server.ca_file, server.cert_file, server.key_file):
        with contextlib.suppress(OSError):  # making the client says so
            found.append(b"" if path is None else Path(path).read_bytes())
    return tuple(found)


def _kept(before: Settings | None, after: Settings) -> Mapping[str, Any]:
    """What new settings say that only counts after a restart, as it was before."""
    if before is None:
        return {}
    names = [name for name in FIXED if getattr(before, name) != getattr(after, name)]
    if (before.tls_cert is None) != (after.tls_cert is None):
        names += _TLS
    return {name: getattr(before, name) for name in names}


def _refuse(*problems: str) -> None:
    log_event(
        logging.ERROR,
        "the settings can't be reloaded: those before stay in force",
        problems=list(problems),
    )


def _tell(settings: Settings, changes: ChangeSet, kept: tuple[str, ...]) -> None:
    for note in settings.notes:
        log_event(logging.WARNING, note)
    told = {
        "added": changes.added,
        "changed": changes.changed,
        "removed": changes.removed,
        "counts_after_a_restart": tuple(name.removesuffix("_s") for name in kept),
    }
    fields = {name: list(names) for name, names in told.items() if names}
    log_event(logging.WARNING if kept else logging.INFO, "the settings are reloaded", **fields)
