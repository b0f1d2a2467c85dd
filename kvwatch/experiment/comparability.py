"""Whether two runs can be held against each other: what else differed than what was meant to."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import sqrt
from operator import ne
from typing import Any

from kvwatch.core.model.snapshot import Histogram
from kvwatch.experiment.caution import Caution, Side, Weight
from kvwatch.experiment.configuration import Change, options_changed
from kvwatch.experiment.measured_run import MeasuredRun
from kvwatch.experiment.series import SECONDS
from kvwatch.text.numbers import format_duration, format_number

_ALIKE = 0.1
"""Loads that differ by less than a tenth are alike."""
_SPACINGS, _DURATIONS = 1.5, 1.25
"""Scrapes this many times as far apart, or runs this many times as long, are worth a word."""
_KOLMOGOROV = 1.63
"""Two samples of one distribution differ by more than this × √(1/n + 1/m) once in a hundred times."""


def of_pair(baseline: Side, candidate: Side, changed: Sequence[Change]) -> list[Caution]:
    """What differs between two runs beside the result."""
    found = [_configuration(changed), *(check(baseline, candidate) for check in _PAIRS)]
    return [one for one in found if one is not None]


def _configuration(changed: Sequence[Change]) -> Caution | None:
    options = options_changed(list(changed))
    if options == 1:
        return None
    if options == 0:
        return Caution(
            "no_option_changed",
            Weight.NOTE,
            "no option is seen to differ: fine for two runs of one configuration; else it is one that vLLM's metrics"
            " do not show (--max-num-batched-tokens, --tensor-parallel-size, …)",
        )
    names = ", ".join(change.title for change in changed if not change.follows)
    return Caution(
        "several_options_changed",
        Weight.WARNING,
        f"{options} options differ ({names}): which of them made the difference can't be told. Change one at a time",
    )


def _arrivals(baseline: Side, candidate: Side) -> Caution | None:
    before, after = arrivals(baseline), arrivals(candidate)
    if before is None or after is None or max(before[1], after[1]) <= 0:
        return None
    spread = abs(after[1] - before[1])
    noise = 2 * sqrt(before[1] ** 2 / max(before[0], 1) + after[1] ** 2 / max(after[0], 1))
    if spread <= _ALIKE * max(before[1], after[1]) or spread <= noise:
        return None
    return Caution(
        "arrivals",
        Weight.WARNING,
        f"the load was not alike: {format_number(before[1])} and {format_number(after[1])}"
        " requests/s arrived. Latencies and usage"
        " follow the load; send the same requests at the same times",
    )


def arrivals(side: Side) -> tuple[float, float] | None:
    """Requests that arrived, in all and per second: those that finished, and by how many more were in the server
    at the end. Those that clients gave up are not seen."""
    run, totals = side.run, side.estimates.totals
    seconds = totals.sum(SECONDS)
    if "requests_finished_total" in run.missing or seconds <= 0 or run.restarts:
        return None
    begin, end = run.in_server_at_ends
    came = max(totals.sum("requests_finished_total") + end - begin, 0.0)
    return came, came / seconds


def _lengths(signal: str, title: str) -> Callable[[Side, Side], Caution | None]:
    def check(baseline: Side, candidate: Side) -> Caution | None:
        before, after = (side.estimates.totals.histogram(signal) for side in (baseline, candidate))
        apart = distance(before, after)
        if apart is None or apart <= _ALIKE:
            return None
        if apart <= _KOLMOGOROV * sqrt(1 / before.count + 1 / after.count):
            return None
        means = " and ".join(format_number(one.sum / one.count) for one in (before, after))
        return Caution(
            f"{title.split(maxsplit=1)[0]}_lengths",
            Weight.WARNING,
            f"the {title} were not alike (mean {means} tokens; {apart:.0%} of the requests are of other lengths):"
            " use the same prompts",
        )

    return check


def distance(one: Histogram, other: Histogram) -> float | None:
    """The largest difference between two distributions, 0-1 (Kolmogorov and Smirnov), at the bounds of buckets; None
    without observations or with other bounds."""
    if one.count <= 0 or other.count <= 0 or one.bounds != other.bounds:
        return None
    return max(
        (abs(a / one.count - b / other.count) for a, b in zip(one.counts, other.counts, strict=True)),
        default=0.0,
    )


def _same_run(baseline: Side, candidate: Side) -> Caution | None:
    if baseline.run.began != candidate.run.began or baseline.run.series != candidate.run.series:
        return None
    return Caution("same_run", Weight.WARNING, "both are one and the same recording")


@dataclass(frozen=True, slots=True)
class _Fact:
    """Something of a run that should be alike in both: what it is, when it is not, and what to say of it then."""

    id: str
    weight: Weight
    of: Callable[[MeasuredRun], Any]
    apart: Callable[[Any, Any], bool]
    text: Callable[[Any, Any], str]

    def __call__(self, baseline: Side, candidate: Side) -> Caution | None:
        before, after = self.of(baseline.run), self.of(candidate.run)
        return Caution(self.id, self.weight, self.text(before, after)) if self.apart(before, after) else None


def _times_apart(times: float) -> Callable[[float, float], bool]:
    return lambda a, b: max(a, b) > times * min(a, b)


_PAIRS: tuple[Callable[[Side, Side], Caution | None], ...] = (
    _same_run,
    _Fact(
        "models",
        Weight.WARNING,
        lambda run: run.models,
        ne,
        lambda a, b: f"the models served differ: {', '.join(a) or 'none'} and {', '.join(b) or 'none'}",
    ),
    _Fact(
        "engines",
        Weight.NOTE,
        lambda run: run.engines,
        ne,
        lambda a, b: f"{a} and {b} engines: throughput and waiting are those of the whole server",
    ),
    _arrivals,
    _lengths("request_prompt_tokens", "prompt lengths"),
    _lengths("request_generation_tokens", "generation lengths"),
    _Fact(
        "generations",
        Weight.NOTE,
        lambda run: run.generation,
        ne,
        lambda a, b: (
            f"engines of {a} and {b}: signals that one of them lacks are not compared, and preemptions are counted"
            " otherwise"
        ),
    ),
    _Fact(
        "durations",
        Weight.NOTE,
        lambda run: run.duration_s,
        _times_apart(_DURATIONS),
        lambda a, b: (
            f"{format_duration(a)} and {format_duration(b)} are compared: the longer run sees rarer"
            " peaks, and a queue that grows"
            " grows longer"
        ),
    ),
    _Fact(
        "intervals",
        Weight.NOTE,
        lambda run: run.interval_s,
        _times_apart(_SPACINGS),
        lambda a, b: (
            f"scraped every {format_duration(a)} and every {format_duration(b)}: peaks and shares of"
            " time are seen less well at the"
            " longer one"
        ),
    ),
)


def unexplained(changed: Sequence[Change], differs: bool) -> Caution | None:
    """Runs of what looks like one configuration that are called different."""
    if changed or not differs:
        return None
    return Caution(
        "differs_unchanged",
        Weight.WARNING,
        "nothing is seen to have changed, and yet the runs differ: something that is not seen did (what else ran"
        " on the machine, the order of requests). A difference of other runs that is no larger means nothing",
    )


def requests_per_second(side: Side) -> float | None:
    """Requests that arrived per second."""
    came = arrivals(side)
    return came[1] if came else None
