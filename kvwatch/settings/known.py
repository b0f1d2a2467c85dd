"""Settings that name what the judgement knows: prefixes, signals, thresholds, symptoms."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from pydantic_core import PydanticCustomError

from kvwatch.core.signals import BY_NAME
from kvwatch.core.symptoms import BY_ID, THRESHOLDS
from kvwatch.core.thresholds import check
from kvwatch.core.vllm import ALIASES, NATIVE_SPELLINGS, RELAY_SPELLINGS, Alias
from kvwatch.settings.values import nearest


def _several(problems: Mapping[str, str]) -> None:
    """Reports what is wrong with several entries of one field, each on a line of its own."""
    if problems:
        raise PydanticCustomError("several", "several entries are wrong", {"entries": dict(problems)})


def prefixes(given: list[str]) -> list[str]:
    """Prefixes of metric names."""
    wrong = [prefix for prefix in given if not prefix or any(c in prefix for c in ' {}"#\n')]
    _several({prefix: f"{prefix!r} is not a prefix of metric names" for prefix in wrong})
    return given


def aliases(given: dict[str, str]) -> dict[str, str]:
    """Names for signals, none of which is read as another signal already."""
    problems = {}
    for signal, name in given.items():
        bare = bare_name(name)
        taken = {row.signal for row in ALIASES if row.name == bare} - {signal}
        if signal not in BY_NAME:
            near = nearest(signal, BY_NAME) or "; see the list of signals"
            problems[signal] = f"{signal} is not a signal{near}"
        elif not bare or not all(c.isalnum() or c in "_:." for c in bare):
            problems[signal] = f"{name!r} is not a metric name"
        elif taken:
            problems[signal] = f"{bare} is already read as {', '.join(sorted(taken))}"
    _several(problems)
    return given


def thresholds(given: dict[str, float]) -> dict[str, float]:
    """Thresholds by name, within their range."""
    names = [row.name for row in THRESHOLDS]
    problems = {}
    for name, number in given.items():
        near = nearest(name, names) if name not in names else ""
        if near:
            problems[name] = f"threshold {name!r} is unknown{near}"
        else:
            problems.update((name, error) for error in check(THRESHOLDS, {name: number}))
    _several(problems)
    return given


def symptoms(given: list[str]) -> list[str]:
    """Ids of symptoms."""
    _several(
        {
            one: f"{one} is not a symptom{nearest(one, BY_ID) or '; known ones: ' + ', '.join(BY_ID)}"
            for one in given
            if one not in BY_ID
        }
    )
    return given


def bare_name(name: str) -> str:
    """A metric name without vLLM's prefix, or what relays make of it."""
    longest_first = sorted((*NATIVE_SPELLINGS, *RELAY_SPELLINGS), key=len, reverse=True)
    return name.removeprefix(next((prefix for prefix in longest_first if name.startswith(prefix)), ""))


def alias(signal: str, name: str) -> Alias:
    """The row for a name that an operator adds: like the newest known name of the signal."""
    like = next(row for row in ALIASES if row.signal == signal)
    bare = name if like.foreign else bare_name(name)
    return replace(like, name=bare, releases="by setting", help_has="", option="", caveat="")
