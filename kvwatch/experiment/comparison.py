"""Runs against the first of them: everything that a report says."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from kvwatch.experiment.caution import Caution, Side, Weight
from kvwatch.experiment.comparability import of_pair, unexplained
from kvwatch.experiment.configuration import Change, changes
from kvwatch.experiment.differences import (
    SHOWN,
    Difference,
    DifferenceVerdict,
    differences,
    overall,
    same_within,
)
from kvwatch.experiment.estimate import estimates_of
from kvwatch.experiment.longer import how_long
from kvwatch.experiment.measured_run import MeasuredRun
from kvwatch.experiment.measures import HEADLINES, MEASURES
from kvwatch.experiment.soundness import of_lengths, of_run

MARGIN = 0.1
"""A difference of a tenth matters to nobody, unless told otherwise."""


@dataclass(frozen=True, slots=True)
class Candidate:
    """A run against the baseline. `verdict` is None where some headline measures are better and others worse."""

    side: Side
    changed: tuple[Change, ...]
    cautions: tuple[Caution, ...]
    differences: Mapping[str, Difference]
    verdict: DifferenceVerdict | None
    same_within: float | None = None
    """Where no difference is shown: the least margin with which the runs are the same."""

    @property
    def headlines(self) -> dict[str, Difference]:
        return {one.id: self.differences[one.id] for one in HEADLINES}


@dataclass(frozen=True, slots=True)
class Comparison:
    """All runs. `cautions` are those of single runs and of all together; `margin` is a share."""

    baseline: Side
    candidates: tuple[Candidate, ...]
    cautions: tuple[Caution, ...]
    margin: float

    @property
    def sides(self) -> tuple[Side, ...]:
        return (self.baseline, *(one.side for one in self.candidates))


def compare(runs: Sequence[MeasuredRun], *, margin: float = MARGIN) -> Comparison:
    """The first run against each of the others; two or more."""
    sides = [Side(run, estimates_of(run, MEASURES)) for run in runs]
    baseline, *others = sides
    own = [caution for side in sides for caution in of_run(side)] + of_lengths(sides)
    return Comparison(
        baseline,
        tuple([_candidate(baseline, other, margin) for other in others]),
        _weighed(own),
        margin,
    )


def _candidate(baseline: Side, side: Side, margin: float) -> Candidate:
    changed = changes(baseline.run.configuration, side.run.configuration)
    found = differences(MEASURES, baseline.estimates.by_id, side.estimates.by_id, margin=margin)
    headlines = [found[one.id] for one in HEADLINES]
    strange = unexplained(changed, any(one.verdict in SHOWN for one in headlines))
    verdict = overall(headlines)
    hidden = verdict is DifferenceVerdict.NOT_SHOWN
    more = how_long(baseline, side, found, margin) if hidden else None
    within = same_within(HEADLINES, found) if hidden else None
    cautions = of_pair(baseline, side, changed) + [one for one in (strange, more) if one is not None]
    return Candidate(side, tuple(changed), _weighed(cautions), found, verdict, within)


def _weighed(cautions: Sequence[Caution]) -> tuple[Caution, ...]:
    """Warnings before notes."""
    return tuple(sorted(cautions, key=lambda one: one.weight is not Weight.WARNING))
