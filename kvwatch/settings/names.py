"""Settings that contain names: metric prefixes, signals, thresholds, symptoms."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any

from pydantic import ValidationInfo
from pydantic_core import PydanticCustomError

from kvwatch.core.dialect.vllm import ALIASES, NATIVE_SPELLINGS, RELAY_SPELLINGS, Alias
from kvwatch.core.judgement.symptoms import BY_ID, THRESHOLDS
from kvwatch.core.judgement.thresholds import check
from kvwatch.core.model.signals import BY_NAME
from kvwatch.settings.values import pairs, split_words, suggestions


def _raise_all(entries: Mapping[str, str], others: Iterable[str] = ()) -> None:
    """Raises everything that is wrong with one field: by entry, and what is not an entry."""
    if entries or others:
        raise PydanticCustomError(
            "several", "several entries are wrong", {"entries": dict(entries), "others": list(others)}
        )


def prefixes(given: Any) -> list[str]:
    """Prefixes of metric names."""
    found = split_words(given)
    wrong = [one for one in found if not isinstance(one, str) or any(c in one for c in ' {}"#\n')]
    _raise_all({str(one): f"{one!r} is not a prefix of metric names" for one in wrong})
    return found


def aliases(given: Any, info: ValidationInfo) -> dict[str, str]:
    """Names for signals, none of which is read as another signal already.

    A name may have any prefix that is read: vLLM's, a relay's, or one of the setting spellings.
    """
    found, wrong = pairs(given)
    spellings = info.data.get("spellings") or ()
    problems = {}
    for signal, name in found.items():
        bare = bare_name(name, spellings) if isinstance(name, str) else ""
        taken = {row.signal for row in ALIASES if row.name == bare} - {signal}
        if signal not in BY_NAME:
            problems[signal] = f"{signal} is not a signal{suggestions(signal, BY_NAME)}"
        elif not bare or not all(c.isalnum() or c in "_:." for c in bare):
            problems[signal] = f"{name!r} is not a metric name"
        elif bare == name and ":" in name and not _known_alias(signal).foreign:
            prefix = name[: name.rindex(":") + 1]
            problems[signal] = f"the prefix of {name!r} is not read: add {prefix!r} to spellings"
        elif taken:
            problems[signal] = f"{bare} is already read as {', '.join(sorted(taken))}"
    _raise_all(problems, wrong)
    return found


def thresholds(given: Any) -> dict[str, float]:
    """Thresholds by name, within their range."""
    found, wrong = pairs(given)
    units = {row.name: row.unit for row in THRESHOLDS}
    numbers, problems = {}, {}
    for name, value in found.items():
        number = _number(value)
        if name not in units:
            problems[name] = f"threshold {name!r} is unknown{suggestions(name, units)}"
        elif number is None:
            problems[name] = f"threshold {name}={value} must be a number ({units[name]})"
        else:
            numbers[name] = number
            problems.update((name, error) for error in check(THRESHOLDS, {name: number}))
    _raise_all(problems, wrong)
    return numbers


def _number(value: Any) -> float | None:
    """A finite number, from one or from text."""
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        return None
    try:
        number = float(value)
    except (ValueError, OverflowError):
        return None
    return number if math.isfinite(number) else None


def symptoms(given: Any) -> list[str]:
    """Ids of symptoms."""
    found = split_words(given)
    wrong = [str(one) for one in found if not isinstance(one, str) or one not in BY_ID]
    _raise_all({one: f"{one} is not a symptom{suggestions(one, BY_ID)}" for one in wrong})
    return found


def bare_name(name: str, spellings: Iterable[str] = ()) -> str:
    """A metric name without its prefix: vLLM's, a relay's, or one of the operator's own `spellings`."""
    longest_first = sorted((*NATIVE_SPELLINGS, *RELAY_SPELLINGS, *spellings), key=len, reverse=True)
    return name.removeprefix(next((prefix for prefix in longest_first if name.startswith(prefix)), ""))


def alias(signal: str, name: str, spellings: Iterable[str]) -> Alias:
    """The row for a name that an operator adds: like the newest known name of the signal."""
    like = _known_alias(signal)
    bare = name if like.foreign else bare_name(name, spellings)
    return replace(like, name=bare, releases="by setting", help_has="", option="", caveat="")


def _known_alias(signal: str) -> Alias:
    return next(row for row in ALIASES if row.signal == signal)
