"""One recorded run, replayed through the same `advance` as live, and what is known of it."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field

from kvwatch.core.judgement.pipeline import advance, next_pace
from kvwatch.core.judgement.policy import Policy
from kvwatch.core.judgement.state import State, initial
from kvwatch.experiment.configuration import configuration_of
from kvwatch.experiment.measures import HIT_RATIO
from kvwatch.experiment.series import Increments, RunSeries
from kvwatch.recording import Record, RecordingError, Skipped, outcome_of, with_spacing


@dataclass(frozen=True, slots=True)
class MeasuredRun:
    """A recording, as far as it is compared: from the end of its warm-up, or from its first page, to its last.

    Times are seconds; `began` is unix time. `missing` has why signals are not there, `untrusted` why measures should
    be judged by nobody. Peaks are those of all engines together, but usage: that is the fullest one's.
    """

    name: str
    began: float
    duration_s: float
    warmup_s: float
    interval_s: float
    scrapes: int
    failed: int
    restarts: int
    several_servers: bool
    unread: int
    engines: int
    models: tuple[str, ...]
    generation: str
    up_since: float | None
    """When the server started, unix time."""
    in_server_at_ends: tuple[float, float]
    """Requests running and waiting at the begin and at the end."""
    peaks: Mapping[str, float]
    series: RunSeries
    missing: Mapping[str, str] = field(default_factory=dict)
    untrusted: Mapping[str, str] = field(default_factory=dict)
    configuration: Mapping[str, str] = field(default_factory=dict)


def run_of(
    records: Iterable[Record | Skipped],
    file: str,
    policy: Policy,
    seen: Callable[[], object] = lambda: None,
) -> MeasuredRun:
    """The run in a recording; `seen` is told of each record.

    Raises `RecordingError` if nothing in it can be compared.
    """
    watching = _Watching(file, policy)
    for record, spacing in with_spacing(records):
        seen()
        if isinstance(record, Skipped):
            watching.unread += 1
        else:
            watching.take(record, spacing)
    return watching.run()


class _Watching:
    """Follows a recording."""

    def __init__(self, file: str, policy: Policy) -> None:
        self.unread = 0
        self._file = file
        self._name = ""
        self._state = initial("recorded", policy)
        self._good: State | None = None
        self._ahead: State | None = None
        """The state before the first compared scrape."""
        self._increments = Increments()
        self._first: float | None = None
        self._began: float | None = None
        self._ended = 0.0
        self._counted = self._failed = 0
        self._spacings: list[float] = []
        self._at_begin = 0.0
        self._peaks: dict[str, float] = {}
        self._untrusted: dict[str, str] = {}

    def take(self, record: Record, spacing: float) -> None:
        self._name = self._name or record.label
        before = self._state
        found = outcome_of(record, interval_s=spacing, pace=next_pace(before, record.t))
        self._state, _ = advance(before, found, record.t)
        counts = not record.warmup and self._good is not None
        self._increments.take(self._state, counts=counts)
        if self._state.up:
            self._good = self._state
            self._first = record.t if self._first is None else self._first
        if record.warmup or self._first is None:
            return  # what was before the first page is no part of the run
        self._ahead = self._ahead or before
        self._counted += 1
        self._spacings.append(spacing)
        if not self._state.up:
            self._failed += 1
            return
        if self._began is None:
            self._began = record.t
            self._at_begin = sum(_in_server(self._state))
        self._ended = record.t
        self._look()

    def _look(self) -> None:
        """Notes peaks, and what can't be trusted."""
        running, waiting = _in_server(self._state)
        usages = [one.snapshot.number("kv_cache_usage_ratio") for one in self._state.engines.values()]
        at_once = {"requests_running": running, "requests_waiting": waiting}
        known = [usage for usage in usages if usage is not None]
        for name, value in (at_once | ({"kv_cache_usage_ratio": max(known)} if known else {})).items():
            self._peaks[name] = max(value, self._peaks.get(name, 0.0))
        for engine in self._state.engines.values():
            if HIT_RATIO in engine.derived.untrusted:
                self._untrusted.setdefault(HIT_RATIO, engine.derived.untrusted[HIT_RATIO])

    def run(self) -> MeasuredRun:
        good = self._good
        if good is None or self._first is None:
            raise RecordingError(f"{self._file}: no page of a vLLM in it can be read")
        if self._began is None or self._ahead is None or self._ended <= self._began:
            raise RecordingError(f"{self._file}: nothing but warm-up is in it; record longer (--for)")
        server = good.server
        series = self._increments.series(self._began)
        return MeasuredRun(
            name=self._name or self._file,
            began=self._began,
            duration_s=self._ended - self._began,
            warmup_s=self._began - self._first,
            interval_s=statistics.median(self._spacings),
            scrapes=self._counted,
            failed=self._failed,
            restarts=good.restarts - self._ahead.restarts,
            several_servers=any(event.kind == "several_servers" for event in good.events),
            unread=self.unread,
            engines=len(good.engines),
            models=tuple(sorted({key.model_name for key in good.engines})),
            generation=", ".join(sorted({one.snapshot.generation for one in good.engines.values()})),
            up_since=server.number("engine_start_time_seconds") if server else None,
            in_server_at_ends=(self._at_begin, sum(_in_server(good))),
            peaks=self._peaks,
            series=series,
            missing=_missing(good),
            untrusted=self._untrusted,
            configuration=configuration_of(good, series, self._peaks),
        )


def _in_server(state: State) -> tuple[float, float]:
    """Requests running and waiting, over all engines."""
    rows = [row for one in state.engines.values() if (row := one.windows.samples.last) is not None]
    return sum(row.running or 0.0 for row in rows), sum(row.waiting or 0.0 for row in rows)


def _missing(state: State) -> dict[str, str]:
    """Why signals are missing; what one engine does not show is missing for all together."""
    found: dict[str, str] = {}
    for engine in state.engines.values():
        for signal, reason in engine.snapshot.missing.items():
            found.setdefault(signal, reason)
        if engine.snapshot.config.enable_prefix_caching is False:
            found["prefix_cache_queried_tokens_total"] = "prefix caching is off"
    return found
