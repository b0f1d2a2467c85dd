"""Tasks that each talk to one server, kept as the settings name them: begun, replaced and ended one by one.

New settings are taken in two steps. `prepare` makes what may fail, which is the HTTP clients with their certificates;
then nothing has changed yet. `Relief.take_over` ends what is no longer wanted or is made from other settings now, and
begins what is new. A task that is made from the same as before is not touched.
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
    """What is to be done for one server, `what` it is called in a message, and all that the doing is made from."""

    what: str
    server: ServerSettings
    made_from: object
    begin: Callable[[httpx.AsyncClient], Coroutine[Any, Any, None]]


@dataclass(frozen=True, slots=True)
class _Member:
    job: ServerTask
    client: httpx.AsyncClient
    task: asyncio.Task[None]

    async def end(self) -> None:
        self.task.cancel()
        await asyncio.gather(self.task, return_exceptions=True)
        await self.client.aclose()


@dataclass(frozen=True, slots=True)
class ChangeSet:
    """Names of what a relief began, replaced and ended."""

    added: tuple[str, ...] = ()
    changed: tuple[str, ...] = ()
    removed: tuple[str, ...] = ()


@dataclass(slots=True)
class TaskSet:
    """The tasks of one kind, by the name of their server."""

    _members: dict[str, _Member] = field(default_factory=dict)

    async def prepare(self, jobs: Mapping[str, ServerTask]) -> PreparedChange:
        """What it takes to do these jobs; `CannotServe` if the certificates of one can't be used."""
        members = self._members
        clients: dict[str, httpx.AsyncClient] = {}
        try:
            for name, job in jobs.items():
                if name not in members or members[name].job.made_from != job.made_from:
                    clients[name] = usable_client(job.server, job.what)
        except BaseException:
            for client in clients.values():
                await client.aclose()
            raise
        return PreparedChange(members, jobs, clients)

    async def end(self) -> None:
        """Ends all of them, at once."""
        members = list(self._members.values())
        self._members.clear()
        await asyncio.gather(*(one.end() for one in members))


@dataclass(frozen=True, slots=True)
class PreparedChange:
    """Jobs whose clients are made, and who is to make room for them."""

    _members: dict[str, _Member]
    _jobs: Mapping[str, ServerTask]
    _clients: Mapping[str, httpx.AsyncClient]

    async def give_up(self) -> None:
        """Nothing changes."""
        for client in self._clients.values():
            await client.aclose()

    async def take_over(self) -> ChangeSet:
        """Does these jobs from now on, and no others."""
        members, clients = self._members, self._clients
        removed = tuple(name for name in members if name not in self._jobs)
        changed = tuple(name for name in clients if name in members)
        added = tuple(name for name in clients if name not in members)
        await asyncio.gather(*(members.pop(name).end() for name in (*removed, *changed)))
        for name, client in clients.items():
            job = self._jobs[name]
            task = asyncio.create_task(job.begin(client), name=f"{job.what} {name}")
            members[name] = _Member(job, client, task)
        return ChangeSet(added, changed, removed)


@contextlib.asynccontextmanager
async def task_set() -> AsyncIterator[TaskSet]:
    """A crew without a member, ended with the block."""
    one = TaskSet()
    try:
        yield one
    finally:
        await one.end()
