"""The README's tables, as Markdown."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from kvwatch.core.export.catalogue import METRICS, PREFIX, MetricGroup
from kvwatch.core.history.regimes import MEANING
from kvwatch.core.judgement.symptoms import SYMPTOMS, THRESHOLDS, limits_of
from kvwatch.core.model.snapshot import EngineKey, Snapshot


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A Markdown table; bars and line breaks in cells are made harmless."""
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join("| " + " | ".join(_cell(cell) for cell in line) + " |" for line in lines)


def _cell(text: str) -> str:
    return text.replace("|", "\\|").replace("\n", " ")


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
    own = f"Beside these: `{PREFIX}build_info`, and process metrics of kvwatch itself as `{PREFIX}process_*`."
    return "\n\n".join([*parts, own])


def symptoms() -> str:
    """Every symptom: how bad, what it means, when it fires, what to do first, and what it accounts for."""
    limits = limits_of({})
    rows = [
        [
            f"`{row.id}`",
            row.severity.value,
            row.title,
            row.fires_when(limits),
            row.actions_for(Snapshot(EngineKey("any")))[0].text,
            ", ".join(f"`{effect}`" for effect in row.explains),
        ]
        for row in SYMPTOMS
    ]
    return table(
        ["symptom", "severity", "what", "fires when (defaults)", "first thing to do", "accounts for"], rows
    )


def regimes() -> str:
    """The closed set of regimes."""
    return table(["regime", "meaning"], [[f"`{regime}`", text] for regime, text in MEANING.items()])


def thresholds() -> str:
    """Every threshold with its default."""
    rows = [[f"`{row.name}`", f"{row.default:g}", row.unit, row.help] for row in THRESHOLDS]
    return table(["threshold", "default", "unit", "meaning"], rows)
