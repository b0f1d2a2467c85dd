"""The comparison of runs with the first of them: all that a report shows."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from kvwatch.experiment.cautions import (
    Caution,
    load_ratio,
    of_lengths,
    of_pair,
    of_run,
    recording_time_needed,
    warnings_first,
)
from kvwatch.experiment.configuration import Change, changes
from kvwatch.experiment.differences import (
    DIFFERENT,
    Difference,
    DifferenceVerdict,
    differences,
    overall,
    same_within,
)
from kvwatch.experiment.estimate import Side, estimate_run
from kvwatch.experiment.measured_run import MeasuredRun
from kvwatch.experiment.measures import HEADLINES, MEASURES

MARGIN = 0.1
"""Default share of the baseline that does not matter."""


@dataclass(frozen=True, slots=True)
class Candidate:
    """A run compared with the baseline. `verdict` is None if some headline measures are better and others worse.
    `same_within` is the smallest margin with which the runs are the same, where no difference is shown."""

    side: Side
    changed: tuple[Change, ...]
    cautions: tuple[Caution, ...]
    differences: Mapping[str, Difference]
    verdict: DifferenceVerdict | None
    same_within: float | None = None
    load_ratio: float | None = None
    """Arrival rate over that of the baseline, if they differ too much for a comparison."""


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
    """Compares each run after the first with the first; at least two."""
    baseline, *others = sides = [estimate_run(run, MEASURES) for run in runs]
    cautions = [one for side in sides for one in of_run(side)] + list(of_lengths(sides))
    candidates = tuple([_candidate(baseline, side, margin) for side in others])
    return Comparison(baseline, candidates, warnings_first(cautions), margin)


def _candidate(baseline: Side, side: Side, margin: float) -> Candidate:
    changed = changes(baseline.run.configuration, side.run.configuration)
    found = differences(MEASURES, baseline.by_id, side.by_id, margin=margin)
    headlines = [found[one.id] for one in HEADLINES]
    verdict = overall(headlines)
    cautions = list(of_pair(baseline, side, changed, any(one.verdict in DIFFERENT for one in headlines)))
    within = None
    if verdict is DifferenceVerdict.NOT_SHOWN:
        cautions += recording_time_needed(baseline, side, found, margin)
        within = same_within(HEADLINES, found)
    return Candidate(
        side, tuple(changed), warnings_first(cautions), found, verdict, within, load_ratio(baseline, side)
    )
