"""The page at ``/``: what a person wants to see first, without a script or anything from elsewhere.

Every text that comes from a server or a setting passes `_e`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from html import escape
from typing import Any

from kvwatch import __version__
from kvwatch.core.findings import Finding, findings
from kvwatch.core.state import EngineState, State
from kvwatch.sidecar.clock import Clock
from kvwatch.sidecar.store import Store

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
_STYLE = """
:root { color-scheme: light dark; --ink: #1b1f24; --dim: #5b6570; --line: #d6dbe1; --paper: #fff;
  --critical: #b42318; --warning: #9a5b00; --info: #1f5fa8; --good: #1a7f4b; }
@media (prefers-color-scheme: dark) { :root { --ink: #e4e8ec; --dim: #98a3ae; --line: #343b43; --paper: #14181c;
  --critical: #ff8b80; --warning: #f2b45a; --info: #7fb8f5; --good: #6bd49b; } }
body { font: 15px/1.5 system-ui, sans-serif; color: var(--ink); background: var(--paper);
  max-width: 68rem; margin: 2rem auto; padding: 0 1rem; }
h1 { font-size: 1.3rem; } h2 { font-size: 1.1rem; margin: 2rem 0 .4rem; } h3 { font-size: 1rem; margin: 0; }
small, th, .dim { color: var(--dim); font-weight: 400; }
table { border-collapse: collapse; width: 100%; display: block; overflow-x: auto; }
th, td { text-align: left; padding: .3rem 1rem .3rem 0; border-bottom: 1px solid var(--line); white-space: nowrap; }
td.n { font-variant-numeric: tabular-nums; }
article { border-left: 4px solid var(--line); padding: .2rem 0 .2rem 1rem; margin: 1rem 0; }
article.critical { border-color: var(--critical); } article.warning { border-color: var(--warning); }
article.info { border-color: var(--info); } article.explained { opacity: .75; }
.critical b { color: var(--critical); } .warning b { color: var(--warning); } .info b { color: var(--info); }
.good { color: var(--good); } .bad { color: var(--critical); }
code { font-size: .9em; overflow-wrap: anywhere; } nav a { margin-right: 1rem; } a { color: var(--info); }
p { margin: .3rem 0; } ol { margin: .3rem 0; }
"""


def page(store: Store, clock: Clock) -> str:
    """The whole page."""
    return "\n".join(_lines(store, clock))


def _lines(store: Store, clock: Clock) -> Iterator[str]:
    yield '<!doctype html><html lang="en"><head><meta charset="utf-8"><title>kvwatch</title>'
    yield f'<meta http-equiv="refresh" content="{REFRESH_S}">'
    yield f'<meta name="viewport" content="width=device-width, initial-scale=1"><style>{_STYLE}</style></head>'
    yield f"<body><h1>kvwatch <small>{_e(__version__)}</small></h1>"
    for state in store.states().values():
        yield from _target(state, clock.now())
    yield "<h2>More</h2><nav>"
    yield from (f'<a href="{link}">{link}</a>' for link in _LINKS)
    yield "</nav></body></html>"


def _target(state: State, now: float) -> Iterator[str]:
    yield f"<section><h2>{_e(state.target)}</h2>{_health(state, now)}"
    if state.engines:
        heads = ("model", "engine", "regime", "pressure score", "KV usage", "KV demand", "running", "waiting")
        yield "<table><thead><tr>" + "".join(f"<th>{h}</th>" for h in heads) + "</tr></thead><tbody>"
        yield from (_engine(engine) for engine in state.engines.values())
        yield "</tbody></table>"
    found = findings(state)
    yield from (_finding(finding) for finding in found)
    if state.up and not found:
        yield "<p>No finding.</p>"
    yield "</section>"


def _health(state: State, now: float) -> str:
    if state.up is None:
        return '<p class="dim">Not scraped yet.</p>'
    if state.error is not None:
        since = "" if state.failing_since is None else f" for {_seconds(now - state.failing_since)}"
        return (
            f'<p class="bad">Can\'t be scraped{since}: {_e(state.error.kind)}.'
            f" <small>{_e(state.error.detail)}</small></p>"
        )
    last = state.last
    how = (
        ""
        if last is None
        else f", every {_seconds(last.interval_s)}, {'narrowed' if last.narrowed else 'whole'}"
    )
    return f'<p class="good">Scraped <small>{_seconds(now - (state.good_at or now))} ago{how}</small></p>'


def _engine(engine: EngineState) -> str:
    number, derived = engine.snapshot.number, engine.derived.get
    cells = (
        _number(derived("cache_pressure_score"), 2),
        _percent(number("kv_cache_usage_ratio")),
        _number(derived("kv_cache_demand_ratio"), 2),
        _number(number("requests_running"), 0),
        _number(number("requests_waiting"), 0),
    )
    names = (engine.key.model_name, engine.key.engine, str(engine.regime))
    row = "".join(f"<td>{_e(name)}</td>" for name in names) + "".join(
        f'<td class="n">{c}</td>' for c in cells
    )
    return f"<tr>{row}</tr>"


def _finding(found: Finding) -> str:
    whose = " ".join(part for part in found.key[1:] if part)
    explained = " explained" if found.explained_by else ""
    parts = [
        f'<article class="{_e(found.symptom.severity)}{explained}">',
        f"<h3><b>{_e(found.symptom.severity)}</b> {_e(found.symptom.title)}",
        f" <small><code>{_e(found.symptom.id)}</code> {_e(whose)}, for {_seconds(found.firing_s)}</small></h3>",
        f"<p>{_e(found.symptom.meaning)}</p>",
    ]
    if found.explained_by:
        parts.append(f"<p>Explained by {_e(', '.join(found.explained_by))}: act on that first.</p>")
    if found.evidence:
        parts.append(f'<p class="dim"><code>{_evidence(found.evidence)}</code></p>')
    if found.actions:
        parts.append("<ol>" + "".join(f"<li>{_e(action)}</li>" for action in found.actions) + "</ol>")
    return "".join((*parts, "</article>"))


def _evidence(evidence: Mapping[str, Any]) -> str:
    return ", ".join(f"{_e(name)} = {_value(value)}" for name, value in evidence.items())


def _value(value: Any) -> str:
    if value is None:
        return "unknown"
    return f"{value:.4g}" if isinstance(value, float) else _e(value)


def _e(text: object) -> str:
    return escape(str(text), quote=True)


def _number(value: float | None, digits: int) -> str:
    return "unknown" if value is None else f"{value:.{digits}f}"


def _percent(value: float | None) -> str:
    return "unknown" if value is None else f"{100 * value:.1f} %"


def _seconds(value: float) -> str:
    value = max(value, 0.0)
    return f"{value:.3g} s" if value < 120 else f"{value / 60:.0f} min"
