"""Parses the requested families of a metrics page.

Theory of operation
    A page of vLLM has 600 to 6,000 lines, of which kvwatch needs a third. It is read every second, and only its
    numbers change. So three things are cheap here. Families that are not wanted are skipped whole (`_skip_block`):
    the text is cut at its HELP lines, and a block whose every line begins with the unwanted name is never split into
    lines. A series (name and labels) is parsed once and remembered by its bytes (`PageReader._memo`); its next line
    costs a dictionary look-up and a `float`. TYPE, `_created`, exemplars and timestamps are not built at all.

    For any bytes, `PageReader.read` returns an `Exposition` or raises `ExpositionError`; it raises nothing else.

Both the text format 0.0.4/1.0.0 and OpenMetrics are accepted: CRLF, escapes, timestamps, exemplars, ``# EOF``,
``# UNIT``. Format: prometheus.io "Exposition formats" and the OpenMetrics specification.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, field
from math import isnan
from operator import attrgetter
from typing import TypeVar

from kvwatch.core.model.outcome import Failure

MAX_SAMPLES = 100_000
"""A page with more is broken or hostile: 256 engines have 90,000 samples. (Prometheus has no such limit by
default.)"""
MAX_LINES = 1_000_000
MAX_LABEL_VALUE = 1 << 20
_MAX_MEMO_BYTES, _MIN_MEMO_BYTES, _MEMO_PER_BYTE = 16 << 20, 1 << 20, 16
"""The memo's limit: 16 bytes per byte of the longest page, at least 1 MiB, at most 16 MiB. A page's own series take
about half of that, so series that left the page do not add up."""
_SHORT_LINE = 10
"""Bytes per line. A page below `MAX_SAMPLES` lines of this length is not counted before it is read, because counting
takes a fifth of the time of reading. (If its lines are shorter, the limit applies while reading.)"""
_SKIP_LIMIT = 4096
_UNKNOWN_BLOCK: tuple[list[bytes], list[SeriesKey]] = ([], [])


class ExpositionError(ValueError):
    """The bytes are not a valid page. `kind` is the failure, the message says where it is."""

    def __init__(self, kind: Failure, detail: str) -> None:
        super().__init__(detail)
        self.kind = kind


@dataclass(frozen=True, slots=True, eq=False)
class SeriesKey:
    """A series of a wanted family. Interned: equal bytes give the same object, compared by identity."""

    name: str
    labels: tuple[tuple[str, str], ...]
    family: str
    """The name without its suffix, as far as the name alone shows it."""


@dataclass(frozen=True, slots=True)
class Exposition:
    """The wanted part of a page: `series[i]` has `values[i]`.

    `help` holds the HELP texts of wanted families, `families` the names of all families, wanted or not. `conflicts`
    are series that occur twice with different values: nothing shows which one is right.
    """

    series: list[SeriesKey]
    values: list[float]
    help: dict[str, str]
    families: tuple[str, ...]
    conflicts: frozenset[SeriesKey] = field(default_factory=frozenset)


_NAME = re.compile(rb"[a-zA-Z_:][a-zA-Z0-9_:.]*")
_FIRST = re.compile(rb"^[a-zA-Z_:][a-zA-Z0-9_:.]*", re.MULTILINE)
# Possessive quantifiers (`++`, `*+`) never backtrack: any input fails in linear time and constant memory.
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

_ParsedSeries = tuple[str, tuple[tuple[str, str], ...], int]
"""Name and labels of a series, and where in the line they end."""


def _unescape(match: re.Match[str]) -> str:
    return {"n": "\n", "\\": "\\", '"': '"'}.get(match.group(1), match.group(0))


@dataclass(slots=True)
class _PartialPage:
    """The parts of a page read so far."""

    series: list[SeriesKey] = field(default_factory=list)
    values: list[float] = field(default_factory=list)
    families: list[str] = field(default_factory=list)
    helps: dict[str, str] = field(default_factory=dict)
    junk: list[bytes] = field(default_factory=list)

    def add_comment(self, family: str, text: str | None) -> None:
        self.families.append(family)
        if text is not None:
            self.helps[family] = text


class PageReader:
    """Reads pages of one kind of server and remembers its series, which hardly change.

    `wanted` says whether a sample name is wanted, `begins` whether any wanted name begins with a text; without
    `begins` no family is skipped whole. The memo never changes a result: any two readers return the same for the same
    bytes.
    """

    def __init__(
        self, wanted: Callable[[str], bool], begins: Callable[[str], bool] = lambda _text: True
    ) -> None:
        self._wanted = wanted
        self._begins = begins
        self._memo: dict[bytes, SeriesKey] = {}
        """Wanted series, by the bytes before the value."""
        self._unwanted: dict[bytes, str] = {}
        """Families of unwanted series, by the bytes before the value."""
        self._comments: dict[bytes, tuple[str, str | None]] = {}
        """Family and HELP text (None for a TYPE line), by the line."""
        self._interned: dict[tuple[str, tuple[tuple[str, str], ...]], SeriesKey] = {}
        self._words: dict[str, str] = {}
        """Names of series and labels, each stored once for all series."""
        self._blocks: dict[bytes, tuple[list[bytes], list[SeriesKey]]] = {}
        """The bytes before the values of a block when last read, and its series, by its HELP line."""
        self._memo_size, self._memo_limit = 0, _MIN_MEMO_BYTES
        self._skip: dict[bytes, bool] = {}
        self._skipped: dict[bytes, tuple[int, str]] = {}
        """Line breaks and family of each skipped block, by the family's bytes."""

    def read(self, body: bytes, *, openmetrics: bool = False) -> Exposition:
        """Reads the wanted samples of a page. `openmetrics`: the server declared that format, so ``# EOF`` must end
        it.

        Raises `ExpositionError` of the kinds empty, not_vllm, malformed and too_large, and clears the memo.
        """
        try:
            return self._read(body, openmetrics)
        except ExpositionError:
            self._forget()
            self._memo_limit = _MIN_MEMO_BYTES
            raise

    def _read(self, body: bytes, openmetrics: bool) -> Exposition:
        if not body or body.isspace():
            raise ExpositionError(Failure.EMPTY, "status 200 with an empty body")
        if len(body) > MAX_LINES and body.count(b"\n") > MAX_LINES:
            raise ExpositionError(Failure.TOO_LARGE, f"more than {MAX_LINES} lines")
        if len(body) > MAX_SAMPLES * _SHORT_LINE and body.count(b"\n") > MAX_SAMPLES:
            self._check_sample_count(body)
        if b"\r" in body:
            body = body.replace(b"\r\n", b"\n")
        self._memo_limit = min(
            max(self._memo_limit, _MIN_MEMO_BYTES + _MEMO_PER_BYTE * len(body)), _MAX_MEMO_BYTES
        )
        found = _PartialPage()
        # A label value can't contain a line break, so a page can be cut before each HELP line.
        first, *blocks = body.split(b"\n# HELP ")
        self._read_lines(first.split(b"\n"), found)
        for block in blocks:
            if not self._skip_block(block, found.families) and not self._read_known_block(block, found):
                lines = block.split(b"\n")
                lines[0] = b"# HELP " + lines[0]
                self._read_lines(lines, found)
            if len(found.series) > MAX_SAMPLES:
                break
        if len(found.series) > MAX_SAMPLES:
            raise ExpositionError(Failure.TOO_LARGE, f"more than {MAX_SAMPLES} samples")
        found.families += dict.fromkeys(map(_FAMILY, found.series))
        self._check(body, openmetrics, found)
        series, values, conflicts = found.series, found.values, frozenset[SeriesKey]()
        if len(set(series)) != len(series):
            series, values, conflicts = _without_duplicates(series, values)
        return Exposition(series, values, found.helps, tuple(dict.fromkeys(found.families)), conflicts)

    def _check_sample_count(self, body: bytes) -> None:
        """Raises if a page has too many samples, before they take memory: Python would not return it to the
        system."""
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
            raise ExpositionError(Failure.TOO_LARGE, f"more than {MAX_SAMPLES} samples")

    def _read_known_block(self, block: bytes, found: _PartialPage) -> bool:
        """Reads a block of HELP, TYPE and samples at once if all its series are known; else returns False.

        Split at spaces, such a block alternates between series and number. A label with a space, a timestamp or junk
        gives a key that is not known.
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
        before, series = self._blocks.get(head, _UNKNOWN_BLOCK)
        try:
            if keys != before:  # comparing with the last block is faster than hashing every key
                series = list(map(self._memo.__getitem__, keys))
                self._remember_block(head, keys, series)
            values = list(map(float, numbers))
        except (KeyError, ValueError):
            return False
        if not len(series) == len(values) == len(lines) or b"_" in b"".join(numbers):
            return False
        found.add_comment(*comments[0])
        found.add_comment(*comments[1])
        found.series += series
        found.values += values
        return True

    def _read_lines(self, lines: list[bytes], found: _PartialPage) -> None:
        """Reads a block line by line, because some of it is not known."""
        for line in lines:
            if line:
                self._read_line(line, found)
            if len(found.series) > MAX_SAMPLES:
                break

    def _read_line(self, line: bytes, found: _PartialPage) -> None:
        comment = self._comments.get(line)
        if comment is not None:
            found.add_comment(*comment)
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
                pass  # a timestamp after a tab, or junk
            else:
                found.series.append(known)
                found.values.append(value)
                return
        self._read_new_line(line, found)

    def _check(self, body: bytes, openmetrics: bool, found: _PartialPage) -> None:
        """Raises if the page as a whole is not valid."""
        if not found.series and not any(self._wanted(family) for family in found.families):
            what = "an HTML page" if body.lstrip()[:1] == b"<" else "no vLLM metric in it"
            close = next((family for family in found.families if "vllm" in family.lower()), "")
            if close:
                what += f"; if {close[:80]!r} is one, add its prefix to the setting spellings"
            raise ExpositionError(Failure.NOT_VLLM, f"status 200 with {what}")
        if found.junk:
            shown = found.junk[0][:120].decode("utf-8", "backslashreplace")
            where = _line_number(body, found.junk[0])
            raise ExpositionError(Failure.MALFORMED, f"line {where} can't be read: {shown!r}")
        if not body.endswith((b"\n", b"# EOF")):
            raise ExpositionError(Failure.MALFORMED, "the page ends in the middle of a line: it is truncated")
        if openmetrics and not body.rstrip().endswith(b"# EOF"):
            raise ExpositionError(Failure.MALFORMED, "the OpenMetrics page has no '# EOF': it is truncated")

    def _skip_block(self, block: bytes, families: list[str]) -> bool:
        """Skips a block that is one unwanted family and nothing else, adding its name; else returns False.

        Lines are compared by their beginning, so a family whose name begins a wanted name is read line by line.
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
        breaks = len(block.split(b"\n")) - 1  # twice as fast as `count`
        if self._skipped.get(name, (-1, ""))[0] != breaks:  # else the block has not changed
            inner = breaks - block.endswith(b"\n") - block.startswith(b"# TYPE " + name, end + 1)
            if block.count(b"\n" + name) != inner:
                return False  # families without a HELP line follow
            if name not in self._skipped and len(self._skipped) >= _SKIP_LIMIT:
                self._skipped.clear()
            self._skipped[name] = (breaks, name.decode("utf-8", "replace"))
        families.append(self._skipped[name][1])
        return True

    def _read_new_line(self, line: bytes, found: _PartialPage) -> None:
        """Reads a line that is not known: a comment, a new series, one with a timestamp, or junk."""
        stripped = line.strip()
        if not stripped:
            return
        if stripped.startswith(b"#"):
            comment = _comment(stripped)
            if comment is not None:
                found.add_comment(*comment)
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
            found.families.append(name)  # a vLLM page, though broken
            found.junk.append(line)
            return
        identity = parsed[:2]
        one = self._interned.get(identity)
        if one is None:
            one = self._new_series(*identity)
            identity = (one.name, one.labels)
        self._remember(self._memo, stripped[: parsed[2]], one)
        self._interned.setdefault(identity, one)
        found.series.append(one)
        found.values.append(float(number.group(1)))

    def _new_series(self, name: str, labels: tuple[tuple[str, str], ...]) -> SeriesKey:
        word, family = self._words.setdefault, _FAMILY_SUFFIX.sub("", name)
        labels = tuple([(word(key, key), value) for key, value in labels])
        return SeriesKey(word(name, name), labels, word(family, family))

    def _remember(self, memo: dict[bytes, _T], key: bytes, what: _T) -> None:
        self._make_room()
        if key and key not in memo:
            memo[key] = what
            self._memo_size += len(key) + 200  # Python's overhead

    def _remember_block(self, head: bytes, keys: list[bytes], series: list[SeriesKey]) -> None:
        self._make_room()
        self._blocks[head] = keys, series
        self._memo_size += len(head) + 200 + sum(map(len, keys)) + 50 * len(keys)

    def _make_room(self) -> None:
        """Clears the memo if it is full."""
        if self._memo_size > self._memo_limit:
            self._forget()

    def _forget(self) -> None:
        for memo in (self._memo, self._unwanted, self._comments, self._blocks, self._interned, self._words):
            memo.clear()
        self._memo_size = 0


def _comment(line: bytes) -> tuple[str, str | None] | None:
    """Family and HELP text of a HELP or TYPE line; None for any other comment."""
    words = line.split(None, 3)
    if len(words) < 3 or words[0] != b"#" or words[1] not in {b"HELP", b"TYPE"}:
        return None
    text = words[3].decode("utf-8", "replace") if words[1] == b"HELP" and len(words) == 4 else None
    return words[2].strip(b'"').decode("utf-8", "replace"), text


def _name(line: bytes) -> tuple[str, int]:
    """The name of a sample and where its labels (or its value) begin; empty if there is no name.

    A name with UTF-8 characters is quoted inside the braces: ``{"a.b",label="x"} 1``.
    """
    plain = _NAME.match(line)
    if plain is not None:
        return plain.group().decode("ascii"), plain.end()
    quoted = _QUOTED_NAME.match(line)
    if quoted is not None:
        return _ESCAPE.sub(_unescape, quoted.group(1).decode("utf-8", "replace")), quoted.end()
    return "", 0


def _series(line: bytes, name: str, at: int) -> _ParsedSeries | None:
    """Name, sorted labels and where the value begins; None if the labels are not valid."""
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
            raise ExpositionError(Failure.TOO_LARGE, f"a label value of {len(value)} characters")
        if "\\" in value:
            value = _ESCAPE.sub(_unescape, value)
        labels.append((key, value))
        at = label.end()
    if len({key for key, _ in labels}) != len(labels):
        return None
    return name, tuple(sorted(labels)), at + 1


def _without_duplicates(
    series: list[SeriesKey], values: list[float]
) -> tuple[list[SeriesKey], list[float], frozenset[SeriesKey]]:
    """Each series once; a series with two different values is a conflict."""
    seen: dict[SeriesKey, float] = {}
    conflicts = set()
    for one, value in zip(series, values, strict=True):
        first = seen.setdefault(one, value)
        if first != value and not (isnan(first) and isnan(value)):
            conflicts.add(one)
    return list(seen), list(seen.values()), frozenset(conflicts)


def _line_number(body: bytes, line: bytes) -> int:
    return body.count(b"\n", 0, max(body.find(line), 0)) + 1
