"""From verdicts to states: hold times to the second, and unknown, which neither fires nor resolves."""

from collections.abc import Iterable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvwatch.core.judgement.lifecycle import Lifecycle, Stage, next_lifecycle
from kvwatch.core.judgement.symptoms import Judgement, Verdict

A, C, U = Verdict.ACTIVE, Verdict.CLEAR, Verdict.UNKNOWN
INACTIVE, PENDING, FIRING, UNKNOWN = Stage.INACTIVE, Stage.PENDING, Stage.FIRING, Stage.UNKNOWN


def run(
    verdicts: Iterable[tuple[float, Verdict]], for_s: float = 5, keep_s: float = 3, grace_s: float = 10
) -> list[Lifecycle]:
    """The states after each verdict."""
    life, found = Lifecycle(), []
    for now, verdict in verdicts:
        life = next_lifecycle(life, Judgement(verdict), now, for_s=for_s, keep_s=keep_s, grace_s=grace_s)
        found.append(life)
    return found


def stages(
    verdicts: Iterable[tuple[float, Verdict]], for_s: float = 5, keep_s: float = 3, grace_s: float = 10
) -> list[Stage]:
    return [life.stage for life in run(verdicts, for_s, keep_s, grace_s)]


def every_second(word: str) -> list[tuple[float, Verdict]]:
    """One verdict a second, by letter."""
    return [(float(i), {"a": A, "c": C, "u": U}[letter]) for i, letter in enumerate(word)]


def test_fires_at_the_second_it_has_held() -> None:
    """Active for `for_s`: pending before, firing exactly then."""
    assert stages(every_second("aaaaaaa")) == [PENDING] * 5 + [FIRING] * 2


def test_a_moment_less_is_no_firing() -> None:
    """Clear one second before the time is up starts all over."""
    assert stages(every_second("aaaaacaaaaa")) == [PENDING] * 5 + [INACTIVE] + [PENDING] * 5


def test_without_a_hold_time_it_fires_at_once() -> None:
    """`for_s` of zero fires at the first active verdict, `keep_s` of zero ends at the first clear one."""
    assert stages(every_second("cac"), for_s=0, keep_s=0) == [INACTIVE, FIRING, INACTIVE]


def test_is_over_at_the_second_it_was_clear_for_long_enough() -> None:
    """Clear for `keep_s`: the first clear verdict starts the clock, an active one stops it."""
    assert stages(every_second("acccc"), for_s=0) == [FIRING] * 4 + [INACTIVE]
    assert stages(every_second("accca" + "ccca"), for_s=0) == [FIRING] * 9


def test_verdicts_far_apart_count_the_time_between() -> None:
    """Hold times are seconds, not verdicts."""
    assert stages([(0, A), (4.9, A), (5.0, A)]) == [PENDING, PENDING, FIRING]
    assert stages([(0, A), (100, A)]) == [PENDING, FIRING]


def test_unknown_neither_fires_nor_resolves() -> None:
    """While unknown the clocks stand still, in pending as in firing."""
    assert stages(every_second("aaa" + "uuuuu" + "aaa")) == [PENDING] * 11
    assert stages(every_second("aaa" + "uuuuu" + "aaaa")) == [PENDING] * 11 + [FIRING]
    assert stages(every_second("a" + "cc" + "uuuuu" + "cc"), for_s=0) == [FIRING] * 10
    assert stages(every_second("a" + "cc" + "uuuuu" + "ccc"), for_s=0) == [FIRING] * 10 + [INACTIVE]


def test_unknown_shows_after_the_grace_period() -> None:
    """For `grace_s` an unknown verdict changes nothing; then it is a state of its own."""
    assert stages(every_second("c" + "u" * 12), grace_s=10) == [INACTIVE] * 11 + [UNKNOWN] * 2
    assert stages(every_second("a" + "u" * 12), for_s=0, grace_s=10) == [FIRING] * 11 + [UNKNOWN] * 2


def test_after_unknown_it_goes_on_where_it_was() -> None:
    """A firing symptom that comes back active fires; clear, it waits out its time."""
    word = "a" + "u" * 12
    assert stages(every_second(word + "a"), for_s=0)[-1] is FIRING
    assert stages(every_second(word + "c"), for_s=0)[-1] is FIRING
    assert stages(every_second(word + "cccc"), for_s=0)[-1] is INACTIVE
    assert stages(every_second("c" + "u" * 12 + "a"), for_s=5)[-1] is PENDING
    assert stages(every_second("aaaa" + "u" * 12 + "aaa"), for_s=5)[-1] is FIRING


def test_what_can_not_be_judged_any_more_goes_on() -> None:
    """It fires on while it is unknown, and what did not fire does not begin to."""
    lives = run(every_second("auuuc" + "ccc"), for_s=0, grace_s=1)
    assert [one.stage for one in lives] == [
        FIRING,
        FIRING,
        UNKNOWN,
        UNKNOWN,
        FIRING,
        FIRING,
        FIRING,
        INACTIVE,
    ]
    assert [one.still_firing for one in lives] == [True] * 7 + [False]
    assert not any(one.still_firing for one in run(every_second("auuu"), for_s=5, grace_s=1))


def test_evidence_is_of_the_last_verdict_that_was_known() -> None:
    """An unknown verdict gives its reason and leaves the evidence; a known one takes the reason away."""
    life = next_lifecycle(Lifecycle(), Judgement(A, {"x": 1}), 0, for_s=0, keep_s=0, grace_s=5)
    life = next_lifecycle(life, Judgement(U, {}, "gone"), 1, for_s=0, keep_s=0, grace_s=5)
    assert (life.evidence, life.reason) == ({"x": 1}, "gone")
    life = next_lifecycle(life, Judgement(C, {"x": 2}), 2, for_s=0, keep_s=0, grace_s=5)
    assert (life.evidence, life.reason) == ({"x": 2}, "")


def test_since_is_when_the_stage_began() -> None:
    """`since` is the time of the change, and of the first verdict at the start."""
    found = run(every_second("caaaaaaaccca"), for_s=5, keep_s=3)
    assert next((life.stage, life.since) for life in found if life.since is not None) == (INACTIVE, 0)
    firsts = {life.stage: life.since for life in reversed(found)}
    assert firsts[PENDING] == 1
    assert firsts[FIRING] == 6


verdicts = st.lists(
    st.tuples(st.sampled_from([0.0, 0.5, 1.0, 4.0, 30.0]), st.sampled_from([A, C, U])), max_size=60
)
hold = st.sampled_from([0.0, 1.0, 5.0, 20.0])


def times(moves: list[tuple[float, Verdict]]) -> list[tuple[float, Verdict]]:
    t, found = 0.0, []
    for dt, verdict in moves:
        t += dt
        found.append((t, verdict))
    return found


@given(verdicts, hold, hold, hold)
def test_a_change_has_a_cause(
    moves: list[tuple[float, Verdict]], for_s: float, keep_s: float, grace_s: float
) -> None:
    """It begins to fire only at an active verdict (or as it was), ends only at a clear one, hides only at unknown."""
    before = Lifecycle()
    held = INACTIVE
    for now, verdict in times(moves):
        life = next_lifecycle(before, Judgement(verdict), now, for_s=for_s, keep_s=keep_s, grace_s=grace_s)
        if before.stage is not UNKNOWN:
            held = before.stage
        if life.stage is FIRING and held is not FIRING:
            assert verdict is A
        if life.stage is INACTIVE and held is not INACTIVE:
            assert verdict is C
        if life.stage is UNKNOWN:
            assert verdict is U
        if verdict is U and life.stage is not UNKNOWN:
            assert life.stage is before.stage
        assert life.since is not None
        assert life.since <= now
        before = life


@given(verdicts, hold, hold)
def test_firing_takes_its_whole_time(moves: list[tuple[float, Verdict]], for_s: float, keep_s: float) -> None:
    """Between turning pending and firing lie at least `for_s` seconds without a clear verdict."""
    pending_since: float | None = None
    before = Lifecycle()
    for now, verdict in times(moves):
        life = next_lifecycle(before, Judgement(verdict), now, for_s=for_s, keep_s=keep_s, grace_s=1e9)
        if verdict is C:
            pending_since = None
        if before.stage is INACTIVE and life.stage is not INACTIVE:
            pending_since = now
        if before.stage is not FIRING and life.stage is FIRING:
            assert pending_since is not None
            assert now - pending_since >= for_s
        before = life


@pytest.mark.parametrize("first", [A, C, U])
def test_a_first_verdict_at_any_time(first: Verdict) -> None:
    """The first verdict may come at any time: nothing is counted from before it."""
    (life,) = run([(1e6, first)], for_s=5, keep_s=5, grace_s=5)
    assert life.stage is {A: PENDING, C: INACTIVE, U: INACTIVE}[first]
    assert life.since == 1e6
