"""One runbook per alert, as Markdown, from the symptom table and `runbook_texts`.

A runbook starts with what on-call people need first: meaning, what to do, how to check that it worked. Queries and
background follow.
"""

from __future__ import annotations

from collections.abc import Iterable

from kvwatch.core.export.alert_names import PREFIX, alert_name
from kvwatch.core.judgement.advice.levers import RESTART_COST, Lever
from kvwatch.core.judgement.symptoms import SYMPTOMS, Runbook, Symptom, limits_of
from kvwatch.mixin import alerts
from kvwatch.mixin.alerts import Alert
from kvwatch.mixin.promql import select
from kvwatch.mixin.render_options import Options
from kvwatch.mixin.runbook_texts import OWN_PAGES, QUERIES, TARGET

_HEAD = "<!-- Written by `kvwatch render`: edits here are lost. -->"
_COMMANDS = """\
```sh
kvwatch check http://SERVER:8000 --for 60s
kvwatch record http://SERVER:8000 -o incident.jsonl.gz --for 10m
```"""
_RESTART = (
    "A finding shows only the levers that apply, with the amount N for this server. *Needs a restart*:"
    f" {RESTART_COST}. Change one option at a time, on one replica at a time."
)
_SHOWN_WITH = {
    "kv transfer": "servers with a KV connector",
    "lora": "servers with LoRA",
    "watermark": "recent releases",
}


def runbooks(options: Options) -> dict[str, str]:
    """File name -> text, for every alert, disabled or not."""
    return {one.page: _runbook(one) for one in alerts.every(options)}


def runbook_queries(owner: str, runbook: Runbook) -> list[tuple[str, str]]:
    """What each query of a runbook shows, and its PromQL. ValueError names queries that do not exist."""
    if missing := [name for name in runbook.queries if name not in QUERIES]:
        raise ValueError(
            f"the runbook of {owner} names queries that QUERIES in kvwatch/mixin/runbook_texts.py does not have:"
            f" {', '.join(missing)}. Add them there, or fix the names"
        )
    return [QUERIES[name] for name in runbook.queries]


def _runbook(one: Alert) -> str:
    row = one.symptom
    if row:
        runbook, meaning, mitigation = row.runbook, row.meaning, _mitigation(row)
    else:
        name = one.name.removeprefix(PREFIX)
        if name not in OWN_PAGES:
            raise ValueError(
                f"alert {one.name} has no runbook: add {name!r} to OWN_PAGES in kvwatch/mixin/runbook_texts.py"
            )
        own = OWN_PAGES[name]
        runbook, meaning, mitigation = own.runbook, own.meaning, list(own.mitigation)
    parts = [
        _HEAD,
        f"# {one.name}",
        f"**{one.severity.value}**: {one.summary}",
        "## Meaning",
        meaning,
        f"Impact: {runbook.impact}",
        "## Mitigation",
        "In this order:",
        "\n".join(f"{number}. {text}" for number, text in enumerate(mitigation, 1)),
        *([_RESTART] if any("needs a restart" in text for text in mitigation) else []),
        *([_do_not(row)] if row and row.do_not else []),
        "## How to check that it worked",
        *_worked(row, runbook),
        "## Diagnosis",
        *_diagnosis(row, runbook_queries(row.id if row else one.name, runbook)),
        "## Background",
        *(_background(row) if row else []),
        f"The rule:\n\n```promql\n{one.expr}\n```",
        *([f"The expression must hold for {one.for_duration}."] if one.for_duration else []),
    ]
    return "\n\n".join(parts) + "\n"


def _do_not(row: Symptom) -> str:
    return "Do not:\n\n" + "\n".join(f"- {one.text[0].upper()}{one.text[1:]}." for one in row.do_not)


def _mitigation(row: Symptom) -> list[str]:
    """All levers of a symptom, in the order in which a finding offers those that apply."""
    return [_lever(lever) for lever in sorted(row.levers, key=lambda lever: lever.restart)]


def _lever(lever: Lever) -> str:
    """A lever with its condition, its cost, and the servers it is shown for."""
    notes = [lever.condition] if lever.condition else []
    notes += [f"{lever.generations[0]} engine only"] if len(lever.generations) == 1 else []
    notes += [_SHOWN_WITH[lever.feature]] if lever.feature in _SHOWN_WITH else []
    notes += ["needs a restart"] if lever.restart else []
    text = lever.general_text + (f" ({', '.join(notes)})" if notes else "")
    return f"{text}. Cost: {lever.cost}." if lever.cost else f"{text}."


def _worked(row: Symptom | None, runbook: Runbook) -> list[str]:
    parts = [f"{runbook.worked[0].upper()}{runbook.worked[1:]}. Use the queries under Diagnosis."]
    if row:
        state = select("symptom_state", TARGET, f'symptom="{row.id}"', 'state="inactive"')
        keep = f", {row.keep_s:g} s after the condition has cleared" if row.keep_s else ""
        parts += [
            f"The alert has resolved when this returns 1{keep}:",
            f"```promql\n{state}\n```",
            "The state `unknown` does not count as resolved: required signals are missing.",
        ]
    return parts


def _diagnosis(row: Symptom | None, queries: list[tuple[str, str]]) -> list[str]:
    causes = []
    if row:
        causes = ["Likely causes, most likely first:", "\n".join(f"- {cause}" for cause in row.causes)]
        matchers = (TARGET, f'symptom="{row.id}"')
        since = select("symptom_since_timestamp_seconds", *matchers)
        entered = select("symptom_transitions_total", *matchers, 'to="firing"')
        queries = [
            ("Seconds since the symptom fired", f"time() - {since}"),
            ("How often the symptom fired in the last day", f"increase({entered}[1d])"),
            *queries,
        ]
    return [
        *causes,
        "Run these queries in Prometheus. Replace TARGET with the alert's label `target`.",
        *(f"{text}:\n\n```promql\n{query}\n```" for text, query in queries),
        "Get the evidence (the judged numbers) from the kvwatch that watches the server:",
        "```sh\ncurl -s http://KVWATCH:9477/api/v1/findings\n```",
        "Check the server from any machine that can reach it, and record it for a bug report:",
        _COMMANDS,
    ]


def _background(row: Symptom) -> list[str]:
    condition = row.fires_when(limits_of({}))
    parts = [
        f"Fires when: {condition} (default thresholds).",
        f"Source: {row.origin}.",
    ]
    if causes := [other.id for other in SYMPTOMS if row.id in other.explains]:
        parts.append(f"Suppressed while one of its causes is firing: {_links(causes)}.")
    if row.explains:
        parts.append(f"While it fires, these alerts are suppressed: {_links(row.explains)}.")
    return parts


def _links(symptoms: Iterable[str]) -> str:
    names = map(alert_name, symptoms)
    return ", ".join(f"[{name}]({name.lower()}.md)" for name in names)
