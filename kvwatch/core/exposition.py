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
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from math import isnan

from kvwatch.core.outcome import Failure

#: Prometheus refuses none of these by default; a page beyond them is broken or hostile.
MAX_SAMPLES = 200_000
MAX_LABEL_VALUE = 1 << 20
_MEMO_BYTES = 16 << 20
_SKIP_LIMIT = 4096


class BadExposition(ValueError):  # noqa: N818  # says what it is
    """The bytes are not a page that can be read; `kind` says which way, the text says where."""

    def __init__(self, kind: Failure, detail: str) -> None:
        super().__init__(detail)
        self.kind = kind


@dataclass(frozen=True, slots=True, eq=False)
class Series:
    """A series of a wanted family. Interned: the same bytes give the same object, compared by identity."""

    name: str
    labels: tuple[tuple[str, str], ...]
    family: str
    """The name without its suffix, as far as that can be told without a TYPE line."""

    def label(self, name: str) -> str | None:
        for key, value in self.labels:
            if key == name:
                return value
        return None


@dataclass(frozen=True, slots=True)
class Exposition:
    """The wanted part of a page: `series[i]` had `values[i]`.

    `help` has the HELP text of wanted families that carry one, `families` every family name that was seen,
    wanted or not. `conflicts` are series that occurred twice with different values: nobody can say which
    one is right.
    """

    series: list[Series]
    values: list[float]
    help: dict[str, str]
    families: tuple[str, ...]
    conflicts: frozenset[Series] = field(default_factory=frozenset)


_NAME = re.compile(rb"[a-zA-Z_:][a-zA-Z0-9_:.]*")
_QUOTED_NAME = re.compile(rb'\{\s*"([^"\\]*(?:\\.[^"\\]*)*)"\s*(?:,|(?=\}))', re.DOTALL)
_LABEL = re.compile(
    rb'\s*("?)([a-zA-Z_][^"=\s]*)\1\s*=\s*"([^"\\]*(?:\\.[^"\\]*)*)"\s*(?:,|(?=\}))', re.DOTALL
)
_VALUE = re.compile(
    rb"\s+([+-]?(?:[0-9]+\.?[0-9]*(?:[eE][+-]?[0-9]+)?|\.[0-9]+(?:[eE][+-]?[0-9]+)?|inf|infinity|nan))"
    rb"(?:\s+[+-]?[0-9]+(?:\.[0-9]*)?(?:[eE][+-]?[0-9]+)?)?\s*(?:#.*)?$",
    re.IGNORECASE | re.DOTALL,
)
_ESCAPE = re.compile(r"\\(.)", re.DOTALL)
_FAMILY_SUFFIX = re.compile(r"_(?:bucket|sum|count|total|created|info)$")
_HELP = b"# HELP "

#: Name and labels of a series, and where in its line they end.
_Parsed = tuple[str, tuple[tuple[str, str], ...], int]


def _unescape(match: re.Match[str]) -> str:
    return {"n": "\n", "\\": "\\", '"': '"'}.get(match.group(1), match.group(0))


@dataclass(slots=True)
class _Read:
    """What was read of a page so far."""

    series: list[Series] = field(default_factory=list)
    values: list[float] = field(default_factory=list)
    families: list[str] = field(default_factory=list)
    helps: dict[str, str] = field(default_factory=dict)
    junk: list[bytes] = field(default_factory=list)


class Reader:
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
        self._memo: dict[bytes, Series | str] = {}
        """By the bytes before the value: a wanted series, or the family of an unwanted one."""
        self._interned: dict[tuple[str, tuple[tuple[str, str], ...]], Series] = {}
        self._held = 0
        self._skip: dict[bytes, bool] = {}

    def read(self, body: bytes, *, openmetrics: bool = False) -> Exposition:
        """The wanted samples of a page.

        Raises `BadExposition` (kinds empty, not_vllm, malformed, too_large). `openmetrics` says that the
        server declared that format, which must end in ``# EOF``.
        """
        if not body.strip():
            raise BadExposition(Failure.EMPTY, "the answer is 200 and empty")
        if b"\r" in body:
            body = body.replace(b"\r\n", b"\n")
        found = _Read()
        for block in _blocks(body):
            if not (block.startswith(_HELP) and self._passes_over(block, found.families)):
                self._lines(block, found)
                if len(found.series) > MAX_SAMPLES:
                    raise BadExposition(Failure.TOO_LARGE, f"more than {MAX_SAMPLES} samples")
        found.families += dict.fromkeys([one.family for one in found.series])
        self._check(body, openmetrics, found)
        series, values, conflicts = found.series, found.values, frozenset[Series]()
        if len(set(series)) != len(series):
            series, values, conflicts = _once(series, values)
        return Exposition(series, values, found.helps, tuple(dict.fromkeys(found.families)), conflicts)

    def _lines(self, block: bytes, found: _Read) -> None:
        memo, series, values = self._memo, found.series, found.values
        for line in block.split(b"\n"):
            key, _, number = line.rpartition(b" ")
            known = memo.get(key)
            if known is None:
                self._slow(line, found)
            elif known.__class__ is Series:
                try:
                    value = float(number)
                except ValueError:
                    self._slow(line, found)  # a timestamp behind a tab, or junk
                    continue
                if b"_" in number:  # Python reads 1_000
                    found.junk.append(line)
                    continue
                series.append(known)
                values.append(value)
            else:
                found.families.append(known)  # type: ignore[arg-type]

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
        end = min((i for i in (block.find(b" ", 7), block.find(b"\n", 7)) if i >= 0), default=len(block))
        name = block[7:end]
        skip = self._skip.get(name)
        if skip is None:
            skip = not self._begins(name.decode("utf-8", "replace"))
            if len(self._skip) < _SKIP_LIMIT:
                self._skip[name] = skip
        if not skip:
            return False
        own = block.count(b"\n" + name) + block.count(b"\n# TYPE " + name)
        inner = block.count(b"\n") - block.endswith(b"\n")
        if own != inner:
            return False  # other families without a HELP line of their own follow
        families.append(name.decode("utf-8", "replace"))
        return True

    def _slow(self, line: bytes, found: _Read) -> None:
        """A line not met before: a comment, a new series, one with a timestamp, or junk."""
        stripped = line.strip()
        if not stripped:
            return
        if stripped.startswith(b"#"):
            _comment(stripped, found)
            return
        name, at = _name(stripped)
        if not name:
            found.junk.append(line)
            return
        if not self._wanted(name):
            family = _FAMILY_SUFFIX.sub("", name)
            found.families.append(family)
            self._remember(line.rpartition(b" ")[0], family)
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
            one = Series(*identity, _FAMILY_SUFFIX.sub("", name))
        self._remember(stripped[: parsed[2]], one)
        self._interned.setdefault(identity, one)
        found.series.append(one)
        found.values.append(float(number.group(1)))

    def _remember(self, key: bytes, what: Series | str) -> None:
        if self._held > _MEMO_BYTES:
            self._memo.clear()
            self._interned.clear()
            self._held = 0
        if key and key not in self._memo:
            self._memo[key] = what
            self._held += len(key) + 200  # what Python adds


def _comment(line: bytes, found: _Read) -> None:
    words = line.split(None, 3)
    if len(words) >= 3 and words[0] == b"#" and words[1] in (b"HELP", b"TYPE"):
        name = words[2].strip(b'"').decode("utf-8", "replace")
        found.families.append(name)
        if words[1] == b"HELP" and len(words) == 4:
            found.helps[name] = words[3].decode("utf-8", "replace")


def _blocks(body: bytes) -> Iterator[bytes]:
    """The page cut before each HELP line. A line break can't be inside a label value: it is escaped there."""
    pieces = body.split(b"\n# HELP ")
    yield pieces[0]
    for piece in pieces[1:]:
        yield _HELP + piece


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


def _once(series: list[Series], values: list[float]) -> tuple[list[Series], list[float], frozenset[Series]]:
    """Each series once; those with two different values are conflicts."""
    seen: dict[Series, float] = {}
    conflicts = set()
    for one, value in zip(series, values, strict=True):
        first = seen.setdefault(one, value)
        if first != value and not (isnan(first) and isnan(value)):
            conflicts.add(one)
    return list(seen), list(seen.values()), frozenset(conflicts)


def _line_number(body: bytes, line: bytes) -> int:
    return body.count(b"\n", 0, max(body.find(line), 0)) + 1
