"""One recorded run, replayed through the same `advance` as a live server."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field

from kvwatch.core.judgement.pipeline import advance, next_pace
from kvwatch.core.judgement.policy import Policy
from kvwatch.core.judgement.state import State, initial
from kvwatch.experiment.configuration import configuration_of
from kvwatch.experiment.measures import HIT_RATIO
from kvwatch.experiment.series import RunSeries, SeriesBuilder
from kvwatch.recording import Record, RecordingError, Skipped, outcome_of, with_spacing


@dataclass(frozen=True, slots=True)
class MeasuredRun:
    """The compared part of a recording: from the end of its warm-up, or from its first page, to its last.

    Durations are in seconds; `began_at` and `up_since`, the start of the server, are unix times. `missing` has a
    reason for each missing signal, `untrusted` one for each measure that must not be judged. `in_server_at_ends` is
    the number of requests running and waiting at the start and at the end. Peaks are those of all engines together;
    the peak of KV usage is that of the fullest engine.
    """

    name: str
    began_at: float
    duration_s: float
    warmup_s: float
    interval_s: float
    scrapes: int
    failed_scrapes: int
    restarts: int
    several_servers: bool
    unread: int
    engines: int
    models: tuple[str, ...]
    generation: str
    up_since: float | None
    in_server_at_ends: tuple[float, float]
    peaks: Mapping[str, float]
    series: RunSeries
    missing: Mapping[str, str] = field(default_factory=dict)
    untrusted: Mapping[str, str] = field(default_factory=dict)
    configuration: Mapping[str, str] = field(default_factory=dict)


def run_of(
    records: Iterable[Record | Skipped],
    file: str,
    policy: Policy,
    on_record: Callable[[], object] | None = None,
) -> MeasuredRun:
    """The run in a recording. `on_record` is called for each record.

    Raises:
        RecordingError: nothing in the recording can be compared.
    """
    reader = _Reader(file, policy)
    for record, spacing in with_spacing(records):
        if on_record is not None:
            on_record()
        if isinstance(record, Skipped):
            reader.unread += 1
        else:
            reader.add(record, spacing)
    return reader.run()


class _Reader:
    """Replays a recording, record by record."""

    def __init__(self, file: str, policy: Policy) -> None:
        self.unread = 0
        self._file, self._name = file, ""
        self._state = initial("recorded", policy)
        self._last_good: State | None = None
        self._before_run: State | None = None
        self._series = SeriesBuilder()
        self._first: float | None = None
        self._began: float | None = None
        self._ended = 0.0
        self._failed = 0
        self._spacings: list[float] = []
        self._at_begin = 0.0
        self._peaks: dict[str, float] = {}
        self._untrusted: dict[str, str] = {}

    def add(self, record: Record, spacing: float) -> None:
        self._name = self._name or record.label
        before = self._state
        outcome = outcome_of(record, interval_s=spacing, pace=next_pace(before, record.t))
        self._state, _ = advance(before, outcome, record.t)
        self._series.add(self._state, counts=not record.warmup and self._last_good is not None)
        if self._state.up:
            self._last_good = self._state
            self._first = record.t if self._first is None else self._first
        if record.warmup or self._first is None:
            return  # the run starts at the first page after the warm-up
        self._before_run = self._before_run or before
        self._spacings.append(spacing)
        if not self._state.up:
            self._failed += 1
            return
        if self._began is None:
            self._began, self._at_begin = record.t, sum(_in_server(self._state))
        self._ended = record.t
        self._update_peaks()

    def _update_peaks(self) -> None:
        running, waiting = _in_server(self._state)
        now = {"requests_running": running, "requests_waiting": waiting}
        for engine in self._state.engines.values():
            usage = engine.snapshot.number("kv_cache_usage_ratio")
            if usage is not None:
                now["kv_cache_usage_ratio"] = max(usage, now.get("kv_cache_usage_ratio", 0.0))
            if HIT_RATIO in engine.derived.untrusted:
                self._untrusted.setdefault(HIT_RATIO, engine.derived.untrusted[HIT_RATIO])
        self._peaks |= {name: max(value, self._peaks.get(name, 0.0)) for name, value in now.items()}

    def run(self) -> MeasuredRun:
        last, server = self._last_good, self._last_good.server if self._last_good else None
        if last is None or self._first is None:
            raise RecordingError(f"{self._file} has no readable page of a vLLM server")
        if self._began is None or self._before_run is None or self._ended <= self._began:
            raise RecordingError(f"{self._file} has only warm-up; record longer (--for)")
        series = self._series.series(self._began)
        return MeasuredRun(
            name=self._name or self._file,
            began_at=self._began,
            duration_s=self._ended - self._began,
            warmup_s=self._began - self._first,
            interval_s=statistics.median(self._spacings),
            scrapes=len(self._spacings),
            failed_scrapes=self._failed,
            restarts=last.restarts - self._before_run.restarts,
            several_servers=any(event.kind == "several_servers" for event in last.events),
            unread=self.unread,
            engines=len(last.engines),
            models=tuple(sorted({key.model_name for key in last.engines})),
            generation=", ".join(sorted({one.snapshot.generation for one in last.engines.values()})),
            up_since=server.number("engine_start_time_seconds") if server else None,
            in_server_at_ends=(self._at_begin, sum(_in_server(last))),
            peaks=self._peaks,
            series=series,
            missing=_missing(last),
            untrusted=self._untrusted,
            configuration=configuration_of(last, series, self._peaks),
        )


def _in_server(state: State) -> tuple[float, float]:
    """Requests running and waiting, over all engines."""
    rows = [row for one in state.engines.values() if (row := one.windows.samples.last) is not None]
    return sum(row.running or 0.0 for row in rows), sum(row.waiting or 0.0 for row in rows)


def _missing(state: State) -> dict[str, str]:
    """The reason for each missing signal. A signal that one engine lacks is missing for all."""
    found: dict[str, str] = {}
    for engine in state.engines.values():
        for signal, reason in engine.snapshot.missing.items():
            found.setdefault(signal, reason)
        if engine.snapshot.config.enable_prefix_caching is False:
            found["prefix_cache_queried_tokens_total"] = "prefix caching is off"
    return found
