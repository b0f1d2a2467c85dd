"""States as Prometheus families, by the rows of the catalogue. Makes no decisions."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial
from itertools import chain
from typing import Protocol

from prometheus_client import CollectorRegistry, ProcessCollector
from prometheus_client.core import Metric
from prometheus_client.registry import Collector
from prometheus_client.samples import Sample
from prometheus_client.utils import floatToGoString

from kvwatch import __version__
from kvwatch.core.export import catalogue
from kvwatch.core.export.catalogue import METRICS, PREFIX, MetricSource, NotificationCounts, ReloadCounts
from kvwatch.core.judgement.state import State
from kvwatch.core.model.snapshot import Histogram
from kvwatch.sidecar.clock import MonotonicClock
from kvwatch.sidecar.store import PollStats

CollectedStates = tuple[State, ...] | None


class StateSource(Protocol):
    """What a collector reads of the store."""

    def states(self) -> Mapping[str, State]: ...
    def poll_stats(self, target: str) -> PollStats: ...
    def deliveries(self) -> Iterable[NotificationCounts]: ...
    def reloads(self) -> ReloadCounts: ...


class MetricFamily(Metric):
    """A family of the catalogue for the client library. Its samples are made on access, from `rows`.

    `states` are the states they depend on: the same states give the same samples. None if they depend on more.
    """

    def __init__(
        self, spec: catalogue.Metric, rows: Callable[[], Iterable[catalogue.Sample]], states: CollectedStates
    ) -> None:
        counter = spec.type is catalogue.Type.COUNTER
        name = spec.full_name.removesuffix("_total") if counter else spec.full_name
        super().__init__(name, spec.help, spec.type.value)
        self.spec, self.rows, self.states = spec, rows, states

    @property
    def samples(self) -> list[Sample]:
        found: list[Sample] = []
        for values, value in self.rows():
            labels = dict(zip(self.spec.labels, values, strict=True))
            if isinstance(value, Histogram):
                found += _buckets(self.spec.full_name, labels, value)
            else:
                found.append(Sample(self.spec.full_name, labels, value))
        return found

    @samples.setter
    def samples(self, _: list[Sample]) -> None:
        """The client library sets an empty list at first."""


class StateCollector(Collector):
    """The metrics of all targets at the time of a scrape."""

    def __init__(self, store: StateSource, clock: MonotonicClock) -> None:
        self._store = store
        self._clock = clock

    def describe(self) -> Iterable[Metric]:
        """The families without samples, so that registering collects nothing."""
        return [MetricFamily(metric, tuple, None) for metric in (_BUILD, *METRICS)]

    def collect(self) -> Iterator[MetricFamily]:
        now = self._clock.now()
        readings = []
        for target, state in self._store.states().items():
            stats = self._store.poll_stats(target)
            reading = MetricSource(state, now, stats.polls, stats.missed_ticks, stats.unexpected_errors)
            readings.append(reading)
        deliveries, reloads = self._store.deliveries(), self._store.reloads()
        states = tuple([reading.state for reading in readings])

        def rows(metric: catalogue.Metric) -> Iterable[catalogue.Sample]:
            return chain(
                chain.from_iterable(map(metric.samples, readings)),
                chain.from_iterable(map(metric.deliveries, deliveries)),
                metric.reloads(reloads),
            )

        yield MetricFamily(_BUILD, lambda: [((__version__,), 1.0)], ())
        for metric in METRICS:
            yield MetricFamily(metric, partial(rows, metric), None if metric.volatile else states)


_BUILD = catalogue.Metric("build_info", "1; kvwatch's version is a label.", ("version",))


def _buckets(name: str, labels: Mapping[str, str], value: Histogram) -> Iterator[Sample]:
    for bound, count in zip(value.bounds, value.counts, strict=True):
        yield Sample(f"{name}_bucket", {**labels, "le": floatToGoString(bound)}, count)  # type: ignore[no-untyped-call]
    yield Sample(f"{name}_bucket", {**labels, "le": "+Inf"}, value.count)
    yield Sample(f"{name}_count", dict(labels), value.count)
    yield Sample(f"{name}_sum", dict(labels), value.sum)


def registry_of(store: StateSource, clock: MonotonicClock) -> CollectorRegistry:
    """A registry with the targets' metrics and those of the process."""
    registry = CollectorRegistry(auto_describe=False)
    registry.register(StateCollector(store, clock))
    ProcessCollector(namespace=PREFIX.removesuffix("_"), registry=registry)
    return registry
