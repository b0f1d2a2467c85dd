"""The GPUs of a server: the newest reading, and their activity over a window.

Activity is the larger of SM activity (the share of processors that had work) and DRAM activity (the share of time in
which memory moved data). Utilisation is the share of time in which anything ran, however little: 100 % proves
nothing, a low value does. So where only utilisation is known, it is an upper bound of the activity, marked as such.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import NamedTuple

from kvwatch.core.model.timed_rows import History

MAX_GPUS = 256
"""GPUs and MIG instances per reading; a host has at most 16 GPUs of 7 instances each."""
STALE_INTERVALS = 3
"""A reading older than this many intervals is stale. Two readings further apart have a gap between them."""
NO_DATA = "no GPU data: set gpu_url to a DCGM exporter, or install kvwatch[nvml] where the GPUs are visible"
OFF = "no GPU data: GPU readings are turned off (gpu = off)"
OK, FAILED = "ok", "failed"
_MIN_COVERED_SHARE = 0.5
"""An activity needs readings for at least this share of the window."""


@dataclass(frozen=True, slots=True)
class Gpu:
    """One GPU, or one MIG instance of a divided GPU, at one moment. None is unknown.

    `label` is the GPU's index, ``0``, or index and instance, ``0/7``. Ratios are 0-1. `owners` are the containers
    that a Kubernetes exporter names, as ``namespace/pod/container``.
    """

    label: str
    uuid: str = ""
    name: str = ""
    sm_active: float | None = None
    dram_active: float | None = None
    utilization: float | None = None
    memory_used_bytes: float | None = None
    memory_free_bytes: float | None = None
    owners: tuple[str, ...] = ()

    @property
    def activity(self) -> Activity | None:
        """How active the GPU is; None if unknown.

        SM activity is enough, since a processor that waits for memory has work. DRAM activity alone is not.
        """
        if self.sm_active is not None:
            return Activity(max(self.sm_active, self.dram_active or 0.0), upper_bound=False)
        return None if self.utilization is None else Activity(self.utilization, upper_bound=True)

    def matches(self, name: str) -> bool:
        """Whether `name` selects this GPU: an index (all instances of a divided GPU), ``index/instance``, a UUID,
        ``uuid/instance``, ``pod:POD`` or ``pod:NAMESPACE/POD``."""
        if name.startswith("pod:"):
            pod = name.removeprefix("pod:")
            return any(
                pod in (where := owner.split("/"))[1:2] or pod == "/".join(where[:2]) for owner in self.owners
            )
        index, _, part = self.label.partition("/")
        names = {self.label, index, self.uuid, f"{self.uuid}/{part}" if part else ""} - {""}
        return name.casefold() in {one.casefold() for one in names}


class Activity(NamedTuple):
    """A share of full activity, 0-1; with `upper_bound` the true share may be any lower value."""

    value: float
    upper_bound: bool


@dataclass(frozen=True, slots=True)
class GpuReading:
    """The GPUs that a source sees, or why it sees none.

    `source` is ``dcgm`` or ``nvml``, empty without a source. `interval_s` is the interval between readings, `age_s`
    the age of the reading at the outcome that brings it.
    """

    gpus: tuple[Gpu, ...] = ()
    source: str = ""
    reason: str = ""
    interval_s: float = 5.0
    age_s: float = 0.0


def select_gpus(gpus: Sequence[Gpu], names: Sequence[str]) -> tuple[tuple[Gpu, ...], tuple[str, ...]]:
    """The GPUs that `names` select (without names: all), and the names that select none."""
    if not names:
        return tuple(gpus), ()
    found = tuple(gpu for gpu in gpus if any(gpu.matches(name) for name in names))
    return found, tuple(name for name in names if not any(gpu.matches(name) for gpu in gpus))


def distinct_gpus(gpus: Iterable[Gpu]) -> tuple[Gpu, ...]:
    """The GPUs by label, each label once: where several hosts use the same index, the UUID takes its place.

    A divided GPU appears as its instances only, so that nothing is counted twice.
    """
    found = list(gpus)
    divided = {(gpu.uuid, gpu.label.partition("/")[0]) for gpu in found if "/" in gpu.label}
    whole = [gpu for gpu in found if (gpu.uuid, gpu.label) not in divided]
    labels = [gpu.label for gpu in whole]
    by_label = {}
    for gpu in whole:
        label = gpu.label
        if labels.count(label) > 1:
            label = gpu.uuid + "".join(label.partition("/")[1:])
        by_label[label] = replace(gpu, label=label)
    return tuple(sorted(by_label.values(), key=lambda gpu: _natural_order(gpu.label)))


def _natural_order(label: str) -> tuple[tuple[int, str], ...]:
    return tuple((int(part), "") if part.isdecimal() else (1 << 62, part) for part in label.split("/"))


# -- over time -----------------------------------------------------------------------------------------------------


class GpuSample(NamedTuple):
    """The activity of the target's GPUs at a time, by label; GPUs of unknown activity are left out."""

    t: float
    spacing_s: float
    activities: Mapping[str, Activity]


@dataclass(frozen=True, slots=True)
class GpuActivity:
    """The activity of a target's GPUs over a window: means over time, 0-1.

    `mean` averages the GPUs, `highest` is the busiest GPU's. With `upper_bound` the true values may be lower, because
    for some time or some GPU only utilisation was known. `covered_s` is the part of the window with readings.
    """

    mean: float
    highest: float
    upper_bound: bool
    by_gpu: Mapping[str, float]
    covered_s: float
    source: str


@dataclass(frozen=True, slots=True)
class UnknownActivity:
    """Why the activity is unknown, and how to change that."""

    reason: str


@dataclass(frozen=True, slots=True)
class GpuWindow:
    """The GPUs of a target: the newest reading and the activity before it. Times are monotonic seconds.

    `failure` says why the newest reading failed; `reading` and `at` then belong to the last one that succeeded.
    """

    reading: GpuReading | None = None
    at: float | None = None
    spacing_s: float = 0.0
    failure: str = ""
    absent: tuple[str, ...] = ()
    """GPUs that the settings name and that are not in the newest reading."""
    seen: tuple[str, ...] = ()
    """The labels of all GPUs in the newest reading, including those of other servers."""
    outcomes: Mapping[str, int] = field(default_factory=dict)
    """Readings by outcome; empty without a source."""
    samples: History[GpuSample] = field(default_factory=History)

    def with_reading(
        self, reading: GpuReading, now: float, *, wanted: Sequence[str], interval_s: float, keep_s: float
    ) -> GpuWindow:
        """The window after a reading at `now`. `wanted` names the target's GPUs (empty: all).

        `interval_s` is the interval of the outcomes that bring readings, so readings can't come more often.
        """
        outcomes = self.outcomes
        if reading.source:
            outcome = OK if reading.gpus else FAILED
            outcomes = {OK: 0, FAILED: 0, **outcomes}
            outcomes[outcome] += 1
        if not reading.gpus:
            return replace(self, failure=reading.reason or NO_DATA, outcomes=outcomes)
        gpus, absent = select_gpus(reading.gpus, wanted)
        at = max(now - max(reading.age_s, 0.0), self.at or float("-inf"))
        spacing = max(reading.interval_s, interval_s)
        activities = {gpu.label: activity for gpu in gpus if (activity := gpu.activity) is not None}
        return GpuWindow(
            reading=replace(reading, gpus=gpus),
            at=at,
            spacing_s=spacing,
            absent=absent,
            seen=tuple(gpu.label for gpu in reading.gpus),
            outcomes=outcomes,
            samples=self.samples.append(GpuSample(at, spacing, activities), keep_s),
        )

    def age_s(self, now: float) -> float | None:
        """Seconds since the newest successful reading."""
        return None if self.at is None else max(now - self.at, 0.0)

    def current(self, now: float) -> tuple[Gpu, ...]:
        """The GPUs at `now`; empty if the newest reading failed or is stale."""
        return () if self.reading is None or self.failure or self._is_stale(now) else self.reading.gpus

    def why_unknown(self, now: float) -> str:
        """Why no GPU is known at `now`; empty if one is."""
        if self.reading is None or self.at is None:
            return self.failure or NO_DATA
        if self._is_stale(now):
            old = f"the newest GPU data is {now - self.at:.0f} s old"
            return f"{old}: {self.failure}" if self.failure else old
        return self.failure or ("" if self.reading.gpus else self._absent_reason())

    def activity(self, now: float, window_s: float) -> GpuActivity | UnknownActivity:
        """The activity of the target's GPUs in the last `window_s` seconds before `now`."""
        if self.reading is None or self._is_stale(now):
            return UnknownActivity(self.why_unknown(now))
        if self.absent:
            return UnknownActivity(self._absent_reason())
        unknown = [gpu.label for gpu in self.reading.gpus if gpu.activity is None]
        if unknown:
            return UnknownActivity(
                f"neither SM activity nor utilisation of GPU {', '.join(unknown)} is exposed: add them to the DCGM"
                " exporter's counters, or check whether the driver provides them"
            )
        return self._mean(now - window_s, window_s)

    def _absent_reason(self) -> str:
        return f"no GPU matches {', '.join(self.absent)} (setting gpus); available: {', '.join(self.seen)}"

    def _is_stale(self, now: float) -> bool:
        return self.at is None or now - self.at > STALE_INTERVALS * self.spacing_s

    def _mean(self, start: float, window_s: float) -> GpuActivity | UnknownActivity:
        assert self.reading is not None  # noqa: S101 - `activity` checked it
        totals = {gpu.label: 0.0 for gpu in self.reading.gpus}
        covered, bound = 0.0, False
        for sample, seconds in _weights(self.samples.since(start), start):
            if sample.activities.keys() != totals.keys():
                continue  # other GPUs, or the activity of one is unknown
            covered += seconds
            for label, activity in sample.activities.items():
                totals[label] += seconds * activity.value
                bound |= activity.upper_bound
        if covered < _MIN_COVERED_SHARE * window_s or not covered:
            return UnknownActivity(f"GPU data covers {covered:.0f} s of the last {window_s:.0f} s")
        means = {label: total / covered for label, total in totals.items()}
        return GpuActivity(
            mean=sum(means.values()) / len(means),
            highest=max(means.values()),
            upper_bound=bound,
            by_gpu=means,
            covered_s=covered,
            source=self.reading.source,
        )


def _weights(rows: Sequence[GpuSample], start: float) -> Iterator[tuple[GpuSample, float]]:
    """Samples with the seconds since `start` that each stands for: of the time between two, half goes to each."""
    for one, after in pairwise(rows):
        if after.t - one.t > STALE_INTERVALS * max(one.spacing_s, after.spacing_s):
            continue
        middle = (one.t + after.t) / 2
        yield one, max(middle - max(one.t, start), 0.0)
        yield after, max(after.t - max(middle, start), 0.0)
