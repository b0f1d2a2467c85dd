"""Clocks, the beat, the duty cycle and the back-off: all of it without waiting."""

import asyncio
from random import Random

import pytest

from kvwatch.sidecar.clock import Backoff, ScaledClock, SystemClock
from kvwatch.sidecar.polling.pacing import DutyCycle, Schedule, start_offset
from tests.support.loopback import TurnedClock


def test_the_system_clock_runs_forward_and_sleeps_not_at_all_for_times_gone_by() -> None:
    clock = SystemClock()
    before = clock.now()
    asyncio.run(clock.sleep(-5))
    assert 0 <= clock.now() - before < 1
    assert clock.wall() > 1_700_000_000


def test_scaled_time_runs_faster_and_its_sleeps_are_shorter() -> None:
    base = TurnedClock()
    fast = ScaledClock(base, 20)
    now, wall = fast.now(), fast.wall()
    asyncio.run(fast.sleep(10))
    assert base.slept == [0.5]
    assert fast.now() - now == pytest.approx(10)
    assert fast.wall() - wall == pytest.approx(10)


def test_time_can_not_stand_still_or_run_backwards() -> None:
    with pytest.raises(ValueError, match="0"):
        ScaledClock(TurnedClock(), 0)


def test_the_beat_does_not_drift_however_long_a_tick_takes() -> None:
    rhythm = Schedule(100.0)
    now = 100.0
    for n in range(1, 50):
        due, missed = rhythm.next(now + 0.37, 1.0)
        assert (due, missed) == (100.0 + n, 0)
        now = due


def test_ticks_that_were_missed_are_skipped_and_counted_and_not_made_up_for() -> None:
    rhythm = Schedule(100.0)
    assert rhythm.next(103.2, 1.0) == (104.0, 3)
    assert rhythm.next(104.1, 1.0) == (105.0, 0)


def test_a_tick_that_ends_exactly_when_the_next_is_due_misses_none() -> None:
    assert Schedule(100.0).next(101.0, 1.0) == (101.0, 0)


def test_a_start_is_the_same_every_time_and_another_for_every_host_port_and_target() -> None:
    assert start_offset(0, 1, 1.0, "pod-a", "9100", "http://localhost:8000/metrics").phase == pytest.approx(
        0.19097, abs=1e-6
    )
    seeds = [(host, port, url) for host in ("a", "b") for port in ("1", "2") for url in ("x", "y")]
    assert len({start_offset(0, 1, 1.0, *seed).phase for seed in seeds}) == len(seeds)
    assert start_offset(0, 1, 1.0, "ab", "c").phase != start_offset(0, 1, 1.0, "a", "bc").phase


def test_a_thousand_sidecars_of_one_rollout_spread_evenly_over_the_interval() -> None:
    phases = [
        start_offset(0, 1, 1.0, f"vllm-{n}", "9100", "http://localhost:8000/metrics").phase
        for n in range(1000)
    ]
    tenths = [sum(n / 10 <= phase < (n + 1) / 10 for phase in phases) for n in range(10)]
    assert sum(tenths) == 1000
    assert 60 <= min(tenths) <= max(tenths) <= 140  # four standard deviations


def test_the_first_target_is_asked_at_once_and_the_last_within_a_second() -> None:
    assert [start_offset(n, 4, 1.0).first_s for n in range(4)] == [0.0, 0.25, 0.5, 0.75]
    assert [start_offset(n, 4, 15.0).first_s for n in range(4)] == [0.0, 0.25, 0.5, 0.75]
    assert [start_offset(n, 4, 0.2).first_s for n in range(4)] == pytest.approx([0.0, 0.05, 0.1, 0.15])


def test_the_beat_keeps_the_phase_it_began_in() -> None:
    rhythm = Schedule(100.0, -0.3)
    assert [rhythm.next(100.0 + n, 1.0)[0] for n in range(3)] == pytest.approx([100.7, 101.7, 102.7])


def duty(*seconds: float, share: float = 0.01) -> DutyCycle:
    cycle = DutyCycle(1.0, 15.0, share)
    for one in seconds:
        cycle.record("whole", one)
    return cycle


def test_a_cheap_answer_leaves_the_interval_alone() -> None:
    assert duty(*[0.004] * 30).interval_s == 1.0


@pytest.mark.parametrize(("answer_s", "interval_s"), [(0.02, 2.0), (0.05, 5.0), (0.031, 3.25), (0.4, 15.0)])
def test_a_dear_answer_stretches_it_until_the_share_is_kept_but_not_beyond_the_most(
    answer_s: float, interval_s: float
) -> None:
    cycle = duty(*[answer_s] * 30)
    assert cycle.interval_s == interval_s
    assert answer_s / cycle.interval_s <= 0.01 or interval_s == 15.0


def test_waiting_for_a_busy_server_is_not_taken_for_its_work() -> None:
    """Durations of a real server under saturation: most answers as quick as ever, some a hundred times later."""
    busy = [0.0047, 0.0055, 0.101, 0.005, 0.040, 0.0049, 0.0051, 0.038, 0.0052, 0.0054] * 5
    assert duty(*busy).interval_s == 1.0


def test_the_first_answer_opens_the_connection_and_does_not_count() -> None:
    assert duty(0.9, *[0.004] * 10).interval_s == 1.0


def test_a_few_answers_stretch_nothing_yet() -> None:
    assert duty(*[0.1] * 5).interval_s == 1.0
    assert duty(*[0.1] * 6).interval_s == 10.0


def test_the_interval_comes_back_when_answers_are_cheap_again() -> None:
    assert duty(*[0.05] * 30, *[0.002] * 100).interval_s == 1.0


def test_the_cost_is_that_of_the_mixture_of_answers() -> None:
    cycle = DutyCycle(1.0, 15.0, 0.01)
    for n in range(300):
        cycle.record("fast", 0.001) if n % 15 else cycle.record("full", 0.016)
    assert 0.001 < cycle.cost_s < 0.005
    assert cycle.interval_s == 1.0


def test_back_off_doubles_with_jitter_up_to_the_most_and_starts_anew_after_a_success() -> None:
    backoff = Backoff(10.0, Random(7))
    waits = [backoff.failed(1.0) for _ in range(30)]
    assert waits[0] == 1.0
    assert 1.5 <= waits[1] <= 2.0
    assert 3.0 <= waits[2] <= 4.0
    assert all(7.5 <= wait <= 10.0 for wait in waits[5:])
    assert len(set(waits[5:])) > 20
    assert backoff.succeeded()
    assert not backoff.succeeded()
    assert backoff.failed(1.0) == 1.0


def test_back_off_never_asks_more_often_than_the_interval() -> None:
    backoff = Backoff(10.0, Random(1))
    assert all(backoff.failed(15.0) == 15.0 for _ in range(20))
