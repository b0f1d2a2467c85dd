"""State to Prometheus families, by walking the catalogue. Decides nothing."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from functools import lru_cache
from itertools import chain
from typing import Protocol

from prometheus_client import CollectorRegistry, ProcessCollector
from prometheus_client.core import Metric as Family
from prometheus_client.registry import Collector
from prometheus_client.samples import Sample
from prometheus_client.utils import floatToGoString

from kvwatch import __version__
from kvwatch.core.catalogue import METRICS, PREFIX, Deliveries, Metric, Reading, Reloads, Type
from kvwatch.core.snapshot import Histogram
from kvwatch.core.state import State


class PollCounts(Protocol):
    """What a poller counted about itself."""

    @property
    def polls(self) -> int: ...
    @property
    def missed_ticks(self) -> int: ...
    @property
    def unexpected_errors(self) -> int: ...


class Source(Protocol):
    """Where states come from: the store."""

    def states(self) -> Mapping[str, State]: ...
    def poll_stats(self, target: str) -> PollCounts: ...
    def deliveries(self) -> Iterable[Deliveries]: ...
    def reloads(self) -> Reloads: ...


class Clock(Protocol):
    def now(self) -> float: ...


class StateCollector(Collector):
    """All targets' metrics at the moment of a scrape."""

    def __init__(self, source: Source, clock: Clock) -> None:
        self._source = source
        self._clock = clock

    def describe(self) -> Iterable[Family]:
        """The families, without samples, so that registering collects nothing."""
        return [_family(metric) for metric in METRICS]

    def collect(self) -> Iterator[Family]:
        now = self._clock.now()
        readings = []
        for target, state in self._source.states().items():
            counts = self._source.poll_stats(target)
            readings.append(Reading(state, now, counts.polls, counts.missed_ticks, counts.unexpected_errors))
        sent = tuple(self._source.deliveries())
        settings = self._source.reloads()
        build = Family(f"{PREFIX}build_info", "1; kvwatch's version in the label.", "gauge")
        build.add_sample(build.name, {"version": __version__}, 1.0)
        yield build
        for metric in METRICS:
            family = _family(metric)
            samples = chain(
                chain.from_iterable(map(metric.samples, readings)),
                chain.from_iterable(map(metric.deliveries, sent)),
                metric.reloads(settings),
            )
            for values, value in samples:
                labels = dict(zip(metric.labels, values, strict=True))
                if isinstance(value, Histogram):
                    family.samples += _buckets(metric.full_name, labels, value)
                else:
                    family.samples.append(Sample(metric.full_name, labels, value))
            yield family


def _family(metric: Metric) -> Family:
    name = metric.full_name.removesuffix("_total") if metric.type is Type.COUNTER else metric.full_name
    return Family(name, metric.help, metric.type.value)


def _buckets(name: str, labels: Mapping[str, str], value: Histogram) -> Iterator[Sample]:
    bucket = f"{name}_bucket"
    for bound, count in zip(value.bounds, value.counts, strict=True):
        yield Sample(bucket, {**labels, "le": _le(bound)}, count)
    yield Sample(bucket, {**labels, "le": "+Inf"}, value.count)
    yield Sample(f"{name}_count", dict(labels), value.count)
    yield Sample(f"{name}_sum", dict(labels), value.sum)


@lru_cache(maxsize=4096)
def _le(bound: float) -> str:
    """A bound as Go writes it; a page of eight engines has two thousand, of which a few hundred differ."""
    return str(floatToGoString(bound))  # type: ignore[no-untyped-call]


def registry_of(source: Source, clock: Clock) -> CollectorRegistry:
    """kvwatch's own registry: the targets, and what the process costs."""
    registry = CollectorRegistry(auto_describe=False)
    registry.register(StateCollector(source, clock))
    ProcessCollector(namespace=PREFIX.removesuffix("_"), registry=registry)
    return registry
