"""`kvwatch check`: what is wrong with a server now?"""

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
from kvwatch.commands.output import draw, print_json
from kvwatch.commands.watch import Watch
from kvwatch.core.export import report
from kvwatch.core.judgement.pipeline import next_pace
from kvwatch.settings import Settings, TargetSettings

HELP = "watch a server for a while and say what is wrong with it"
EPILOG = """\
examples:
  kvwatch check                               the server on localhost:8000, for half a minute
  kvwatch check gpu1:8000 --for 2m            longer: more can be told
  kvwatch check gpu1:8000 --json | jq '.verdict, .limited, .findings'
  kvwatch check gpu1:8000 --watch             go on until Ctrl-C, and always show how it stands
  kvwatch check gpu1:8000 --checklist         before going live: what is shown, and what only you can know

Findings have windows of a minute and more: for a verdict that rests on them watch for 2m. What is wrong comes first;
a server with which nothing is wrong is one line, unless --all asks for its numbers.

exit codes:
  0  fine: everything that matters could be told, and nothing is wrong
  1  findings, or something on the way to one: a symptom that is pending (it holds already, but not yet for as long
     as it takes to be sure), or requests were held back for more than half of the time
  2  unknown: the server can't be reached, what it shows is not enough to tell, or it was watched for less than 10 s;
     or a setting is wrong
"""
_PATIENCE_S = 5.0
"""How long a server may give nothing at the start before there is no point in waiting."""
_SETTINGS = ("thresholds", "disabled", "spellings", "aliases", "min_observations")


def add(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--for",
        dest="seconds",
        metavar="TIME",
        type=options.seconds,
        default=30.0,
        help="how long to watch, as 30s, 5m, 1h; at least 10s (default: 30s)",
    )
    parser.add_argument(
        "--watch",
        action="store_true",
        help="go on until Ctrl-C: in a terminal the report as it stands, else (and with --json) one for each change",
    )
    parser.add_argument(
        "--checklist",
        action="store_true",
        help="also go through the checklist for tuning a KV cache with what the server's own data shows",
    )
    parser.add_argument(
        "--all",
        action="store_true",
        help="tell the numbers though nothing is wrong, and every finding in full",
    )
    live.add(parser, *_SETTINGS)
    options.add_progress(parser)
    options.add_json(parser)


def main(args: argparse.Namespace) -> int:
    settings, target = live.settings_of(args)
    watch = Watch(target.name, settings.policy(target))
    if args.watch:
        return _standing(args, settings, target, watch)
    asyncio.run(_watch(args, settings, target, watch))
    found = conclude(watch)
    _tell(args, target, watch, found)
    return found.code


def _tell(args: argparse.Namespace, target: TargetSettings, watch: Watch, found: Conclusion) -> None:
    if args.json:
        print_json(as_data(watch, found, points=args.checklist), indent=None if args.watch else 2)
        return
    from kvwatch.commands.check_report import checklist_of, report_of

    draw(report_of(watch, target.url, found, everything=args.all))
    if args.checklist:
        draw(checklist_of(checklist(watch.good or watch.state)))


async def _watch(args: argparse.Namespace, settings: Settings, target: TargetSettings, watch: Watch) -> None:
    from tqdm import tqdm

    total = live.count(args.seconds, settings)
    with tqdm(
        total=total, unit=" scrapes", disable=options.no_bar(args), file=sys.stderr, leave=False
    ) as bar:

        def took() -> bool:
            regimes = sorted({str(engine.regime) for engine in watch.state.engines.values()})
            bar.set_postfix_str(", ".join(regimes), refresh=False)
            bar.update()
            return watch.good is not None or watch.duration_s < _PATIENCE_S

        await _feed(settings, target, watch, took, seconds=args.seconds)


async def _feed(
    settings: Settings,
    target: TargetSettings,
    watch: Watch,
    took: Callable[[], bool],
    *,
    seconds: float | None,
) -> None:
    """Scrapes into the watch until the time is over, a signal comes, or `took`, called after each, says no."""
    async with live.stopped_by_signals() as stop:
        async for now, outcome in live.scrapes(
            target, settings, stop, seconds=seconds, pace=lambda at: next_pace(watch.state, at)
        ):
            watch.take(outcome, now)
            if not took():
                return


def _standing(args: argparse.Namespace, settings: Settings, target: TargetSettings, watch: Watch) -> int:
    """Watches until Ctrl-C; the exit code is that of how it stood then."""
    on_screen = sys.stdout.isatty() and not args.json
    with _on_screen(args, target, watch) if on_screen else _by_change(args, target, watch) as took:
        asyncio.run(_feed(settings, target, watch, took, seconds=None))
    found = conclude(watch)
    if on_screen:
        _tell(args, target, watch, found)
    return found.code


@contextlib.contextmanager
def _on_screen(
    args: argparse.Namespace, target: TargetSettings, watch: Watch
) -> Iterator[Callable[[], bool]]:
    """Shows the report as it stands after each scrape, on a screen of its own."""
    from rich.live import Live

    from kvwatch.commands.check_report import report_of
    from kvwatch.commands.output import screen

    with Live(console=screen(), screen=True, auto_refresh=False) as shown:

        def took() -> bool:
            picture = report_of(watch, target.url, conclude(watch), everything=args.all)
            shown.update(picture, refresh=True)
            return True

        yield took


@contextlib.contextmanager
def _by_change(
    args: argparse.Namespace, target: TargetSettings, watch: Watch
) -> Iterator[Callable[[], bool]]:
    """Tells the report whenever the verdict or what fires is another."""
    told: tuple[str, ...] = ()

    def took() -> bool:
        nonlocal told
        found = conclude(watch)
        stands = (found.word, *(one["symptom"] for one in watch.findings()))
        if stands != told:
            told = stands
            _tell(args, target, watch, found)
        return True

    yield took


def as_data(watch: Watch, found: Conclusion, *, points: bool = False) -> dict[str, Any]:
    """All of it as plain data; with `points` the checklist as well."""
    listed = [one.as_data() for one in checklist(watch.good or watch.state)] if points else None
    return watch.as_data() | {
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
        **({} if listed is None else {"checklist": listed}),
    }
