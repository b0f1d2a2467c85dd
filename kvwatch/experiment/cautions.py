"""What a reader of a comparison must know: other differences between two runs, and problems of a single run."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from math import ceil, log1p, sqrt

from kvwatch.core.model.snapshot import Histogram
from kvwatch.experiment.configuration import Change, options_changed
from kvwatch.experiment.differences import Difference, DifferenceVerdict
from kvwatch.experiment.estimate import Side
from kvwatch.experiment.measures import HEADLINES, Measure, Scale
from kvwatch.experiment.series import RUNNING, SECONDS, WAITING
from kvwatch.text.numbers import format_duration, format_number

_FINISHED = "requests_finished_total"
_ALIKE = 0.1
"""Loads and lengths that differ by at most this share are alike."""
_INTERVALS, _DURATIONS = 1.5, 1.25
"""Ratios of scrape intervals and of durations above which there is a note."""
_KOLMOGOROV = 1.63
"""Two samples of one distribution differ by more than this × √(1/n + 1/m) once in 100 times."""
_NOT_COMPARABLE = 1.5
"""Loads that differ by this factor make no comparison: latencies follow the load."""
_WORST_CASE_S = 1800.0
"""Steady load that a statement about the worst case needs."""
_FAILED_SCRAPES, _FAILED_REQUESTS = 0.01, 0.05
_COLD_S = 120.0
"""Time after its start in which a server is not warm."""
_GROWTH, _MIN_STEPS = 0.5, 8
"""A run has not settled if this share of the requests in its last third came on top of those in its first. Thirds of
fewer steps are not judged."""
_HALF_WIDTHS = 2.0
"""The centre of an interval is off by less than its half-width 19 times out of 20, so the margin must hold two."""
_MAX_RECORDING_S = 4 * 3600.0


class Weight(StrEnum):
    """WARNING: what the report says may have another cause. NOTE: what helps to read it."""

    WARNING = "warning"
    NOTE = "note"


@dataclass(frozen=True, slots=True)
class Caution:
    """One thing to know, and what to do about it."""

    id: str
    weight: Weight
    text: str


_WARNING, _NOTE = Weight.WARNING, Weight.NOTE
_Check = tuple[bool, Weight, str, str]


def _cautions(checks: Sequence[_Check]) -> Iterator[Caution]:
    """A caution for each check that applies."""
    return (Caution(id_, weight, text) for applies, weight, id_, text in checks if applies)


def warnings_first(cautions: Sequence[Caution]) -> tuple[Caution, ...]:
    return tuple(sorted(cautions, key=lambda one: one.weight is not Weight.WARNING))


# -- two runs -----------------------------------------------------------------------------------------------------


def of_pair(baseline: Side, candidate: Side, changed: Sequence[Change], differs: bool) -> Iterator[Caution]:
    """What else differs between two runs. `differs`: a headline measure is different."""
    ours, theirs, options = baseline.run, candidate.run, options_changed(changed)
    names = ", ".join(change.title for change in changed if not change.follows)
    same = ours.began_at == theirs.began_at and baseline.totals == candidate.totals
    models = " and ".join(", ".join(run.models) or "none" for run in (ours, theirs))
    durations = f"{format_duration(ours.duration_s)} and {format_duration(theirs.duration_s)}"
    intervals = f"every {format_duration(ours.interval_s)} and every {format_duration(theirs.interval_s)}"
    yield from _cautions([
        (options == 0, _NOTE, "no_option_changed",
         ("no changed option is visible. This is expected for two runs of one configuration; otherwise it is one that"
          " vLLM's metrics do not show (--max-num-batched-tokens, --tensor-parallel-size, …)")),
        (options > 1, _WARNING, "several_options_changed",
         f"{options} options differ ({names}), so the cause of the difference is unknown. Change one at a time"),
        (differs and not changed, _WARNING, "differs_unchanged",
         ("the runs differ, but no visible option does: something else changed (other work on the machine, the order"
          " of requests). A difference between other runs that is no larger means nothing")),
        (same, _WARNING, "same_run", "both files hold the same recording"),
        (ours.models != theirs.models, _WARNING, "models", f"the served models differ: {models}"),
        (ours.engines != theirs.engines, _NOTE, "engines",
         f"{ours.engines} and {theirs.engines} engines: throughput and queues are those of the whole server"),
        (ours.generation != theirs.generation, _NOTE, "generations",
         (f"engine generations {ours.generation} and {theirs.generation}: signals that one of them lacks are not"
          " compared, and they count preemptions differently")),
        (_differ(ours.duration_s, theirs.duration_s, _DURATIONS), _NOTE, "durations",
         f"{durations} are compared: the longer run sees rarer peaks, and a growing queue grows longer"),
        (_differ(ours.interval_s, theirs.interval_s, _INTERVALS), _NOTE, "intervals",
         f"scraped {intervals}: peaks and shares of time are less accurate at the longer interval"),
    ])  # fmt: skip
    yield from _load(baseline, candidate)


def _differ(first: float, second: float, times: float) -> bool:
    return max(first, second) > times * min(first, second)


def _load(baseline: Side, candidate: Side) -> Iterator[Caution]:
    """Whether arrival rates and lengths of requests differ by more than chance."""
    before, after = arrivals(baseline), arrivals(candidate)
    if before is not None and after is not None:
        noise = 2 * sqrt(sum(rate**2 / max(came, 1) for came, rate in (before, after)))
        if abs(after[1] - before[1]) > max(_ALIKE * max(before[1], after[1]), noise):
            text = (
                f"the load differed: {format_number(before[1])} and {format_number(after[1])} requests/s arrived."
                " Latencies and KV usage follow the load. Send the same requests at the same times"
            )
            yield Caution("arrivals", _WARNING, text)
    for name in ("prompt", "generation"):
        ours, theirs = (side.totals.histogram(f"request_{name}_tokens") for side in (baseline, candidate))
        apart = distance(ours, theirs)
        if apart and apart > max(_ALIKE, _KOLMOGOROV * sqrt(1 / ours.count + 1 / theirs.count)):
            means = " and ".join(format_number(one.sum / one.count) for one in (ours, theirs))
            text = (
                f"the {name} lengths differed (mean {means} tokens; at least {100 * apart:.0f} % of the requests have"
                " other lengths). Send the same prompts"
            )
            yield Caution(f"{name}_lengths", _WARNING, text)


def load_ratio(baseline: Side, candidate: Side) -> float | None:
    """Arrival rate of the candidate over that of the baseline, if they differ `_NOT_COMPARABLE` times or more."""
    before, after = arrivals(baseline), arrivals(candidate)
    if before is None or after is None or not before[1] or not after[1]:
        return None
    ratio = after[1] / before[1]
    return ratio if max(ratio, 1 / ratio) >= _NOT_COMPARABLE else None


def arrivals(side: Side) -> tuple[float, float] | None:
    """Requests that arrived, in all and per second: those that finished, plus the growth of those in the server.
    Requests that clients gave up are not counted. None if the count is unknown."""
    seconds = side.totals.sum(SECONDS)
    if _FINISHED in side.run.missing or seconds <= 0 or side.run.restarts:
        return None
    begin, end = side.run.in_server_at_ends
    came = max(side.totals.sum(_FINISHED) + end - begin, 0.0)
    return came, came / seconds


def distance(one: Histogram, other: Histogram) -> float | None:
    """The largest difference between two cumulative distributions at the bounds of their buckets, 0-1 (Kolmogorov and
    Smirnov); None without observations or with different bounds."""
    if one.count <= 0 or other.count <= 0 or one.bounds != other.bounds:
        return None
    pairs = zip(one.counts, other.counts, strict=True)
    return max((abs(a / one.count - b / other.count) for a, b in pairs), default=0.0)


def recording_time_needed(
    baseline: Side, candidate: Side, differences: Mapping[str, Difference], margin: float
) -> Iterator[Caution]:
    """The recording time after which the verdict would be the same or different, by the headline measure that needs
    most. Errors fall with the root of the recording time."""
    shorter = min(baseline.run.duration_s, candidate.run.duration_s)
    seconds = {
        one.title: shorter * (_HALF_WIDTHS * share) ** 2
        for one in HEADLINES
        if (share := _half_width(one, differences[one.id], margin)) is not None
    }
    if not seconds:
        return
    title = max(seconds, key=lambda name: seconds[name])
    within = f"the same within {100 * margin:.0f} %"
    if seconds[title] > _MAX_RECORDING_S:
        text = f"even hours of this load would not show whether {title} is {within} or different. Use a steadier load"
    else:
        text = (
            f"too short to show whether {title} is {within} or different: record at least"
            f" {ceil(seconds[title] / 60)} min of this load for each run"
        )
    yield Caution("recording_too_short", _NOTE, text)


def _half_width(measure: Measure, found: Difference, margin: float) -> float | None:
    """Half the width of an interval, in margins; None where more data would not narrow it or is not needed."""
    low, high = found.low, found.high
    if found.verdict is not DifferenceVerdict.NOT_SHOWN or low is None or high is None or low == high:
        return None
    if measure.scale is Scale.DIFFERENCE:
        return (high - low) / 2 / measure.margin
    return None if low <= -1 else (log1p(high) - log1p(low)) / 2 / log1p(margin)


# -- one run ------------------------------------------------------------------------------------------------------


def of_run(side: Side) -> Iterator[Caution]:
    """Whether a run was undisturbed, warm and settled."""
    run, totals = side.run, side.totals
    times = "once" if run.restarts == 1 else f"{run.restarts} times"
    up_s = None if run.up_since is None else run.began_at - run.up_since
    cold = up_s is not None and 0 <= up_s < _COLD_S and not run.warmup_s
    first, last = _in_thirds(side)
    finished = totals.sum(_FINISHED)
    failed = totals.sum(f"{_FINISHED}/error") + totals.sum(f"{_FINISHED}/abort")
    return _cautions([
        (run.restarts > 0, _WARNING, "restarted",
         f"the server restarted {times} during {run.name}: requests were lost, and the cache began empty"),
        (run.several_servers, _WARNING, "several_servers",
         f"several servers answered in turn in {run.name}, so increases are unknown. Record one of them"),
        (run.failed_scrapes > _FAILED_SCRAPES * run.scrapes, _WARNING, "failed_scrapes",
         f"{run.failed_scrapes} of {run.scrapes} scrapes of {run.name} failed: what happened meanwhile is unknown"),
        (run.unread > 0, _NOTE, "unread", f"{run.unread} unreadable lines of {run.name} were skipped"),
        (cold, _WARNING, "cold",
         (f"{run.name} begins {format_duration(up_s or 0.0)} after the server started, without a warm-up: the first"
          " requests are slow. Record with --warmup")),
        (last > 2 and last - first > _GROWTH * last, _WARNING, "not_settled",
         (f"requests in the server grew from {format_number(first)} to {format_number(last)} in {run.name}: it"
          " finishes fewer than arrive. Latencies depend on the length of the run, and intervals are wide")),
        (failed > _FAILED_REQUESTS * finished, _WARNING, "failing",
         (f"{100 * failed / (finished or 1):.0f} % of the requests of {run.name} failed or were aborted: latencies"
          " are those of the others")),
    ])  # fmt: skip


def _in_thirds(side: Side) -> tuple[float, float]:
    """Mean requests in the server in the first and the last third of a run; 0 if it has too few steps."""
    inside = side.run.series.per_second(RUNNING) + side.run.series.per_second(WAITING)
    third = len(inside) // 3
    if third < _MIN_STEPS:
        return 0.0, 0.0
    return float(inside[:third].mean()), float(inside[-third:].mean())


def of_lengths(sides: Sequence[Side]) -> Iterator[Caution]:
    """Runs too short for the worst case."""
    shortest = min(side.run.duration_s for side in sides)
    text = (
        f"runs of {format_duration(shortest)} say nothing about the worst case: record 30 min of steady load"
    )
    return _cautions([(shortest < _WORST_CASE_S - 1, _NOTE, "short", text)])
