"""A comparison for a terminal, and as Markdown."""

from __future__ import annotations

import textwrap
from collections.abc import Iterable, Iterator

from kvwatch.experiment import comparison_rows as words
from kvwatch.experiment.comparison import Comparison

_WIDTH = 118


def as_text(comparison: Comparison) -> str:
    """The verdicts, cautions, table and method."""
    return "\n".join(_text(comparison))


def _text(comparison: Comparison) -> Iterator[str]:
    baseline = comparison.baseline.run.name
    for candidate in comparison.candidates:
        verdict = words.verdict_word(candidate).upper() + words.within_words(candidate)
        yield f"{candidate.side.run.name} compared with {baseline}: {verdict}"
        cautions = map(words.caution_line, candidate.cautions)
        yield from _wrapped((*words.reasons(candidate), *cautions), "  ")
        yield ""
    if comparison.cautions:
        yield from _wrapped(map(words.caution_line, comparison.cautions), "")
        yield ""
    yield from map(words.run_line, comparison.sides)
    yield ""
    yield from _table(comparison)
    for title, lines in (
        ("Measures without a verdict", words.not_judged(comparison)),
        ("Method", words.method(comparison)),
    ):
        if lines:
            yield f"\n{title}:"
            yield from _wrapped(lines, "  ")


def _wrapped(lines: Iterable[str], indent: str) -> Iterator[str]:
    for line in lines:
        yield from textwrap.wrap(
            line, _WIDTH, initial_indent=indent, subsequent_indent=indent + "  ", break_on_hyphens=False
        )


def _table(comparison: Comparison) -> Iterator[str]:
    """All runs in columns; intervals only if there is one candidate."""
    brief = len(comparison.candidates) > 1
    fields = ["value", "difference", "verdict"] if brief else ["value", "difference", "interval", "verdict"]
    head = ["", comparison.baseline.run.name[:20]]
    for candidate in comparison.candidates:
        titles = {"value": candidate.side.run.name[:20], "interval": "95 % interval"}
        head += [titles.get(name, name) for name in fields]
    lines: list[tuple[str, list[str]]] = [("", head)]
    for row in words.rows(comparison):
        cells = [getattr(cell, name) for cell in row.cells for name in fields]
        lines.append((row.group, [f"  {row.starred}", row.baseline, *cells]))
    widths = [max(map(len, column)) for column in zip(*(cells for _, cells in lines), strict=True)]
    last = ""
    for group, cells in lines:
        if group != last:
            yield group
        last = group
        padded = (
            cell.ljust(width) if title in {"", "verdict"} else cell.rjust(width)
            for title, cell, width in zip(head, cells, widths, strict=True)
        )
        yield "  ".join(padded).rstrip()


# -- Markdown -----------------------------------------------------------------------------------------------------


def as_markdown(comparison: Comparison) -> str:
    """The same as Markdown, for an issue or a wiki."""
    return "\n".join(_markdown(comparison))


def _markdown(comparison: Comparison) -> Iterator[str]:
    names = [_escape(side.run.name) for side in comparison.sides]
    for name, candidate in zip(names[1:], comparison.candidates, strict=True):
        yield f"## {name} compared with {names[0]}: {words.verdict_word(candidate)}{words.within_words(candidate)}\n"
        yield from _items((*words.reasons(candidate), *map(words.caution_line, candidate.cautions)))
        yield ""
    yield from _items(map(words.caution_line, comparison.cautions))
    yield from _items(map(words.run_line, comparison.sides))
    yield f"\n| | {' | '.join(names)} |"
    yield f"|---|{'---|' * len(names)}"
    for row in words.rows(comparison):
        title = f"**{_escape(row.title)}**" if row.headline else _escape(row.title)
        yield f"| {title} | {_escape(row.baseline)} | {' | '.join(map(_cell, row.cells))} |"
    yield ""
    yield from _items(words.not_judged(comparison))
    yield ""
    yield from map(_escape, words.method(comparison))


def _items(lines: Iterable[str]) -> Iterator[str]:
    return (f"- {_escape(line)}" for line in lines)


def _cell(cell: words.Cell) -> str:
    difference = f", {cell.difference}" if cell.difference else ""
    interval = f" ({cell.interval})" if cell.interval else ""
    return _escape(cell.value + difference + interval) + (f" **{cell.verdict}**" if cell.verdict else "")


def _escape(text: str) -> str:
    """Text that Markdown shows as it is."""
    return "".join(f"\\{char}" if char in r"\`*_[]<>|#" else char for char in " ".join(text.split()))
