"""The error of a run, and that what is said to hold in 95 of 100 cases does."""

from __future__ import annotations

import random
from itertools import pairwise
from statistics import fmean

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvwatch.experiment.bootstrap import _block_sums, block_length, optimal_length, resample
from kvwatch.experiment.differences import (
    DIFFERENT,
    DifferenceVerdict,
    critical,
    differences,
    two_sided,
    welch,
)
from kvwatch.experiment.estimate import estimate_run
from kvwatch.experiment.measured_run import MeasuredRun
from kvwatch.experiment.measures import MEASURES, Measure
from kvwatch.experiment.series import SECONDS, RunSeries, column
from tests.experiment.simulation import simulated

BY_ID = {one.id: one for one in MEASURES}
LOOKED_AT = [
    BY_ID[name] for name in ("ttft_mean_seconds", "ttft_p95_seconds", "generation_tokens_per_second")
]


def run_with(series: RunSeries) -> MeasuredRun:
    return MeasuredRun(
        name="simulated",
        began_at=0.0,
        duration_s=float(series.ends[-1]),
        warmup_s=0.0,
        interval_s=1.0,
        scrapes=len(series.ends),
        failed_scrapes=0,
        restarts=0,
        several_servers=False,
        unread=0,
        engines=1,
        models=("m",),
        generation="v1",
        up_since=None,
        in_server_at_ends=(0.0, 0.0),
        peaks={},
        series=series,
    )


def verdicts(first: RunSeries, second: RunSeries, measures: list[Measure]) -> dict[str, DifferenceVerdict]:
    """What is said of two runs, each measure by itself."""
    before, after = (estimate_run(run_with(one), measures).by_id for one in (first, second))
    alone = {one.id: differences([one], before, after, margin=0.1)[one.id] for one in measures}
    return {name: found.verdict for name, found in alone.items()}


@pytest.mark.parametrize(
    ("chance", "df", "expected"),
    [
        (0.05, 1, 12.706),
        (0.05, 5, 2.571),
        (0.05, 9, 2.262),
        (0.05, 30, 2.042),
        (0.01, 10, 3.169),
        (0.05, 1e7, 1.960),
    ],
)
def test_critical_values_are_those_of_the_printed_tables(chance: float, df: float, expected: float) -> None:
    assert critical(chance, df) == pytest.approx(expected, abs=6e-4)
    assert two_sided(expected, df) == pytest.approx(chance, rel=2e-3)


def test_degrees_of_freedom_lie_between_the_smaller_and_the_sum() -> None:
    assert welch((1.0, 9), (1.0, 9)) == pytest.approx(18)
    assert welch((1.0, 9), (0.0, 9)) == pytest.approx(9)
    assert welch((1.0, 4), (1e-6, 100)) == pytest.approx(4, rel=1e-3)


@given(st.lists(st.floats(0, 100), min_size=3, max_size=40), st.integers(1, 3))
def test_blocks_go_round_and_each_step_is_in_as_many(values: list[float], length: int) -> None:
    sums = _block_sums(np.array(values), length)
    assert len(sums) == len(values)
    assert sum(sums) == pytest.approx(length * sum(values), abs=1e-6)
    assert sums[-1] == pytest.approx(sum([values[-1], *values[: length - 1]]), abs=1e-6)


def test_what_resembles_itself_for_longer_has_longer_blocks() -> None:
    def mean_length(memory: float) -> float:
        chance = random.Random(3)
        found = []
        for _ in range(10):
            value, values = 0.0, []
            for _ in range(400):
                value = memory * value + chance.gauss(0, 1)
                values.append(value)
            found.append(optimal_length(np.array(values)))
        return fmean(found)

    lengths = [mean_length(memory) for memory in (0.0, 0.5, 0.9)]
    assert all(2 * shorter < longer for shorter, longer in pairwise(lengths))
    assert lengths[0] < 5
    assert optimal_length(np.full(50, 0.1)) == 1.0


def test_a_block_is_a_tenth_of_the_run_or_longer_and_the_blocks_there_are_count() -> None:
    calm, slow = simulated(random.Random(1), memory=0.0), simulated(random.Random(1), memory=0.98)
    assert block_length(calm) == 15
    assert block_length(slow) > 150 / 8
    found = [resample(one) for one in (calm, slow)]
    assert found[0] is not None
    assert found[1] is not None
    assert found[0].blocks == 10
    assert 3 <= found[1].blocks < 8
    assert found[0].block_s == pytest.approx(15)
    assert resample(simulated(random.Random(1), steps=20)) is None


def test_the_same_run_gives_the_same_error_and_draws_are_as_long_as_the_run() -> None:
    series = simulated(random.Random(2))
    first, second = resample(series), resample(series)
    assert first is not None
    assert second is not None
    total = column("time_to_first_token_seconds", "sum")
    assert first.error(first.sum(total)) == second.error(second.sum(total)) != 0
    (drawn,) = set(first.sum(SECONDS))
    assert 150 <= drawn < 150 + first.block_s


def test_runs_alike_are_called_different_about_as_seldom_as_is_said() -> None:
    """200 pairs of runs that differ by chance alone: about one in twenty of each measure is called different."""
    chance = random.Random(20)
    wrong = dict.fromkeys([one.id for one in LOOKED_AT], 0)
    for _ in range(200):
        said = verdicts(simulated(chance), simulated(chance), LOOKED_AT)
        for name, verdict in said.items():
            wrong[name] += verdict in DIFFERENT
    assert all(2 <= times <= 24 for times in wrong.values()), wrong


def test_what_differs_is_found() -> None:
    """Times to first token twice as long: the mean is nearly always worse, p95, of fewer observations, less often."""
    chance = random.Random(4)
    slower = [verdicts(simulated(chance), simulated(chance, factor=2.0), LOOKED_AT) for _ in range(20)]
    assert sum(one["ttft_mean_seconds"] is DifferenceVerdict.WORSE for one in slower) >= 18
    assert sum(one["ttft_p95_seconds"] is DifferenceVerdict.WORSE for one in slower) >= 5
    assert not any(one[name] is DifferenceVerdict.BETTER for one in slower for name in one)
    faster = verdicts(simulated(chance), simulated(chance, factor=0.2), LOOKED_AT)
    assert faster["ttft_mean_seconds"] is faster["ttft_p95_seconds"] is DifferenceVerdict.BETTER


def test_long_calm_runs_are_called_the_same() -> None:
    chance = random.Random(6)
    said = verdicts(
        simulated(chance, steps=1800, memory=0.2), simulated(chance, steps=1800, memory=0.2), LOOKED_AT
    )
    assert said["generation_tokens_per_second"] is said["ttft_mean_seconds"] is DifferenceVerdict.SAME
