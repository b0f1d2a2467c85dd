"""Tasks that each talk to one server, and their replacement when settings change.

A change has two steps. `TaskSet.prepare` makes what may fail: the HTTP clients with their certificates.
Nothing has changed yet. `PreparedChange.apply` ends tasks that are removed or changed, and starts new ones. A
task whose inputs are the same keeps running.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Coroutine, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from kvwatch.sidecar.http_client import usable_client

if TYPE_CHECKING:
    import httpx

    from kvwatch.settings import ServerSettings


@dataclass(frozen=True, slots=True)
class ServerTask:
    """The task for one server, and the inputs it depends on. `what` names its kind in messages."""

    what: str
    server: ServerSettings
    inputs: object
    start: Callable[[httpx.AsyncClient], Coroutine[Any, Any, None]]


@dataclass(frozen=True, slots=True)
class _Running:
    spec: ServerTask
    client: httpx.AsyncClient
    task: asyncio.Task[None]

    async def end(self) -> None:
        self.task.cancel()
        await asyncio.gather(self.task, return_exceptions=True)
        await self.client.aclose()


@dataclass(frozen=True, slots=True)
class ChangeSet:
    """The names of tasks that a change started, replaced and ended."""

    added: tuple[str, ...] = ()
    changed: tuple[str, ...] = ()
    removed: tuple[str, ...] = ()


@dataclass(slots=True)
class TaskSet:
    """The running tasks of one kind, by the name of their server."""

    _running: dict[str, _Running] = field(default_factory=dict)

    async def prepare(self, specs: Mapping[str, ServerTask]) -> PreparedChange:
        """A change to these tasks and no others; raises `ClientError` if a certificate can't be used."""
        clients: dict[str, httpx.AsyncClient] = {}
        change = PreparedChange(self._running, specs, clients)
        try:
            for name, spec in specs.items():
                if name not in self._running or self._running[name].spec.inputs != spec.inputs:
                    clients[name] = usable_client(spec.server, spec.what)
        except BaseException:
            await change.discard()
            raise
        return change

    async def end(self) -> None:
        """Ends all tasks at once."""
        running = list(self._running.values())
        self._running.clear()
        await asyncio.gather(*(one.end() for one in running))


@dataclass(frozen=True, slots=True)
class PreparedChange:
    """A prepared change, not yet applied."""

    _running: dict[str, _Running]
    _specs: Mapping[str, ServerTask]
    _clients: Mapping[str, httpx.AsyncClient]

    async def discard(self) -> None:
        """Closes the new clients and changes nothing."""
        for client in self._clients.values():
            await client.aclose()

    async def apply(self) -> ChangeSet:
        """Ends and starts tasks."""
        running, clients = self._running, self._clients
        removed = tuple(name for name in running if name not in self._specs)
        changed = tuple(name for name in clients if name in running)
        added = tuple(name for name in clients if name not in running)
        await asyncio.gather(*(running.pop(name).end() for name in (*removed, *changed)))
        for name, client in clients.items():
            spec = self._specs[name]
            task = asyncio.create_task(spec.start(client), name=f"{spec.what} {name}")
            running[name] = _Running(spec, client, task)
        return ChangeSet(added, changed, removed)


@contextlib.asynccontextmanager
async def task_set() -> AsyncIterator[TaskSet]:
    """An empty `TaskSet`, whose tasks end with the block."""
    tasks = TaskSet()
    try:
        yield tasks
    finally:
        await tasks.end()
