"""`kvwatch replay`: a recording, judged by its own clock as it would have been live."""

from __future__ import annotations

import argparse
from collections.abc import Iterable
from contextlib import closing
from typing import Any

from kvwatch.commands import options, terminal_text
from kvwatch.commands.output import complain, print_json, say
from kvwatch.commands.watch import Watch
from kvwatch.core.judgement.pipeline import next_pace
from kvwatch.core.judgement.state import Event, Transition
from kvwatch.recording import ClockStep, Skipped, outcome_of, read, with_spacing
from kvwatch.settings import Settings, TargetSettings

HELP = "judge a recording and print what happened when"
EPILOG = """\
examples:
  kvwatch replay incident.jsonl.gz
  kvwatch replay incident.jsonl.gz --threshold kv_thrashing.per_request=0.5
  kvwatch replay incident.jsonl.gz --json | jq '.symptoms[] | select(.fired)'
  curl -s localhost:8000/metrics | kvwatch replay -

exit codes:
  0  the recording was replayed, whatever was found
  2  nothing in it could be replayed, or a setting is wrong
"""
_SHOWN = 10
_USED = frozenset({"config", "targets", *options.JUDGEMENT})


def add(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "file",
        metavar="FILE",
        help="a recording made by `kvwatch record`, or a saved page of metrics; - is standard input",
    )
    parser.add_argument(
        "--target", metavar="NAME", type=options.name, help="what to call the recorded server (default: vllm)"
    )
    parser.add_argument(
        "--max-num-seqs",
        metavar="REQUESTS",
        type=options.requests,
        help="the server's --max-num-seqs, if known",
    )
    options.add_settings(
        parser, ("config", "thresholds", "disabled", "spellings", "aliases", "min_observations")
    )
    options.add_json(parser)


def main(args: argparse.Namespace) -> int:
    settings = options.load_noted(options.given(args), used=_USED)
    target = _target(settings, args)
    watch = Watch(target.name, settings.policy(target))
    skipped: list[Skipped] = []
    steps: list[ClockStep] = []
    spacings: set[float] = set()
    with closing(with_spacing(read(args.file), steps.append)) as records:
        for number, (record, spacing) in enumerate(records):
            if not (number or args.json):
                say(f"{args.file}; times are since the first scrape\n")
            if isinstance(record, Skipped):
                skipped.append(record)
                continue
            spacings.add(spacing)
            told = len(watch.events)
            pace = next_pace(watch.state, record.t)
            transitions = watch.take(outcome_of(record, interval_s=spacing, pace=pace), record.t)
            if not args.json:
                _print_lines(watch, watch.events[told:], transitions)
    if args.json:
        print_json(as_data(watch, skipped, steps))
    else:
        _print_end(watch, skipped, spacings)
        _print_steps(watch, steps)
    if not watch.samples:
        complain(f"nothing in {args.file} could be replayed")
    return 0 if watch.samples else 2


def _target(settings: Settings, args: argparse.Namespace) -> TargetSettings:
    """The target by name out of the settings, else one of that name."""
    known = {target.name: target for target in settings.targets}
    found = known.get(args.target) or TargetSettings(name=args.target or "vllm")
    if args.target is None and len(known) == 1:
        (found,) = known.values()
    if args.max_num_seqs is None:
        return found
    return found.model_copy(update={"max_num_seqs": args.max_num_seqs})


def as_data(watch: Watch, skipped: list[Skipped], steps: list[ClockStep]) -> dict[str, Any]:
    return watch.as_data() | {
        "skipped": [{"line": one.line, "reason": one.reason} for one in skipped],
        "notes": [{"t": round(one.t - (watch.start or 0.0), 3), "text": one.text} for one in steps],
    }


def _print_lines(watch: Watch, events: Iterable[Event], transitions: Iterable[Transition]) -> None:
    start = watch.start or 0.0
    for event in events:
        say(terminal_text.event(event, start))
    for transition in transitions:
        say(terminal_text.transition(transition, start))


def _print_end(watch: Watch, skipped: list[Skipped], spacings: set[float]) -> None:
    if watch.samples:
        _print_watched(watch, spacings)
    by_reason: dict[str, list[int]] = {}
    for one in skipped:
        by_reason.setdefault(one.reason, []).append(one.line)
    if skipped:
        say(f"\nSkipped, since it could not be read: {len(skipped)}")
    for reason, lines in by_reason.items():
        shown = ", ".join(map(str, lines[:_SHOWN])) + (", …" if len(lines) > _SHOWN else "")
        say(f"  {reason}: line {shown}")


def _print_steps(watch: Watch, steps: list[ClockStep]) -> None:
    if steps:
        say("\nNotes:")
    for one in steps[:_SHOWN]:
        say(f"  {terminal_text.clock(one.t - (watch.start or 0.0))}  {one.text}")
    if len(steps) > _SHOWN:
        say(f"  and {len(steps) - _SHOWN} times more")


def _print_watched(watch: Watch, spacings: set[float]) -> None:
    if not watch.transitions:
        say("    no symptom changed its state")
    fewest, most = f"{min(spacings):.2g}", f"{max(spacings):.2g}"
    every = fewest if fewest == most else f"{fewest} to {most}"
    say(f"\n{terminal_text.scrapes(watch.samples, watch.duration_s, watch.failures)}; one every {every} s")
    say(f"Time per regime: {terminal_text.shares(watch.regimes())}")
    firing = watch.findings()
    say(f"\nFiring at the end: {len(firing) or 'nothing'}")
    for one in firing:
        say(f"\n{terminal_text.finding(one)}")
