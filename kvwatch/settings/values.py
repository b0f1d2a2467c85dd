"""Values as people write them: durations, sizes, lists, pairs, secrets. Every error includes its remedy."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterable, Mapping
from difflib import get_close_matches
from pathlib import Path
from typing import Annotated, Any

from pydantic import AfterValidator, Field, SecretStr

_DURATION = re.compile(r"(?P<number>\d+(\.\d*)?|\.\d+)\s*(?P<unit>ms|s|m|h|d)?", re.IGNORECASE)
_SECONDS = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86_400.0}
_SIZE = re.compile(r"(?P<number>\d+(\.\d*)?)\s*(?P<unit>[kmg]i?b?|b)?", re.IGNORECASE)
_BYTES = {"": 1, "b": 1, "k": 1000, "m": 1000**2, "g": 1000**3, "ki": 1 << 10, "mi": 1 << 20, "gi": 1 << 30}

_SUGGESTIONS = 3
"""Names to suggest if none is close."""


def setting(default: Any, description: str, **limits: Any) -> Any:
    """A field of the settings. The description is also its help text and its row in the table of settings."""
    return Field(default=default, description=description, **limits)


def duration(value: Any) -> float:
    """Seconds, from a number or from text such as ``30``, ``1.5s``, ``200ms``, ``5m``, ``1h``."""
    found = _DURATION.fullmatch(value.strip()) if isinstance(value, str) else None
    if found:
        value = float(found["number"]) * _SECONDS[(found["unit"] or "s").lower()]
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise ValueError("not a duration; write seconds, or for example 30s, 5m, 1h")  # noqa: TRY004 - for pydantic
    if not math.isfinite(value):
        raise ValueError("not a duration; write a finite number of seconds")
    return float(value)


def size(value: Any) -> int:
    """Bytes, from a number or from text such as ``16MiB``, ``500kB``."""
    if isinstance(value, int) and not isinstance(value, bool):
        return value
    found = _SIZE.fullmatch(value.strip()) if isinstance(value, str) else None
    if not found:
        raise ValueError("not a size; write bytes, or for example 16MiB")
    unit = (found["unit"] or "").lower()
    bytes_ = float(found["number"]) * _BYTES[unit if unit == "b" else unit.removesuffix("b")]
    if not math.isfinite(bytes_):
        raise ValueError("not a size; write a smaller number of bytes")
    return int(bytes_)


def split_words(value: Any) -> list[Any]:
    """A list, from one, from JSON, or from text separated by commas or spaces."""
    if isinstance(value, str):
        is_json = value.strip().startswith("[")
        value = from_json(value) if is_json else re.split(r"[,\s]+", value.strip(", \t\n"))
    if not isinstance(value, list | tuple):
        raise ValueError("not a list; write words separated by commas")  # noqa: TRY004 - for pydantic
    return [word for word in value if word != ""]


def pairs(value: Any) -> tuple[dict[str, Any], list[str]]:
    """A mapping, and what is wrong with the rest.

    From a mapping, from JSON, or from ``name=value`` separated by commas or spaces, or in a list. A nested table,
    which TOML makes of an unquoted ``a.b = 1``, is flattened to ``{"a.b": 1}``.
    """
    if isinstance(value, str):
        joined = re.sub(r"[ \t]*=[ \t]*", "=", value)
        value = from_json(value) if value.strip().startswith("{") else split_words(joined)
    if isinstance(value, Mapping):
        return _flat(value), []
    if not isinstance(value, list | tuple):
        raise ValueError("not a mapping; write name=value, separated by commas")  # noqa: TRY004 - for pydantic
    found, wrong = {}, []
    for item in value:
        name, equals, text = (part.strip() for part in str(item).partition("="))
        if equals and name and text:
            found[name] = text
        else:
            wrong.append(f"{item!r} is not of the form name=value")
    return found, wrong


def _flat(table: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    flat: dict[str, Any] = {}
    for name, value in table.items():
        if isinstance(value, Mapping):
            flat.update(_flat(value, f"{prefix}{name}."))
        else:
            flat[f"{prefix}{name}"] = value
    return flat


def from_json(text: str) -> Any:
    try:
        return json.loads(text)
    except RecursionError:
        raise ValueError("invalid JSON: nested too deeply") from None
    except ValueError as error:
        raise ValueError(f"invalid JSON: {error}") from None


def read_text(path: Path) -> str:
    """The text of a file, or ValueError."""
    try:
        return path.read_text(encoding="utf-8")
    except OSError as error:
        raise ValueError(f"can't read this file: {error.strerror or error}") from None
    except UnicodeDecodeError:
        raise ValueError("this file is not UTF-8 text") from None


def _check_readable(path: Path) -> Path:
    read_text(path)
    return path


ReadableFile = Annotated[Path, AfterValidator(_check_readable)]


def secret_of(secret: SecretStr | None, path: Path | None, name: str) -> SecretStr | None:
    """A token or password, from the setting `name` or from the file of `name`_file."""
    if path is not None and secret is not None:
        raise ValueError(f"set together with {name}_file; keep one")
    if path is not None:
        secret = SecretStr(read_text(path).strip())
    if secret is None:
        return None
    if not secret.get_secret_value().strip():
        raise ValueError(f"the file {path} is empty" if path else f"empty; leave it out to use no {name}")
    if not secret.get_secret_value().isprintable():
        raise ValueError(f"not a {name}; write one line of text")
    return secret


def nearest(word: str, known: Iterable[str], *, prefix: str = "") -> str:
    """``; did you mean X?``, or nothing if no name is close. The `prefix` of all names is ignored."""
    names = [name.removeprefix(prefix) for name in known]
    close = get_close_matches(word.removeprefix(prefix), names, n=1, cutoff=0.6)
    return f"; did you mean {prefix}{close[0]}?" if close else ""


def suggestions(word: str, known: Iterable[str]) -> str:
    """``; did you mean X?``, or the few most similar names if none is close."""
    names = sorted(known)
    similar = get_close_matches(word, names, n=_SUGGESTIONS, cutoff=0.0)
    return nearest(word, names) or f"; the nearest are {', '.join(similar)}"
