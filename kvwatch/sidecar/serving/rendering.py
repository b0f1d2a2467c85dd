"""Families to text, as `prometheus_client` writes them byte for byte, several times as fast.

Its own encoders check and escape every label of every sample anew: 40 ms for eight engines, in which the event
loop polls nobody. What stands before a number hardly changes from one scrape to the next, so for the families of the
catalogue it is written once and remembered, as a histogram is until its buckets are read again, and all of a family
as long as no target was polled. What kvwatch exports has no timestamps, exemplars or native histograms; those are
not written.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from operator import is_

from prometheus_client import CollectorRegistry
from prometheus_client.core import Metric
from prometheus_client.utils import floatToGoString

from kvwatch.core.export import catalogue
from kvwatch.core.model.snapshot import Histogram
from kvwatch.sidecar.serving.collector import CollectedStates, MetricFamily
from kvwatch.sidecar.serving.negotiation import wants_openmetrics

_SPARE = 200
_MOST_CHARACTERS = 128 << 10
"""Of a family that are remembered as a whole: 256 engines would have megabytes."""
_TEXT = "text/plain; version=0.0.4; charset=utf-8"
_OPENMETRICS = "application/openmetrics-text; version=1.0.0; charset=utf-8; escaping=underscores"
_TEXT_TYPES = {"info": "gauge", "unknown": "untyped"}
_TEXT_SUFFIXES = {"counter": "_total", "info": "_info"}

Render = Callable[[CollectorRegistry], bytes]


class Renderer:
    """Writes pages; remembers what it wrote of each family of the catalogue."""

    def __init__(self) -> None:
        self._lines: dict[str, Lines] = {}

    def choose(self, accept: str) -> tuple[Render, str]:
        """How to write a page for who accepts this, and its content type: what is written, never what was asked."""
        if wants_openmetrics(accept):
            return self.openmetrics, _OPENMETRICS
        return self.text, _TEXT

    def text(self, registry: CollectorRegistry) -> bytes:
        """The text format 0.0.4."""
        out: list[str] = []
        for family in registry.collect():
            name = family.name + _TEXT_SUFFIXES.get(family.type, "")
            words = family.documentation.replace("\\", r"\\").replace("\n", r"\n")
            out.append(f"# HELP {name} {words}\n# TYPE {name} {_TEXT_TYPES.get(family.type, family.type)}\n")
            out.append(self._samples(family))
        return "".join(out).encode()

    def openmetrics(self, registry: CollectorRegistry) -> bytes:
        """OpenMetrics 1.0."""
        out: list[str] = []
        for family in registry.collect():
            words = _escaped(family.documentation)
            out.append(f"# HELP {family.name} {words}\n# TYPE {family.name} {family.type}\n")
            out.append(self._samples(family))
        out.append("# EOF\n")
        return "".join(out).encode()

    def _samples(self, family: Metric) -> str:
        if not isinstance(family, MetricFamily):
            return "".join(
                [f"{one.name}{_block(one.labels)} {_number(one.value)}\n" for one in family.samples]
            )
        if family.name not in self._lines:
            self._lines[family.name] = Lines(family.of)
        return self._lines[family.name].all(family)


class Lines:
    """The lines of one family, by the values of its labels: what stands before the number, and of a histogram the
    lines as long as it is the same one.

    What is remembered is no more than twice what a page has, so that labels which are gone do not add up.
    """

    def __init__(self, of: catalogue.Metric) -> None:
        self._name, self._labels = of.full_name, of.labels
        self._heads: dict[tuple[str, ...], str] = {}
        self._histograms: dict[tuple[str, ...], tuple[Histogram, str]] = {}
        self._last: tuple[CollectedStates, str] = (None, "")

    def all(self, family: MetricFamily) -> str:
        """The lines of the family as it is now."""
        seen, text = self._last  # in one go: large pages are written in a thread
        if family.seen is not None and seen is not None and _same(family.seen, seen):
            return text
        text = self._write(family.rows())
        self._last = (family.seen, text) if len(text) <= _MOST_CHARACTERS else (None, "")
        return text

    def _write(self, rows: Iterable[catalogue.Sample]) -> str:
        out: list[str] = []
        heads = self._heads
        for values, value in rows:
            if isinstance(value, Histogram):
                out.append(self._histogram(values, value))
                continue
            head = heads.get(values)
            if head is None:
                head = heads[values] = f"{self._name}{_block(dict(zip(self._labels, values, strict=True)))} "
            out.append(f"{head}{_number(value)}\n")
        for memory in (heads, self._histograms):
            if len(memory) > 2 * len(out) + _SPARE:
                memory.clear()
        return "".join(out)

    def _histogram(self, values: tuple[str, ...], value: Histogram) -> str:
        before, text = self._histograms.get(values, (None, ""))
        if before is not value:
            text = _buckets(self._name, dict(zip(self._labels, values, strict=True)), value)
            self._histograms[values] = (value, text)
        return text


def _same(one: tuple[object, ...], other: tuple[object, ...]) -> bool:
    return len(one) == len(other) and all(map(is_, one, other))


def _buckets(name: str, labels: dict[str, str], value: Histogram) -> str:
    block, pairs = _block(labels), [(key, _pair(key, text)) for key, text in sorted(labels.items())]
    before = "".join([f"{pair}," for key, pair in pairs if key < "le"])
    after = "".join([f",{pair}" for key, pair in pairs if key > "le"])
    bounds = zip((*map(_number, value.bounds), "+Inf"), (*value.counts, value.count), strict=True)
    out = [f'{name}_bucket{{{before}le="{bound}"{after}}} {_number(count)}\n' for bound, count in bounds]
    out.append(f"{name}_count{block} {_number(value.count)}\n{name}_sum{block} {_number(value.sum)}\n")
    return "".join(out)


def _number(value: float) -> str:
    """A number as Go writes it: exponents sooner than Python, and infinities otherwise."""
    number = repr(float(value))
    if number.find(".") > 6 or number[-1] in "fn":
        return str(floatToGoString(value))  # type: ignore[no-untyped-call]
    return number


def _block(labels: dict[str, str]) -> str:
    if not labels:
        return ""
    return "{" + ",".join([_pair(name, value) for name, value in sorted(labels.items())]) + "}"


def _pair(name: str, value: str) -> str:
    return f'{name}="{_escaped(value)}"'


def _escaped(text: str) -> str:
    return text.replace("\\", r"\\").replace("\n", r"\n").replace('"', r"\"")
