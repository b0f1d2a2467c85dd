"""Families to text, as `prometheus_client` writes them byte for byte, several times as fast.

Its own encoders check and escape every label of every sample anew: 40 ms for eight engines, in which the event
loop polls nobody. Labels hardly change from one scrape to the next, so here a set of labels is written once and
remembered. What kvwatch exports has no timestamps, exemplars or native histograms; those are not written.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from prometheus_client import CollectorRegistry
from prometheus_client.samples import Sample
from prometheus_client.utils import floatToGoString

from kvwatch.sidecar.negotiation import wants_openmetrics

_SPARE = 2_000
_TEXT = "text/plain; version=0.0.4; charset=utf-8"
_OPENMETRICS = "application/openmetrics-text; version=1.0.0; charset=utf-8; escaping=underscores"
_TEXT_TYPES = {"info": "gauge", "unknown": "untyped"}
_TEXT_SUFFIXES = {"counter": "_total", "info": "_info"}

Render = Callable[[CollectorRegistry], bytes]


class Renderer:
    """Writes pages; remembers sets of labels, by their items in the order in which they come.

    What is remembered is no more than twice what a page has, so that labels which are gone do not add up.
    """

    def __init__(self) -> None:
        self._blocks: dict[tuple[tuple[str, str], ...], str] = {}
        self._most = _SPARE

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
            self._samples(family.samples, out)
        self._most = 2 * len(out) + _SPARE
        return "".join(out).encode()

    def openmetrics(self, registry: CollectorRegistry) -> bytes:
        """OpenMetrics 1.0."""
        out: list[str] = []
        for family in registry.collect():
            out.append(
                f"# HELP {family.name} {_escaped(family.documentation)}\n# TYPE {family.name} {family.type}\n"
            )
            self._samples(family.samples, out)
        self._most = 2 * len(out) + _SPARE
        out.append("# EOF\n")
        return "".join(out).encode()

    def _samples(self, samples: Iterable[Sample], out: list[str]) -> None:
        blocks = self._blocks
        if len(blocks) > self._most:
            blocks.clear()
        for sample in samples:
            key = tuple(sample.labels.items())
            block = blocks.get(key)
            if block is None:
                block = _block(sample.labels)
                blocks[key] = block
            number = repr(float(sample.value))
            if (
                number.find(".") > 6 or number[-1] in "fn"
            ):  # Go writes exponents sooner, and infinities otherwise
                number = floatToGoString(sample.value)  # type: ignore[no-untyped-call]
            out.append(f"{sample.name}{block} {number}\n")


def _block(labels: dict[str, str]) -> str:
    if not labels:
        return ""
    return "{" + ",".join(f'{name}="{_escaped(value)}"' for name, value in sorted(labels.items())) + "}"


def _escaped(text: str) -> str:
    return text.replace("\\", r"\\").replace("\n", r"\n").replace('"', r"\"")
