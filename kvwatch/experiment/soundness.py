"""What to know of one run by itself: whether it was undisturbed, settled and long enough."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from kvwatch.experiment.caution import Caution, Side, Weight
from kvwatch.experiment.series import RUNNING, WAITING, per_second
from kvwatch.text.numbers import format_duration, format_number

WORST_CASE_S = 1800.0
"""Seconds of steady load from which a run may speak of the worst case."""
_FAILED, _ERRORS = 0.01, 0.05
"""Shares of failed scrapes, and of requests that failed or were aborted, from which a run is disturbed."""
_COLD_S = 120.0
"""Seconds after its start in which a server is not yet warm."""
_GREW, _FEW_STEPS = 0.5, 8
"""A run has not settled if this share of the requests in its last third came on top of those in its first; thirds of
fewer steps tell nothing."""


def of_run(side: Side) -> list[Caution]:
    """What to know of a run."""
    return [caution for check in _RUNS for caution in check(side)]


def _interrupted(side: Side) -> Iterator[Caution]:
    run = side.run
    if run.restarts:
        times = "once" if run.restarts == 1 else f"{run.restarts} times"
        yield Caution(
            "restarted",
            Weight.WARNING,
            f"the server restarted {times} during {run.name}: requests were lost, and the cache began empty",
        )
    if run.several_servers:
        yield Caution(
            "several_servers",
            Weight.WARNING,
            f"several servers answered in turn in {run.name}, so that no increase can be told: record one of them",
        )
    if run.failed > _FAILED * run.scrapes:
        yield Caution(
            "failed_scrapes",
            Weight.WARNING,
            f"{run.failed} of {run.scrapes} scrapes of {run.name} failed: what happened meanwhile is not known",
        )
    if run.unread:
        yield Caution(
            "unread", Weight.NOTE, f"{run.unread} lines of {run.name} could not be read and were left out"
        )


def _start(side: Side) -> Iterator[Caution]:
    run = side.run
    if run.up_since is not None and 0 <= run.began - run.up_since < _COLD_S and not run.warmup_s:
        yield Caution(
            "cold",
            Weight.WARNING,
            f"{run.name} begins {format_duration(run.began - run.up_since)} after the server's start,"
            " without a warm-up: first requests are slow. Record with --warmup",
        )


def _settled(side: Side) -> Iterator[Caution]:
    series = side.run.series
    inside = [a + b for a, b in zip(per_second(series, RUNNING), per_second(series, WAITING), strict=True)]
    third = len(inside) // 3
    if third < _FEW_STEPS:
        return
    first, last = sum(inside[:third]) / third, sum(inside[-third:]) / third
    if last > 2 and last - first > _GREW * last:
        yield Caution(
            "not_settled",
            Weight.WARNING,
            f"requests in the server grew from {format_number(first)} to {format_number(last)} in {side.run.name}:"
            " it takes less than was sent, so latencies are those of this length of run, and intervals are wide",
        )


def _failing(side: Side) -> Iterator[Caution]:
    finished = side.estimates.totals.sum("requests_finished_total")
    bad = sum(side.estimates.totals.sum(f"requests_finished_total/{why}") for why in ("error", "abort"))
    if finished and bad > _ERRORS * finished:
        yield Caution(
            "failing",
            Weight.WARNING,
            f"{bad / finished:.0%} of the requests of {side.run.name} failed or were aborted: latencies are those of"
            " the others",
        )


_RUNS: tuple[Callable[[Side], Iterator[Caution]], ...] = (_interrupted, _start, _settled, _failing)


def of_lengths(sides: Sequence[Side]) -> list[Caution]:
    """Runs too short for the worst case."""
    shortest = min(side.run.duration_s for side in sides)
    if shortest >= WORST_CASE_S - 1:
        return []
    return [
        Caution(
            "short",
            Weight.NOTE,
            f"runs of {format_duration(shortest)} say nothing of the worst case: that takes"
            " 30 min or more of steady load",
        )
    ]
