"""The page at ``/``: what a person wants to see first, without a script or anything from elsewhere.

Every text that comes from a server or a setting passes `_e`.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from html import escape
from typing import Any

from kvwatch import __version__
from kvwatch.core.findings import Finding, findings, lifecycles
from kvwatch.core.lifecycle import Lifecycle
from kvwatch.core.report import NOTHING, duration, spoken, unseen
from kvwatch.core.state import EngineState, State
from kvwatch.sidecar.clock import Clock
from kvwatch.sidecar.standing import why_not_now
from kvwatch.sidecar.store import Store
from kvwatch.sidecar.style import STYLE

#: An option of vLLM, which is copied from the page and so never broken at its hyphens.
_OPTION = re.compile(r"(?<!\S)--[a-z][a-z0-9-]*")
_WHOLE = r'<span class="option">\g<0></span>'

REFRESH_S = 5
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
_COLUMNS = ("model", "engine", "regime", "KV usage", "running", "waiting", "KV demand", "pressure score")


def page(store: Store, clock: Clock) -> str:
    """The whole page."""
    return "\n".join(_lines(store, clock))


def _lines(store: Store, clock: Clock) -> Iterator[str]:
    yield '<!doctype html><html lang="en"><head><meta charset="utf-8"><title>kvwatch</title>'
    yield f'<meta http-equiv="refresh" content="{REFRESH_S}">'
    yield f'<meta name="viewport" content="width=device-width, initial-scale=1"><style>{STYLE}</style></head>'
    yield f"<body><h1>kvwatch <small>{_e(__version__)}</small></h1>"
    for state in store.states().values():
        yield from _target(state, clock.now())
    yield "<h2>More</h2><nav>"
    yield from (f'<a href="{link}">{link}</a>' for link in _LINKS)
    yield "</nav></body></html>"


def _target(state: State, now: float) -> Iterator[str]:
    yield f"<section><h2>{_e(state.target)}</h2>{_health(state, now)}"
    if state.engines:
        yield "<table><thead><tr>" + "".join(f"<th>{h}</th>" for h in _COLUMNS) + "</tr></thead><tbody>"
        yield from (_engine(engine, unseen(state, engine, now)) for engine in state.engines.values())
        yield "</tbody></table>"
    found = findings(state)
    lives = {(key, name): life for key, name, life in lifecycles(state)}
    for finding in found:
        id_ = finding.symptom.id
        yield _finding(finding, lives[finding.key, id_], now, keep_s=state.limits[f"{id_}.keep"])
    if state.up and not found:
        yield "<p>No finding.</p>"
    yield "</section>"


def _health(state: State, now: float) -> str:
    if state.up is None:
        return '<p class="dim">Not scraped yet.</p>'
    if state.error is not None:
        since = "" if state.failing_since is None else f" for {_since(state.failing_since, now)}"
        return (
            f'<p class="bad">Can\'t be scraped{since}: {_e(state.error.kind)}.'
            f" <small>{_e(state.error.detail)}</small></p>"
        )
    last = state.last
    what = "asking only for what is read" if last and last.narrowed else "reading the whole page"
    how = f", every {_e(duration(last.interval_s))}, {what}" if last else ""
    ago = "" if state.good_at is None else f"{_since(state.good_at, now)} ago"
    return f'<p class="good">Scraped <small>{ago}{how}</small></p>'


def _engine(engine: EngineState, unseen_s: float | None) -> str:
    """A row; of an engine that is not scraped now, none of its last numbers."""
    number, derived = engine.snapshot.number, engine.derived.get
    cells: tuple[str, ...] = (
        _percent(number("kv_cache_usage_ratio")),
        _number(number("requests_running"), 0),
        _number(number("requests_waiting"), 0),
        _number(derived("kv_cache_demand_ratio"), 2),
        _number(derived("cache_pressure_score"), 2),
    )
    regime = _e(engine.regime)
    if unseen_s is not None:
        cells = (NOTHING,) * len(cells)
        regime += f" <small>not scraped for {_e(duration(unseen_s))}</small>"
    words = (_e(engine.key.model_name), _e(engine.key.engine), regime)
    row = [f'<td data-name="{name}">{word}</td>' for name, word in zip(_COLUMNS, words, strict=False)]
    row += [
        f'<td class="n" data-name="{name}">{cell}</td>'
        for name, cell in zip(_COLUMNS[len(words) :], cells, strict=True)
    ]
    return f"<tr>{''.join(row)}</tr>"


def _finding(found: Finding, life: Lifecycle, now: float, *, keep_s: float) -> str:
    symptom = found.symptom
    whose = " ".join(part for part in found.key[1:] if part)
    told = ", ".join(part for part in (_e(whose), f"for {_e(duration(found.firing_s))}") if part)
    parts = [
        f'<article class="{_e(symptom.severity)}{" explained" if found.explained_by else ""}">',
        f"<h3><b>{_e(symptom.severity)}</b> {_e(symptom.title)}",
        f" <small><code>{_e(symptom.id)}</code> {told}</small></h3>",
        _now(life, now, keep_s),
    ]
    if found.explained_by:
        parts.append(f"<p>Explained by {_e(', '.join(found.explained_by))}: act on that first.</p>")
    parts.append(f"<p>{_e(symptom.meaning)}</p>")
    parts += _evidence(found.evidence)
    parts += _listed("Likely causes", "ul", symptom.causes)
    parts += _listed("What to do, in this order", "ol", found.actions)
    return "".join((*parts, "</article>"))


def _now(life: Lifecycle, now: float, keep_s: float) -> str:
    """What is told of a firing symptom whose condition does not hold, or can't be told, at present."""
    why = why_not_now(life, now, keep_s)
    return f"<p>{_e(why)}.</p>" if why else ""


def _evidence(evidence: Mapping[str, Any]) -> Iterator[str]:
    """The numbers that were judged, and the thresholds."""
    if evidence:
        facts = (
            f'<span class="fact"><code>{_e(name)}</code> {_e(spoken(name, value))}</span>'
            for name, value in evidence.items()
        )
        yield f"<h4>Evidence</h4><p>{' '.join(facts)}</p>"


def _listed(title: str, tag: str, lines: Iterable[str]) -> Iterator[str]:
    items = "".join(f"<li>{_OPTION.sub(_WHOLE, _e(line))}</li>" for line in lines)
    if items:
        yield f"<h4>{title}</h4><{tag}>{items}</{tag}>"


def _e(text: object) -> str:
    return escape(str(text), quote=True)


def _number(value: float | None, digits: int) -> str:
    return NOTHING if value is None else f"{value:,.{digits}f}"


def _percent(value: float | None) -> str:
    return NOTHING if value is None else f"{100 * value:.1f} %"


def _since(start: float, now: float) -> str:
    return _e(duration(max(now - start, 0.0)))
