"""`kvwatch record`: raw scrapes of a live server into a file."""

from __future__ import annotations

import argparse
import asyncio
import re
import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace

from kvwatch.commands import live, options
from kvwatch.commands.figures import Figures
from kvwatch.commands.output import complain, print_json, say
from kvwatch.core.model.gpu import select_gpus
from kvwatch.core.model.outcome import Failure, Outcome, Scrape, ScrapeError
from kvwatch.recording import MAX_LABEL, Record, WriteError, Writer
from kvwatch.settings import Settings, TargetSettings

HELP = "record a server's raw metrics, to replay, compare or send to someone"
EPILOG = """\
examples:
  kvwatch record http://localhost:8000 -o incident.jsonl.gz --for 10m
  kvwatch record gpu1:8000 -o night.jsonl.gz --interval 5s       until Ctrl-C
  kvwatch record -o base.jsonl.gz --label base --warmup 1m --for 30m
  kvwatch replay incident.jsonl.gz                               what happened?
  kvwatch compare base.jsonl.gz fp8.jsonl.gz                     what did one option change?

A recording holds whole pages: model names and counts, no prompts and no answers. Moments in which the server can't
be reached are recorded, too, and what /version and /v1/models say. Until it ends the file is called FILE.part and can
be read already.

exit codes:
  0  recorded, also when ended by Ctrl-C or by --max-size
  1  FILE could not be written to the end, as when the disk is full; it holds what was recorded until then
  2  not one page could be had (then there is no FILE), FILE is there already, or a setting is wrong
"""
_MAX_SIZE = 1 << 30
_STATUS = re.compile(r"HTTP status (\d{3})")


def add(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "-o", "--output", metavar="FILE", required=True, help="file to write, as incident.jsonl.gz"
    )
    parser.add_argument(
        "--for",
        dest="seconds",
        metavar="TIME",
        type=options.seconds,
        help="how long, as 30s, 10m, 1h, after the warm-up (default: until Ctrl-C)",
    )
    parser.add_argument(
        "--warmup",
        metavar="TIME",
        type=options.seconds,
        default=0.0,
        help="time at the beginning that is recorded and not compared, as 30s (default: none)",
    )
    parser.add_argument("--label", metavar="TEXT", type=_label, help="what to call this run")
    parser.add_argument(
        "--max-size",
        metavar="SIZE",
        type=options.size,
        default=_MAX_SIZE,
        help="end before the file is larger than this (default: 1GiB)",
    )
    parser.add_argument("--force", action="store_true", help="overwrite FILE if it is there")
    live.add(parser)
    options.add_progress(parser)
    options.add_json(parser)


@dataclass
class _Course:
    """What came of recording so far. Times are monotonic seconds of the first and the newest scrape."""

    failed: int = 0
    warmup: int = 0
    first: float | None = None
    last: float = 0.0
    why: str = "stopped before the first answer"
    """Why the newest scrape that failed did."""
    broken: str = ""
    """Why no more could be written."""
    full: bool = False
    """The largest size is reached."""

    @property
    def seconds(self) -> float:
        return 0.0 if self.first is None else self.last - self.first


def main(args: argparse.Namespace) -> int:
    settings, target = live.settings_of(args)
    with Writer(args.output, force=args.force) as writer:
        course = asyncio.run(_record(args, settings, target, writer))
        empty = course.failed == writer.records
        if empty:
            writer.discard()
    if args.json:
        print_json(
            {
                "file": None if empty else args.output,
                "label": args.label,
                "samples": writer.records,
                "warmup_samples": course.warmup,
                "failed_scrapes": course.failed,
                "bytes": 0 if empty else writer.bytes,
                "duration_s": round(course.seconds, 3),
                "ended_by_size": course.full,
            }
        )
    elif not empty:
        warmup = f", {course.warmup} of them warm-up" if course.warmup else ""
        say(
            f"{args.output}: {writer.records} scrapes over {course.seconds:.0f} s{warmup}, {course.failed} of them"
            f" failed, {writer.bytes / 1000:,.0f} kB"
        )
    _warn(writer, course)
    if course.broken:
        kept = "nothing was recorded" if empty else f"what was recorded until then is in {args.output}"
        complain(f"{course.broken}; {kept}")
        return 1
    if empty:
        complain(f"{target.url} gave no page at all, so there is no {args.output}: {course.why}")
    return 2 if empty else 0


def _warn(writer: Writer, course: _Course) -> None:
    """What the user may not expect of the recording."""
    if course.full:
        complain(f"ended at {writer.bytes / 1000:,.0f} kB: more would not fit in --max-size")
    if course.warmup and course.warmup == writer.records:
        complain("it ended before the warm-up was over: nothing in it is left to compare")


async def _record(
    args: argparse.Namespace, settings: Settings, target: TargetSettings, writer: Writer
) -> _Course:
    from tqdm import tqdm

    course = _Course()
    seconds = None if args.seconds is None else args.warmup + args.seconds
    total = None if seconds is None else live.count(seconds, settings)
    with tqdm(total=total, unit=" scrapes", disable=options.no_bar(args), file=sys.stderr) as bar:
        figures = None if bar.disable else Figures(target.name, settings.policy(target))
        async with live.stopped_by_signals() as stop:
            async for now, outcome in live.scrapes(target, settings, stop, seconds=seconds):
                course.first = now if course.first is None else course.first
                record = replace(
                    _record_of(outcome, target.gpus),
                    warmup=now - course.first < args.warmup - 1e-3,
                    label="" if writer.records else args.label or "",
                )
                try:
                    writer.write(record)
                except WriteError as error:
                    course.broken = str(error)
                    return course
                course.last = now
                course.warmup += record.warmup
                if isinstance(outcome, ScrapeError):
                    course.failed += 1
                    course.why = f"{outcome.kind} ({outcome.detail})"
                if figures is not None:
                    shown = ("warm-up" if record.warmup else "", figures.take(outcome, now))
                    written = f"{course.failed} failed, {writer.bytes / 1000:,.0f} kB"
                    bar.set_postfix_str(", ".join([*filter(None, shown), written]), refresh=False)
                bar.update()
                course.full = writer.bytes + writer.longest > args.max_size
                if course.full:
                    return course
    return course


def _label(given: str) -> str:
    """The name of a run, for argparse."""
    text = given.strip()
    if text and len(text) <= MAX_LABEL and text.isprintable():
        return text
    raise argparse.ArgumentTypeError(f"{given[:20]!r}: must be 1 to {MAX_LABEL} printable characters")


def _record_of(outcome: Outcome, gpus: Sequence[str]) -> Record:
    """What is recorded of an outcome; of the GPUs only those that are the server's."""
    gpu = outcome.gpu and replace(outcome.gpu, gpus=select_gpus(outcome.gpu.gpus, gpus)[0])
    if isinstance(outcome, Scrape):
        return Record(
            outcome.wall, 200, outcome.body, content_type=outcome.content_type, gpu=gpu, facts=outcome.facts
        )
    said = _STATUS.search(outcome.detail) if outcome.kind is Failure.HTTP_STATUS else None
    return Record(outcome.wall, int(said[1]) if said else 0, error=outcome.detail, gpu=gpu)
