"""Recorded runs of real servers."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from pathlib import Path

import pytest

from kvwatch.core.judgement.policy import Policy
from kvwatch.experiment.measured_run import MeasuredRun, run_of
from kvwatch.recording import Record, read

RECORDINGS = Path(__file__).parents[1] / "replay" / "recordings"
Recorded = Callable[[str], MeasuredRun]


@cache
def _run(name: str) -> MeasuredRun:
    own = Path(__file__).parent / "recordings" / f"{name}.jsonl.gz"
    path = own if own.exists() else RECORDINGS / f"{name}.jsonl.gz"
    return run_of(read(path), name, Policy())


@pytest.fixture(scope="session")
def recorded() -> Recorded:
    """A recording by its name, as a run."""
    return _run


@pytest.fixture(scope="session")
def pages() -> Callable[[str], list[Record]]:
    """The records of a recording by its name."""
    return lambda name: [one for one in read(RECORDINGS / f"{name}.jsonl.gz") if isinstance(one, Record)]
