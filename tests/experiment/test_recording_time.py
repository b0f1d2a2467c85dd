"""How long to record is said so that it is long enough."""

from __future__ import annotations

import random

from kvwatch.experiment.cautions import recording_time_needed
from kvwatch.experiment.comparison import compare
from kvwatch.experiment.differences import Difference, DifferenceVerdict, differences
from kvwatch.experiment.estimate import Side, estimate_run
from kvwatch.experiment.measures import HEADLINES, MEASURES
from kvwatch.experiment.series import Totals
from tests.experiment.conftest import Recorded
from tests.experiment.simulation import simulated
from tests.experiment.test_bootstrap import run_with

BY_ID = {one.id: one for one in MEASURES}
TOKENS, WAITING = "generation_tokens_per_second", "requests_waiting_mean"


def side(seconds: float) -> Side:
    run = run_with(simulated(random.Random(1), steps=round(seconds)))
    return Side(run, Totals({}, {}), {})


def said(seconds: float, **found: Difference) -> str:
    """What is said of runs so long, in which every other headline is the same."""
    same = {one.id: Difference(DifferenceVerdict.SAME, 0.0, -0.01, 0.01, 0.5) for one in HEADLINES}
    cautions = recording_time_needed(side(seconds), side(2 * seconds), same | found, 0.1)
    return "".join(one.text for one in cautions)


def not_shown(low: float, high: float) -> Difference:
    return Difference(DifferenceVerdict.NOT_SHOWN, 0.0, low, high, 0.5)


def test_time_rises_with_the_square_of_the_width() -> None:
    """Of the shorter run, and for the measure that needs most."""
    text = said(600, **{TOKENS: not_shown(-1 / 11, 0.1)})
    assert "whether generated tokens is the same within 10 % or different: record at least 40 min" in text
    assert "at least 160 min" in said(600, **{TOKENS: not_shown(1 / 1.21 - 1, 0.21)})
    both = said(600, **{TOKENS: not_shown(-1 / 11, 0.1), WAITING: not_shown(-1.0, 1.0)})
    assert "waiting, mean is" in both
    assert "at least 160 min" in both


def test_what_no_length_would_tell_gets_no_length() -> None:
    assert said(600) == ""
    assert said(600, **{TOKENS: Difference(DifferenceVerdict.NOT_SHOWN, None, None, None)}) == ""
    assert said(600, **{TOKENS: Difference(DifferenceVerdict.NOT_ENOUGH, 0.0)}) == ""
    assert "even hours" in said(600, **{TOKENS: not_shown(-0.9, 9.0)})


def test_runs_as_long_as_is_said_are_called_the_same() -> None:
    """Of runs that differ by chance alone, about 85 %."""
    chance, measure = random.Random(5), BY_ID[TOKENS]

    def found(seconds: int) -> Difference:
        first, second = (simulated(chance, steps=seconds, memory=0.8) for _ in range(2))
        before, after = (estimate_run(run_with(one), [measure]).by_id for one in (first, second))
        return differences([measure], before, after, margin=0.1)[TOKENS]

    called = []
    for _ in range(12):
        short = found(150)
        if short.verdict is not DifferenceVerdict.NOT_SHOWN:
            continue  # the same already, or the one in twenty that is called different
        minutes = int(said(150, **{TOKENS: short}).split(" at least ")[1].split()[0])
        called.append(found(60 * minutes).verdict)
    assert len(called) >= 8
    assert called.count(DifferenceVerdict.SAME) >= 0.75 * len(called)


def test_a_report_says_it(recorded: Recorded) -> None:
    (candidate,) = compare([recorded("base-a"), recorded("base-c")]).candidates
    (caution,) = [one for one in candidate.cautions if one.id == "recording_too_short"]
    assert "within 10 %" in caution.text
