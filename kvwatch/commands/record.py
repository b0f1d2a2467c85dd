"""`kvwatch record`: raw scrapes of a live server into a file."""

from __future__ import annotations

import argparse
import asyncio
import re
import sys
from collections.abc import Sequence
from dataclasses import replace

from kvwatch.commands import live, options
from kvwatch.commands.output import complain, print_json, say
from kvwatch.core.gpu import chosen
from kvwatch.core.outcome import Failure, Outcome, Scrape, ScrapeError
from kvwatch.recording import Record, WriteError, Writer
from kvwatch.settings import Settings, TargetSettings

HELP = "record a server's raw metrics, to replay, compare or send to someone"
EPILOG = """\
examples:
  kvwatch record http://localhost:8000 -o incident.jsonl.gz --for 10m
  kvwatch record gpu1:8000 -o night.jsonl.gz --interval 5s       until Ctrl-C
  kvwatch replay incident.jsonl.gz                               what happened?

A recording holds whole pages: model names and counts, no prompts and no answers. Moments in which the server can't
be reached are recorded, too. Until it ends the file is called FILE.part and can be read already.

exit codes:
  0  recorded, also when ended by Ctrl-C
  1  FILE could not be written to the end, as when the disk is full; it holds what was recorded until then
  2  not one page could be had (then there is no FILE), FILE is there already, or a setting is wrong
"""
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
        help="how long, as 30s, 10m, 1h (default: until Ctrl-C)",
    )
    parser.add_argument("--force", action="store_true", help="overwrite FILE if it is there")
    live.add(parser)
    options.add_progress(parser)
    options.add_json(parser)


def main(args: argparse.Namespace) -> int:
    settings, target = live.settings_of(args)
    with Writer(args.output, force=args.force) as writer:
        failed, seconds, why, broken = asyncio.run(_record(args, settings, target, writer))
        empty = failed == writer.records
        if empty:
            writer.discard()
    if args.json:
        print_json(
            {
                "file": None if empty else args.output,
                "samples": writer.records,
                "failed_scrapes": failed,
                "bytes": 0 if empty else writer.bytes,
                "duration_s": round(seconds, 3),
            }
        )
    elif not empty:
        say(
            f"{args.output}: {writer.records} scrapes over {seconds:.0f} s, {failed} of them failed,"
            f" {writer.bytes / 1000:,.0f} kB"
        )
    if broken:
        kept = "nothing was recorded" if empty else f"what was recorded until then is in {args.output}"
        complain(f"{broken}; {kept}")
        return 1
    if empty:
        complain(f"{target.url} gave no page at all, so there is no {args.output}: {why}")
    return 2 if empty else 0


async def _record(
    args: argparse.Namespace, settings: Settings, target: TargetSettings, writer: Writer
) -> tuple[int, float, str, str]:
    """How many scrapes failed, the seconds from the first to the last, why the newest that failed did, and why no
    more could be written, if so."""
    from tqdm import tqdm

    failed, first, last, why = 0, 0.0, 0.0, "stopped before the first answer"
    total = None if args.seconds is None else live.count(args.seconds, settings)
    with tqdm(total=total, unit=" scrapes", disable=options.no_bar(args), file=sys.stderr) as bar:
        async with live.stopped_by_signals() as stop:
            async for now, outcome in live.scrapes(target, settings, stop, seconds=args.seconds):
                try:
                    writer.write(_record_of(outcome, target.gpus))
                except WriteError as error:
                    return failed, last - first, why, str(error)
                if isinstance(outcome, ScrapeError):
                    failed += 1
                    why = f"{outcome.kind} ({outcome.detail})"
                first, last = first or now, now
                bar.set_postfix_str(f"{failed} failed, {writer.bytes / 1000:,.0f} kB", refresh=False)
                bar.update()
    return failed, last - first, why, ""


def _record_of(outcome: Outcome, gpus: Sequence[str]) -> Record:
    """What is recorded of an outcome; of the GPUs only those that are the server's."""
    gpu = outcome.gpu and replace(outcome.gpu, gpus=chosen(outcome.gpu.gpus, gpus)[0])
    if isinstance(outcome, Scrape):
        return Record(
            outcome.wall, 200, outcome.body, content_type=outcome.content_type, gpu=gpu, facts=outcome.facts
        )
    said = _STATUS.search(outcome.detail) if outcome.kind is Failure.HTTP_STATUS else None
    return Record(outcome.wall, int(said[1]) if said else 0, error=outcome.detail, gpu=gpu)
