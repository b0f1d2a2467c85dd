"""Reads the settings from all their sources, and says everything that is wrong with them at once."""

from __future__ import annotations

import os
from collections.abc import Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from pydantic import ValidationError
from pydantic_core import ErrorDetails

from kvwatch.settings.settings_model import Settings
from kvwatch.settings.sources import (
    MAPPINGS,
    PREFIX,
    SECRET,
    SERVERS,
    Layer,
    Problem,
    environment,
    file,
    flag,
    flags,
    key,
)
from kvwatch.settings.target_settings import AlertmanagerSettings, TargetSettings
from kvwatch.settings.values import nearest
from kvwatch.text.redact import redact, redact_url

_NOT_SHOWN = SECRET | SERVERS.keys()  # a list of servers, as JSON, may hold tokens


class SettingsError(Exception):
    """The settings can't be used. `problems`: one line each, with the remedy and without secrets."""

    def __init__(self, problems: Sequence[str]) -> None:
        self.problems = tuple(map(redact, problems))
        super().__init__("\n".join(self.problems))


def load(given: Mapping[str, Any] | None = None, *, used: Collection[str] | None = None) -> Settings:
    """The settings from flags (`given`, by field), environment and file; raises `SettingsError`.

    Who uses only some of the settings names them: what is wrong with others, and not on the command line, is
    then a note, and they are at their defaults.
    """
    fields = Settings.model_fields
    top = flags(given or {})
    env = environment(os.environ, fields)
    path = top.values.get("config") or env.values.get("config")
    layers = [top, env, file(Path(path) if path else None, fields)]
    settings, problems = _made(layers)
    notes: list[str] = []
    if problems and used is not None:
        strange = [one for one in problems if one.kind != "flag" and one.field not in used]
        if strange:
            layers = [top, *(layer.only(used) for layer in layers[1:])]
            settings, problems = _made(layers)
            notes = ["not used here, but wrong: " + "; ".join(dict.fromkeys(one.text for one in strange))]
    if settings is None or problems:
        raise SettingsError(list(dict.fromkeys(one.text for one in problems)))
    return settings.noting(notes)


def _made(layers: Sequence[Layer]) -> tuple[Settings | None, list[Problem]]:
    """The settings that layers say, if they can be made; and everything that is wrong."""
    problems = [problem for layer in layers for problem in layer.problems]
    try:
        return Settings.of(layers), problems
    except ValidationError as error:
        found = [one for details in error.errors(include_url=False) for one in _problems(details, layers)]
        return None, problems + found


def _problems(error: ErrorDetails, layers: Sequence[Layer]) -> Iterator[Problem]:
    """What to tell about one error of the model."""
    name, *inside = (str(part) for part in error["loc"])
    context = error.get("ctx", {})
    if error["type"] == "several":
        for entry, message in context["entries"].items():
            layer = _layer(name, layers, entry)
            yield Problem(name, f"{_called(name, layer)}: {message}", layer.kind if layer else "default")
        layer = _layer(name, layers)
        for message in context["others"]:
            yield Problem(name, f"{_called(name, layer)}: {message}", layer.kind if layer else "default")
        return
    layer = _layer(name, layers, *inside[:1])
    if error["type"] == "extra_forbidden" and not inside:
        text = f"{_called(name, layer)}: no such setting{nearest(name, map(key, Settings.model_fields))}"
    else:
        text = (
            f"{_spelled(name, layer, *inside)}{_shown(name, inside, error)}: {_message(name, error, inside)}"
        )
    yield Problem(name, text, layer.kind if layer else "default")


def _spelled(name: str, layer: Layer | None, *inside: str) -> str:
    """What the user called a field, or a part of it."""
    called = _called(name, layer)
    if name in SERVERS and inside and inside[0].isdigit():
        return " ".join([f"{called}, {SERVERS[name]} {int(inside[0]) + 1}", *inside[1:]])
    return " ".join([called, *inside])


def _layer(name: str, layers: Sequence[Layer], entry: str = "") -> Layer | None:
    """The first layer that has a field, or an entry of it."""
    whole = not entry or name not in MAPPINGS
    return next(
        (one for one in layers if name in one.values and (whole or entry in one.values[name])),
        None,
    )


def _called(name: str, layer: Layer | None) -> str:
    """What a field is called in a layer; if nobody gave it, by every name it has."""
    if layer is not None:
        return layer.spelled[name]
    variable = PREFIX + key(name).upper()
    return variable if name in SECRET else f"{flag(name)} ({variable})"


def _shown(name: str, inside: Sequence[str], error: ErrorDetails) -> str:
    """The bad value, unless it may hold a secret."""
    value = error["input"]
    if {name, *inside} & SECRET or (name in _NOT_SHOWN and not inside) or error["type"] == "extra_forbidden":
        return ""
    if not isinstance(value, str | int | float | Path):
        return ""
    try:
        text = redact_url(str(value))
    except ValueError:  # Python writes no number of more than 4300 digits
        return ""
    return f" {text if len(text) <= 60 else text[:59] + '…'}"


def _message(name: str, error: ErrorDetails, inside: Sequence[str]) -> str:
    kind, text = error["type"], error["msg"]
    context = error.get("ctx", {})
    if kind == "value_error":
        return str(context.get("error", text))
    if kind == "extra_forbidden":
        model = AlertmanagerSettings if name == "alertmanagers" else TargetSettings
        article = "an" if name == "alertmanagers" else "a"
        return f"{article} {SERVERS[name]} has no such field{nearest(inside[-1], model.model_fields)}"
    if kind == "literal_error":
        return f"must be {context['expected']}"
    if kind.startswith(("int", "float")):
        return "must be a whole number" if kind.startswith("int") else "must be a number"
    return text[:1].lower() + text[1:]
