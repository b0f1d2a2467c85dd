"""Command-line options made from the settings, so that each has one name and one help text in all commands."""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Callable, Collection, Iterable, Mapping
from typing import TYPE_CHECKING, Any, NoReturn, TypeVar

from kvwatch.commands.output import print_error
from kvwatch.settings import Settings, load
from kvwatch.settings.settings_model import choices
from kvwatch.settings.sources import SECRET, SERVERS, flag
from kvwatch.settings.target_settings import MOST_SEQS, target_name
from kvwatch.settings.values import duration
from kvwatch.settings.values import size as byte_size

if TYPE_CHECKING:
    from tqdm import tqdm

_T = TypeVar("_T")
_Number = TypeVar("_Number", int, float)

JUDGEMENT = frozenset(
    {
        "spellings",
        "aliases",
        "thresholds",
        "disabled",
        "full_interval_s",
        "min_observations",
        "unknown_grace_s",
        "history_s",
    }
)
"""Settings of the judgement."""
_REPEATABLE = frozenset({"targets", "alertmanagers", "spellings", "aliases", "thresholds", "disabled"})
"""Settings with several values: one per option, or separated by commas."""
_PLACEHOLDER = {
    "aliases": "SIGNAL=NAME",
    "thresholds": "NAME=VALUE",
    "targets": "[NAME=]URL",
    "alertmanagers": "[NAME=]URL",
    "external_url": "URL",
    "gpu_url": "URL",
}


def add_settings(parser: argparse._ActionsContainer, names: Iterable[str] | None = None) -> None:
    """Adds options for the named settings; default: for all but secrets."""
    for name in Settings.model_fields if names is None else names:
        field = Settings.model_fields[name]
        if name in SECRET:
            continue
        default = ""
        if field.default not in (None, [], {}) and name != "targets":
            shown = f"{field.default:g}" if isinstance(field.default, float) else field.default
            default = f" (default: {shown})"
        parser.add_argument(
            flag(name),
            *(["--target"] if name == "targets" else []),
            dest=name,
            metavar=_PLACEHOLDER.get(name, _kind(name)),
            action="append" if name in _REPEATABLE else "store",
            help=((field.description or "") + default).replace("%", "%%"),
        )


def load_settings(values: Mapping[str, Any], *, used: Collection[str] | None = None) -> Settings:
    """The settings from `kvwatch.settings.load`; prints its notes to standard error."""
    settings = load(values, used=used)
    for note in settings.notes:
        print_error(note)
    return settings


def setting_values(args: argparse.Namespace) -> dict[str, Any]:
    """The settings on the command line."""
    found = {name: getattr(args, name, None) for name in Settings.model_fields}
    return {name: _join(name, value) for name, value in found.items() if value is not None}


def _join(name: str, value: Any) -> Any:
    """A repeated option as one value: `kvwatch.settings` parses the text."""
    if name not in _REPEATABLE or name in SERVERS or not isinstance(value, list):
        return value
    return value[0] if len(value) == 1 else ",".join(value)


def _kind(name: str) -> str:
    if name.endswith("_s"):
        return "SECONDS"
    if name.endswith("_bytes"):
        return "BYTES"
    if words := choices(Settings.model_fields[name]):
        return f"{{{','.join(words)}}}"
    return "FILE" if name in {"config", "api_token_file", "tls_cert", "tls_key", "vllm_log"} else "VALUE"


def add_json(parser: argparse._ActionsContainer) -> None:
    parser.add_argument("--json", action="store_true", help="print JSON instead of text")


def add_progress(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--progress",
        action=argparse.BooleanOptionalAction,
        help="show a progress bar on standard error (default: only in a terminal)",
    )


def no_bar(args: argparse.Namespace) -> bool | None:
    """The argument `disable` of tqdm: None shows the bar only in a terminal."""
    return None if args.progress is None else not args.progress


def progress_bar(args: argparse.Namespace, *, total: int | None, leave: bool = True) -> tqdm[NoReturn]:
    """A progress bar of scrapes on standard error."""
    from tqdm import tqdm

    return tqdm(total=total, unit=" scrapes", disable=no_bar(args), file=sys.stderr, leave=leave)


def add_for(parser: argparse.ArgumentParser, text: str, *, default: float | None = None) -> None:
    """Adds `--for`, in seconds."""
    parser.add_argument("--for", dest="seconds", metavar="TIME", type=seconds, default=default, help=text)


def argument_type(read: Callable[[str], _T]) -> Callable[[str], _T]:
    """`read` as a type for argparse: the text of its ValueError becomes the error message."""

    def value(text: str) -> _T:
        try:
            return read(text)
        except ValueError as error:
            raise argparse.ArgumentTypeError(f"{text}: {error}") from None

    return value


@argument_type
def seconds(text: str) -> float:
    """A duration above zero, in seconds."""
    return _above_zero(duration(text))


@argument_type
def size(text: str) -> int:
    """A size above zero, in bytes."""
    return _above_zero(byte_size(text))


def _above_zero(value: _Number) -> _Number:
    if value <= 0:
        raise ValueError("must be above 0")
    return value


@argument_type
def requests(text: str) -> int:
    """A number of requests."""
    return _integer(text, 1, MOST_SEQS)


@argument_type
def port(text: str) -> int:
    return _integer(text, 0, 65_535)


def _integer(text: str, low: int, high: int) -> int:
    if re.fullmatch(r"\s*\d{1,10}\s*", text, re.ASCII) and low <= int(text) <= high:
        return int(text)
    raise ValueError(f"must be a whole number from {low} to {high}")


name = argument_type(target_name)
"""The name of a target."""
