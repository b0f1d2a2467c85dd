"""The page whole, a piece at a time, so that writing a long one holds up nothing."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

from kvwatch import __version__
from kvwatch.core.export.findings import findings
from kvwatch.core.judgement.state import State
from kvwatch.core.model.snapshot import EngineKey
from kvwatch.sidecar.clock import Clock
from kvwatch.sidecar.page.cost_section import cost
from kvwatch.sidecar.page.engine_section import details
from kvwatch.sidecar.page.events_section import happened
from kvwatch.sidecar.page.findings_section import wrong
from kvwatch.sidecar.page.markup import e, place
from kvwatch.sidecar.page.target_section import target
from kvwatch.sidecar.store import Store

REFRESH_S = 5
"""How often a browser without scripts asks again."""
_KEPT_S = 1.0
"""For how long a page that was written is good for the next who asks."""
_LINKS = (
    "/metrics",
    "/api/v1/state",
    "/api/v1/findings",
    "/api/v1/events",
    "/api/v1/history",
    "/debug/last-failures",
    "/openapi.json",
    "/healthz",
    "/readyz",
)
_DETAILED = 8
"""So many engines are told in full; of more, those with findings first."""
_OPEN = 2
"""With more than so many engines, only those with findings are unfolded."""
_HEAD = f"""\
<!doctype html><html lang="en"><head><meta charset="utf-8"><title>{{title}}</title>
<meta name="viewport" content="width=device-width, initial-scale=1">
<noscript><meta http-equiv="refresh" content="{REFRESH_S}"></noscript>
<link rel="icon" href="/static/icon.svg" type="image/svg+xml">
<link rel="stylesheet" href="/static/uPlot.min.css"><link rel="stylesheet" href="/static/page.css">
<script defer src="/static/uPlot.iife.min.js"></script><script type="module" src="/static/live.js"></script>
</head><body data-version="{e(__version__)}"><a class="skip" href="#main">To what is wrong</a>
<header><h1>{{name}} <small>{e(__version__)}</small></h1>
<p id="live" data-keep="" role="status"></p></header><main id="main">"""


class Pages:
    """Writes the pages for all who look, each once a second at most."""

    def __init__(self, store: Store, clock: Clock) -> None:
        self._store = store
        self._clock = clock
        self._writing = asyncio.Lock()
        self._written: dict[EngineKey | None, tuple[float, str]] = {}

    async def page(self, of: EngineKey | None = None) -> str:
        """The page of everything, or that of one engine, at most a second old; KeyError if it is not there."""
        loop = asyncio.get_running_loop()
        async with self._writing:
            now = loop.time()
            self._written = {key: one for key, one in self._written.items() if now - one[0] < _KEPT_S}
            if of not in self._written:
                parts = []
                for part in _parts(self._store, self._clock.now(), of):
                    parts.append(part)
                    await asyncio.sleep(0)
                self._written[of] = (loop.time(), "\n".join(parts))
            return self._written[of][1]


def _parts(store: Store, now: float, of: EngineKey | None = None) -> Iterator[str]:
    """A page in pieces, none of which takes long. States are immutable: all pieces tell of the same moment."""
    states = dict(store.states())
    yield from _all(states, now) if of is None else _one(states, now, of)
    yield "".join(happened(store, now)) + "".join(cost(store))
    links = "".join(f'<a href="{link}">{link}</a>' for link in _LINKS)
    yield f'</main><nav aria-labelledby="more"><h2 id="more">More</h2>{links}</nav></body></html>'


def _all(states: dict[str, State], now: float) -> Iterator[str]:
    yield _HEAD.format(title="kvwatch", name="kvwatch")
    yield "".join(wrong(states, now))
    told = _told(states)
    unfolded = {key for key, opened in told.items() if opened}
    for state in states.values():
        yield "<section>" + "".join(target(state, now, unfolded=unfolded))
        for key, engine in state.engines.items():
            if key in told:
                yield "".join(details(state, engine, now, opened=told[key]))
        left = len(state.engines.keys() - told.keys())
        yield f"<p>{left} more engines: their rows in the table lead to their charts.</p>" if left else ""
        yield "</section>"


def _one(states: dict[str, State], now: float, of: EngineKey) -> Iterator[str]:
    state = states[of.target]
    engine = state.engines[of]
    yield _HEAD.format(title=f"{place(of)} – kvwatch", name='<a href="/">kvwatch</a>')
    yield '<p><a href="/">← All engines</a></p>'
    yield "".join(wrong(states, now, of=of))
    yield "<section>" + "".join(target(state, now, shown=of))
    yield "".join(details(state, engine, now, opened=True)) + "</section>"


def _told(states: dict[str, State]) -> dict[EngineKey, bool]:
    """The engines that are told in full, and whether they are unfolded."""
    keys = [key for state in states.values() for key in state.engines]
    ill = {one.key for state in states.values() for one in findings(state)}
    chosen = sorted(keys, key=lambda key: key not in ill)[:_DETAILED]
    return {key: len(keys) <= _OPEN or key in ill for key in chosen}
