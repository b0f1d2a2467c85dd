"""Applies settings to the running service: pollers, notifiers, the API token, the TLS certificate, the log.

A reload (SIGHUP) reads the settings again from their sources. They apply completely or not at all: if
anything is wrong with them, the old ones stay in force, and the failure is logged and counted. A target whose
settings did not change keeps its poller. A target with the same name and URL keeps its history and counters,
whatever else changed.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, field
from pathlib import Path
from socket import gethostname
from typing import TYPE_CHECKING, Any

from kvwatch.core.judgement.state import State, initial, with_policy
from kvwatch.settings import SettingsError
from kvwatch.sidecar.clock import Clock
from kvwatch.sidecar.http_client import ClientError
from kvwatch.sidecar.log import ProblemLog, configure_logging, log_event
from kvwatch.sidecar.notifying.alertmanager_client import Alertmanager
from kvwatch.sidecar.notifying.notifier import TIMEOUT_S, Notifier, page_url
from kvwatch.sidecar.polling.gpu_reader import GpuReader
from kvwatch.sidecar.polling.pacing import start_offset
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
"""Settings that only a restart changes."""
_TLS = ("tls_cert", "tls_key")
"""Only a restart turns TLS on or off. Other certificate files, or new contents, apply at a reload."""
_POLLER_INPUTS = (
    "effective_timeout_s",
    "max_body_bytes",
    "narrow",
    "interval_s",
    "max_interval_s",
    "duty_cycle",
    "backoff_max_s",
)


@dataclass(frozen=True, slots=True)
class ServiceParts:
    """The parts that live as long as the process."""

    store: Store
    clock: Clock
    web: HttpServer
    auth: TokenAuth
    gpus: GpuReader
    pollers: TaskSet
    notifiers: TaskSet
    follow: FollowLog | None = None
    turn: asyncio.Semaphore = field(default_factory=asyncio.Semaphore)
    """Large pages are judged one at a time."""


class Reloader:
    """Applies settings to the parts."""

    def __init__(self, parts: ServiceParts) -> None:
        self._parts = parts
        self._settings: Settings | None = None
        self._problems = ProblemLog()

    async def start(self, settings: Settings) -> None:
        """Applies the first settings; raises `ClientError` if a certificate can't be used."""
        await self._apply(settings)
        self._parts.store.record_start(self._parts.clock.wall())

    async def reload_on(self, event: asyncio.Event, read: Callable[[], Settings]) -> None:
        """Applies the settings that `read` returns whenever `event` is set, until cancelled."""
        while True:
            await event.wait()
            event.clear()
            await self._reload(read)

    async def _reload(self, read: Callable[[], Settings]) -> None:
        good, wall = False, self._parts.clock.wall()
        try:
            settings = read()
            fixed = _fixed(self._settings, settings)
            changes = await self._apply(settings.model_copy(update=fixed))
            good = True
        except SettingsError as error:
            _log_failure(*error.problems)
        except ClientError as error:
            _log_failure(str(error))
        except Exception as error:  # noqa: BLE001 - polling continues whatever happens
            self._problems.log(error, self._parts.clock.now())
            _log_failure("kvwatch failed to read them; see the error logged before")
        else:
            _log_success(settings, changes, tuple(fixed))
        self._parts.store.record_reload(good=good, wall=wall)

    async def _apply(self, settings: Settings) -> ChangeSet:
        """Raises `ClientError`, and changes nothing, if a certificate can't be used."""
        parts, store = self._parts, self._parts.store
        renew = parts.web.renewal(settings)
        polling = await parts.pollers.prepare(
            {one.name: self._poll_task(one, settings) for one in settings.targets}
        )
        try:
            notifying = await parts.notifiers.prepare(
                {one.name: self._notify_task(one, settings) for one in settings.alertmanagers}
            )
        except BaseException:
            await polling.discard()
            raise
        configure_logging(settings.log_format, settings.log_level)
        parts.auth.token = settings.api_token.get_secret_value() if settings.api_token else None
        renew()
        changes = await polling.apply()
        self._settings = settings
        await notifying.apply()
        store.keep([one.name for one in settings.targets], [one.name for one in settings.alertmanagers])
        return changes

    def _poll_task(self, target: TargetSettings, settings: Settings) -> ServerTask:
        parts, file = self._parts, settings.log_of(target)
        index, count = settings.targets.index(target), len(settings.targets)
        offset = start_offset(
            index, count, settings.interval_s, gethostname(), str(settings.port), target.url
        )

        def start(client: httpx.AsyncClient) -> Coroutine[Any, Any, None]:
            log = parts.follow(file) if file and parts.follow else None
            poller = Poller(
                self._state(target, settings),
                Scraper(target, settings, client),
                parts.store,
                parts.clock,
                settings,
                gpus=parts.gpus.feed(),
                log=LogStatus(target.name, file, log) if file and log else None,
                start=offset,
                turn=parts.turn,
            )
            return _run(poller, log)

        policy, own = settings.policy(target), (getattr(settings, name) for name in _POLLER_INPUTS)
        return ServerTask("target", target, (target, policy, *own, _file_contents(target), file), start)

    def _state(self, target: TargetSettings, settings: Settings) -> State:
        """The known state of a target with this name and URL; else an initial one."""
        policy, old = settings.policy(target), self._settings
        for one in old.targets if old else ():
            if old and one.name == target.name and one.url == target.url:
                same_log = old.log_of(one) == settings.log_of(target)
                return with_policy(self._parts.store.state(target.name), policy, same_log=same_log)
        return initial(target.name, policy)

    def _notify_task(self, one: AlertmanagerSettings, settings: Settings) -> ServerTask:
        store, repeat_s = self._parts.store, settings.notify_repeat_s
        page = page_url(settings, self._parts.web.url)

        def start(client: httpx.AsyncClient) -> Coroutine[Any, Any, None]:
            receiver = Alertmanager(one, client, page=page, timeout_s=min(TIMEOUT_S, repeat_s))
            return Notifier(store, receiver, repeat_s).run()

        return ServerTask("Alertmanager", one, (one, repeat_s, page, _file_contents(one)), start)


async def _run(poller: Poller, log: FollowedLog | None) -> None:
    with log or contextlib.nullcontext():
        await poller.run()


def _file_contents(server: ServerSettings) -> tuple[bytes, ...]:
    """The contents of the client's certificate files: they may be replaced under the same name."""
    found = []
    for path in (server.ca_file, server.cert_file, server.key_file):
        with contextlib.suppress(OSError):  # the creation of the client reports it
            found.append(b"" if path is None else Path(path).read_bytes())
    return tuple(found)


def _fixed(before: Settings | None, after: Settings) -> dict[str, Any]:
    """Settings that changed but need a restart, with their old values."""
    if before is None:
        return {}
    names = [name for name in FIXED if getattr(before, name) != getattr(after, name)]
    if (before.tls_cert is None) != (after.tls_cert is None):
        names += _TLS
    return {name: getattr(before, name) for name in names}


def _log_failure(*problems: str) -> None:
    log_event(logging.ERROR, "settings reload failed; the old settings stay", problems=list(problems))


def _log_success(settings: Settings, changes: ChangeSet, fixed: tuple[str, ...]) -> None:
    for note in settings.notes:
        log_event(logging.WARNING, note)
    names = {
        "added": changes.added,
        "changed": changes.changed,
        "removed": changes.removed,
        "counts_after_a_restart": tuple(name.removesuffix("_s") for name in fixed),
    }
    fields = {field: list(listed) for field, listed in names.items() if listed}
    log_event(logging.WARNING if fixed else logging.INFO, "settings reloaded", **fields)
