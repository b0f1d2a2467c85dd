"""The GPUs under a server: what was read of them, and how active they were over a window.

Two numbers say whether a GPU works, and they are not alike. What share of its processors had work (SM activity)
and what share of time its memory moved data (DRAM activity) are measured; the larger of the two is how active it
is. Utilisation is the share of time in which *anything* ran on it, however little: 100 % proves nothing, a low
number does. So where only that is there, the activity is an upper bound, and says so.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import NamedTuple

from kvwatch.core.model.timed_rows import History

MOST_GPUS = 256
"""GPUs and parts of GPUs of one reading that are looked at; a host has 16, each in 7 parts at most."""
STALE_INTERVALS = 3
"""Readings older than so many intervals are none, and two that are further apart have a gap between them."""
NO_DATA = "no GPU data: name a DCGM exporter (gpu_url), or install kvwatch[nvml] where the GPUs can be seen"
OFF = "no GPU data: it is turned off (gpu = off)"
OK, FAILED = "ok", "failed"
_ENOUGH_OF_A_WINDOW = 0.5


@dataclass(frozen=True, slots=True)
class Gpu:
    """One GPU, or one part of a divided one (a MIG instance), at one instant. None is "not said".

    `label` is its index, ``0``, or that and the part's, ``0/7``; ratios are 0-1. `owners` are those that an
    exporter in Kubernetes names, as ``namespace/pod/container``.
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
        """How active it is; None if nothing that was read tells.

        SM activity alone will do: a processor that waits for memory has work. DRAM activity alone will not.
        """
        if self.sm_active is not None:
            return Activity(max(self.sm_active, self.dram_active or 0.0), upper_bound=False)
        return None if self.utilization is None else Activity(self.utilization, upper_bound=True)

    def called(self, name: str) -> bool:
        """Whether `name` means it: an index (all parts of a divided GPU), ``index/part``, a UUID, ``uuid/part``,
        or ``pod:POD``, ``pod:NAMESPACE/POD``."""
        if name.startswith("pod:"):
            pod = name.removeprefix("pod:")
            return any(
                pod in (where := owner.split("/"))[1:2] or pod == "/".join(where[:2]) for owner in self.owners
            )
        index, _, part = self.label.partition("/")
        names = {self.label, index, self.uuid, f"{self.uuid}/{part}" if part else ""} - {""}
        return name.casefold() in {one.casefold() for one in names}


class Activity(NamedTuple):
    """A share of full activity, 0-1; with `upper_bound` it may be anything below."""

    value: float
    upper_bound: bool


@dataclass(frozen=True, slots=True)
class GpuReading:
    """What a source said of the GPUs that it sees, or why it said nothing.

    `source` is ``dcgm`` or ``nvml``, empty if there is none. `interval_s` is the spacing kept between readings,
    `age_s` how long before the outcome that brings it the reading was made.
    """

    gpus: tuple[Gpu, ...] = ()
    source: str = ""
    reason: str = ""
    interval_s: float = 5.0
    age_s: float = 0.0


def select_gpus(gpus: Sequence[Gpu], names: Sequence[str]) -> tuple[tuple[Gpu, ...], tuple[str, ...]]:
    """The GPUs that `names` mean (without names: all), and the names that mean none."""
    if not names:
        return tuple(gpus), ()
    found = tuple(gpu for gpu in gpus if any(gpu.called(name) for name in names))
    return found, tuple(name for name in names if not any(gpu.called(name) for gpu in gpus))


def distinct_gpus(gpus: Iterable[Gpu]) -> tuple[Gpu, ...]:
    """GPUs in the order of their labels, none of which two share: those of several hosts have their UUID instead.

    A divided GPU stands as its parts, so that nothing counts twice.
    """
    found = list(gpus)
    divided = {(gpu.uuid, gpu.label.partition("/")[0]) for gpu in found if "/" in gpu.label}
    whole = [gpu for gpu in found if (gpu.uuid, gpu.label) not in divided]
    labels = [gpu.label for gpu in whole]
    named = {}
    for gpu in whole:
        label = gpu.label
        if labels.count(label) > 1:
            label = gpu.uuid + "".join(label.partition("/")[1:])
        named[label] = replace(gpu, label=label)
    return tuple(sorted(named.values(), key=lambda gpu: _natural(gpu.label)))


def _natural(label: str) -> tuple[tuple[int, str], ...]:
    return tuple((int(part), "") if part.isdecimal() else (1 << 62, part) for part in label.split("/"))


# -- over time -----------------------------------------------------------------------------------------------------


class GpuSample(NamedTuple):
    """How active the GPUs of the target were at a time, those of which it could be told."""

    t: float
    spacing_s: float
    activities: Mapping[str, Activity]


@dataclass(frozen=True, slots=True)
class GpuActivity:
    """How active the GPUs of a target were over a window: means over time, 0-1.

    `mean` is over the GPUs, `highest` that of the busiest. With `upper_bound` both may be anything below: for some
    of the time or of the GPUs nothing but utilisation was known. `covered_s` is how much of the window was watched.
    """

    mean: float
    highest: float
    upper_bound: bool
    by_gpu: Mapping[str, float]
    covered_s: float
    source: str


@dataclass(frozen=True, slots=True)
class NoActivity:
    """Why it can't be told, and how to change that."""

    reason: str


@dataclass(frozen=True, slots=True)
class GpuWindow:
    """The GPUs of a target: the newest reading, and how active they were before. Times are monotonic seconds.

    `failure` says why the newest reading gave nothing; `reading` and `at` are then those of the newest that did.
    """

    reading: GpuReading | None = None
    at: float | None = None
    spacing_s: float = 0.0
    failure: str = ""
    absent: tuple[str, ...] = ()
    """GPUs that the settings name and the newest reading has not."""
    seen: tuple[str, ...] = ()
    """The labels of all GPUs of the newest reading, those of other servers among them."""
    outcomes: Mapping[str, int] = field(default_factory=dict)
    """Readings by what they came to; empty as long as there is no source."""
    samples: History[GpuSample] = field(default_factory=History)

    def take(
        self, reading: GpuReading, now: float, *, wanted: Sequence[str], interval_s: float, keep_s: float
    ) -> GpuWindow:
        """With a reading that came at `now`, of which the GPUs in `wanted` (none named: all) are the target's.

        `interval_s` is that of the outcomes that bring readings: none can come more often.
        """
        outcomes = self.outcomes
        if reading.source:
            came_to = OK if reading.gpus else FAILED
            outcomes = {OK: 0, FAILED: 0, **outcomes}
            outcomes[came_to] += 1
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
        """Seconds since the newest reading that gave something."""
        return None if self.at is None else max(now - self.at, 0.0)

    def now(self, now: float) -> tuple[Gpu, ...]:
        """The GPUs as they are at `now`: none if the newest reading failed, or is too old to be that of now."""
        return () if self.reading is None or self.failure or self._stale(now) else self.reading.gpus

    def why_none(self, now: float) -> str:
        """Why nothing of any GPU is known at `now`; empty if something is."""
        if self.reading is None or self.at is None:
            return self.failure or NO_DATA
        if self._stale(now):
            old = f"the newest GPU data is {now - self.at:.0f} s old"
            return f"{old}: {self.failure}" if self.failure else old
        return self.failure or ("" if self.reading.gpus else self._who_is_absent())

    def active(self, now: float, window_s: float) -> GpuActivity | NoActivity:
        """How active the target's GPUs were in the last `window_s` seconds before `now`."""
        if self.reading is None or self._stale(now):
            return NoActivity(self.why_none(now))
        if self.absent:
            return NoActivity(self._who_is_absent())
        blind = [gpu.label for gpu in self.reading.gpus if gpu.activity is None]
        if blind:
            return NoActivity(
                f"neither SM activity nor utilisation of GPU {', '.join(blind)} is read:"
                " have the DCGM exporter collect them, or see whether the driver gives them"
            )
        return self._mean(now - window_s, window_s)

    def _who_is_absent(self) -> str:
        return f"no GPU is called {', '.join(self.absent)} (setting gpus); there are {', '.join(self.seen)}"

    def _stale(self, now: float) -> bool:
        return self.at is None or now - self.at > STALE_INTERVALS * self.spacing_s

    def _mean(self, start: float, window_s: float) -> GpuActivity | NoActivity:
        assert self.reading is not None  # noqa: S101 - `active` looked
        totals = {gpu.label: 0.0 for gpu in self.reading.gpus}
        covered, bound = 0.0, False
        for sample, seconds in _held(self.samples.since(start), start):
            if sample.activities.keys() != totals.keys():
                continue  # of some it could not be told, or these are others
            covered += seconds
            for label, activity in sample.activities.items():
                totals[label] += seconds * activity.value
                bound |= activity.upper_bound
        if covered < _ENOUGH_OF_A_WINDOW * window_s or not covered:
            return NoActivity(f"GPU data covers {covered:.0f} s of the last {window_s:.0f} s")
        means = {label: total / covered for label, total in totals.items()}
        return GpuActivity(
            mean=sum(means.values()) / len(means),
            highest=max(means.values()),
            upper_bound=bound,
            by_gpu=means,
            covered_s=covered,
            source=self.reading.source,
        )


def _held(rows: Sequence[GpuSample], start: float) -> Iterator[tuple[GpuSample, float]]:
    """Samples with seconds that they stand for since `start`: between two, half of the time goes to each."""
    for one, after in pairwise(rows):
        if after.t - one.t > STALE_INTERVALS * max(one.spacing_s, after.spacing_s):
            continue
        middle = (one.t + after.t) / 2
        yield one, max(middle - max(one.t, start), 0.0)
        yield after, max(after.t - max(middle, start), 0.0)
