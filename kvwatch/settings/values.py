"""What people write for a value: durations, sizes, lists and pairs. Every error says what to write instead."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterable, Mapping
from difflib import get_close_matches
from typing import Any

_DURATION = re.compile(r"(?P<number>\d+(\.\d*)?|\.\d+)\s*(?P<unit>ms|s|m|h|d)?", re.IGNORECASE)
_SECONDS = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86_400.0}
_RESEMBLING = 3
"""Names that are shown where none is near."""
_SIZE = re.compile(r"(?P<number>\d+(\.\d*)?)\s*(?P<unit>[kmg]i?b?|b)?", re.IGNORECASE)
_BYTES = {"": 1, "b": 1, "k": 1000, "m": 1000**2, "g": 1000**3, "ki": 1 << 10, "mi": 1 << 20, "gi": 1 << 30}


def duration(value: Any) -> float:
    """Seconds, from a number or from text such as ``30``, ``1.5s``, ``200ms``, ``5m``, ``1h``."""
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        raise ValueError("not a duration: write seconds, or for example 30s, 5m, 1h")  # noqa: TRY004 - pydantic takes ValueError
    if isinstance(value, str):
        found = _DURATION.fullmatch(value.strip())
        if not found:
            raise ValueError("not a duration: write seconds, or for example 30s, 5m, 1h")
        value = float(found["number"]) * _SECONDS[(found["unit"] or "s").lower()]
    if not math.isfinite(value):
        raise ValueError("not a duration: write a finite number of seconds")
    return float(value)


def size(value: Any) -> int:
    """Bytes, from a number or from text such as ``16MiB``, ``500kB``."""
    if isinstance(value, int) and not isinstance(value, bool):
        return value
    found = _SIZE.fullmatch(value.strip()) if isinstance(value, str) else None
    if not found:
        raise ValueError("not a size: write bytes, or for example 16MiB")
    unit = (found["unit"] or "").lower()
    bytes_ = float(found["number"]) * _BYTES[unit if unit == "b" else unit.removesuffix("b")]
    if not math.isfinite(bytes_):
        raise ValueError("not a size: write a number of bytes that there can be")
    return int(bytes_)


def split_words(value: Any) -> list[Any]:
    """A list, from one, from JSON, or from text separated by commas or spaces."""
    if isinstance(value, str):
        value = (
            from_json(value) if value.strip().startswith("[") else re.split(r"[,\s]+", value.strip(", \t\n"))
        )
    if not isinstance(value, list | tuple):
        raise ValueError("write words, several separated by commas")  # noqa: TRY004 - pydantic takes ValueError
    return [word for word in value if word != ""]


def pairs(value: Any) -> tuple[dict[str, Any], list[str]]:
    """A mapping, and what is wrong with the rest; from a mapping, from JSON, or from ``name=value`` separated
    by commas or spaces, or in a list.

    A table in a table, as TOML makes of an unquoted ``a.b = 1``, is flattened to ``{"a.b": 1}``.
    """
    if isinstance(value, str):
        joined = re.sub(r"[ \t]*=[ \t]*", "=", value)
        value = from_json(value) if value.strip().startswith("{") else split_words(joined)
    if isinstance(value, Mapping):
        return _flat(value), []
    if not isinstance(value, list | tuple):
        raise ValueError("write name=value, several separated by commas")  # noqa: TRY004 - pydantic takes ValueError
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
        raise ValueError("looks like JSON but is not: it is nested too deeply") from None
    except ValueError as error:
        raise ValueError(f"looks like JSON but is not: {error}") from None


def nearest(word: str, known: Iterable[str], *, prefix: str = "") -> str:
    """``; did you mean X?`` or, without a near name, nothing. What all have in front says nothing of nearness."""
    names = [name.removeprefix(prefix) for name in known]
    close = get_close_matches(word.removeprefix(prefix), names, n=1, cutoff=0.6)
    return f"; did you mean {prefix}{close[0]}?" if close else ""


def suggestions(word: str, known: Iterable[str]) -> str:
    """``; did you mean X?`` or, without a near name, the few that resemble it most."""
    names = sorted(known)
    return nearest(word, names) or (
        f"; the nearest are {', '.join(get_close_matches(word, names, n=_RESEMBLING, cutoff=0.0))}"
    )
