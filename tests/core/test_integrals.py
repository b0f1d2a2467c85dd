"""Windows out of integrals that go on, against the same windows summed up sample by sample."""

from __future__ import annotations

from itertools import accumulate

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvwatch.core.history.integrals import (
    RUNNING,
    USAGE,
    USAGE_KNOWN,
    WAITING,
    Integral,
    integral_over,
    integrate,
)
from kvwatch.core.history.regimes import Regime
from kvwatch.core.history.window import TRACKED, Sample, weights
from kvwatch.core.model.timed_rows import History, cut

shown = st.tuples(
    st.sampled_from([0.25, 1.0, 1.7, 15.0]),  # since the sample before
    st.booleans(),  # a gap lies between
    st.sampled_from([None, 0.0, 0.3, 1.0]),
    st.sampled_from([None, 0.0, 3.0]),
    st.sampled_from([None, 0.0, 2.0]),
    st.sampled_from(list(Regime)),
)


_LONGEST = 300.0


def watched(
    moments: list[tuple[float, bool, float | None, float | None, float | None, Regime]],
) -> tuple[list[Sample], History[Integral]]:
    """Such samples, and their integrals, gone on from one to the next."""
    integrals: History[Integral] = History()
    samples = []
    times = accumulate(moment[0] for moment in moments)
    covered = accumulate(0.0 if gap else dt for dt, gap, *_ in moments)
    for t, seen, (_, _, usage, running, waiting, regime) in zip(times, covered, moments, strict=True):
        totals = (None,) * len(TRACKED)
        samples.append(Sample(t, seen, usage, running, waiting, 0.0, None, regime.value, totals))
        integrals = integrate(integrals, samples[-1])
    return samples, integrals


@given(st.lists(shown, min_size=1, max_size=80), st.floats(0, 400))
def test_a_window_is_what_its_samples_add_up_to(
    moments: list[tuple[float, bool, float | None, float | None, float | None, Regime]], seconds: float
) -> None:
    """Whatever the spacing, the gaps, and wherever the window begins."""
    samples, integrals = watched(moments)
    start = samples[-1].t - min(seconds, _LONGEST)
    found, held = integral_over(integrals, start), weights(cut(samples, start), start)
    for regime in Regime:
        expected = sum(s for row, s in held if row.regime == regime)
        assert found[regime] == pytest.approx(expected, abs=1e-6)
    assert found[USAGE] == pytest.approx(sum((row.usage or 0.0) * s for row, s in held), abs=1e-6)
    assert found[USAGE_KNOWN] == pytest.approx(sum(s for row, s in held if row.usage is not None), abs=1e-6)
    assert found[RUNNING] == pytest.approx(sum(s for row, s in held if row.running), abs=1e-6)
    assert found[WAITING] == pytest.approx(sum(s for row, s in held if row.waiting), abs=1e-6)


def test_a_window_of_one_sample_is_empty() -> None:
    """One sample stands for no time."""
    _, integrals = watched([(1.0, False, 1.0, 1.0, 1.0, Regime.FULL)])
    assert set(integral_over(integrals, 0.0).values()) == {0.0}
