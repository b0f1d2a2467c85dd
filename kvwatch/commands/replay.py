"""`kvwatch replay`: judges a recording by its own clock, as if it were live."""

from __future__ import annotations

import argparse
from contextlib import closing
from typing import Any

from kvwatch.commands import options, terminal_text
from kvwatch.commands.output import draw, print_error, print_json, say
from kvwatch.commands.watch import Watch
from kvwatch.core.export import report
from kvwatch.core.judgement.pipeline import next_pace
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
  0  the recording was replayed, with or without findings
  2  nothing in it could be replayed, or a setting is invalid
"""
_MAX_LISTED = 10
_USED = frozenset({"config", "targets", *options.JUDGEMENT})


def add(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "file",
        metavar="FILE",
        help="a recording from `kvwatch record`, or a saved page of metrics; - is standard input",
    )
    parser.add_argument(
        "--target", metavar="NAME", type=options.name, help="name for the recorded server (default: vllm)"
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
    settings = options.load_settings(options.setting_values(args), used=_USED)
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
            pace = next_pace(watch.state, record.t)
            old_events = len(watch.events)
            transitions = watch.feed(outcome_of(record, interval_s=spacing, pace=pace), record.t)
            if args.json:
                continue
            start = watch.start or 0.0
            for event in watch.events[old_events:]:
                say(terminal_text.event(event, start))
            for change in transitions:
                say(terminal_text.transition(report.transition(change, start=start)))
    if args.json:
        print_json(as_data(watch, skipped, steps))
    else:
        _print_end(watch, skipped, steps, spacings)
    if not watch.samples:
        print_error(f"nothing in {args.file} could be replayed")
    return 0 if watch.samples else 2


def _target(settings: Settings, args: argparse.Namespace) -> TargetSettings:
    """The configured target with this name, or a new one. Without a name, the only configured target."""
    known = {target.name: target for target in settings.targets}
    found = known.get(args.target) or TargetSettings(name=args.target or "vllm")
    if args.target is None and len(known) == 1:
        (found,) = known.values()
    if args.max_num_seqs is None:
        return found
    return found.model_copy(update={"max_num_seqs": args.max_num_seqs})


def as_data(watch: Watch, skipped: list[Skipped], steps: list[ClockStep]) -> dict[str, Any]:
    return watch.as_data() | {
        "findings": watch.last_findings(),
        "skipped": [{"line": one.line, "reason": one.reason} for one in skipped],
        "notes": [{"t": round(one.t - (watch.start or 0.0), 3), "text": one.text} for one in steps],
    }


def _print_end(watch: Watch, skipped: list[Skipped], steps: list[ClockStep], spacings: set[float]) -> None:
    if watch.samples:
        _print_totals(watch, spacings)
    lines: dict[str, list[int]] = {}
    for one in skipped:
        lines.setdefault(one.reason, []).append(one.line)
    if skipped:
        say(f"\nSkipped, not readable: {len(skipped)}")
    for reason, numbers in lines.items():
        shown = ", ".join(map(str, numbers[:_MAX_LISTED])) + (", …" if len(numbers) > _MAX_LISTED else "")
        say(f"  {reason}: line {shown}")
    if steps:
        say("\nNotes:")
    for step in steps[:_MAX_LISTED]:
        say(f"  {terminal_text.clock(step.t - (watch.start or 0.0))}  {step.text}")
    if len(steps) > _MAX_LISTED:
        say(f"  and {len(steps) - _MAX_LISTED} more")


def _print_totals(watch: Watch, spacings: set[float]) -> None:
    from kvwatch.commands.terminal_layout import lay_out_finding

    if not watch.transitions:
        say("    no symptom changed its state")
    shortest, longest = f"{min(spacings):.2g}", f"{max(spacings):.2g}"
    interval = shortest if shortest == longest else f"{shortest} to {longest}"
    counts = terminal_text.scrape_counts(watch.samples, watch.duration_s, watch.failures)
    say(f"\n{counts}; one every {interval} s")
    say(f"Time per regime: {terminal_text.regime_shares(watch.regimes())}")
    firing = watch.findings()
    say(f"\nFiring at the end: {len(firing) or 'nothing'}")
    for one in firing:
        say()
        draw(lay_out_finding(one))
