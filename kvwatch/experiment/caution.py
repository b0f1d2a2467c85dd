"""What to know when two runs are held against each other: the words for it."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from kvwatch.experiment.estimate import Estimates
from kvwatch.experiment.measured_run import MeasuredRun


class Weight(StrEnum):
    """WARNING: what the report says may have another cause. NOTE: what to know when reading it."""

    WARNING = "warning"
    NOTE = "note"


@dataclass(frozen=True, slots=True)
class Caution:
    """One thing to know, and what to do about it."""

    id: str
    weight: Weight
    text: str


@dataclass(frozen=True, slots=True)
class Side:
    """A run with its numbers."""

    run: MeasuredRun
    estimates: Estimates
