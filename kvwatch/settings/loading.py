"""Loads the settings from all sources, and reports everything that is wrong with them at once."""

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

_MAY_HOLD_SECRETS = SECRET | SERVERS.keys()
_LONGEST = 60
"""Characters of a wrong value that an error shows."""


class SettingsError(Exception):
    """The settings are invalid. `problems`: one line each, with place, what is wrong and remedy, without secrets."""

    def __init__(self, problems: Sequence[str]) -> None:
        self.problems = tuple(map(redact, problems))
        super().__init__("\n".join(self.problems))


def load(given: Mapping[str, Any] | None = None, *, used: Collection[str] | None = None) -> Settings:
    """The settings from flags (`given`, by field), environment and file; raises `SettingsError`.

    With `used`, only these settings matter: an error in another one, except on the command line, becomes a note, and
    that setting has its default.
    """
    fields = Settings.model_fields
    top = flags(given or {})
    env = environment(os.environ, fields)
    path = top.values.get("config") or env.values.get("config")
    layers = [top, env, file(Path(path) if path else None, fields)]
    settings, problems = _validate(layers)
    notes: list[str] = []
    if problems and used is not None:
        unused = [one.text for one in problems if one.kind != "flag" and one.field not in used]
        if unused:
            settings, problems = _validate([top, *(layer.only(used) for layer in layers[1:])])
            notes = ["not used here, but wrong: " + "; ".join(dict.fromkeys(unused))]
    if settings is None or problems:
        raise SettingsError(list(dict.fromkeys(one.text for one in problems)))
    return settings.with_notes(notes)


def _validate(layers: Sequence[Layer]) -> tuple[Settings | None, list[Problem]]:
    """The settings, if they are valid, and all problems."""
    problems = [problem for layer in layers for problem in layer.problems]
    try:
        return Settings.of(layers), problems
    except ValidationError as error:
        found = [one for details in error.errors(include_url=False) for one in _problems(details, layers)]
        return None, problems + found


def _problems(error: ErrorDetails, layers: Sequence[Layer]) -> Iterator[Problem]:
    name, *inside = (str(part) for part in error["loc"])
    if error["type"] == "several":
        context = error.get("ctx", {})
        messages = [*context["entries"].items(), *(("", message) for message in context["others"])]
        for entry, message in messages:
            layer = _layer(name, layers, entry)
            yield _problem(name, layer, f"{_name_in(layer, name)}: {message}")
        return
    layer = _layer(name, layers, *inside[:1])
    if error["type"] == "extra_forbidden" and not inside:
        close = nearest(name, map(key, Settings.model_fields))
        yield _problem(name, layer, f"{_name_in(layer, name)}: unknown setting{close}")
    else:
        place = f"{_place(name, layer, *inside)}{_wrong_value(name, inside, error)}"
        yield _problem(name, layer, f"{place}: {_message(name, error, inside)}")


def _problem(name: str, layer: Layer | None, text: str) -> Problem:
    return Problem(name, text, layer.kind if layer else "default")


def _layer(name: str, layers: Sequence[Layer], entry: str = "") -> Layer | None:
    """The first layer that has a field, or an entry of it."""
    whole = not entry or name not in MAPPINGS
    return next((one for one in layers if name in one.values and (whole or entry in one.values[name])), None)


def _name_in(layer: Layer | None, name: str) -> str:
    """The name of a field in a layer, or all its names if no layer has it."""
    if layer is not None:
        return layer.spelled[name]
    variable = PREFIX + key(name).upper()
    return variable if name in SECRET else f"{flag(name)} ({variable})"


def _place(name: str, layer: Layer | None, *inside: str) -> str:
    """The name of a field, or of a part of it."""
    field = _name_in(layer, name)
    if name in SERVERS and inside and inside[0].isdigit():
        return " ".join([f"{field}, {SERVERS[name]} {int(inside[0]) + 1}", *inside[1:]])
    return " ".join([field, *inside])


def _wrong_value(name: str, inside: Sequence[str], error: ErrorDetails) -> str:
    """The wrong value, unless it may hold a secret."""
    value = error["input"]
    secret = {name, *inside} & SECRET or (name in _MAY_HOLD_SECRETS and not inside)
    if secret or error["type"] == "extra_forbidden" or not isinstance(value, str | int | float | Path):
        return ""
    try:
        text = redact_url(str(value))
    except ValueError:  # Python converts no number of more than 4300 digits
        return ""
    return f" {text if len(text) <= _LONGEST else text[: _LONGEST - 1] + '…'}"


def _message(name: str, error: ErrorDetails, inside: Sequence[str]) -> str:
    kind, text = error["type"], error["msg"]
    context = error.get("ctx", {})
    if kind == "value_error":
        return str(context.get("error", text))
    if kind == "extra_forbidden":
        model = AlertmanagerSettings if name == "alertmanagers" else TargetSettings
        return f"unknown field{nearest(inside[-1], model.model_fields)}"
    if kind == "literal_error":
        return f"must be {context['expected']}"
    if kind.startswith(("int", "float")):
        return "must be a whole number" if kind.startswith("int") else "must be a number"
    return text[:1].lower() + text[1:]
