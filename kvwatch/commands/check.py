"""`kvwatch check`: watches a server for a while and reports what is wrong with it."""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import sys
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

from kvwatch.commands import live, options
from kvwatch.commands.check_verdict import Conclusion, conclude
from kvwatch.commands.checklist import checklist
from kvwatch.commands.output import draw, print_json, terminal
from kvwatch.commands.watch import Watch
from kvwatch.core.export import report
from kvwatch.core.judgement.pipeline import next_pace

if TYPE_CHECKING:
    from rich.console import RenderableType

HELP = "watch a server for a while and report what is wrong with it"
EPILOG = """\
examples:
  kvwatch check                               watches the server on localhost:8000 for 30 s
  kvwatch check gpu1:8000 --for 2m            watches longer, so that more symptoms have their full window
  kvwatch check gpu1:8000 --json | jq '.verdict, .limited, .findings'
  kvwatch check gpu1:8000 --watch             watches until Ctrl-C and updates the report
  kvwatch check gpu1:8000 --checklist         goes through the tuning checklist, before production traffic

Symptoms have windows of a minute or more: watch for 2m to give them time to fire. Findings come first in the report.
The report of a healthy server is one line; --all adds its numbers.

exit codes:
  0  fine: nothing is wrong, and no required signal is missing
  1  findings; or pending: a symptom's condition has not held long enough to fire, or requests waited for more than
     half of the time
  2  unknown: the server can't be reached, does not expose enough, or was watched for less than 10 s; or a setting is
     invalid
"""
_PATIENCE_S = 5.0
"""The command gives up if no scrape has succeeded after this time."""
_SETTINGS = ("thresholds", "disabled", "spellings", "aliases", "min_observations")


def add(parser: argparse.ArgumentParser) -> None:
    options.add_for(parser, "how long to watch: 30s, 5m, 1h; at least 10s (default: 30s)", default=30.0)
    for name, text in (
        (
            "--watch",
            "watch until Ctrl-C: a terminal shows the current report, a pipe or --json gets each change",
        ),
        ("--checklist", "go through the tuning checklist with the server's data"),
        ("--all", "show the numbers of a healthy server, and every finding in full"),
    ):
        parser.add_argument(name, action="store_true", help=text)
    live.add(parser, *_SETTINGS)
    options.add_progress(parser)
    options.add_json(parser)


def main(args: argparse.Namespace) -> int:
    return _Check(args).run()


class _Check:
    """One run of the command. A display is a context manager; it yields what to call after each scrape."""

    def __init__(self, args: argparse.Namespace) -> None:
        self._args = args
        self._settings, self._target = live.settings_of(args)
        self._watch = Watch(self._target.name, self._settings.policy(self._target))

    def run(self) -> int:
        on_screen = sys.stdout.isatty() and not self._args.json
        display = self._progress_bar if not self._args.watch else self._screen if on_screen else self._changes
        with display() as update:
            asyncio.run(self._scrape(update))
        found = conclude(self._watch)
        if display != self._changes:
            self._print(found)
        return found.code

    async def _scrape(self, update: Callable[[], None]) -> None:
        watch = self._watch
        seconds = None if self._args.watch else self._args.seconds
        async for now, outcome in live.scrapes(
            self._target, self._settings, seconds=seconds, pace=lambda at: next_pace(watch.state, at)
        ):
            watch.feed(outcome, now)
            update()
            if not self._args.watch and watch.good is None and watch.duration_s >= _PATIENCE_S:
                return

    @contextlib.contextmanager
    def _progress_bar(self) -> Iterator[Callable[[], None]]:
        total = live.count(self._args.seconds, self._settings)
        with options.progress_bar(self._args, total=total, leave=False) as bar:

            def update() -> None:
                regimes = sorted({str(engine.regime) for engine in self._watch.state.engines.values()})
                bar.set_postfix_str(", ".join(regimes), refresh=False)
                bar.update()

            yield update

    @contextlib.contextmanager
    def _screen(self) -> Iterator[Callable[[], None]]:
        """Shows the current report on the terminal's alternate screen."""
        from rich.live import Live

        with Live(console=terminal(), screen=True, auto_refresh=False) as screen:
            yield lambda: screen.update(self._report(conclude(self._watch)), refresh=True)

    @contextlib.contextmanager
    def _changes(self) -> Iterator[Callable[[], None]]:
        """Prints the report whenever the verdict or the set of findings changes."""
        printed: tuple[str, ...] = ()

        def update() -> None:
            nonlocal printed
            found = conclude(self._watch)
            present = (found.word, *(one["symptom"] for one in self._watch.findings()))
            if present != printed:
                printed = present
                self._print(found)

        yield update

    def _report(self, found: Conclusion) -> RenderableType:
        from kvwatch.commands.check_report import report_of

        return report_of(self._watch, self._target.url, found, full=self._args.all)

    def _print(self, found: Conclusion) -> None:
        args, watch = self._args, self._watch
        if args.json:
            print_json(as_data(watch, found, points=args.checklist), indent=None if args.watch else 2)
            return
        draw(self._report(found))
        if args.checklist:
            from kvwatch.commands.check_report import checklist_table

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
