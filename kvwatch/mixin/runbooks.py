"""One runbook per alert, as Markdown, from the symptom table and `pages`."""

from __future__ import annotations

from kvwatch.core.export.alert_names import PREFIX, alert_name
from kvwatch.core.judgement.symptoms import SYMPTOMS, Action, Symptom, limits_of
from kvwatch.mixin import alerts
from kvwatch.mixin.alerts import Alert
from kvwatch.mixin.promql import select
from kvwatch.mixin.render_options import Options
from kvwatch.mixin.runbook_texts import OWN_PAGES, QUERIES, SYMPTOM_PAGES, TARGET, RunbookText

_HEAD = "<!-- Written by `kvwatch render`: edits here are lost. -->"
_COMMANDS = """\
```sh
kvwatch check http://SERVER:8000 --for 60s
kvwatch record http://SERVER:8000 -o incident.jsonl.gz --for 10m
```"""
_WHERE = {"kv transfer": "with a KV connector", "lora": "with LoRA", "watermark": "recent releases"}


def runbooks(options: Options) -> dict[str, str]:
    """File name -> text, for every alert, disabled or not."""
    return {one.page: _runbook(one) for one in alerts.every(options)}


def _runbook(one: Alert) -> str:
    row = one.symptom
    if row:
        page, meaning = SYMPTOM_PAGES[row.id], _symptom_meaning(row)
        mitigation = [_said(action) for action in row.actions]
    else:
        own = OWN_PAGES[one.name.removeprefix(PREFIX)]
        page, meaning, mitigation = own.page, [own.meaning], list(own.mitigation)
    parts = [
        _HEAD,
        f"# {one.name}",
        f"**{one.severity.value}**: {one.summary}",
        "## Meaning",
        *meaning,
        "The rule:",
        f"```promql\n{one.expr}\n```",
        *([f"It must hold for {one.for_duration}."] if one.for_duration else []),
        "## Impact",
        page.impact,
        "## Diagnosis",
        *_diagnosis(row, page),
        "## Mitigation",
        "In this order:",
        "\n".join(f"{number}. {text}" for number, text in enumerate(mitigation, 1)),
        "## How to tell that it worked",
        *_worked(row, page),
    ]
    return "\n\n".join(parts) + "\n"


def _symptom_meaning(row: Symptom) -> list[str]:
    parts = [
        row.meaning,
        f"It fires when: {row.fires_when(limits_of({}))} (defaults; each number is a threshold of kvwatch).",
        "Likely causes, most likely first:",
        "\n".join(f"- {cause}" for cause in row.causes),
    ]
    causes = [_link(other.id) for other in SYMPTOMS if row.id in other.explains]
    if causes:
        parts.append(
            f"It makes no alert while one of these fires, which accounts for it: {', '.join(causes)}."
        )
    if row.explains:
        effects = ", ".join(map(_link, row.explains))
        parts.append(f"While it fires it accounts for these, and they make no alert: {effects}.")
    return parts


def _link(symptom: str) -> str:
    name = alert_name(symptom)
    return f"[{name}]({name.lower()}.md)"


def _diagnosis(row: Symptom | None, page: RunbookText) -> list[str]:
    parts = ["Ask Prometheus, with the alert's label `target` in place of TARGET:"]
    queries = [QUERIES[name] for name in page.queries]
    if row:
        matchers = (TARGET, f'symptom="{row.id}"')
        since = select("symptom_since_timestamp_seconds", *matchers)
        entered = select("symptom_transitions_total", *matchers, 'to="firing"')
        queries = [
            ("For how long it has fired, in seconds", f"time() - {since}"),
            ("How often it began in the last day", f"increase({entered}[1d])"),
            *queries,
        ]
    parts += [f"{text}:\n\n```promql\n{query}\n```" for text, query in queries]
    return [
        *parts,
        "The evidence (the numbers it was judged by), from the kvwatch that watches the server:",
        "```sh\ncurl -s http://KVWATCH:9477/api/v1/findings\n```",
        "The same judgement from any machine that reaches the server, and a recording for a report:",
        _COMMANDS,
    ]


def _said(action: Action) -> str:
    """An action with the condition under which kvwatch proposes it."""
    notes = []
    if len(action.generations) == 1:
        notes.append(f"{action.generations[0]} engine")
    if action.feature in _WHERE:
        notes.append(_WHERE[action.feature])
    return action.text + (f" ({', '.join(notes)})" if notes else "")


def _worked(row: Symptom | None, page: RunbookText) -> list[str]:
    parts = [f"{page.worked[0].upper()}{page.worked[1:]}. The queries under Diagnosis show it."]
    if row:
        state = select("symptom_state", TARGET, f'symptom="{row.id}"', 'state="inactive"')
        keep = f" once it has been clear for {row.keep_s:g} s" if row.keep_s else ""
        parts += [f"The alert is over{keep}, when this is 1:", f"```promql\n{state}\n```"]
        parts.append("A state of `unknown` is not over: its signals are missing.")
    return parts
