"""A finding laid out for the terminal with rich: the same in `check`, `replay`, `demo` and `explain`."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from rich import box
from rich.console import Group, RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from kvwatch.commands import terminal_text
from kvwatch.commands.output import sanitize
from kvwatch.core.export.finding_text import advice_sections
from kvwatch.core.judgement.advice.choose import Advice
from kvwatch.text.evidence import evidence_rows, evidence_title, format_value
from kvwatch.text.numbers import format_duration

SEVERITY_STYLE = {"critical": "bold red", "warning": "bold yellow", "info": "bold blue"}

_NUMBERS = 5
"""Numbers in the line below the title."""


def lay_out_finding(
    found: Mapping[str, Any],
    *,
    since: str = "",
    short: bool = False,
    same: Sequence[Mapping[str, Any]] = (),
) -> RenderableType:
    """A finding from `report.finding`: severity, place, title, numbers, meaning, actions, evidence, causes.

    `since` replaces the time for which it fires. `short` leaves out everything after the numbers and what caused it.
    `same` are findings of other engines with the same actions; each gets a line with its numbers.
    """
    since = since or f"firing for {format_duration(found['firing_seconds'])}"
    numbers = terminal_text.evidence(found["evidence"], _NUMBERS)
    severity, where = found["severity"], _where(found)
    parts: list[RenderableType] = [
        line(f"{severity.upper()}  {where}", f": {found['title']}", style=SEVERITY_STYLE[severity]),
        paragraph(f"{found['symptom']}, {since}" + (f": {numbers}" if numbers else ""), style="dim"),
    ]
    if found["explained_by"]:
        which = "that" if len(found["explained_by"]) == 1 else "those"
        parts.append(paragraph(f"Caused by {' and '.join(found['explained_by'])}: fix {which} first."))
    if not short:
        parts += [
            paragraph(found["meaning"]),
            *actions(Advice.of_data(found)),
            *_evidence(found["evidence"]),
            *causes(found["causes"]),
        ]
    if same:
        parts.append(paragraph("The same on:", style="bold"))
    for one in same:
        text = f"{_where(one)}: {terminal_text.evidence(one['evidence'], _NUMBERS)}"
        parts.append(Padding(Text(sanitize(text)), (0, 0, 0, 4)))
    return Group(*parts)


def _where(found: Mapping[str, Any]) -> str:
    engine = found.get("engine")
    return terminal_text.place(
        (found.get("target", ""), found.get("model_name", ""), f"engine {engine}" if engine else ""), " / "
    )


def _evidence(evidence: Mapping[str, Any]) -> Iterator[RenderableType]:
    rows = evidence_rows(evidence)
    if not rows:
        return
    yield paragraph("Evidence:", style="bold")
    grid = table("what", "value", "threshold")
    for title, judged, limit in rows:
        cells = (format_value(title, one[1]) if one else "" for one in (judged, limit))
        grid.add_row(sanitize(evidence_title(title)), *map(sanitize, cells))
    yield Padding(grid, (0, 0, 0, 4))


def actions(advice: Advice) -> Iterator[RenderableType]:
    """What to do, numbered, and what not to do."""
    for heading, lines in advice_sections(advice):
        numbered = [text.partition(" ") if text[0].isdigit() else ("-", "", text) for text in lines]
        yield from items(heading, [sign for sign, _, _ in numbered], [text for _, _, text in numbered])


def steps(texts: Sequence[str]) -> Iterator[RenderableType]:
    """What to do, numbered."""
    return items("What to do:", [f"{n}." for n, _ in enumerate(texts, 1)], texts)


def causes(texts: Sequence[str]) -> Iterator[RenderableType]:
    return items("Likely causes:", ["-"] * len(texts), texts)


def items(title: str, signs: Sequence[str], texts: Iterable[str]) -> Iterator[RenderableType]:
    """A titled list, each text after its sign; nothing without texts."""
    if not signs:
        return
    yield paragraph(title, style="bold")
    grid = Table.grid(padding=(0, 1, 0, 0))
    for sign, text in zip(signs, texts, strict=True):
        grid.add_row(sign, Text(sanitize(text)))
    yield Padding(grid, (0, 0, 0, 4))


def line(head: str, rest: str = "", *, style: str = "") -> Text:
    """A line that never wraps, so that its text can be searched. `style` is for the head."""
    return Text.assemble((sanitize(head), style), sanitize(rest), no_wrap=True, overflow="ignore")


def paragraph(text: str, *, style: str = "") -> Padding:
    """An indented text that wraps."""
    return Padding(Text(sanitize(text), style=style), (0, 0, 0, 2))


def table(*heads: str) -> Table:
    """An empty table with these heads, which must have passed `sanitize`."""
    grid = Table(box=box.SIMPLE_HEAD, pad_edge=False, padding=(0, 2, 0, 0), show_edge=False)
    for head in heads:
        grid.add_column(head, overflow="fold")
    return grid
