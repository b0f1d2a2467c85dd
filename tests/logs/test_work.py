"""Servers and log writers choose the text that is searched: the work of each pattern is linear in its length."""

from __future__ import annotations

import importlib
import pkgutil
import re
from collections.abc import Iterator, Mapping
from dataclasses import fields, is_dataclass
from typing import Any

import pytest

import kvwatch.logs
from kvwatch.logs import cause_row, causes, log_patterns
from tests.logs.steps import Matcher, attacks, repeats

LENGTH, LONGER = 30, 8
MOST = 4.0
"""How many times the steps for each character when a text is eight times as long: 1 to 3 where each part is read a
number of times that does not depend on the rest, near 8 where that grows with the text."""
#: Tried at one place of a line, or in so many characters of it, and not from every place on.
_AT_ONE_PLACE = {
    "lines._ISO",
    "lines._PREFIX",
    "lines._RECORD",
    "lines._RECORD_ANYWHERE",
    "start_record._ERROR",
    "cause_row._CONDITION",
    "oom_functions",
}


def _within(name: str, value: Any) -> Iterator[tuple[str, re.Pattern[Any]]]:
    """The patterns in what a module has."""
    if isinstance(value, re.Pattern):
        yield name, value
    elif isinstance(value, Mapping):
        yield from (one for key, inner in value.items() for one in _within(f"{name}[{key}]", inner))
    elif isinstance(value, tuple | list):
        yield from (one for n, inner in enumerate(value) for one in _within(f"{name}[{n}]", inner))
    elif isinstance(value, cause_row.Cause):
        for text in (*value.signs, *value.hints, *value.facts):
            yield f"{name} {value.verdict} {text}", re.compile(text)
        yield f"oom_functions[{value.verdict}]", re.compile(value.oom_functions)
    elif is_dataclass(value) and not isinstance(value, type):
        yield from (one for field in fields(value) for one in _within(name, getattr(value, field.name)))


def _patterns() -> dict[str, re.Pattern[Any]]:
    modules = [one.name for one in pkgutil.walk_packages(kvwatch.logs.__path__, "kvwatch.logs.")]
    found: dict[str, re.Pattern[Any]] = {}
    for module in (*modules, "kvwatch.text.redact", "kvwatch.sidecar.log"):
        for name, value in vars(importlib.import_module(module)).items():
            found |= dict(_within(f"{module.rpartition('.')[2]}.{name}", value))
    return found


PATTERNS = {pattern.pattern: (name, pattern) for name, pattern in _patterns().items() if repeats(pattern)}


def grows(pattern: re.Pattern[Any], *, at_one_place: bool = False) -> tuple[float, str]:
    """How many times the steps for each character it takes at most for a longer text, and for which."""

    def steps(text: str) -> float:
        matcher = Matcher(pattern)
        _ = matcher.match(text) if at_one_place else matcher.search(text)
        return matcher.steps / len(text)

    pairs = zip(attacks(pattern, LENGTH), attacks(pattern, LENGTH * LONGER), strict=True)
    return max(((steps(longer) / steps(short), short) for short, longer in pairs), default=(0.0, ""))


@pytest.mark.parametrize(("name", "pattern"), PATTERNS.values(), ids=[name for name, _ in PATTERNS.values()])
def test_no_pattern_takes_more_than_in_proportion_to_the_text(name: str, pattern: re.Pattern[Any]) -> None:
    times, text = grows(pattern, at_one_place=name.partition("[")[0] in _AT_ONE_PLACE)
    assert times < MOST, text


@pytest.mark.parametrize(
    "bad",
    [
        r"size: (-?[\d,]*\.?\d+) tokens", r"page size .*is not divisible", r"//[^\s\"<>]*@", r"--[\w-]*token[= ]+\S+",
 r"\w+ KV cache usage", r"(\d+) Engines",
    ],
)  # fmt: skip
def test_what_takes_longer_is_found(bad: str) -> None:
    """Most of them stood here once."""
    times, _ = grows(re.compile(bad))
    assert times > MOST


def test_steps_are_counted_of_the_same_match_that_is_found() -> None:
    for _, pattern in PATTERNS.values():
        for text in attacks(pattern, 12):
            found = pattern.search(text if isinstance(pattern.pattern, str) else text.encode("latin-1"))
            assert Matcher(pattern).search(text) == (found.span() if found else None), (pattern.pattern, text)


def test_tables_of_wordings_are_among_the_patterns() -> None:
    tables = [row.pattern for row in log_patterns.PATTERNS]
    tables += [re.compile(text) for row in causes.CAUSES for text in (*row.signs, *row.hints, *row.facts)]
    assert {one.pattern for one in tables if repeats(one)} <= PATTERNS.keys()
