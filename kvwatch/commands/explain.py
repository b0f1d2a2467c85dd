"""`kvwatch explain`: why vLLM did not start, and what its statistics lines show."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from kvwatch.commands import options
from kvwatch.commands.output import draw, print_json

if TYPE_CHECKING:
    from rich.console import RenderableType

    from kvwatch.logs import Explanation
    from kvwatch.logs.statistics_judgement import LoggedSymptom

HELP = "read a vLLM log: why the server did not start, and what its statistics lines show"
EPILOG = """\
examples:
  kvwatch explain vllm.log
  kubectl logs my-vllm --previous | kvwatch explain -
  docker logs vllm 2>&1 | kvwatch explain - --json | jq '.verdict, .actions'

It reads logs of every vLLM release (v0 and v1), with colours, timestamps, container prefixes or as JSON, gzipped or
not. If a log has several starts, the last is judged. Statistics lines are judged like live metrics; lines without a
time count as 10 s apart.

exit codes:
  0  the start succeeded, and no symptom was found
  1  the cause of a failed start was found, or there are symptoms
  2  unknown: the log does not show the cause, is no vLLM log, or can't be read
"""
_PIECE = 1 << 20
_CONFIDENCE = {"high": "certain", "medium": "probable", "low": "a guess: the log shows little"}


def add(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("file", metavar="LOG", help="a vLLM log, gzipped or not; - is standard input")
    options.add_progress(parser)
    options.add_json(parser)


def main(args: argparse.Namespace) -> int:
    from kvwatch.logs import LogReader
    from kvwatch.recording import open_file

    reader = LogReader()
    with open_file(args.file) as file:
        for piece in _with_progress_bar(file.pieces(_PIECE), file.size, args):
            reader.feed(piece)
        damage = file.damage
    found = reader.explain()
    notes = [*found.notes, *([damage] if damage else [])]
    if args.json:
        print_json(as_data(found, notes))
    else:
        _print(args.file, found, notes)
    return found.exit_code


def _with_progress_bar(
    pieces: Iterator[tuple[bytes, int]], size: int | None, args: argparse.Namespace
) -> Iterator[bytes]:
    from tqdm import tqdm

    with tqdm(
        total=size, unit="B", unit_scale=True, disable=options.no_bar(args), file=sys.stderr, leave=False, delay=0.5
    ) as bar:  # fmt: skip
        for piece, read in pieces:
            yield piece
            bar.update(read - bar.n)


def as_data(found: Explanation, notes: list[str]) -> dict[str, Any]:
    return {
        "verdict": found.verdict,
        "confidence": found.confidence,
        "meaning": found.meaning,
        "facts": dict(found.facts),
        "evidence": [{"line": line, "text": text} for line, text in found.evidence],
        "actions": list(found.actions),
        "symptoms": [_symptom_data(symptom) for symptom in found.symptoms],
        "budget": [{"step": step.what, "gib": step.gib, "takes": step.takes} for step in found.budget],
        "notes": notes,
        "starts": found.starts,
        "lines": found.lines,
        "exit_code": found.exit_code,
    }


def _symptom_data(symptom: LoggedSymptom) -> dict[str, Any]:
    from kvwatch.core.judgement.symptoms import BY_ID

    row = BY_ID[symptom.symptom]
    return {
        "symptom": symptom.symptom,
        "title": row.title,
        "severity": str(row.severity),
        "engine": symptom.key.engine,
        "confidence": symptom.confidence,
        "line": symptom.line,
        "evidence": dict(symptom.evidence),
        "explained_by": list(symptom.explained_by),
        "meaning": row.meaning,
        "causes": list(row.causes),
        **symptom.advice.as_data(),
    }


def _print(name: str, found: Explanation, notes: list[str]) -> None:
    from rich.console import Group
    from rich.text import Text

    from kvwatch.commands.terminal_layout import items, lay_out_finding, line, paragraph, steps

    source = "standard input" if name == "-" else name
    parts: list[RenderableType] = [
        line(f"{source}: {_headline(found)}"),
        paragraph(found.meaning),
    ]
    if found.evidence:
        numbers, texts = zip(*found.evidence, strict=True)
        parts += [Text(), *items("Evidence, with line numbers:", [f"{number}:" for number in numbers], texts)]
    if found.budget:
        parts += [Text(), paragraph("GPU memory in GiB:", style="bold")]
    for step in found.budget:
        parts.append(line(f"    {'- ' if step.takes else '  '}{step.what:<48} {step.gib:>8.2f}"))
    if found.actions:
        parts += [Text(), *steps(found.actions)]
    for symptom in found.symptoms:
        since = f"first in line {symptom.line} ({_CONFIDENCE[symptom.confidence]})"
        finding = lay_out_finding(_symptom_data(symptom), since=since, short=bool(symptom.explained_by))
        parts += [Text(), finding]
    if notes:
        parts += [Text(), *items("Notes:", ["-"] * len(notes), notes)]
    draw(Group(*parts))


def _headline(found: Explanation) -> str:
    """The verdict; of a server that started and died later, the death first."""
    if not found.died_running:
        return f"{found.verdict} ({_CONFIDENCE[found.confidence]})"
    place = f" (line {found.evidence[0][0]})" if found.evidence else ""
    return f"the engine died after a good start{place}; start-up verdict: {found.verdict}"
