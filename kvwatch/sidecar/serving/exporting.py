"""Pages of metrics for many who ask, without holding up the event loop when there are many engines.

A page of 256 engines has 90 000 lines and takes most of a second to write. States are immutable, so a thread
writes large pages while polling goes on, one at a time; whoever asked before one was begun gets that one.
"""

from __future__ import annotations

import asyncio
import itertools
from typing import TYPE_CHECKING

from prometheus_client import CollectorRegistry
from starlette.concurrency import run_in_threadpool

from kvwatch.sidecar.serving.rendering import Render, Renderer

if TYPE_CHECKING:
    from kvwatch.sidecar.store import Store

_MANY_ENGINES = 16
"""From here on a page takes longer to write than the event loop should be held up: some 20 ms."""


class Exporter:
    """Writes the pages of one registry over a store."""

    def __init__(self, store: Store, registry: CollectorRegistry) -> None:
        self._store = store
        self._registry = registry
        self._renderer = Renderer()
        self._writing = asyncio.Lock()
        self._turns = itertools.count(1)
        self._last: dict[str, tuple[int, bytes]] = {}
        """The newest large page by content type, and at which turn it was begun; kept while someone waits."""
        self._waiting = 0

    async def page(self, accept: str) -> tuple[bytes, str]:
        """A page for who accepts this, and its content type."""
        render, content_type = self._renderer.choose(accept)
        if sum(len(state.engines) for state in self._store.states().values()) < _MANY_ENGINES:
            return render(self._registry), content_type
        return await self._large(render, content_type), content_type

    async def _large(self, render: Render, content_type: str) -> bytes:
        asked = next(self._turns)
        self._waiting += 1
        try:
            async with self._writing:
                begun, body = self._last.get(content_type, (0, b""))
                if begun < asked:
                    begun = next(self._turns)
                    body = await run_in_threadpool(render, self._registry)
                    self._last[content_type] = (begun, body)
                return body
        finally:
            self._waiting -= 1
            if not self._waiting:
                self._last.clear()
