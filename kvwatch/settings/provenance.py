"""The effective settings as TOML, without secrets, with where each came from."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from kvwatch.settings.settings_model import Settings, dump
from kvwatch.settings.sources import MAPPINGS, SECRET, SERVERS, key
from kvwatch.text.redact import escape


def show(settings: Settings) -> str:
    """The effective settings as a file. Secrets and unset values are comments."""
    values = dump(settings)
    del values["config"]
    lines = [
        _line(settings, name, value)
        for name, value in values.items()
        if name not in MAPPINGS | SERVERS.keys()
    ]
    for name in sorted(MAPPINGS):
        lines += ["", f"[{key(name)}]"]
        lines += [
            f"{_toml(entry)} = {_toml(value)}{_origin(settings, name, entry)}"
            for entry, value in values[name].items()
        ]
    for kind in SERVERS:
        for server in values[kind]:
            lines += ["", f"[[{kind}]]{_origin(settings, kind)}"]
            lines += [_entry(name, value, name, "") for name, value in server.items() if value is not None]
    return "\n".join(lines) + "\n"


def provenance(settings: Settings) -> dict[str, Any]:
    """The effective settings as data: field -> value and origin."""
    return {
        key(name): {"value": value, "from": settings.origin(name)[0], "as": settings.origin(name)[1]}
        for name, value in dump(settings).items()
    }


def _line(settings: Settings, name: str, value: Any) -> str:
    if value is None:
        return f"# {key(name)} is not set"
    return _entry(name, value, key(name), _origin(settings, name))


def _entry(name: str, value: Any, key_name: str, origin: str) -> str:
    """A line of the file. A secret is a comment, because its stars would be read as the value."""
    return f"{'# ' if name in SECRET else ''}{key_name} = {_toml(value)}{origin}"


def _origin(settings: Settings, *path: str) -> str:
    kind, spelled = settings.origin(*path)
    return f"  # {kind}" + (f": {escape(spelled, keep='')}" if spelled else "")


def _toml(value: Any) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, str):
        return escape(json.dumps(value, ensure_ascii=False))
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{_toml(k)} = {_toml(v)}" for k, v in value.items()) + "}"
    if isinstance(value, list):
        return "[" + ", ".join(map(_toml, value)) + "]"
    return (
        f"{value:g}" if isinstance(value, float) and value.is_integer() and abs(value) < 1e6 else repr(value)
    )
