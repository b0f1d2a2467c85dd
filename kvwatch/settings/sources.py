"""The sources of settings: flags, environment and file, each as a layer of raw values with their names there.

The name is that of the field without the unit ``_s``: ``--max-interval``, ``KVWATCH_MAX_INTERVAL``,
``max_interval = 15``. The full name and singulars such as ``threshold`` are accepted too. Layers keep unknown keys:
the model rejects them, so that everything that is wrong is reported at once.
"""

from __future__ import annotations

import os
import re
import tomllib
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pydantic.fields import FieldInfo
from pydantic_settings import BaseSettings, PydanticBaseSettingsSource

from kvwatch.settings.values import nearest, pairs

PREFIX = "KVWATCH_"

MAPPINGS = frozenset({"thresholds", "aliases"})
"""Fields that are mappings: layers add to each other instead of replacing."""

SINGULAR = {
    "targets": "target",
    "alertmanagers": "alertmanager",
    "thresholds": "threshold",
    "aliases": "alias",
    "spellings": "spelling",
    "disabled": "disable",
}
"""Names for one of several: a flag adds one."""

SERVERS = {"targets": "target", "alertmanagers": "Alertmanager"}
"""Fields that are lists of servers, each a table in the file."""

SECRET = frozenset({"token", "password", "api_token"})
"""Without a flag, because every user of the host can read a command line."""

_NOT_SETTINGS = frozenset({"DEBUG"})
"""Variables of kvwatch that are not settings."""

_OF_A_SERVICE = re.compile(r"(.*_)?(SERVICE_HOST|SERVICE_PORT(_.*)?|PORT_\d+_(TCP|UDP|SCTP)(_.*)?)")
"""Variables that Kubernetes sets in every container for a Service called kvwatch or kvwatch-something."""

_SERVICE_ADDRESS = re.compile(r"(tcp|udp|sctp)://.*")


@dataclass(frozen=True, slots=True)
class Problem:
    """One error: a line with place, what is wrong and remedy. `kind` is that of the layer."""

    field: str
    text: str
    kind: str


@dataclass(slots=True)
class Layer:
    """Raw values of one source by field, the name of each in the source, and problems and notes about it."""

    kind: str
    values: dict[str, Any] = field(default_factory=dict)
    spelled: dict[str, str] = field(default_factory=dict)
    problems: list[Problem] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    def put(self, name: str, value: Any, spelled: str) -> None:
        if name in self.values:
            self.add_problem(name, f"{spelled}: set twice, also as {self.spelled[name]}; keep one")
            return
        if name in MAPPINGS:
            try:
                value, wrong = pairs(value)
            except ValueError as error:
                value, wrong = {}, [str(error)]
            for one in wrong:
                self.add_problem(name, f"{spelled}: {one}")
        self.values[name] = value
        self.spelled[name] = spelled

    def add_problem(self, name: str, text: str) -> None:
        self.problems.append(Problem(name, text, self.kind))

    def only(self, names: Collection[str]) -> Layer:
        """The layer with only these fields."""
        return Layer(
            self.kind,
            {name: value for name, value in self.values.items() if name in names},
            self.spelled,
            [problem for problem in self.problems if problem.field in names],
            self.notes,
        )


def key(name: str) -> str:
    """The name of a field for users."""
    return name.removesuffix("_s")


def flag(name: str) -> str:
    return "--" + (key(name) if name == "targets" else SINGULAR.get(name, key(name))).replace("_", "-")


def _field(word: str, fields: Iterable[str]) -> str | None:
    return next((name for name in fields if word in (key(name), name, SINGULAR.get(name))), None)


def debugging() -> bool:
    """Whether tracebacks are shown (KVWATCH_DEBUG=1)."""
    return os.environ.get(f"{PREFIX}DEBUG", "0") not in {"", "0"}


def flags(given: Mapping[str, Any]) -> Layer:
    """The layer of the command line, by field."""
    layer = Layer("flag")
    for name, value in given.items():
        layer.put(name, value, flag(name))
    return layer


def environment(environ: Mapping[str, str], fields: Collection[str]) -> Layer:
    """The layer of the environment. Empty variables count as unset. Unknown ones are ignored, with a note."""
    layer = Layer("env")
    for variable, value in sorted(environ.items()):
        word = variable.removeprefix(PREFIX)
        if word == variable or word in _NOT_SETTINGS or not value.strip():
            continue
        if _OF_A_SERVICE.fullmatch(word) or (word.endswith("PORT") and _SERVICE_ADDRESS.fullmatch(value)):
            continue  # KVWATCH_PORT=tcp://10.0.0.1:9477 is not a setting: Kubernetes sets it for a Service
        name = _field(word.lower(), fields)
        if name is None:
            known = [PREFIX + key(one).upper() for one in fields]
            layer.notes.append(
                f"{variable} is not a setting and is ignored{nearest(variable, known, prefix=PREFIX)}"
            )
        else:
            layer.put(name, value, variable)
    return layer


def file(path: Path | None, fields: Collection[str]) -> Layer:
    """The layer of the settings file. If it can't be read, it is empty and has the problem."""
    layer = Layer("file")
    if path is None:
        return layer
    try:
        table = tomllib.loads(path.read_bytes().decode("utf-8-sig"))
        for word, value in table.items():
            layer.put(_field(word, fields) or word, value, f"{path}: {word}")
    except OSError as error:
        layer.add_problem("config", f"{path}: can't read the settings file: {error.strerror or error}")
    except UnicodeDecodeError:
        layer.add_problem("config", f"{path}: the settings file is not UTF-8 text")
    except RecursionError:
        layer.add_problem("config", f"{path}: not TOML: nested too deeply")
    except ValueError as error:  # from tomllib, a number with too many digits, or an impossible path
        layer.add_problem("config", f"{path}: not TOML: {error}")
    return layer


class LayerSource(PydanticBaseSettingsSource):
    """A layer, as a source of pydantic-settings."""

    def __init__(self, settings: type[BaseSettings], layer: Layer) -> None:
        super().__init__(settings)
        self.layer = layer

    def get_field_value(self, field: FieldInfo, field_name: str) -> tuple[Any, str, bool]:
        del field
        return self.layer.values.get(field_name), field_name, False

    def __call__(self) -> dict[str, Any]:
        return self.layer.values
