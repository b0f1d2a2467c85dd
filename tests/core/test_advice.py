"""Advice: what fits, which levers are offered in which order, and severity that follows harm."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvwatch.core.export.findings import Finding, findings
from kvwatch.core.judgement.advice.choose import MAX_ACTIONS, choose
from kvwatch.core.judgement.advice.situation import Lengths, Situation
from kvwatch.core.judgement.fits import Fits, requests_that_fit
from kvwatch.core.judgement.pipeline import advance, next_pace
from kvwatch.core.judgement.policy import Policy
from kvwatch.core.judgement.state import initial
from kvwatch.core.judgement.symptoms import BY_ID, SYMPTOMS, Severity
from kvwatch.core.model.snapshot import CacheConfig, Histogram
from kvwatch.recording import Record, outcome_of, read, with_spacing

RECORDINGS = Path(__file__).parents[1] / "replay" / "pairs"
BOUNDS = (50.0, 100.0, 200.0, 500.0, 1000.0, 2000.0)


def uniform(low: float, high: float, count: float = 1000.0) -> Histogram:
    counts = tuple(count * min(max(bound - low, 0.0) / (high - low), 1.0) for bound in BOUNDS)
    return Histogram((low + high) / 2 * count, count, BOUNDS, counts)


def found(path: Path) -> dict[str, list[Finding]]:
    """Every finding of a recording, by symptom."""
    state, seen = initial("vllm", Policy()), dict[str, list[Finding]]()
    for record, spacing in with_spacing(read(path)):
        if isinstance(record, Record):
            pace = next_pace(state, record.t)
            state, _ = advance(state, outcome_of(record, interval_s=spacing, pace=pace), record.t)
            for one in findings(state):
                seen.setdefault(one.symptom.id, []).append(one)
    return seen


# -- what fits -----------------------------------------------


def test_what_fits_lies_between_the_present_footprint_and_the_longest_at_once() -> None:
    """Prompts of 100 to 400 and outputs of 200 to 500 tokens in 4,096: on a recorded vLLM 0.32 eight were too many,
    three cost a third of the throughput, six ended the preemptions."""
    fits = requests_that_fit(4096, uniform(100, 400), uniform(200, 500), block=32)
    assert fits is not None
    assert fits.requests in {6, 7}
    assert fits.at_tokens == pytest.approx(250 + 186 + 16, rel=0.03)
    assert not fits.lower_bound


def test_lengths_in_the_last_bucket_are_a_lower_bound_and_the_sum_bounds_the_mean() -> None:
    prompts = Histogram(135_847, 39, BOUNDS, (0.0,) * len(BOUNDS))
    fits = requests_that_fit(32_768, prompts, uniform(5, 15, 39))
    assert fits is not None
    assert fits.lower_bound
    assert fits.at_tokens > 3_400
    assert fits.requests == 9


@given(st.floats(1_000, 1e6), st.integers(1, 20), st.floats(0, 1))
def test_more_cache_fits_no_fewer_and_sharing_fits_no_fewer(
    capacity: float, times: int, shared: float
) -> None:
    prompts, outputs = uniform(100, 400), uniform(200, 500)
    one, more, together = (
        requests_that_fit(capacity, prompts, outputs),
        requests_that_fit(capacity * times, prompts, outputs),
        requests_that_fit(capacity, prompts, outputs, shared=shared),
    )
    assert one is not None
    assert more is not None
    assert together is not None
    assert one.requests <= more.requests
    assert one.requests <= together.requests


@pytest.mark.parametrize(("prompts", "capacity"), [(None, 4096.0), (uniform(1, 2), None)])
def test_without_lengths_or_a_capacity_nothing_is_said(
    prompts: Histogram | None, capacity: float | None
) -> None:
    assert requests_that_fit(capacity, prompts, uniform(200, 500)) is None


# -- the levers -----------------------------------------------

THRASHING = Situation(
    "kv_thrashing",
    capacity=4096,
    config=CacheConfig(known=True, gpu_memory_utilization=0.9, cache_dtype="auto"),
    fits=Fits(6, 452),
    lengths=Lengths(500, 300, 480, 600, 870, 940),
    running=9,
    waiting=18,
    most_running=18,
    demand=3.4,
    suffering=True,
    backlogged=True,
)


def levers(situation: Situation, symptom: str = "kv_thrashing") -> list[str]:
    row = BY_ID[symptom]
    return [action.lever for action in choose(row.levers, row.do_not, situation).actions]


def changed(**fields: Any) -> Situation:
    from dataclasses import replace  # noqa: PLC0415

    return replace(THRASHING, **fields)


def test_under_overload_load_comes_first_then_slots_with_the_number_that_fits() -> None:
    row = BY_ID["kv_thrashing"]
    advice = choose(row.levers, row.do_not, THRASHING)
    assert levers(THRASHING)[:2] == ["shed_load", "max_num_seqs"]
    assert advice.actions[1].value == 6
    assert [lever for lever, _ in advice.do_not] == ["max_num_seqs", "max_model_len"]
    assert not any("--max-model-len" in action.text for action in advice.actions)


def test_near_capacity_nothing_needs_changing_and_fewer_slots_are_warned_of() -> None:
    """The lever that costs nothing under overload makes first tokens many times later here."""
    row = BY_ID["kv_thrashing"]
    calm = changed(suffering=False, backlogged=False, waiting=0, demand=0.8)
    advice = choose(row.levers, row.do_not, calm)
    assert advice.actions[0].lever == "plan_capacity"
    assert advice.actions[0].value == "25 %"
    assert "max_num_seqs" not in levers(calm)
    assert any("first tokens would come many times later" in text for _, text in advice.do_not)


@pytest.mark.parametrize(
    ("fields", "lever"),
    [
        ({"config": CacheConfig(known=True, cache_dtype="fp8_e4m3")}, "kv_cache_dtype"),
        ({"config": CacheConfig(known=True, gpu_memory_utilization=0.96)}, "gpu_memory_utilization"),
        ({"fits": Fits(6, 452, lower_bound=True)}, "max_num_seqs"),
        ({"most_running": 5}, "max_num_seqs"),
        ({"room_elsewhere": False}, "route_by_load"),
    ],
)
def test_what_is_in_force_or_contradicted_is_not_offered(fields: dict[str, Any], lever: str) -> None:
    assert lever not in levers(changed(**fields))


def test_a_full_engine_beside_idle_ones_is_a_matter_of_routing() -> None:
    assert levers(changed(room_elsewhere=True))[0] == "route_by_load"


def test_a_long_tail_of_outputs_is_capped_and_others_are_not() -> None:
    assert "cap_output" not in levers(THRASHING)
    assert levers(changed(lengths=Lengths(500, 100, 900, 200, 1200, 1500)))[0] == "cap_output"
    too_few = changed(lengths=Lengths(50, 100, 900, 200, 1200, 1500))
    bound = changed(lengths=Lengths(500, 100, 900, 200, 1200, 1500, frozenset({"output_p95"})))
    assert "cap_output" not in levers(too_few)
    assert "cap_output" not in levers(bound)


def test_late_first_tokens_are_advised_by_their_larger_part() -> None:
    queue = changed(symptom="ttft_high", evidence={"larger_part": "queue"}, backlogged=False)
    prefill = changed(symptom="ttft_high", evidence={"larger_part": "prefill"})
    assert levers(queue, "ttft_high")[0] == "smooth_load"
    assert levers(prefill, "ttft_high")[:2] == ["fixed_text_first", "shorten_prompts"]


@pytest.mark.parametrize(
    ("failure", "lever"),
    [("refused", "check_process"), ("dns", "check_dns"), ("tls", "check_tls"), ("timeout", "check_load")],
)
def test_the_kind_of_failure_decides_the_first_step(failure: str, lever: str) -> None:
    assert levers(Situation("target_down", {"failure": failure}), "target_down")[0] == lever


def test_prefix_caching_is_offered_only_where_it_is_off() -> None:
    for on, offered in ((True, False), (False, True)):
        config = CacheConfig(known=True, enable_prefix_caching=on)
        assert ("enable_prefix_caching" in levers(changed(config=config), "shared_prefix_slow")) == offered
    cached = changed(config=CacheConfig(known=True, enable_prefix_caching=True))
    assert levers(cached, "shared_prefix_slow")[-1] == "shorten_prompts"


situations = st.builds(
    Situation,
    st.just("any"),
    fits=st.none() | st.builds(Fits, st.integers(1, 100), st.floats(1, 1e4), st.booleans()),
    lengths=st.builds(Lengths, st.floats(0, 1e3), *[st.none() | st.floats(1, 1e4)] * 5),
    demand=st.none() | st.floats(0, 10),
    most_running=st.none() | st.floats(0, 100),
    waiting=st.none() | st.floats(0, 100),
    suffering=st.booleans(),
    backlogged=st.booleans(),
    room_elsewhere=st.booleans(),
)


@given(situations, st.sampled_from(SYMPTOMS))
def test_any_advice_is_short_and_begins_without_a_restart(situation: Situation, row: Any) -> None:
    advice = choose(row.levers, row.do_not, situation)
    restarts = [action.restart for action in advice.actions]
    assert len(advice.actions) <= MAX_ACTIONS
    assert restarts == sorted(restarts)
    assert all("{" not in action.text and "None" not in action.text for action in advice.actions)
    assert json.dumps(advice.as_data())


# -- severity, on recordings -----------------------------------------------


def test_preemptions_that_nobody_feels_are_a_warning_and_a_growing_queue_is_critical() -> None:
    near = found(RECORDINGS / "near-capacity.jsonl.gz")["kv_thrashing"]
    over = found(RECORDINGS / "over-capacity.jsonl.gz")["kv_thrashing"]
    assert {one.severity for one in near} == {Severity.WARNING}
    assert near[0].advice.actions[0].lever in {"plan_capacity", "watch"}
    assert over[-1].severity is Severity.CRITICAL
    (slots,) = [action for action in over[-1].advice.actions if action.lever == "max_num_seqs"]
    assert slots.value in {6, 7, 8}


def test_all_slots_taken_without_preemption_is_a_wait_for_slots() -> None:
    """Six of six slots, usage up to 0.89: vLLM checks slots before blocks."""
    seen = found(RECORDINGS / "six-slots.jsonl.gz")
    assert "kv_exhausted" not in seen
    (more,) = [
        action for action in seen["sequence_limited"][-1].advice.actions if action.lever == "max_num_seqs"
    ]
    assert isinstance(more.value, int)
    assert more.value > 6
