"""A backtracking matcher that counts its steps: what a regular expression costs, the same on every machine.

It matches as `re` does, character by character, on the tree that `re` itself parses. `attacks` makes the texts that
a pattern may take longest for, out of the pattern: its beginning over and over, and each of its repeats pumped up.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from re import _constants as c  # type: ignore[attr-defined]
from re import _parser as parser  # type: ignore[attr-defined]
from typing import Any

Next = Callable[[int], int | None]
Tree = Sequence[tuple[Any, Any]]
_REPEATS = (c.MAX_REPEAT, c.MIN_REPEAT, c.POSSESSIVE_REPEAT)
_ONE = (c.LITERAL, c.NOT_LITERAL, c.ANY, c.IN)
_CATEGORIES: dict[Any, Callable[[str], bool]] = {
    c.CATEGORY_DIGIT: str.isdecimal,
    c.CATEGORY_NOT_DIGIT: lambda char: not char.isdecimal(),
    c.CATEGORY_SPACE: str.isspace,
    c.CATEGORY_NOT_SPACE: lambda char: not char.isspace(),
    c.CATEGORY_WORD: lambda char: char.isalnum() or char == "_",
    c.CATEGORY_NOT_WORD: lambda char: not (char.isalnum() or char == "_"),
}
_PROBES = "a1 0A_-.,:/[](){}'\"=|?&;@\x1b\x01xé"


def tree_of(pattern: re.Pattern[Any]) -> tuple[Tree, bool]:
    """The tree of a pattern, and whether capitals count as small letters; bytes are read as Latin-1."""
    text = pattern.pattern if isinstance(pattern.pattern, str) else pattern.pattern.decode("latin-1")
    parsed = parser.parse(text, pattern.flags & ~re.UNICODE)
    return parsed, bool(parsed.state.flags & re.IGNORECASE)


class Matcher:
    """Matches one pattern; `steps` counts every character and every place that was tried."""

    def __init__(self, pattern: re.Pattern[Any]) -> None:
        self._tree, self._fold = tree_of(pattern)
        self._text = ""
        self.steps = 0

    def search(self, text: str) -> tuple[int, int] | None:
        """Where it matches first."""
        return next(
            ((start, end) for start in range(len(text) + 1) if (end := self.match(text, start)) is not None),
            None,
        )

    def match(self, text: str, start: int = 0) -> int | None:
        """Where a match from `start` on ends; None if there is none."""
        self._text = text
        return self._run(self._tree, 0, start, lambda at: at)

    def _run(self, tree: Tree, index: int, at: int, then: Next) -> int | None:
        self.steps += 1
        if index == len(tree):
            return then(at)
        op, value = tree[index]
        if op in _ONE:
            return self._run(tree, index + 1, at + 1, then) if self._is(op, value, at) else None

        def rest(end: int) -> int | None:
            return self._run(tree, index + 1, end, then)

        if op is c.SUBPATTERN:
            return self._run(value[3], 0, at, rest)
        if op is c.BRANCH:
            found = (self._run(one, 0, at, rest) for one in value[1])
            return next((end for end in found if end is not None), None)
        if op is c.ATOMIC_GROUP and len(value) == 1 and value[0][0] is c.MAX_REPEAT:
            return self._repeat(c.POSSESSIVE_REPEAT, value[0][1], at, rest)  # the same by definition
        if op is c.ATOMIC_GROUP:
            end = self._run(value, 0, at, lambda end: end)
            return None if end is None else rest(end)
        if op in (c.ASSERT, c.ASSERT_NOT):
            behind, what = value
            place = at - what.getwidth()[0] if behind < 0 else at
            holds = place >= 0 and self._run(what, 0, place, lambda end: end) is not None
            return rest(at) if holds is (op is c.ASSERT) else None
        if op is c.AT:
            return rest(at) if self._at(value, at) else None
        assert op in _REPEATS, op
        return self._repeat(op, value, at, rest)

    def _repeat(self, op: Any, value: tuple[int, int, Tree], at: int, rest: Next) -> int | None:
        least, most, what = value
        if len(what) == 1 and what[0][0] in _ONE:
            return self._repeat_one(op, value, at, rest)
        if op is c.POSSESSIVE_REPEAT:
            count = 0
            while (
                count < most
                and (end := self._run(what, 0, at, lambda end: end)) is not None
                and end != at
            ):  # fmt: skip
                at, count = end, count + 1
            return rest(at) if count >= least else None

        def go(count: int, at: int) -> int | None:
            def more() -> int | None:
                if count >= most:
                    return None
                return self._run(what, 0, at, lambda end: go(count + 1, end) if end != at else None)

            def enough() -> int | None:
                return rest(at) if count >= least else None

            first, second = (enough, more) if op is c.MIN_REPEAT else (more, enough)
            end = first()
            return second() if end is None else end

        return go(0, at)

    def _repeat_one(self, op: Any, value: tuple[int, int, Tree], at: int, rest: Next) -> int | None:
        least, most, (one,) = value
        if op is c.MIN_REPEAT:
            count = 0
            while True:
                if count >= least and (end := rest(at + count)) is not None:
                    return end
                if count == most or not self._is(*one, at + count):
                    return None
                count += 1
        count = 0
        while count < most and self._is(*one, at + count):
            count += 1
        for kept in range(count, (count if op is c.POSSESSIVE_REPEAT else least) - 1, -1):
            if kept >= least and (end := rest(at + kept)) is not None:
                return end
        return None

    def _is(self, op: Any, value: Any, at: int) -> bool:
        self.steps += 1
        if at >= len(self._text):
            return False
        char = self._text[at]
        return any(
            _fits(op, value, one) for one in ((char, char.lower(), char.upper()) if self._fold else (char,))
        )

    def _at(self, what: Any, at: int) -> bool:
        text, end = self._text, len(self._text)
        if what in (c.AT_BEGINNING, c.AT_BEGINNING_STRING):
            return at == 0
        if what is c.AT_END:
            return at == end or (at == end - 1 and text[at] == "\n")
        assert what in (c.AT_BOUNDARY, c.AT_NON_BOUNDARY), what
        sides = [0 <= i < end and (text[i].isalnum() or text[i] == "_") for i in (at - 1, at)]
        return (sides[0] is not sides[1]) is (what is c.AT_BOUNDARY)


def _fits(op: Any, value: Any, char: str) -> bool:
    if op is c.ANY:
        return char != "\n"
    if op is c.IN:
        negate = value[0][0] is c.NEGATE
        return any(_fits(op, value, char) for op, value in value[negate:]) is not negate
    if op is c.RANGE:
        return bool(value[0] <= ord(char) <= value[1])
    if op is c.CATEGORY:
        return _CATEGORIES[value](char)
    return (ord(char) == value) is (op is c.LITERAL)


# -- texts that take long --------------------------------------------------------------------------------------------


def repeats(pattern: re.Pattern[Any]) -> bool:
    """Whether anything in it may be repeated without end; without that it takes so many steps a character at most."""
    return any(most == c.MAXREPEAT for most in _most(tree_of(pattern)[0]))


def _most(tree: Tree) -> Iterator[int]:
    for op, value in tree:
        if op in _REPEATS:
            yield value[1]
        for inner in _inside(op, value):
            yield from _most(inner)


def attacks(pattern: re.Pattern[Any], length: int) -> Iterator[str]:
    """Texts of about so many characters in which some part of the pattern stands over and over, and an end that fits
    nothing."""
    for before, pump in dict.fromkeys(_pumps(tree_of(pattern)[0], "")):
        halves = _filled(before, length // 2) + _filled(pump, length // 2)
        for text in (before + _filled(pump, length), _filled(before + pump, length), halves):
            yield f"{text}\x01"


def _filled(part: str, length: int) -> str:
    return part * max(length // len(part), 1) if part else ""


def _pumps(tree: Tree, before: str) -> Iterator[tuple[str, str]]:
    """What leads to each part of a pattern that varies, and what may be repeated there."""
    for op, value in tree:
        if op not in _ONE:
            yield "", before
        if op in _REPEATS:
            yield before, _sample(value[2])
            yield from ((before, char) for char in _PROBES if _takes(value[2], char))
        if op not in (c.ASSERT, c.ASSERT_NOT):
            for inner in _inside(op, value):
                yield from _pumps(inner, before)
        before += _sample([(op, value)])
    yield "", before
    yield "", before[:-1]


def _inside(op: Any, value: Any) -> Sequence[Tree]:
    if op in _REPEATS:
        return [value[2]]
    if op is c.SUBPATTERN:
        return [value[3]]
    if op is c.ATOMIC_GROUP:
        return [value]
    if op in (c.ASSERT, c.ASSERT_NOT):
        return [value[1]]
    return list(value[1]) if op is c.BRANCH else []


def _takes(tree: Tree, char: str) -> bool:
    return len(tree) == 1 and tree[0][0] in _ONE and _fits(*tree[0], char)


def _sample(tree: Tree) -> str:
    """A short text that fits."""
    text = ""
    for op, value in tree:
        if op in _ONE:
            text += next(char for char in (*_PROBES, *map(chr, range(1, 0x3000))) if _fits(op, value, char))
        elif op in _REPEATS:
            text += _sample(value[2]) * max(value[0], 1)
        elif op is c.SUBPATTERN:
            text += _sample(value[3])
        elif op is c.ATOMIC_GROUP:
            text += _sample(value)
        elif op is c.BRANCH:
            text += _sample(value[1][0])
    return text
