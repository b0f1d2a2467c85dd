"""Command line options made from the settings, so that each has one name and one help text everywhere."""

from __future__ import annotations

import argparse
import re
from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Any, TypeVar

from kvwatch.commands.output import complain
from kvwatch.settings import Settings, load
from kvwatch.settings.settings_model import choices
from kvwatch.settings.sources import SECRET, SERVERS, flag
from kvwatch.settings.target_settings import MOST_SEQS, target_name
from kvwatch.settings.values import duration
from kvwatch.settings.values import size as byte_size

_Number = TypeVar("_Number", int, float)
#: Settings of the judgement.
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
#: Several values, one an option or separated by commas.
_MANY = frozenset({"targets", "alertmanagers", "spellings", "aliases", "thresholds", "disabled"})
_PLACEHOLDER = {
    "aliases": "SIGNAL=NAME",
    "thresholds": "NAME=VALUE",
    "targets": "[NAME=]URL",
    "alertmanagers": "[NAME=]URL",
    "external_url": "URL",
    "gpu_url": "URL",
}


def add_settings(parser: argparse._ActionsContainer, names: Iterable[str] | None = None) -> None:
    """Options for the settings named, or for all."""
    for name in Settings.model_fields if names is None else names:
        field = Settings.model_fields[name]
        if name in SECRET:
            continue
        default = (
            ""
            if field.default in (None, [], {}) or name == "targets"
            else f" (default: {_shown(field.default)})"
        )
        spelled = [flag(name)] + (["--target"] if name == "targets" else [])
        parser.add_argument(
            *spelled,
            dest=name,
            metavar=_PLACEHOLDER.get(name, _kind(name)),
            action="append" if name in _MANY else "store",
            help=((field.description or "") + default).replace("%", "%%"),
        )


def load_noted(given: Mapping[str, Any], *, used: Collection[str] | None = None) -> Settings:
    """The settings, as `load` gives them; what the user should know of where they came from goes to stderr."""
    settings = load(given, used=used)
    for note in settings.notes:
        complain(note)
    return settings


def given(args: argparse.Namespace) -> dict[str, Any]:
    """The settings that were given as options."""
    found = {name: getattr(args, name, None) for name in Settings.model_fields}
    return {name: _joined(name, value) for name, value in found.items() if value is not None}


def _joined(name: str, value: Any) -> Any:
    """Options given several times, as one value: text is left for the settings to read."""
    if name not in _MANY or not isinstance(value, list):
        return value
    if len(value) == 1 or name in SERVERS:
        return value if name in SERVERS else value[0]
    return ",".join(value)


def _kind(name: str) -> str:
    if name.endswith("_s"):
        return "SECONDS"
    if name.endswith("_bytes"):
        return "BYTES"
    if words := choices(Settings.model_fields[name]):
        return f"{{{','.join(words)}}}"
    return "FILE" if name in {"config", "api_token_file", "tls_cert", "tls_key", "vllm_log"} else "VALUE"


def _shown(value: Any) -> str:
    return f"{value:g}" if isinstance(value, float) else str(value)


def add_json(parser: argparse._ActionsContainer) -> None:
    parser.add_argument("--json", action="store_true", help="print the same as JSON")


def add_progress(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--progress",
        action=argparse.BooleanOptionalAction,
        help="show a progress bar on standard error (default: if that is a terminal)",
    )


def no_bar(args: argparse.Namespace) -> bool | None:
    """What tqdm calls `disable`: None leaves it to whether there is a terminal."""
    return None if args.progress is None else not args.progress


def seconds(text: str) -> float:
    """A duration above zero, for argparse."""
    return _above_zero(text, duration)


def size(text: str) -> int:
    """A number of bytes above zero, for argparse."""
    return _above_zero(text, byte_size)


def _above_zero(text: str, understood: Callable[[str], _Number]) -> _Number:
    try:
        value = understood(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(f"{text}: {error}") from None
    if value <= 0:
        raise argparse.ArgumentTypeError(f"{text}: must be above 0")
    return value


def requests(text: str) -> int:
    """A number of requests, for argparse."""
    return _whole(text, 1, MOST_SEQS)


def port(text: str) -> int:
    """A port to serve on, for argparse."""
    return _whole(text, 0, 65_535)


def _whole(text: str, low: int, high: int) -> int:
    if re.fullmatch(r"\s*\d{1,10}\s*", text, re.ASCII) and low <= int(text) <= high:
        return int(text)
    raise argparse.ArgumentTypeError(f"{text}: must be a whole number from {low} to {high}")


def name(text: str) -> str:
    """The name of a target, for argparse."""
    try:
        return target_name(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(f"{text}: {error}") from None
