"""The tables of README.md and docs/, as Markdown, each by the name that its marker gives it."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence

from kvwatch.core.export.catalogue import METRICS, PREFIX, MetricGroup
from kvwatch.core.history.regimes import MEANING
from kvwatch.core.judgement.advice import levers
from kvwatch.core.judgement.advice.levers import Lever
from kvwatch.core.judgement.symptoms import SYMPTOMS, THRESHOLDS, Symptom, limits_of
from kvwatch.logs.causes import CAUSES
from kvwatch.mixin import dashboards
from kvwatch.mixin.alerts import meta_alerts
from kvwatch.mixin.render_options import Options
from kvwatch.settings import Settings, TargetSettings, sources
from kvwatch.settings.settings_model import choices

_CODE_OR_FLAG = re.compile(r"`[^`]*`|(?<![\w-])--[a-z][a-z0-9-]*")


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A Markdown table. In cells, bars are escaped, line breaks become spaces, and flags become code."""
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join("| " + " | ".join(_cell(cell) for cell in line) + " |" for line in lines)


def _cell(text: str) -> str:
    text = _CODE_OR_FLAG.sub(lambda found: found[0] if found[0][0] == "`" else f"`{found[0]}`", text)
    return text.replace("|", "\\|").replace("\n", " ")


def _sentence(text: str) -> str:
    """Begins with a capital, except for a name like vLLM, and ends with a full stop."""
    capital = text[:1].upper() if text.split(maxsplit=1)[0].islower() else text[:1]
    return f"{capital}{text[1:].removesuffix('.')}."


# -- symptoms and what they depend on ----------------------------------------------------------------------------


_SITUATIONAL = {levers.WAIT_AND_WATCH.id, levers.PLAN_CAPACITY.id, levers.ROUTE_BY_LOAD.id}
"""Levers that say what one server's numbers showed. A table knows no server."""


def _first_action(row: Symptom) -> str:
    """The first lever that applies to most servers, one without a restart if there is any."""

    def rank(lever: Lever) -> tuple[bool, bool]:
        special = bool(lever.value or lever.condition or lever.feature) or lever.id in _SITUATIONAL
        return lever.restart, special

    return min(row.levers, key=rank).general_text


def symptoms() -> str:
    """The short table: what each symptom means and what to do first."""
    rows = [[f"`{row.id}`", _sentence(row.title), _sentence(_first_action(row))] for row in SYMPTOMS]
    return table(["symptom", "meaning", "first step"], rows)


def symptom_reference() -> str:
    """The full table, with default thresholds."""
    head = ["symptom", "severity", "meaning", "fires when (defaults)", "first step", "covers"]
    rows = [
        [
            f"`{row.id}`",
            row.severity.value,
            row.title,
            row.fires_when(limits_of({})),
            _first_action(row),
            ", ".join(f"`{effect}`" for effect in row.explains),
        ]
        for row in SYMPTOMS
    ]
    return table(head, rows)


def regimes() -> str:
    return table(["regime", "meaning"], [[f"`{regime}`", text] for regime, text in MEANING.items()])


def thresholds() -> str:
    rows = [[f"`{row.name}`", f"{row.default:g}", row.unit, row.help] for row in THRESHOLDS]
    return table(["threshold", "default", "unit", "meaning"], rows)


def startup_verdicts() -> str:
    """Every verdict on a server's log, in the words for a log without numbers."""
    rows = []
    for row in CAUSES:
        meaning, actions = row.meaning({}).replace(": .", "."), row.actions({})
        rows.append([f"`{row.verdict}`", meaning, _sentence(actions[0]) if actions else ""])
    return table(["verdict", "meaning", "first step"], rows)


# -- what kvwatch exports ----------------------------------------------------------------------------------------


def metrics() -> str:
    """Every exported metric, by group."""
    parts = []
    for group in MetricGroup:
        rows = [
            [f"`{row.full_name}`", row.type.value, ", ".join(f"`{name}`" for name in row.labels), row.help]
            for row in METRICS
            if row.group is group
        ]
        parts.append(f"**{group.value}**\n\n{table(['metric', 'type', 'labels', 'meaning'], rows)}")
    own = f"Also exported: `{PREFIX}build_info`, and metrics of the kvwatch process as `{PREFIX}process_*`."
    return "\n\n".join([*parts, own])


def alerts() -> str:
    """The alerts about kvwatch itself and the TTFT objective."""
    rows = [[f"`{one.name}`", one.severity.value, one.summary] for one in meta_alerts(Options())]
    return table(["alert", "severity", "meaning"], rows)


def alert_options() -> str:
    """Every key of the file for `kvwatch render --config`."""
    rows = [
        [
            f"`{name}`",
            _default(field.default if isinstance(field.default, str) else ""),
            field.description or "",
        ]
        for name, field in Options.model_fields.items()
    ]
    return table(["key", "default", "meaning"], rows)


def dashboard_list() -> str:
    rows = [
        [f"`{one.uid}`", one.description, " ".join(row.title for row in one.rows)]
        for one in dashboards.every(Options())
    ]
    return table(["dashboard", "purpose", "rows"], rows)


# -- settings ----------------------------------------------------------------------------------------------------


def settings() -> str:
    """Every setting with its flag (secrets have none) and environment variable, then the fields of a target."""
    rows = [
        [
            "" if name in sources.SECRET else f"`{sources.flag(name)}`",
            f"`{sources.PREFIX}{sources.key(name).upper()}`",
            _default(field.default),
            ": ".join(filter(None, (field.description, ", ".join(f"`{word}`" for word in choices(field))))),
        ]
        for name, field in Settings.model_fields.items()
    ]
    targets = [
        [f"`{name}`", _default(field.default), field.description or ""]
        for name, field in TargetSettings.model_fields.items()
    ]
    return "\n\n".join(
        [
            table(["flag", "environment", "default", "meaning"], rows),
            "Fields of a target, in the file under `[[targets]]` or as JSON:",
            table(["key", "default", "meaning"], targets),
        ]
    )


def _default(value: object) -> str:
    if value is None or value in ([], {}, ""):
        return ""
    if isinstance(value, list):
        return ", ".join(map(_default, value))
    if isinstance(value, TargetSettings):
        return f"`{value.url}`"
    return f"`{value:g}`" if isinstance(value, float) else f"`{value}`"


TABLES: Mapping[str, Callable[[], str]] = {
    "alert options": alert_options,
    "alerts": alerts,
    "dashboards": dashboard_list,
    "metrics": metrics,
    "regimes": regimes,
    "settings": settings,
    "startup verdicts": startup_verdicts,
    "symptom reference": symptom_reference,
    "symptoms": symptoms,
    "thresholds": thresholds,
}
"""Every table by the NAME in its marker `<!-- rendered: NAME -->`."""
