"""Renders the page, once a second at most, however many people read it."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from functools import cache

from jinja2 import Environment, PackageLoader, StrictUndefined, Template

from kvwatch.core.model.snapshot import EngineKey
from kvwatch.sidecar.clock import Clock
from kvwatch.sidecar.page.filters import FILTERS
from kvwatch.sidecar.page.view_data import page_data
from kvwatch.sidecar.store import Store

_KEPT_S = 1.0
"""How long a rendered page is served again."""
_PIECES = 64
"""Pieces of markup in a part. No part takes as long as a page of `/metrics`."""


class Pages:
    """Renders pages on request and keeps each for a second."""

    def __init__(self, store: Store, clock: Clock) -> None:
        _page_template()
        self._store = store
        self._clock = clock
        self._rendering = asyncio.Lock()
        self._rendered: dict[EngineKey | None, tuple[float, str]] = {}

    async def page(self, of: EngineKey | None = None) -> str:
        """The page of all engines or that of one, at most a second old; KeyError if there is no such engine."""
        loop = asyncio.get_running_loop()
        async with self._rendering:
            now = loop.time()
            self._rendered = {key: one for key, one in self._rendered.items() if now - one[0] < _KEPT_S}
            if of not in self._rendered:
                parts = []
                for part in page_parts(self._store, self._clock.now(), of):
                    parts.append(part)
                    await asyncio.sleep(0)
                self._rendered[of] = (loop.time(), "".join(parts))
            return self._rendered[of][1]


def page_parts(store: Store, now: float, of: EngineKey | None = None) -> Iterator[str]:
    """A page in parts, between which other requests are served."""
    stream = _page_template().stream(page_data(store, now, of))
    stream.enable_buffering(_PIECES)
    return stream


@cache
def _page_template() -> Template:
    """The template of the page, compiled with all that it includes."""
    environment = Environment(
        loader=PackageLoader("kvwatch.sidecar.page"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        auto_reload=False,
    )
    environment.filters |= FILTERS
    templates = {name: environment.get_template(name) for name in environment.list_templates()}
    return templates["page.html.j2"]
