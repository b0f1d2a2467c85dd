"""What is wrong: the findings of all servers, most urgent first, or in a line that there is none."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from kvwatch.core.export.alert_names import alert_name
from kvwatch.core.export.findings import Finding, findings, lifecycles
from kvwatch.core.judgement.lifecycle import Lifecycle
from kvwatch.core.judgement.state import State
from kvwatch.core.judgement.symptoms import Verdict
from kvwatch.core.model.snapshot import EngineKey
from kvwatch.sidecar.page.markup import e, ident, link, listed, place
from kvwatch.sidecar.views import why_not_current
from kvwatch.text.evidence import evidence_rows, evidence_title, format_value
from kvwatch.text.numbers import format_duration


def wrong(states: Mapping[str, State], now: float, *, of: EngineKey | None = None) -> Iterator[str]:
    """The section. `now` is monotonic. Of one engine: its findings and those of its whole server."""
    about = None if of is None else {of, EngineKey(of.target)}
    every = [(state, one) for state in states.values() for one in findings(state)]
    states = states if of is None else {of.target: states[of.target]}
    found = [pair for pair in every if about is None or pair[1].key in about]
    found.sort(key=lambda pair: bool(pair[1].explained_by))  # each target's are in order already
    yield '<section id="wrong" aria-labelledby="wrong-title"><h2 id="wrong-title">What is wrong</h2>'
    untold = sum(
        life.verdict is Verdict.UNKNOWN and (about is None or key in about)
        for state in states.values()
        for key, _, life in lifecycles(state)
    )
    yield _headline(states, [one for _, one in found], untold)
    if len(every) > len(found):
        yield f'<p>{len(every) - len(found)} more elsewhere: <a href="/">all findings</a>.</p>'
    lives = {
        state.target: {(key, name): life for key, name, life in lifecycles(state)}
        for state in states.values()
    }
    for state, one in found:
        life = lives[state.target][one.key, one.symptom.id]
        yield _finding(one, life, now, keep_s=state.limits[f"{one.symptom.id}.keep"])
    yield "</section>"


def _headline(states: Mapping[str, State], found: list[Finding], untold: int) -> str:
    """In one line what there is to do; `untold` symptoms can't be judged."""
    if found:
        first = [one for one in found if not one.explained_by]
        worst = (first or found)[0].symptom
        several = f"{len(found)} findings" if len(found) > 1 else "1 finding"
        rest = len(found) - len(first)
        also = f", {rest} of them explained by the others" if rest and first else ""
        return f'<p class="headline {e(worst.severity)}">{e(several + also)}. First: {e(worst.title)}.</p>'
    down = [state.target for state in states.values() if state.up is False]
    if down:
        return f'<p class="headline warning">No finding yet, but not scraped: {e(", ".join(down))}.</p>'
    if any(state.up is None for state in states.values()):
        return '<p class="headline">Not scraped yet.</p>'
    more = f" {untold} symptoms can't be told: the engines say why." if untold else ""
    return f'<p class="headline good">No finding.{more}</p>'


def _finding(found: Finding, life: Lifecycle, now: float, *, keep_s: float) -> str:
    symptom = found.symptom
    id_ = ident("finding", *found.key, symptom.id)
    look = f"{symptom.severity}{' explained' if found.explained_by else ''}"
    lasts = f"for {format_duration(found.firing_s)}"
    parts = [
        f'<article id="{id_}" class="{look}" aria-labelledby="{id_}-title" data-finding="{e(symptom.title)}">',
        f'<h3 id="{id_}-title"><b>{e(symptom.severity)}</b> {e(symptom.title)}</h3>',
        f'<p class="dim"><code>{e(symptom.id)}</code> {e(lasts)}, on {link(found.key, place(found.key))}</p>',
    ]
    if why := why_not_current(life, now, keep_s):
        parts.append(f"<p>{e(why)}.</p>")
    if found.explained_by:
        parts.append(f"<p>Explained by {e(', '.join(found.explained_by))}: act on that first.</p>")
    parts.append(f"<p>{e(symptom.meaning)}</p>")
    if found.explained_by:
        parts.append("<details><summary>Evidence and what to do, if it stays</summary>")
    parts += listed("ol", found.actions, "What to do, in this order")
    parts += _evidence(found.evidence)
    parts += listed("ul", symptom.causes, "Likely causes")
    name = alert_name(symptom.id)
    parts.append(f'<p><a href="/runbooks/{name.lower()}.md">Runbook: {name}</a></p>')
    return "".join((*parts, "</details></article>" if found.explained_by else "</article>"))


def _evidence(evidence: Mapping[str, Any]) -> Iterator[str]:
    """The numbers that were judged, each with what it was held against, in words and by its whole name."""
    found = evidence_rows(evidence)
    if not found:
        return
    yield '<h4>Evidence</h4><dl class="facts">'
    for title, judged, limit in found:
        yield f"<div><dt>{e(evidence_title(title))}</dt><dd>"
        if judged:
            yield f"<span>{_value(title, *judged)}</span>"
        if limit:
            yield f'<span class="dim">held against {_value(title, *limit)}</span>'
        yield "</dd></div>"
    yield "</dl>"


def _value(title: str, name: str, value: Any) -> str:
    """A value, with the name that people search for: the one that it has in the API and in the metrics."""
    return f"<b>{e(format_value(title, value))}</b> <code>{e(name)}</code>"
