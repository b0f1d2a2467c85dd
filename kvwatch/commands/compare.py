"""`kvwatch compare`: compares recordings with the first of them."""

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
    from kvwatch.experiment.measured_run import MeasuredRun

HELP = "compare recordings and report the effect of a changed option"
EPILOG = """\
examples:
  kvwatch compare base.jsonl.gz fp8.jsonl.gz --html report.html
  kvwatch compare base.jsonl.gz base-again.jsonl.gz fp8.jsonl.gz
                              shows how much two runs of one configuration differ
  kvwatch compare base.jsonl.gz fp8.jsonl.gz --json | jq '.candidates[].verdict'

Record each run with `kvwatch record -o FILE --label NAME --warmup 1m --for 30m`. Change one option of vLLM between
the runs, and send the same requests at the same times.

Each measure is better, worse, same (within the margin), no difference shown (inconclusive), not enough data, or not
exposed. A measure that is neither good nor bad by itself, such as KV cache usage, is higher or lower.

requires scipy: pip install '.[compare]'

exit codes:
  0  compared, whatever the verdict
  1  the report could not be written
  2  a recording is unreadable or has nothing to compare, an option is invalid, or scipy is missing
"""
_USED = frozenset({"config", "targets", *options.JUDGEMENT})


def add(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "baseline", metavar="BASELINE", help="the recording that the others are compared with"
    )
    parser.add_argument("candidates", metavar="CANDIDATE", nargs="+", help="recordings made after a change")
    parser.add_argument(
        "--margin",
        metavar="SHARE",
        type=_share,
        default="10%",
        help="difference that does not matter, as a share of the baseline: 10%% or 0.1 (default: %(default)s)",
    )
    parser.add_argument("--html", metavar="FILE", help="also write a report with plots to this file")
    parser.add_argument("--force", action="store_true", help="overwrite FILE if it exists")
    shown = parser.add_mutually_exclusive_group()
    shown.add_argument("--markdown", action="store_true", help="print the report as Markdown")
    options.add_json(shown)
    options.add_settings(parser, ("config", "thresholds", "spellings", "aliases"))
    options.add_progress(parser)


def main(args: argparse.Namespace) -> int:
    files = [args.baseline, *args.candidates]
    if args.html is not None:
        _check_writable(Path(args.html), files, force=args.force)
    try:
        from kvwatch.experiment.comparison import compare
    except ImportError as error:
        raise RecordingError(f"compare requires scipy: pip install '.[compare]' ({error})") from None
    from kvwatch.experiment.comparison_data import as_data
    from kvwatch.experiment.comparison_text import as_markdown, as_text

    settings = options.load_settings(options.setting_values(args), used=_USED)
    policy = replace(settings.policy(TargetSettings(name="recorded")), disabled=frozenset(BY_ID))
    comparison = compare(_runs(args, files, policy), margin=args.margin)
    if args.json:
        print_json(as_data(comparison))
    else:
        say(as_markdown(comparison) if args.markdown else as_text(comparison))
    if args.html is not None:
        from kvwatch.experiment.comparison_html import as_html

        try:
            Path(args.html).write_text(as_html(comparison), encoding="utf-8")
        except OSError as error:
            raise WriteError(f"can't write {args.html}: {error.strerror or error}") from None
    return 0


def _runs(args: argparse.Namespace, files: Sequence[str], policy: Policy) -> list[MeasuredRun]:
    """The runs in the recordings. Runs of the same name get the names of their files, or letters."""
    from tqdm import tqdm

    from kvwatch.experiment.measured_run import run_of

    runs = []
    with tqdm(unit=" scrapes", disable=options.no_bar(args), file=sys.stderr) as bar:
        for file in files:
            bar.set_description(Path(file).name, refresh=False)
            name = Path(file).name.removesuffix(".gz").removesuffix(".jsonl") or file
            runs.append(run_of(read(file), name, policy, on_record=bar.update))
    names = [run.name for run in runs]
    files_apart = len({Path(file).name for file in files}) == len(files)
    return [
        run
        if names.count(run.name) == 1
        else replace(run, name=f"{run.name} ({Path(file).name if files_apart else _letter(number)})")
        for number, (run, file) in enumerate(zip(runs, files, strict=True))
    ]


def _letter(number: int) -> str:
    """A, B, C for runs that have the same names and file names."""
    return chr(ord("A") + number % 26)


def _check_writable(path: Path, recordings: Sequence[str], *, force: bool) -> None:
    """Raises `RecordingError` before the work if the report can't be written."""
    if path.exists() and any(Path(one).exists() and path.samefile(one) for one in recordings):
        raise RecordingError(f"{path} is one of the recordings; choose another name for the report")
    if path.is_dir():
        raise RecordingError(f"{path} is a folder; name a file in it")
    if path.exists() and not force:
        raise RecordingError(f"{path} exists; choose another name, or --force to overwrite it")
    if not path.absolute().parent.is_dir():
        raise RecordingError(f"there is no folder {path.absolute().parent} to write {path.name} to")


def _share(text: str) -> float:
    """A share above 0 and below 1, for argparse."""
    number, percent = text.strip().removesuffix("%"), text.strip().endswith("%")
    try:
        value = float(number) / (100 if percent else 1)
    except ValueError:
        value = 0.0
    if 0 < value < 1:
        return value
    raise argparse.ArgumentTypeError(f"{text}: must be above 0 and below 1, such as 0.1 or 10%")
