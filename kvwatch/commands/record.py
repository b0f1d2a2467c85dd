"""`kvwatch record`: writes the raw scrapes of a live server to a file."""

from __future__ import annotations

import argparse
import asyncio
import re
from collections.abc import Sequence
from dataclasses import dataclass, replace

from kvwatch.commands import live, options
from kvwatch.commands.output import print_error, print_json, say
from kvwatch.commands.terminal_text import key_numbers
from kvwatch.commands.watch import Watch
from kvwatch.core.model.gpu import select_gpus
from kvwatch.core.model.outcome import Failure, Outcome, Scrape, ScrapeError
from kvwatch.recording import MAX_LABEL, Record, WriteError, Writer
from kvwatch.settings import Settings, TargetSettings

HELP = "record a server's raw metrics, to replay, compare or share them"
EPILOG = """\
examples:
  kvwatch record http://localhost:8000 -o incident.jsonl.gz --for 10m
  kvwatch record gpu1:8000 -o night.jsonl.gz --interval 5s       until Ctrl-C
  kvwatch record -o base.jsonl.gz --label base --warmup 1m --for 30m
  kvwatch replay incident.jsonl.gz                               what happened?
  kvwatch compare base.jsonl.gz fp8.jsonl.gz                     what did one option change?

A recording holds whole pages of metrics: model names and counts, but no prompts and no outputs. It also holds failed
scrapes, and the responses of /version and /v1/models. While recording, the file is named FILE.part and can be read.

exit codes:
  0  recorded, also if stopped by Ctrl-C or --max-size
  1  writing FILE failed, for example because the disk is full; FILE holds what was recorded before
  2  no scrape succeeded (then there is no FILE), FILE exists, or a setting is invalid
"""
_MAX_SIZE = 1 << 30
_STATUS = re.compile(r"HTTP status (\d{3})")


def _label(text: str) -> str:
    """The name of a run."""
    label = text.strip()
    if label and len(label) <= MAX_LABEL and label.isprintable():
        return label
    raise argparse.ArgumentTypeError(f"{text[:20]!r}: must be 1 to {MAX_LABEL} printable characters")


def add(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "-o", "--output", metavar="FILE", required=True, help="file to write, for example incident.jsonl.gz"
    )
    options.add_for(parser, "how long to record after the warm-up: 30s, 10m, 1h (default: until Ctrl-C)")
    parser.add_argument(
        "--warmup",
        metavar="TIME",
        type=options.seconds,
        default=0.0,
        help="time at the start that is recorded but not compared, for example 30s (default: none)",
    )
    parser.add_argument("--label", metavar="TEXT", type=_label, help="name of this run in a comparison")
    parser.add_argument(
        "--max-size",
        metavar="SIZE",
        type=options.size,
        default=_MAX_SIZE,
        help="stop before the file grows beyond this (default: 1GiB)",
    )
    parser.add_argument("--force", action="store_true", help="overwrite FILE if it exists")
    live.add(parser)
    options.add_progress(parser)
    options.add_json(parser)


@dataclass
class _Totals:
    """The scrapes recorded so far. `first` and `last` are monotonic seconds."""

    failed: int = 0
    warmup: int = 0
    first: float | None = None
    last: float = 0.0
    failure: str = "stopped before the first answer"
    """The newest failure of a scrape."""
    write_error: str = ""
    full: bool = False
    """The maximum size is reached."""

    @property
    def seconds(self) -> float:
        return 0.0 if self.first is None else self.last - self.first


def main(args: argparse.Namespace) -> int:
    settings, target = live.settings_of(args)
    with Writer(args.output, force=args.force) as writer:
        totals = asyncio.run(_record(args, settings, target, writer))
        empty = totals.failed == writer.records
        if empty:
            writer.discard()
    kilobytes = f"{writer.bytes / 1000:,.0f} kB"
    if args.json:
        print_json(
            {
                "file": None if empty else args.output,
                "label": args.label,
                "samples": writer.records,
                "warmup_samples": totals.warmup,
                "failed_scrapes": totals.failed,
                "bytes": 0 if empty else writer.bytes,
                "duration_s": round(totals.seconds, 3),
                "ended_by_size": totals.full,
            }
        )
    elif not empty:
        warmup = f", {totals.warmup} of them warm-up" if totals.warmup else ""
        scrapes = f"{writer.records} scrapes over {totals.seconds:.0f} s{warmup}, {totals.failed} failed"
        say(f"{args.output}: {scrapes}, {kilobytes}")
    if totals.full:
        print_error(f"ended at {kilobytes}: the next scrape might exceed --max-size")
    if totals.warmup and totals.warmup == writer.records:
        print_error("ended during the warm-up: the recording has nothing to compare")
    if totals.write_error:
        kept = "nothing was recorded" if empty else f"{args.output} holds what was recorded before"
        print_error(f"{totals.write_error}; {kept}")
        return 1
    if empty:
        print_error(
            f"no scrape of {target.url} succeeded, so {args.output} was not written: {totals.failure}"
        )
    return 2 if empty else 0


async def _record(
    args: argparse.Namespace, settings: Settings, target: TargetSettings, writer: Writer
) -> _Totals:
    totals = _Totals()
    seconds = None if args.seconds is None else args.warmup + args.seconds
    count = None if seconds is None else live.count(seconds, settings)
    with options.progress_bar(args, total=count) as bar:
        watch = None if bar.disable else Watch(target.name, settings.policy(target))
        async for now, outcome in live.scrapes(target, settings, seconds=seconds):
            totals.first = now if totals.first is None else totals.first
            record = replace(
                _record_of(outcome, target.gpus),
                warmup=now - totals.first < args.warmup - 1e-3,
                label="" if writer.records else args.label or "",
            )
            try:
                writer.write(record)
            except WriteError as error:
                totals.write_error = str(error)
                return totals
            totals.last = now
            totals.warmup += record.warmup
            if isinstance(outcome, ScrapeError):
                totals.failed += 1
                totals.failure = f"{outcome.kind} ({outcome.detail})"
            if watch is not None:
                watch.feed(outcome, now)
                shown = ("warm-up" if record.warmup else "", key_numbers(watch.state))
                written = f"{totals.failed} failed, {writer.bytes / 1000:,.0f} kB"
                bar.set_postfix_str(", ".join([*filter(None, shown), written]), refresh=False)
            bar.update()
            totals.full = writer.bytes + writer.longest > args.max_size
            if totals.full:
                return totals
    return totals


def _record_of(outcome: Outcome, gpus: Sequence[str]) -> Record:
    """The record of an outcome, with only the server's own GPUs."""
    gpu = outcome.gpu and replace(outcome.gpu, gpus=select_gpus(outcome.gpu.gpus, gpus)[0])
    if isinstance(outcome, Scrape):
        return Record(
            outcome.wall, 200, outcome.body, content_type=outcome.content_type, gpu=gpu, facts=outcome.facts
        )
    status = _STATUS.search(outcome.detail) if outcome.kind is Failure.HTTP_STATUS else None
    return Record(outcome.wall, int(status[1]) if status else 0, error=outcome.detail, gpu=gpu)
