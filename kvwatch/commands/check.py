"""`kvwatch check`: watches a server for a while and reports what is wrong with it."""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import sys
from collections.abc import Callable, Iterator
from typing import Any

from kvwatch.commands import live, options
from kvwatch.commands.check_verdict import Conclusion, conclude
from kvwatch.commands.checklist import checklist
from kvwatch.commands.output import draw, print_json, terminal
from kvwatch.commands.watch import Watch
from kvwatch.core.export import report
from kvwatch.core.judgement.pipeline import next_pace
from kvwatch.settings import Settings, TargetSettings

HELP = "watch a server for a while and report what is wrong with it"
EPILOG = """\
examples:
  kvwatch check                               the server on localhost:8000, for 30 s
  kvwatch check gpu1:8000 --for 2m            longer: more symptoms have their full window
  kvwatch check gpu1:8000 --json | jq '.verdict, .limited, .findings'
  kvwatch check gpu1:8000 --watch             until Ctrl-C, with the report kept up to date
  kvwatch check gpu1:8000 --checklist         before going live: what the data shows, and what only you know

Symptoms have windows of a minute or more: watch for 2m to give them time to fire. Findings come first in the report.
The report of a healthy server is one line; --all adds its numbers.

exit codes:
  0  fine: everything that matters is known, and nothing is wrong
  1  findings; or pending: a symptom has not lasted long enough to fire, or requests waited for more than half of the
     time
  2  unknown: the server can't be reached, it does not expose enough, or it was watched for less than 10 s; or a
     setting is wrong
"""
_PATIENCE_S = 5.0
"""The command gives up if no scrape has succeeded after this time."""
_SETTINGS = ("thresholds", "disabled", "spellings", "aliases", "min_observations")


def add(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--for",
        dest="seconds",
        metavar="TIME",
        type=options.seconds,
        default=30.0,
        help="how long to watch: 30s, 5m, 1h; at least 10s (default: 30s)",
    )
    parser.add_argument(
        "--watch",
        action="store_true",
        help="watch until Ctrl-C; a terminal shows the current report, otherwise (and with --json) each change is"
        " printed",
    )
    parser.add_argument(
        "--checklist", action="store_true", help="add the tuning checklist, with what the server's data shows"
    )
    parser.add_argument(
        "--all", action="store_true", help="show the numbers of a healthy server, and every finding in full"
    )
    live.add(parser, *_SETTINGS)
    options.add_progress(parser)
    options.add_json(parser)


def main(args: argparse.Namespace) -> int:
    settings, target = live.settings_of(args)
    watch = Watch(target.name, settings.policy(target))
    on_screen = sys.stdout.isatty() and not args.json
    display = _progress_bar if not args.watch else _screen if on_screen else _changes
    with display(args, settings, target, watch) as update:
        asyncio.run(_scrape(args, settings, target, watch, update))
    found = conclude(watch)
    if display is not _changes:
        _print_report(args, target, watch, found)
    return found.code


async def _scrape(
    args: argparse.Namespace,
    settings: Settings,
    target: TargetSettings,
    watch: Watch,
    update: Callable[[], None],
) -> None:
    """Feeds scrapes to the watch and calls `update` after each."""
    seconds = None if args.watch else args.seconds
    scrapes = live.scrapes(target, settings, seconds=seconds, pace=lambda at: next_pace(watch.state, at))
    async for now, outcome in scrapes:
        watch.feed(outcome, now)
        update()
        if not args.watch and watch.good is None and watch.duration_s >= _PATIENCE_S:
            return


@contextlib.contextmanager
def _progress_bar(
    args: argparse.Namespace, settings: Settings, _: TargetSettings, watch: Watch
) -> Iterator[Callable[[], None]]:
    from tqdm import tqdm

    total = live.count(args.seconds, settings)
    with tqdm(
        total=total, unit=" scrapes", disable=options.no_bar(args), file=sys.stderr, leave=False
    ) as bar:

        def update() -> None:
            regimes = sorted({str(engine.regime) for engine in watch.state.engines.values()})
            bar.set_postfix_str(", ".join(regimes), refresh=False)
            bar.update()

        yield update


@contextlib.contextmanager
def _screen(
    args: argparse.Namespace, _: Settings, target: TargetSettings, watch: Watch
) -> Iterator[Callable[[], None]]:
    """Shows the current report on the terminal's alternate screen."""
    from rich.live import Live

    from kvwatch.commands.check_report import report_of

    with Live(console=terminal(), screen=True, auto_refresh=False) as screen:

        def update() -> None:
            screen.update(report_of(watch, target.url, conclude(watch), full=args.all), refresh=True)

        yield update


@contextlib.contextmanager
def _changes(
    args: argparse.Namespace, _: Settings, target: TargetSettings, watch: Watch
) -> Iterator[Callable[[], None]]:
    """Prints the report whenever the verdict or the set of findings changes."""
    printed: tuple[str, ...] = ()

    def update() -> None:
        nonlocal printed
        found = conclude(watch)
        present = (found.word, *(one["symptom"] for one in watch.findings()))
        if present != printed:
            printed = present
            _print_report(args, target, watch, found)

    yield update


def _print_report(args: argparse.Namespace, target: TargetSettings, watch: Watch, found: Conclusion) -> None:
    if args.json:
        print_json(as_data(watch, found, points=args.checklist), indent=None if args.watch else 2)
        return
    from kvwatch.commands.check_report import checklist_table, report_of

    draw(report_of(watch, target.url, found, full=args.all))
    if args.checklist:
        draw(checklist_table(checklist(watch.good or watch.state)))


def as_data(watch: Watch, found: Conclusion, *, points: bool = False) -> dict[str, Any]:
    """The report as plain data; with `points` including the checklist."""
    data = watch.as_data() | {
        "verdict": found.word,
        "exit_code": found.code,
        "why": found.why,
        "findings": watch.findings(),
        "pending": [report.identity(key) | {"symptom": name} for key, name in watch.pending()],
        "limited": [one.as_data() for one in found.limited],
        "unknown": [
            report.identity(key) | {"symptom": name, "reason": reason}
            for key, name, reason in watch.unknown()
        ],
    }
    if points:
        data["checklist"] = [one.as_data() for one in checklist(watch.good or watch.state)]
    return data
