"""`kvwatch compare`: recordings against the first of them."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from kvwatch.commands import options
from kvwatch.commands.output import print_json, say
from kvwatch.core.judgement.symptoms import BY_ID
from kvwatch.recording import RecordingError, WriteError, read
from kvwatch.settings import TargetSettings

if TYPE_CHECKING:
    from kvwatch.core.judgement.policy import Policy
    from kvwatch.experiment import MeasuredRun

HELP = "compare recordings and say what one changed option did"
EPILOG = """\
examples:
  kvwatch compare base.jsonl.gz fp8.jsonl.gz --html report.html
  kvwatch compare base.jsonl.gz base-again.jsonl.gz fp8.jsonl.gz
                              how much do two runs of one configuration differ anyway?
  kvwatch compare base.jsonl.gz fp8.jsonl.gz --json | jq '.candidates[].verdict'

Record each run with `kvwatch record -o FILE --label NAME --warmup 1m --for 30m`, change one option of vLLM between
them, and send the same requests at the same times.

Each measure is called better, worse, the same (surely within the margin), not shown to differ, or too little to tell;
of those of which neither is good in itself, as KV usage: higher or lower.

exit codes:
  0  compared, whatever came out
  1  the report could not be written
  2  a recording can't be read or has nothing to compare, or an option is wrong
"""
_USED = frozenset({"config", "targets", *options.JUDGEMENT})


def add(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("baseline", metavar="BASELINE", help="recording that the others are held against")
    parser.add_argument(
        "candidates", metavar="CANDIDATE", nargs="+", help="recordings made with something changed"
    )
    parser.add_argument(
        "--margin",
        metavar="SHARE",
        type=_share,
        default="10%",
        help="difference of the baseline that does not matter, as 10%% or 0.1 (default: %(default)s)",
    )
    parser.add_argument("--html", metavar="FILE", help="write the report with plots to this file as well")
    parser.add_argument("--force", action="store_true", help="overwrite FILE if it is there")
    shown = parser.add_mutually_exclusive_group()
    shown.add_argument("--markdown", action="store_true", help="print the report as Markdown")
    options.add_json(shown)
    options.add_settings(parser, ("config", "thresholds", "spellings", "aliases"))
    options.add_progress(parser)


def main(args: argparse.Namespace) -> int:
    from kvwatch.experiment import as_data, as_markdown, as_text, compare

    if args.html is not None:
        _free(Path(args.html), [args.baseline, *args.candidates], force=args.force)
    settings = options.load_settings(options.setting_values(args), used=_USED)
    policy = replace(settings.policy(TargetSettings(name="recorded")), disabled=frozenset(BY_ID))
    comparison = compare(_runs(args, policy), margin=args.margin)
    if args.json:
        print_json(as_data(comparison))
    else:
        say(as_markdown(comparison) if args.markdown else as_text(comparison))
    if args.html is not None:
        from kvwatch.experiment.comparison_html import as_html

        _write(Path(args.html), as_html(comparison))
    return 0


def _runs(args: argparse.Namespace, policy: Policy) -> list[MeasuredRun]:
    """The runs in the recordings, each with a name of its own."""
    from tqdm import tqdm

    from kvwatch.experiment import run_of

    files = [args.baseline, *args.candidates]
    runs = []
    with tqdm(unit=" scrapes", disable=options.no_bar(args), file=sys.stderr) as bar:
        for file in files:
            bar.set_description(Path(file).name, refresh=False)
            runs.append(run_of(read(file), _bare(file), policy, seen=bar.update))
    return _distinct(runs, files)


def _bare(file: str) -> str:
    """The name of a file without what says that it is a recording."""
    return Path(file).name.removesuffix(".gz").removesuffix(".jsonl") or file


def _distinct(runs: Sequence[MeasuredRun], files: Sequence[str]) -> list[MeasuredRun]:
    """Runs of one name are told apart by their files."""
    names = [run.name for run in runs]
    return [
        run if names.count(run.name) == 1 else replace(run, name=f"{run.name} ({Path(file).name})")
        for run, file in zip(runs, files, strict=True)
    ]


def _free(path: Path, recordings: Sequence[str], *, force: bool) -> None:
    """Raises `RecordingError` if a report can't be written there, before the work is done."""
    if path.exists() and any(Path(one).exists() and path.samefile(one) for one in recordings):
        raise RecordingError(f"{path} is one of the recordings; choose another name for the report")
    if path.is_dir():
        raise RecordingError(f"{path} is a folder; name a file in it")
    if path.exists() and not force:
        raise RecordingError(f"{path} is there already; choose another name or --force to overwrite it")
    if not path.absolute().parent.is_dir():
        raise RecordingError(f"there is no folder {path.absolute().parent} to write {path.name} to")


def _write(path: Path, text: str) -> None:
    try:
        path.write_text(text, encoding="utf-8")
    except OSError as error:
        raise WriteError(f"can't write {path}: {error.strerror or error}") from None


def _share(text: str) -> float:
    """A share above 0 and below 1, for argparse."""
    number, per_cent = (text.strip().removesuffix("%"), text.strip().endswith("%"))
    try:
        value = float(number) / (100 if per_cent else 1)
    except ValueError:
        value = 0.0
    if 0 < value < 1:
        return value
    raise argparse.ArgumentTypeError(f"{text}: must be above 0 and below 1, as 0.1 or 10%")
