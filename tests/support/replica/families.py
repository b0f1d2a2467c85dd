"""A recorded page of a real vLLM as live families of `prometheus_client`, for as many engines as wanted.

A recorded page is text; what a real server does for a scrape is to collect objects and format them, whole or only
those of some names. So here each series becomes what it was in vLLM: a gauge, counter or histogram of the client
library, with its labels and its value, in the registry that vLLM uses.
"""

from __future__ import annotations

import gzip
import itertools
import json
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TypeVar

from prometheus_client import Counter, Gauge, Histogram, Info
from prometheus_client.metrics import MetricWrapperBase
from prometheus_client.metrics_core import Metric
from prometheus_client.parser import text_string_to_metric_families
from prometheus_client.samples import Sample

CAPTURE = Path(__file__).parents[2] / "captures" / "vllm-0.32.0" / "c-kv-saturation.jsonl.gz"
W = TypeVar("W", bound=MetricWrapperBase)
_ENGINE = "engine"
#: What the client library and the instrumentator expose by themselves, in the replica as in vLLM.
_OWN = ("python_", "process_", "http_")


def recorded_page(recording: Path = CAPTURE) -> str:
    """The last but one good page of a recording: of an engine under load."""
    with gzip.open(recording, "rt", encoding="utf-8") as lines:
        good = [json.loads(line) for line in lines]
    return str([poll["body"] for poll in good if poll.get("status") == 200][-2])


class Engines:
    """The families of a page, each series of engine 0 as often as there are engines. `share` of each count is
    this process's: several processes add up to the page."""

    def __init__(self, engines: int, *, share: float = 1.0, page: str | None = None) -> None:
        self._engines = engines
        self._share = share
        self._moving: list[Counter] = []
        for family in text_string_to_metric_families(page or recorded_page()):
            if not family.name.startswith(_OWN) and not family.name.endswith("_created"):
                self._add(family)

    def move(self) -> None:
        """What has counted counts on."""
        for counter in self._moving:
            counter.inc()

    def _add(self, family: Metric) -> None:
        labels = sorted({name for sample in family.samples for name in sample.labels} - {"le"})
        samples = [one for one in family.samples if not one.name.endswith("_created")]
        if family.type == "histogram":
            self._histogram(family, labels, samples)
        elif family.type == "counter":
            counter = Counter(family.name, family.documentation, labels)
            for sample, child in self._children(counter, samples):
                child.inc(sample.value * self._share)
                if sample.value > 0:
                    self._moving.append(child)
        elif family.type == "info":
            for sample in samples:
                Info(family.name, family.documentation).info(sample.labels)
        else:
            gauge = Gauge(family.name, family.documentation, labels, multiprocess_mode="mostrecent")
            for sample, one in self._children(gauge, samples):
                one.set(sample.value)

    def _histogram(self, family: Metric, labels: list[str], samples: list[Sample]) -> None:
        buckets = [one for one in samples if one.name.endswith("_bucket")]
        bounds = sorted({float(one.labels["le"]) for one in buckets})
        histogram = Histogram(family.name, family.documentation, labels, buckets=bounds)
        sums = [one for one in samples if one.name.endswith("_sum")]
        for total, child in self._children(histogram, sums):
            counts = [
                one.value
                for one in sorted(buckets, key=lambda one: float(one.labels["le"]))
                if {**one.labels, "le": ""} == {**total.labels, "le": ""}
            ]
            for cell, (before, upto) in zip(child._buckets, itertools.pairwise([0.0, *counts]), strict=True):
                cell.inc((upto - before) * self._share)
            child._sum.inc(total.value * self._share)

    def _children(self, family: W, samples: Iterable[Sample]) -> Iterator[tuple[Sample, W]]:
        """Each series with the object that has its value, for every engine."""
        for sample in samples:
            ranks = range(self._engines) if sample.labels.get(_ENGINE) == "0" else [None]
            for rank in ranks:
                own = sample.labels if rank is None else {**sample.labels, _ENGINE: str(rank)}
                yield sample, family.labels(**own) if own else family
