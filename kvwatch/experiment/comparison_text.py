"""A comparison for a terminal, and as Markdown."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator, Sequence

from kvwatch.experiment.caution import Caution, Weight
from kvwatch.experiment.comparison import Comparison
from kvwatch.experiment.comparison_rows import (
    Cell,
    ComparisonRow,
    changed,
    method,
    rows,
    runs_line,
    summary,
    untold,
    verdict_word,
    within_words,
)

_WIDTH = 118
_STAR = "*"


def as_text(comparison: Comparison) -> str:
    """The verdicts first, then what to know, the table, and how it came about."""
    return "\n".join(_text(comparison))


def _text(comparison: Comparison) -> Iterator[str]:
    baseline = comparison.baseline.run.name
    for candidate in comparison.candidates:
        word = verdict_word(candidate).upper() + within_words(candidate)
        yield f"{candidate.side.run.name} against {baseline}: {word}"
        yield from _wrapped([f"changed: {line}" for line in changed(candidate)], "  ")
        yield from _wrapped(summary(candidate), "  ")
        yield from _wrapped(map(_caution, candidate.cautions), "  ")
        yield ""
    yield from _wrapped(map(_caution, comparison.cautions), "")
    if comparison.cautions:
        yield ""
    yield from map(runs_line, comparison.sides)
    yield ""
    yield from _table(comparison)
    reasons = untold(comparison)
    if reasons:
        yield "\nNot told:"
        yield from _wrapped(reasons, "  ")
    yield "\nMethod:"
    yield from _wrapped(method(comparison), "  ")


def _caution(one: Caution) -> str:
    return f"{'WARNING' if one.weight is Weight.WARNING else 'note'}: {one.text}"


def _wrapped(lines: Iterator[str] | Sequence[str] | map[str], indent: str) -> Iterator[str]:
    for line in lines:
        yield from textwrap.wrap(
            line, _WIDTH, initial_indent=indent, subsequent_indent=indent + "  ", break_on_hyphens=False
        )


def _table(comparison: Comparison) -> Iterator[str]:
    """One table of all runs, in columns."""
    lines: list[tuple[str, ...]] = [_head(comparison)]
    groups: dict[int, str] = {}
    group = ""
    for row in rows(comparison):
        if row.group != group:
            group = row.group
            groups[len(lines)] = group
        lines.append(_line(row, brief=len(comparison.candidates) > 1))
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    left = {0} | {i for i in range(len(widths)) if lines[0][i] in {"", "verdict"}}
    for number_, line in enumerate(lines):
        if number_ in groups:
            yield groups[number_]
        cells = [
            cell.ljust(width) if i in left else cell.rjust(width)
            for i, (cell, width) in enumerate(zip(line, widths, strict=True))
        ]
        yield "  ".join(cells).rstrip()


def _head(comparison: Comparison) -> tuple[str, ...]:
    names: list[str] = ["", comparison.baseline.run.name[:20]]
    for candidate in comparison.candidates:
        names += [candidate.side.run.name[:20], "difference"]
        names += ["verdict"] if len(comparison.candidates) > 1 else ["95 % interval", "verdict"]
    return tuple(names)


def _line(row: ComparisonRow, *, brief: bool) -> tuple[str, ...]:
    cells: list[str] = [f"  {row.title}{_STAR if row.headline else ''}", row.baseline]
    for cell in row.cells:
        cells += [cell.value, cell.difference, *([] if brief else [cell.interval]), cell.verdict]
    return tuple(cells)


# -- Markdown -----------------------------------------------------------------------------------------------------


def as_markdown(comparison: Comparison) -> str:
    """The same as Markdown, for an issue or a wiki."""
    return "\n".join(_markdown(comparison))


def _markdown(comparison: Comparison) -> Iterator[str]:
    baseline = comparison.baseline.run.name
    for candidate in comparison.candidates:
        word = verdict_word(candidate) + within_words(candidate)
        yield f"## {_plain(candidate.side.run.name)} against {_plain(baseline)}: {word}\n"
        yield from (f"- changed: {_plain(line)}" for line in changed(candidate))
        yield from (f"- {_plain(line)}" for line in summary(candidate))
        yield from (f"- {_plain(_caution(one))}" for one in candidate.cautions)
        yield ""
    yield from (f"- {_plain(_caution(one))}" for one in comparison.cautions)
    yield from (f"- {_plain(runs_line(side))}" for side in comparison.sides)
    yield ""
    names = [comparison.baseline.run.name, *(one.side.run.name for one in comparison.candidates)]
    yield f"| | {' | '.join(map(_plain, names))} |"
    yield f"|---|{'---|' * len(names)}"
    for row in rows(comparison):
        title = f"**{_plain(row.title)}**" if row.headline else _plain(row.title)
        yield f"| {title} | {_plain(row.baseline)} | {' | '.join(map(_cell, row.cells))} |"
    yield ""
    yield from (f"- {_plain(reason)}" for reason in untold(comparison))
    yield ""
    yield from map(_plain, method(comparison))


def _cell(cell: Cell) -> str:
    told = f", {cell.difference}" if cell.difference else ""
    told += f" ({cell.interval})" if cell.interval else ""
    return _plain(f"{cell.value}{told}") + (f" **{cell.verdict}**" if cell.verdict else "")


def _plain(text: str) -> str:
    """Text that Markdown takes as it stands."""
    return "".join(f"\\{char}" if char in r"\`*_[]<>|#" else char for char in " ".join(text.split()))
