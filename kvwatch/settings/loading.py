"""Reads the settings from all their sources, and says everything that is wrong with them at once."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from pydantic import ValidationError
from pydantic_core import ErrorDetails

from kvwatch.settings.model import Settings
from kvwatch.settings.sources import MAPPINGS, PREFIX, Layer, environment, file, flag, flags, key
from kvwatch.settings.target import TargetSettings
from kvwatch.settings.values import nearest, redacted

_SECRET = frozenset({"token", "api_token"})
_NOT_SHOWN = _SECRET | {"targets"}  # a list of targets, as JSON, may hold tokens


class SettingsError(Exception):
    """The settings can't be used. `problems`: one line each, with the remedy."""

    def __init__(self, problems: Sequence[str]) -> None:
        super().__init__("\n".join(problems))
        self.problems = tuple(problems)


def load(given: Mapping[str, Any] | None = None) -> Settings:
    """The settings from flags (`given`, by field), environment and file; raises `SettingsError`."""
    top = flags(given or {})
    env = environment(os.environ, Settings.model_fields)
    path = top.values.get("config") or env.values.get("config")
    toml = file(Path(path) if path else None, Settings.model_fields)
    layers = (top, env, toml)
    problems = [problem for layer in layers for problem in layer.problems]
    try:
        settings = Settings(**top.values)
    except ValidationError as error:
        problems += [line for one in error.errors(include_url=False) for line in _lines(one, layers)]
    else:
        if not problems:
            return settings.known_from(_origins(layers), [note for layer in layers for note in layer.notes])
    raise SettingsError(list(dict.fromkeys(problems)))


def _origins(layers: Iterable[Layer]) -> dict[tuple[str, ...], tuple[str, str]]:
    found: dict[tuple[str, ...], tuple[str, str]] = {}
    for layer in layers:
        for name, value in layer.values.items():
            origin = (layer.kind, layer.spelled[name])
            found.setdefault((name,), origin)
            if name in MAPPINGS and isinstance(value, Mapping):
                for entry in value:
                    found.setdefault((name, entry), origin)
    return found


def _lines(error: ErrorDetails, layers: Sequence[Layer]) -> list[str]:
    """What to tell about one error of the model."""
    name, *inside = (str(part) for part in error["loc"])
    entries: Mapping[str, str] | None = error.get("ctx", {}).get("entries")
    if entries:
        return [f"{_source(name, layers, entry)}: {message}" for entry, message in entries.items()]
    if error["type"] == "extra_forbidden" and not inside:
        return [f"{_spelled(name, layers)}: no such setting{nearest(name, map(key, Settings.model_fields))}"]
    return [f"{_spelled(name, layers, *inside)}{_shown(name, inside, error)}: {_message(error, inside)}"]


def _spelled(name: str, layers: Sequence[Layer], *inside: str) -> str:
    """What the user called a field, or a part of it."""
    entry = inside[0] if inside else ""
    spelled = _source(name, layers, entry)
    if name == "targets" and entry.isdigit():
        return " ".join([f"{spelled}, target {int(entry) + 1}", *inside[1:]])
    return " ".join([spelled, *inside])


def _source(name: str, layers: Sequence[Layer], entry: str) -> str:
    """What a field, or an entry of it, is called in the first layer that has it."""
    layer = next(
        (
            one
            for one in layers
            if name in one.values
            and (
                not entry
                or name not in MAPPINGS
                or not isinstance(one.values[name], Mapping)
                or entry in one.values[name]
            )
        ),
        None,
    )
    return layer.spelled[name] if layer else _anyhow(name)


def _anyhow(name: str) -> str:
    """A field that nobody gave: by every name it has."""
    if name in _SECRET:
        return PREFIX + key(name).upper()
    return f"{flag(name)} ({PREFIX}{key(name).upper()})"


def _shown(name: str, inside: Sequence[str], error: ErrorDetails) -> str:
    """The bad value, unless it may hold a secret."""
    value = error["input"]
    if {name, *inside} & _SECRET or (name in _NOT_SHOWN and not inside) or error["type"] == "extra_forbidden":
        return ""
    if not isinstance(value, str | int | float | Path):
        return ""
    text = redacted(str(value))
    return f" {text if len(text) <= 60 else text[:59] + '…'}"


def _message(error: ErrorDetails, inside: Sequence[str]) -> str:
    kind, text = error["type"], error["msg"]
    context = error.get("ctx", {})
    if kind == "value_error":
        return str(context.get("error", text))
    if kind == "extra_forbidden":
        return f"a target has no such field{nearest(inside[-1], TargetSettings.model_fields)}"
    if kind == "literal_error":
        return f"must be {context['expected']}"
    if kind.startswith(("int", "float")):
        return "must be a whole number" if kind.startswith("int") else "must be a number"
    return text[:1].lower() + text[1:]
