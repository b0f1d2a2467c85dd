"""State to Prometheus families, by walking the catalogue. Decides nothing."""

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

CollectedStates = tuple[State, ...] | None


class PollCounts(Protocol):
    """What a poller counted about itself."""

    @property
    def polls(self) -> int: ...
    @property
    def missed_ticks(self) -> int: ...
    @property
    def unexpected_errors(self) -> int: ...


class StateSource(Protocol):
    """Where states come from: the store."""

    def states(self) -> Mapping[str, State]: ...
    def poll_stats(self, target: str) -> PollCounts: ...
    def deliveries(self) -> Iterable[NotificationCounts]: ...
    def reloads(self) -> ReloadCounts: ...


class MetricFamily(Metric):
    """A family of the catalogue as the client library has it. Its samples are read off only when they are asked
    for; `rows` are the same, as the catalogue gives them. `seen`: what they are read off, and as long as that is the
    same so are they; None if nobody can tell."""

    def __init__(
        self, of: catalogue.Metric, rows: Callable[[], Iterable[catalogue.Sample]], seen: CollectedStates
    ) -> None:
        counter = of.type is catalogue.Type.COUNTER
        super().__init__(
            of.full_name.removesuffix("_total") if counter else of.full_name, of.help, of.type.value
        )
        self.of, self.rows, self.seen = of, rows, seen

    @property
    def samples(self) -> list[Sample]:
        found: list[Sample] = []
        for values, value in self.rows():
            labels = dict(zip(self.of.labels, values, strict=True))
            if isinstance(value, Histogram):
                found += _buckets(self.of.full_name, labels, value)
            else:
                found.append(Sample(self.of.full_name, labels, value))
        return found

    @samples.setter
    def samples(self, _: list[Sample]) -> None:
        """The client library begins with none."""


class StateCollector(Collector):
    """All targets' metrics at the moment of a scrape."""

    def __init__(self, source: StateSource, clock: MonotonicClock) -> None:
        self._source = source
        self._clock = clock

    def describe(self) -> Iterable[Metric]:
        """The families, without samples, so that registering collects nothing."""
        return [MetricFamily(metric, tuple, None) for metric in (_BUILD, *METRICS)]

    def collect(self) -> Iterator[MetricFamily]:
        now = self._clock.now()
        readings = []
        for target, state in self._source.states().items():
            counts = self._source.poll_stats(target)
            readings.append(
                MetricSource(state, now, counts.polls, counts.missed_ticks, counts.unexpected_errors)
            )
        sent = tuple(self._source.deliveries())
        settings = self._source.reloads()
        states = tuple([reading.state for reading in readings])

        def rows(metric: catalogue.Metric) -> Iterable[catalogue.Sample]:
            return chain(
                chain.from_iterable(map(metric.samples, readings)),
                chain.from_iterable(map(metric.deliveries, sent)),
                metric.reloads(settings),
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


def registry_of(source: StateSource, clock: MonotonicClock) -> CollectorRegistry:
    """kvwatch's own registry: the targets, and what the process costs."""
    registry = CollectorRegistry(auto_describe=False)
    registry.register(StateCollector(source, clock))
    ProcessCollector(namespace=PREFIX.removesuffix("_"), registry=registry)
    return registry
