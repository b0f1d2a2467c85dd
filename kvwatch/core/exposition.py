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

from kvwatch.core.outcome import Failure

#: Prometheus refuses none of these by default; a page beyond them is broken or hostile.
MAX_SAMPLES = 200_000
MAX_SERIES_BYTES = 1 << 20
MAX_LABEL_VALUE = 4096
_MEMO_LIMIT = 50_000


class BadExposition(ValueError):
    """The bytes are not a page that can be read; `kind` says which way, the text says where."""

    def __init__(self, kind: Failure, detail: str) -> None:
        super().__init__(detail)
        self.kind = kind


@dataclass(frozen=True, slots=True, eq=False)
class Series:
    """A series of a wanted family. Interned: the same bytes give the same object, compared by identity."""

    name: str
    labels: tuple[tuple[str, str], ...]

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
_LABEL = re.compile(
    rb'[ \t]*([a-zA-Z_][a-zA-Z0-9_]*)[ \t]*=[ \t]*"((?:[^"\\]|\\.)*)"[ \t]*(,|(?=\}))', re.DOTALL
)
_VALUE = re.compile(
    rb"[ \t]+([+-]?(?:[0-9]+\.?[0-9]*(?:[eE][+-]?[0-9]+)?|\.[0-9]+(?:[eE][+-]?[0-9]+)?|inf|infinity|nan))"
    rb"(?:[ \t]+[+-]?[0-9]+(?:\.[0-9]*)?(?:[eE][+-]?[0-9]+)?)?[ \t]*(?:#.*)?$",
    re.IGNORECASE | re.DOTALL,
)
_ESCAPE = re.compile(r"\\(.)", re.DOTALL)
_FAMILY_SUFFIX = re.compile(r"_(?:bucket|sum|count|total|created|info)$")
_UNWANTED = object()
_HELP = b"# HELP "


def _unescape(match: re.Match[str]) -> str:
    return {"n": "\n", "\\": "\\", '"': '"'}.get(match.group(1), match.group(0))


class Reader:
    """Reads pages of one kind of server; remembers its series, which hardly change.

    `wanted` says whether a sample of that name is wanted. The memory is a cache of a pure function: two
    readers give the same result for the same bytes, whatever they read before.
    """

    def __init__(self, wanted: Callable[[str], bool]) -> None:
        self._wanted = wanted
        self._memo: dict[bytes, object] = {}
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
        series: list[Series] = []
        values: list[float] = []
        families: list[str] = []
        helps: dict[str, str] = {}
        junk: list[bytes] = []
        memo = self._memo
        for block in _blocks(body):
            if block.startswith(_HELP):
                if self._passes_over(block, families):
                    continue
            for line in block.split(b"\n"):
                key, _, number = line.rpartition(b" ")
                known = memo.get(key)
                if known is None:
                    self._slow(line, series, values, helps, families, junk)
                elif known is not _UNWANTED:
                    try:
                        value = float(number)
                        if b"_" in number:
                            raise ValueError
                    except ValueError:
                        junk.append(line)
                    else:
                        series.append(known)  # type: ignore[arg-type]
                        values.append(value)
            if len(series) > MAX_SAMPLES:
                raise BadExposition(Failure.TOO_LARGE, f"more than {MAX_SAMPLES} samples")
        return self._checked(body, openmetrics, series, values, helps, families, junk)

    def _checked(
        self,
        body: bytes,
        openmetrics: bool,
        series: list[Series],
        values: list[float],
        helps: dict[str, str],
        families: list[str],
        junk: list[bytes],
    ) -> Exposition:
        if not series and not any(self._wanted(f) for f in families):
            what = "an HTML page" if body.lstrip()[:1] == b"<" else "no metric of vLLM in it"
            raise BadExposition(Failure.NOT_VLLM, f"the answer is 200 with {what}")
        if junk:
            shown = junk[0][:120].decode("utf-8", "backslashreplace")
            raise BadExposition(
                Failure.MALFORMED, f"line {_line_number(body, junk[0])} can't be read: {shown!r}"
            )
        if not body.endswith(b"\n") and not body.endswith(b"# EOF"):
            raise BadExposition(Failure.MALFORMED, "the page ends in the middle of a line: it was cut short")
        if openmetrics and not body.rstrip().endswith(b"# EOF"):
            raise BadExposition(Failure.MALFORMED, "the OpenMetrics page has no '# EOF': it was cut short")
        conflicts: frozenset[Series] = frozenset()
        if len(set(series)) != len(series):
            series, values, conflicts = _once(series, values)
        return Exposition(series, values, helps, tuple(dict.fromkeys(families)), conflicts)

    def _passes_over(self, block: bytes, families: list[str]) -> bool:
        """Whether the block is one unwanted family and nothing else; notes its name."""
        end = min((i for i in (block.find(b" ", 7), block.find(b"\n", 7)) if i >= 0), default=len(block))
        name = block[7:end]
        skip = self._skip.get(name)
        if skip is None:
            text = name.decode("utf-8", "replace")
            skip = not any(
                self._wanted(text + suffix) for suffix in ("", "_total", "_info", "_count", "_created")
            )
            if len(self._skip) < _MEMO_LIMIT:
                self._skip[name] = skip
        if not skip:
            return False
        own = block.count(b"\n" + name) + block.count(b"\n# TYPE " + name)
        inner = block.count(b"\n") - block.endswith(b"\n")
        if own != inner:
            return False  # other families without a HELP line of their own follow
        families.append(name.decode("utf-8", "replace"))
        return True

    def _slow(
        self,
        line: bytes,
        series: list[Series],
        values: list[float],
        helps: dict[str, str],
        families: list[str],
        junk: list[bytes],
    ) -> None:
        """A line not met before: a comment, a new series, one with a timestamp, or junk."""
        stripped = line.strip(b" \t\r")
        if not stripped:
            return
        if stripped.startswith(b"#"):
            self._comment(stripped, helps, families)
            return
        name = _NAME.match(stripped)
        if name is None:
            junk.append(line)
            return
        text = name.group().decode("ascii")
        if not self._wanted(text):
            families.append(_FAMILY_SUFFIX.sub("", text))
            self._remember(line.rpartition(b" ")[0], _UNWANTED)
            return
        parsed = _series(stripped, name)
        if parsed is None:
            junk.append(line)
            return
        labels, rest, key_end = parsed
        number = _VALUE.match(rest)
        if number is None:
            junk.append(line)
            return
        key = stripped[:key_end]
        known = self._memo.get(key)
        found = known if isinstance(known, Series) else Series(text, labels)
        self._remember(key, found)
        families.append(_FAMILY_SUFFIX.sub("", text))
        series.append(found)
        values.append(float(number.group(1)))

    def _remember(self, key: bytes, what: object) -> None:
        if len(self._memo) >= _MEMO_LIMIT:
            self._memo.clear()
        if key:
            self._memo[key] = what

    def _comment(self, line: bytes, helps: dict[str, str], families: list[str]) -> None:
        words = line.split(None, 3)
        if len(words) >= 3 and words[0] == b"#" and words[1] in (b"HELP", b"TYPE"):
            name = words[2].decode("utf-8", "replace")
            families.append(name)
            if words[1] == b"HELP" and len(words) == 4:
                helps[name] = words[3].decode("utf-8", "replace")


def _blocks(body: bytes) -> Iterator[bytes]:
    """The page cut before each HELP line. A line break can't be inside a label value: it is escaped there."""
    pieces = body.split(b"\n# HELP ")
    yield pieces[0]
    for piece in pieces[1:]:
        yield _HELP + piece


def _series(line: bytes, name: re.Match[bytes]) -> tuple[tuple[tuple[str, str], ...], bytes, int] | None:
    """Labels, what follows them, and where the series ends; None if the labels can't be read."""
    if line[name.end() : name.end() + 1] != b"{":
        return (), line[name.end() :], name.end()
    at = name.end() + 1
    labels = []
    while line[at : at + 1] != b"}":
        label = _LABEL.match(line, at)
        if label is None:
            if line[at:].lstrip(b" \t").startswith(b"}"):
                at = line.index(b"}", at)
                break
            return None
        try:
            value = label.group(2).decode("utf-8")
        except UnicodeDecodeError:
            return None
        if len(value) > MAX_SERIES_BYTES:
            raise BadExposition(Failure.TOO_LARGE, f"a label value of {len(value)} characters")
        if "\\" in value:
            value = _ESCAPE.sub(_unescape, value)
        labels.append((label.group(1).decode("ascii"), value))
        at = label.end()
    if len({key for key, _ in labels}) != len(labels):
        return None
    return tuple(sorted(labels)), line[at + 1 :], at + 1


def _once(series: list[Series], values: list[float]) -> tuple[list[Series], list[float], frozenset[Series]]:
    """Each series once; those with two different values are conflicts."""
    seen: dict[Series, float] = {}
    conflicts = set()
    for one, value in zip(series, values, strict=True):
        if one in seen and seen[one] != value and not (seen[one] != seen[one] and value != value):
            conflicts.add(one)
        seen.setdefault(one, value)
    return list(seen), list(seen.values()), frozenset(conflicts)


def _line_number(body: bytes, line: bytes) -> int:
    return body.count(b"\n", 0, max(body.find(line), 0)) + 1
