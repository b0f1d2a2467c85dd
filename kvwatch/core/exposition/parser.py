"""Bytes of a metrics page to samples of the wanted families, and nothing more.

Theory of operation
    A page of vLLM is 600 to 6,000 lines, of which kvwatch wants a third; it comes every second, and only the
    numbers in it change. So three things are cheap here. Families that are not wanted are stepped over
    whole (`_blocks`): the text is cut at its HELP lines, and a block whose every line carries the unwanted
    family's own name is never split into lines. A series (name and labels) is parsed once and remembered by
    its bytes (`Reader._memo`); next time its line costs a dictionary look-up and a `float`. And what nobody
    asks for (TYPE, `_created`, exemplars, timestamps) is not built.

    Whatever the bytes are, `Reader.read` gives an `Exposition` or raises `BadExposition` with a kind and a
    place; no other exception leaves it.

Both the text format 0.0.4/1.0.0 and OpenMetrics are understood: CRLF, escapes, timestamps, exemplars,
``# EOF``, ``# UNIT``. Format: prometheus.io "Exposition formats" and the OpenMetrics specification.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, field
from math import isnan
from operator import attrgetter
from typing import TypeVar

from kvwatch.core.model.outcome import Failure

#: Prometheus refuses none of these by default; a page beyond them is broken or hostile
#: (256 engines have 90,000 samples).
MAX_SAMPLES = 100_000
MAX_LINES = 1_000_000
MAX_LABEL_VALUE = 1 << 20
_MEMO_BYTES, _MEMO_LEAST, _MEMO_PER_BYTE = 16 << 20, 1 << 20, 16
"""What is remembered of series, at most: so much for each byte of the longest page, between the two others. A page's
own series take about half of it; what is gone does not add up."""
_SHORT_LINE = 10
"""Bytes of a line, with which a page of fewer than `MAX_SAMPLES` is not counted before it is read: to count the lines
of an ordinary page takes a fifth of reading it. (With shorter lines too many are found when they were read.)"""
_SKIP_LIMIT = 4096
_NONE: tuple[list[bytes], list[SeriesKey]] = ([], [])


class BadExposition(ValueError):  # noqa: N818  # says what it is
    """The bytes are not a page that can be read; `kind` says which way, the text says where."""

    def __init__(self, kind: Failure, detail: str) -> None:
        super().__init__(detail)
        self.kind = kind


@dataclass(frozen=True, slots=True, eq=False)
class SeriesKey:
    """A series of a wanted family. Interned: the same bytes give the same object, compared by identity."""

    name: str
    labels: tuple[tuple[str, str], ...]
    family: str
    """The name without its suffix, as far as that can be told without a TYPE line."""


@dataclass(frozen=True, slots=True)
class Exposition:
    """The wanted part of a page: `series[i]` had `values[i]`.

    `help` has the HELP text of wanted families that carry one, `families` every family name that was seen,
    wanted or not. `conflicts` are series that occurred twice with different values: nobody can say which
    one is right.
    """

    series: list[SeriesKey]
    values: list[float]
    help: dict[str, str]
    families: tuple[str, ...]
    conflicts: frozenset[SeriesKey] = field(default_factory=frozenset)


_NAME = re.compile(rb"[a-zA-Z_:][a-zA-Z0-9_:.]*")
_FIRST = re.compile(rb"^[a-zA-Z_:][a-zA-Z0-9_:.]*", re.MULTILINE)
# Possessive throughout (`++`, `*+`): what can't match fails at once, whatever the bytes, and holds no memory.
_QUOTED_NAME = re.compile(rb'\{\s*+"((?:[^"\\]++|\\.)*+)"\s*+(?:,|(?=\}))', re.DOTALL)
_LABEL = re.compile(
    rb'\s*+("?)([a-zA-Z_][^"=\s]*+)\1\s*+=\s*+"((?:[^"\\]++|\\.)*+)"\s*+(?:,|(?=\}))', re.DOTALL
)
_VALUE = re.compile(
    rb"\s++([+-]?(?:(?:[0-9]++(?:\.[0-9]*+)?|\.[0-9]++)(?:e[+-]?[0-9]++)?|infinity|inf|nan))"
    rb"(?:\s++[+-]?[0-9]++(?:\.[0-9]*+)?(?:e[+-]?[0-9]++)?)?\s*+(?:#.*)?$",
    re.IGNORECASE | re.DOTALL,
)
_ESCAPE = re.compile(r"\\(.)", re.DOTALL)
_FAMILY_SUFFIX = re.compile(r"_(?:bucket|sum|count|total|created|info)$")
_FAMILY = attrgetter("family")
_T = TypeVar("_T")

#: Name and labels of a series, and where in its line they end.
_Parsed = tuple[str, tuple[tuple[str, str], ...], int]


def _unescape(match: re.Match[str]) -> str:
    return {"n": "\n", "\\": "\\", '"': '"'}.get(match.group(1), match.group(0))


@dataclass(slots=True)
class _Read:
    """What was read of a page so far."""

    series: list[SeriesKey] = field(default_factory=list)
    values: list[float] = field(default_factory=list)
    families: list[str] = field(default_factory=list)
    helps: dict[str, str] = field(default_factory=dict)
    junk: list[bytes] = field(default_factory=list)

    def comment(self, family: str, text: str | None) -> None:
        self.families.append(family)
        if text is not None:
            self.helps[family] = text


class PageReader:
    """Reads pages of one kind of server; remembers its series, which hardly change.

    `wanted` says whether a sample of that name is wanted, `begins` whether any wanted name begins with a text;
    without it no family is stepped over whole. The memory is a cache of a pure function: two readers give the
    same result for the same bytes, whatever they read before.
    """

    def __init__(
        self, wanted: Callable[[str], bool], begins: Callable[[str], bool] = lambda _text: True
    ) -> None:
        self._wanted = wanted
        self._begins = begins
        self._memo: dict[bytes, SeriesKey] = {}
        """Wanted series, by the bytes before the value."""
        self._unwanted: dict[bytes, str] = {}
        """Families of unwanted series, likewise."""
        self._comments: dict[bytes, tuple[str, str | None]] = {}
        """Family, and text of a HELP, by the line."""
        self._interned: dict[tuple[str, tuple[tuple[str, str], ...]], SeriesKey] = {}
        self._words: dict[str, str] = {}
        """Names of series and labels: each is held once, however many series have it."""
        self._blocks: dict[bytes, tuple[list[bytes], list[SeriesKey]]] = {}
        """The bytes before the values of a block as it was last read, and its series, by its HELP."""
        self._held, self._most = 0, _MEMO_LEAST
        self._skip: dict[bytes, bool] = {}
        self._passed: dict[bytes, tuple[int, str]] = {}
        """Line breaks of blocks that were passed over, and their families, by the family as it is written."""

    def read(self, body: bytes, *, openmetrics: bool = False) -> Exposition:
        """The wanted samples of a page.

        Raises `BadExposition` (kinds empty, not_vllm, malformed, too_large), and then remembers nothing of the page.
        `openmetrics` says that the server declared that format, which must end in ``# EOF``.
        """
        try:
            return self._read(body, openmetrics)
        except BadExposition:
            self._forget()
            self._most = _MEMO_LEAST
            raise

    def _read(self, body: bytes, openmetrics: bool) -> Exposition:
        if not body or body.isspace():
            raise BadExposition(Failure.EMPTY, "the answer is 200 and empty")
        if len(body) > MAX_LINES and body.count(b"\n") > MAX_LINES:
            raise BadExposition(Failure.TOO_LARGE, f"more than {MAX_LINES} lines")
        if len(body) > MAX_SAMPLES * _SHORT_LINE and body.count(b"\n") > MAX_SAMPLES:
            self._count(body)
        if b"\r" in body:
            body = body.replace(b"\r\n", b"\n")
        self._most = min(max(self._most, _MEMO_LEAST + _MEMO_PER_BYTE * len(body)), _MEMO_BYTES)
        found = _Read()
        # A line break can't be inside a label value, so a page can be cut before each HELP line.
        first, *blocks = body.split(b"\n# HELP ")
        self._lines(first.split(b"\n"), found)
        for block in blocks:
            if not self._passes_over(block, found.families) and not self._met_before(block, found):
                lines = block.split(b"\n")
                lines[0] = b"# HELP " + lines[0]
                self._lines(lines, found)
            if len(found.series) > MAX_SAMPLES:
                break
        if len(found.series) > MAX_SAMPLES:
            raise BadExposition(Failure.TOO_LARGE, f"more than {MAX_SAMPLES} samples")
        found.families += dict.fromkeys(map(_FAMILY, found.series))
        self._check(body, openmetrics, found)
        series, values, conflicts = found.series, found.values, frozenset[SeriesKey]()
        if len(set(series)) != len(series):
            series, values, conflicts = _once(series, values)
        return Exposition(series, values, found.helps, tuple(dict.fromkeys(found.families)), conflicts)

    def _count(self, body: bytes) -> None:
        """Raises if a page has too many samples, before any of them takes memory: what a hostile page needs for a
        moment stays in pieces that are hard to give back."""
        wanted: dict[bytes, bool] = {}
        count = 0
        for line in _FIRST.finditer(body):
            name = line[0]
            if name not in wanted:
                if len(wanted) >= _SKIP_LIMIT:
                    wanted.clear()
                wanted[name] = self._wanted(name.decode())
            count += wanted[name]
        if count > MAX_SAMPLES:
            raise BadExposition(Failure.TOO_LARGE, f"more than {MAX_SAMPLES} samples")

    def _met_before(self, block: bytes, found: _Read) -> bool:
        """Reads a block of HELP, TYPE and samples whose series were all met before, in one go; False if it is none.

        Split at every space it is series and number in turn: no series with a space in a label, no timestamp and no
        junk would be found among those that are known.
        """
        head, _, rest = block.partition(b"\n")
        kind, _, samples = rest.partition(b"\n")
        comments = self._comments.get(b"# HELP " + head), self._comments.get(kind)
        if comments[0] is None or comments[1] is None:
            return False
        lines = samples.removesuffix(b"\n").split(b"\n")
        words = b" ".join(lines).split(b" ")
        numbers = words[1::2]
        keys = words[::2]
        before, series = self._blocks.get(head, _NONE)
        try:
            if keys != before:  # most blocks have the series that they had; to look each up takes its hash
                series = list(map(self._memo.__getitem__, keys))
                self._remember_block(head, keys, series)
            values = list(map(float, numbers))
        except (KeyError, ValueError):
            return False
        if not len(series) == len(values) == len(lines) or b"_" in b"".join(numbers):
            return False
        found.comment(*comments[0])
        found.comment(*comments[1])
        found.series += series
        found.values += values
        return True

    def _lines(self, lines: list[bytes], found: _Read) -> None:
        """Reads a block line by line: some of it was not met before."""
        for line in lines:
            if line:
                self._line(line, found)
            if len(found.series) > MAX_SAMPLES:
                break

    def _line(self, line: bytes, found: _Read) -> None:
        """A line among some that were not met before."""
        comment = self._comments.get(line)
        if comment is not None:
            found.comment(*comment)
            return
        key, _, number = line.rpartition(b" ")
        family = self._unwanted.get(key)
        if family is not None:
            found.families.append(family)
            return
        known = self._memo.get(key)
        if known is not None and b"_" not in number:
            try:
                value = float(number)
            except ValueError:
                pass  # a timestamp behind a tab, or junk
            else:
                found.series.append(known)
                found.values.append(value)
                return
        self._slow(line, found)

    def _check(self, body: bytes, openmetrics: bool, found: _Read) -> None:
        """Raises what is wrong with a page as a whole."""
        if not found.series and not any(self._wanted(family) for family in found.families):
            what = "an HTML page" if body.lstrip()[:1] == b"<" else "no metric of vLLM in it"
            close = next((family for family in found.families if "vllm" in family.lower()), "")
            if close:
                what += f", unless {close[:80]!r} is one in a spelling that the settings do not name"
            raise BadExposition(Failure.NOT_VLLM, f"the answer is 200 with {what}")
        if found.junk:
            shown = found.junk[0][:120].decode("utf-8", "backslashreplace")
            where = _line_number(body, found.junk[0])
            raise BadExposition(Failure.MALFORMED, f"line {where} can't be read: {shown!r}")
        if not body.endswith((b"\n", b"# EOF")):
            raise BadExposition(Failure.MALFORMED, "the page ends in the middle of a line: it was cut short")
        if openmetrics and not body.rstrip().endswith(b"# EOF"):
            raise BadExposition(Failure.MALFORMED, "the OpenMetrics page has no '# EOF': it was cut short")

    def _passes_over(self, block: bytes, families: list[str]) -> bool:
        """Whether the block is one unwanted family and nothing else; notes its name.

        Lines are told by how they begin, so a family whose name begins a wanted one is looked at line by line.
        """
        end = block.find(b"\n")
        name = block[:end].partition(b" ")[0] if end >= 0 else block.partition(b" ")[0]
        skip = self._skip.get(name)
        if skip is None:
            skip = bool(name) and not self._begins(name.decode("utf-8", "replace"))
            if len(self._skip) < _SKIP_LIMIT:
                self._skip[name] = skip
        if not skip:
            return False
        breaks = len(block.split(b"\n")) - 1  # twice as fast as to count them
        if self._passed.get(name, (-1, ""))[0] != breaks:  # else they are the lines looked at before
            inner = breaks - block.endswith(b"\n") - block.startswith(b"# TYPE " + name, end + 1)
            if block.count(b"\n" + name) != inner:
                return False  # other families without a HELP line of their own follow
            if name not in self._passed and len(self._passed) >= _SKIP_LIMIT:
                self._passed.clear()
            self._passed[name] = (breaks, name.decode("utf-8", "replace"))
        families.append(self._passed[name][1])
        return True

    def _slow(self, line: bytes, found: _Read) -> None:
        """A line not met before: a comment, a new series, one with a timestamp, or junk."""
        stripped = line.strip()
        if not stripped:
            return
        if stripped.startswith(b"#"):
            comment = _comment(stripped)
            if comment is not None:
                found.comment(*comment)
                self._remember(self._comments, line, comment)
            return
        name, at = _name(stripped)
        if not name:
            found.junk.append(line)
            return
        if not self._wanted(name):
            family = _FAMILY_SUFFIX.sub("", name)
            found.families.append(family)
            self._remember(self._unwanted, line.rpartition(b" ")[0], family)
            return
        parsed = _series(stripped, name, at)
        number = _VALUE.match(stripped, parsed[2]) if parsed else None
        if parsed is None or number is None:
            found.families.append(name)  # vLLM it is
            found.junk.append(line)
            return
        identity = parsed[:2]
        one = self._interned.get(identity)
        if one is None:
            one = self._new(*identity)
            identity = (one.name, one.labels)
        self._remember(self._memo, stripped[: parsed[2]], one)
        self._interned.setdefault(identity, one)
        found.series.append(one)
        found.values.append(float(number.group(1)))

    def _new(self, name: str, labels: tuple[tuple[str, str], ...]) -> SeriesKey:
        word, family = self._words.setdefault, _FAMILY_SUFFIX.sub("", name)
        labels = tuple([(word(key, key), value) for key, value in labels])
        return SeriesKey(word(name, name), labels, word(family, family))

    def _remember(self, memo: dict[bytes, _T], key: bytes, what: _T) -> None:
        self._make_room()
        if key and key not in memo:
            memo[key] = what
            self._held += len(key) + 200  # what Python adds

    def _remember_block(self, head: bytes, keys: list[bytes], series: list[SeriesKey]) -> None:
        self._make_room()
        self._blocks[head] = keys, series
        self._held += len(head) + 200 + sum(map(len, keys)) + 50 * len(keys)

    def _make_room(self) -> None:
        """Forgets everything if it is too much."""
        if self._held > self._most:
            self._forget()

    def _forget(self) -> None:
        memories = self._memo, self._unwanted, self._comments, self._blocks, self._interned, self._words
        for one in memories:
            one.clear()
        self._held = 0


def _comment(line: bytes) -> tuple[str, str | None] | None:
    """The family that a comment is about, and its HELP text; None for any other comment."""
    words = line.split(None, 3)
    if len(words) < 3 or words[0] != b"#" or words[1] not in {b"HELP", b"TYPE"}:
        return None
    text = words[3].decode("utf-8", "replace") if words[1] == b"HELP" and len(words) == 4 else None
    return words[2].strip(b'"').decode("utf-8", "replace"), text


def _name(line: bytes) -> tuple[str, int]:
    """The name of a sample, and where its labels (or its value) begin; empty if there is none.

    A name with characters of UTF-8 is quoted, inside the braces: ``{"a.b",label="x"} 1``.
    """
    plain = _NAME.match(line)
    if plain is not None:
        return plain.group().decode("ascii"), plain.end()
    quoted = _QUOTED_NAME.match(line)
    if quoted is not None:
        return _ESCAPE.sub(_unescape, quoted.group(1).decode("utf-8", "replace")), quoted.end()
    return "", 0


def _series(line: bytes, name: str, at: int) -> _Parsed | None:
    """Name, sorted labels, and where the value begins; None if the labels can't be read."""
    if line[:1] != b"{":
        rest = line[at:].lstrip()
        if not rest.startswith(b"{"):
            return name, (), at
        at = len(line) - len(rest) + 1
    labels = []
    while line[at : at + 1] != b"}":
        label = _LABEL.match(line, at)
        if label is None:
            if line[at:].lstrip().startswith(b"}"):
                at = line.index(b"}", at)
                break
            return None
        try:
            value = label.group(3).decode("utf-8")
            key = label.group(2).decode("utf-8")
        except UnicodeDecodeError:
            return None
        if len(value) > MAX_LABEL_VALUE:
            raise BadExposition(Failure.TOO_LARGE, f"a label value of {len(value)} characters")
        if "\\" in value:
            value = _ESCAPE.sub(_unescape, value)
        labels.append((key, value))
        at = label.end()
    if len({key for key, _ in labels}) != len(labels):
        return None
    return name, tuple(sorted(labels)), at + 1


def _once(
    series: list[SeriesKey], values: list[float]
) -> tuple[list[SeriesKey], list[float], frozenset[SeriesKey]]:
    """Each series once; those with two different values are conflicts."""
    seen: dict[SeriesKey, float] = {}
    conflicts = set()
    for one, value in zip(series, values, strict=True):
        first = seen.setdefault(one, value)
        if first != value and not (isnan(first) and isnan(value)):
            conflicts.add(one)
    return list(seen), list(seen.values()), frozenset(conflicts)


def _line_number(body: bytes, line: bytes) -> int:
    return body.count(b"\n", 0, max(body.find(line), 0)) + 1
