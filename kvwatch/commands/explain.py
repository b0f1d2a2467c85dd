"""`kvwatch explain`: why vLLM did not start, and what its statistics lines show."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from kvwatch.commands import options, terminal_text
from kvwatch.commands.output import print_json, say

if TYPE_CHECKING:
    from kvwatch.logs import Explanation
    from kvwatch.logs.statistics_judgement import LoggedSymptom

HELP = "read a vLLM log: why the server did not start, and what its statistics lines show"
EPILOG = """\
examples:
  kvwatch explain vllm.log
  kubectl logs my-vllm --previous | kvwatch explain -
  docker logs vllm 2>&1 | kvwatch explain - --json | jq '.verdict, .actions'

It reads logs of every vLLM release (v0 and v1), with colours, time stamps, container prefixes or as JSON, gzipped or
not. If a log has several starts, the last is judged. Statistics lines are judged like live metrics; lines without a
time count as 10 s apart.

exit codes:
  0  the start was fine, and no symptom was found
  1  the start failed for a known cause, or there are symptoms
  2  no answer: the log does not show the cause, is not vLLM's, or can't be read
"""
_PIECE = 1 << 20
_CONFIDENCE = {"high": "sure", "medium": "probable", "low": "a guess, because the log shows little"}


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
        "actions": list(symptom.actions),
    }


def _print(name: str, found: Explanation, notes: list[str]) -> None:
    source = "standard input" if name == "-" else name
    say(f"{source}: {found.verdict} ({_CONFIDENCE[found.confidence]})")
    lines = terminal_text.wrapped(found.meaning, "  ")
    if found.evidence:
        lines.append("\n  Evidence, with line numbers:")
    for number, text in found.evidence:
        lines += terminal_text.wrapped(f"{number}: {text}", "    ")
    if found.budget:
        lines.append("\n  GPU memory in GiB:")
    lines += [f"    {'- ' if step.takes else '  '}{step.what:<48} {step.gib:>8.2f}" for step in found.budget]
    if found.actions:
        lines += ["", *_actions(found.actions)]
    for symptom in found.symptoms:
        lines += _symptom_lines(symptom)
    if notes:
        lines += ["", *terminal_text.listed("Notes:", [f"- {note}" for note in notes])]
    say("\n".join(lines))


def _symptom_lines(symptom: LoggedSymptom) -> list[str]:
    from kvwatch.core.judgement.symptoms import BY_ID

    row = BY_ID[symptom.symptom]
    engine = f" of engine {symptom.key.engine}" if symptom.key.engine else ""
    place = f"{symptom.symptom}{engine}, first in line {symptom.line} ({_CONFIDENCE[symptom.confidence]})"
    texts = [place, row.meaning, f"Evidence: {terminal_text.evidence(symptom.evidence)}"]
    if symptom.explained_by:
        texts.insert(1, f"Explained by {', '.join(symptom.explained_by)}: fix that first.")
    lines = [f"\n{str(row.severity).upper()}: {row.title}"]
    for text in texts:
        lines += terminal_text.wrapped(text, "  ")
    return lines if symptom.explained_by else [*lines, *_actions(symptom.actions)]


def _actions(actions: tuple[str, ...]) -> list[str]:
    numbered = [f"{number}. {action}" for number, action in enumerate(actions, start=1)]
    return list(terminal_text.listed("What to do, in this order:", numbered))
