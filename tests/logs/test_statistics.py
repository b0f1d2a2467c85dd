"""Statistics lines: the same symptoms as live, with less confidence from fewer lines."""

# ruff: noqa: E501 - lines of logs are as long as they are

from collections.abc import Callable

import pytest

from kvwatch.logs import Explanation

Explain = Callable[..., Explanation]
Real = Callable[[str], bytes]


def line(
    running: int, waiting: int, usage: float, *, prompt: float = 0.0, generated: float = 0.0, more: str = "", engine: int = 0
) -> str:  # fmt: skip
    """A line of v1, without a time."""
    return (
        f"Engine {engine:03}: Avg prompt throughput: {prompt} tokens/s, Avg generation throughput: {generated} tokens/s,"
        f" Running: {running} reqs, Waiting: {waiting} reqs{more}, GPU KV cache usage: {usage}%, Prefix cache hit rate: 0.0%"
    )


def symptoms(found: Explanation) -> dict[str, str]:
    return {one.symptom: one.confidence for one in found.symptoms}


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("0.32.0/logs/server-c-kv-saturation", {"kv_thrashing": "medium", "kv_exhausted": "high"}),
        ("0.10.2/logs/server-c-kv-saturation", {"kv_thrashing": "medium", "kv_exhausted": "medium"}),
        ("0.9.2/logs/server-c-kv-saturation", {"kv_thrashing": "medium", "kv_exhausted": "high"}),
        ("0.8.5-v0/logs/server-c-kv-saturation", {"kv_thrashing": "medium", "kv_exhausted": "medium"}),
        ("0.9.2/logs/server-x-engine-died", {"engine_stalled": "medium", "kv_exhausted": "medium"}),
        ("0.32.0/logs/server-i-restart", {}),
    ],
)
def test_real_logs_show_what_the_recordings_of_the_same_servers_show(
    name: str, expected: dict[str, str], explain: Explain, real: Real
) -> None:
    """Gauges of 0.9.2 that stand still because its clients left are no stall; those of an engine that died are."""
    found = explain(real(name))
    assert symptoms(found) == expected
    assert found.verdict == "ok"


def test_estimated_preemptions_are_near_the_count_of_the_metrics(explain: Explain, real: Real) -> None:
    """143 preemptions for 65 finished requests were counted, 2.2 each."""
    found = explain(real("0.32.0/logs/server-c-kv-saturation"))
    (thrashing,) = [one for one in found.symptoms if one.symptom == "kv_thrashing"]
    assert 1.5 < thrashing.evidence["preemptions_per_request_at_most"] < 4


def test_a_full_cache_with_long_prompts_is_exhausted_and_no_storm(explain: Explain) -> None:
    prompts = (900.0, 400.0, 0.0, 0.0, 500.0, 0.0)
    lines = [line(30 + i % 3, 10 * i, 97.0 + i % 3, prompt=p, generated=50.0) for i, p in enumerate(prompts)]
    found = explain(lines)
    assert symptoms(found) == {"kv_exhausted": "medium"}
    assert any("do not count preemptions" in note for note in found.notes)


def test_a_single_line_is_judged_for_what_it_shows(explain: Explain) -> None:
    assert symptoms(explain([line(128, 140, 18.0, generated=5000.0)])) == {"sequence_limited": "low"}
    assert symptoms(explain([line(0, 3, 0.0)])) == {"engine_stalled": "low"}
    assert symptoms(explain([line(20, 200, 30.0, prompt=40000.0, generated=8.0)])) == {
        "prefill_limited": "low"
    }
    assert symptoms(explain([line(40, 0, 30.0, prompt=400.0, generated=800.0)])) == {}


def test_a_usage_of_an_instant_beside_a_long_queue_counts_as_full(explain: Explain) -> None:
    found = explain(
        [line(200, 400, 84.0, prompt=5000.0, generated=1000.0).replace("rate: 0.0%", "rate: 30.0%")]
    )
    assert symptoms(found) == {"kv_exhausted": "low"}
    assert any("hit rate is unreliable" in note for note in found.notes)


def test_prompts_computed_over_and_over_in_a_full_cache_are_thrashing_though_nothing_waits(
    explain: Explain,
) -> None:
    lines = [line(3, 5, 20.0, prompt=9000.0), line(7, 1, 70.0, prompt=18000.0, generated=5.0)]
    found = explain([*lines, line(8, 0, 98.0, prompt=18000.0, generated=30.0)])
    assert symptoms(found)["kv_thrashing"] == "low"
    (near,) = [one for one in found.symptoms if one.symptom == "kv_near_full"]
    assert near.explained_by == ("kv_thrashing",)


def test_a_warm_shared_prefix_is_healthy(explain: Explain) -> None:
    lines = [line(9, 0, 3.0, prompt=300.0, generated=5.0), line(60, 0, 15.0, prompt=300.0, generated=100.0)]
    found = explain(lines)
    assert (symptoms(found), found.exit_code) == ({}, 0)


def test_v0_lines_are_read(explain: Explain) -> None:
    v0 = (
        "INFO 05-05 10:20:30 metrics.py:345] Avg prompt throughput: 600.0 tokens/s, Avg generation throughput: 60.0 tokens/s,"
        " Running: 2 reqs, Swapped: 0 reqs, Pending: 18 reqs, GPU KV cache usage: 99.0%, CPU KV cache usage: 0.0%."
    )
    found = explain([v0])
    assert symptoms(found) == {"long_request_hogs_cache": "low", "kv_exhausted": "low"}
    assert found.symptoms[0].evidence["kv_cache_usage_ratio"] == 0.99


def test_preemptions_that_v0_prints_are_counted(explain: Explain) -> None:
    v0 = (
        "INFO 05-05 10:{:02}:{:02} metrics.py:345] Avg prompt throughput: 90.0 tokens/s, Avg generation throughput: 60.0"
        " tokens/s, Running: 5 reqs, Swapped: 0 reqs, Pending: 18 reqs, GPU KV cache usage: 99.0%, CPU KV cache usage: 0.0%."
    )
    lost = "WARNING 05-05 10:20:31 scheduler.py:1] Sequence group 1 is preempted. total_num_cumulative_preemption={}"
    lines = []
    for i in range(12):
        lines += [v0.format(20 + i // 6, i % 6 * 10), lost.format(1 + 50 * i)]
    found = explain(lines)
    (thrashing,) = [one for one in found.symptoms if one.symptom == "kv_thrashing"]
    assert thrashing.confidence == "high"
    assert thrashing.evidence["preemptions"] >= 50


@pytest.mark.parametrize("word", ["total_num_cumulative_preemption", "total_cumulative_preemption_cnt"])
def test_preemptions_count_for_the_line_before_them_for_all_may_be_over_at_the_next(
    word: str, explain: Explain
) -> None:
    """Both spellings of v0; requests finished are in no line, so they are estimated, and never said to be none."""
    v0 = (
        "INFO 05-05 10:20:{:02} metrics.py:345] Avg prompt throughput: 600.0 tokens/s, Avg generation throughput: 60.0"
        " tokens/s, Running: {} reqs, Swapped: 0 reqs, Pending: {} reqs, GPU KV cache usage: {}%, CPU KV cache usage: 0.0%."
    )
    lost = "WARNING 05-05 10:20:{:02} scheduler.py:1] Sequence group 1 is preempted. {}={}"
    lines = [v0.format(0, 5, 0, 60.0), lost.format(4, word, 1)]
    lines += [v0.format(at, 5, 18, 99.0) for at in (5, 10, 15, 20, 25, 30)]
    found = explain([*lines, lost.format(32, word, 51), v0.format(42, 0, 0, 0.0)])
    assert symptoms(found) == {"kv_thrashing": "medium", "kv_exhausted": "medium"}
    evidence = found.symptoms[0].evidence
    assert (evidence["preemptions"], evidence["finished_requests"]) == (50, None)


def test_preemptions_among_many_that_come_through_are_no_storm(explain: Explain) -> None:
    """Thirty in two minutes, while tokens worth a thousand requests of the mean size were computed."""
    size = "INFO 05-05 10:00:00 [kv_cache_utils.py:1] GPU KV cache size: 50,000 tokens"
    more = ", Preemptions: 3"
    lines = [line(100, 5, 99.0, prompt=20000.0, generated=20000.0, more=more) for _ in range(12)]
    assert "kv_thrashing" not in symptoms(explain([size, *lines]))
    slow = [line(100, 5, 99.0, prompt=200.0, generated=200.0, more=more) for _ in range(12)]
    assert symptoms(explain([size, *slow]))["kv_thrashing"] == "medium"


def test_few_that_run_in_an_empty_cache_are_first_asked_for_what_else_holds_the_others(
    explain: Explain,
) -> None:
    lines = [line(1, 3, 3.0, generated=45.0)]
    (limited,) = explain(lines).symptoms
    assert (limited.symptom, "--max-loras" in limited.advice.actions[0].text) == ("sequence_limited", True)
    args = "INFO 05-05 10:00:00 [utils.py:3] non-default args: {'max_num_seqs': 1}"
    (limited,) = explain([args, *lines]).symptoms
    assert not any("--max-loras" in action.text for action in limited.advice.actions)
    assert "--max-num-seqs" in [action.option for action in limited.advice.actions]


def test_a_short_line_with_a_queue_and_nothing_running_has_actions(explain: Explain) -> None:
    found = explain(["Running: 0 reqs, Waiting: 2 reqs"])
    assert (found.exit_code, found.symptoms) == (2, ())
    assert "can never be scheduled" in found.actions[1]
    assert explain(["Running: 3 reqs, Waiting: 2 reqs"]).actions == ()


def test_deferred_requests_are_found_if_the_line_has_them(explain: Explain) -> None:
    found = explain([line(4, 9, 20.0, prompt=10.0, generated=100.0, more=", Deferred: 8 reqs")])
    assert symptoms(found) == {"requests_deferred": "low"}


def test_engines_are_judged_each_by_itself(explain: Explain) -> None:
    lines = []
    for _ in range(8):
        lines += [line(6, 20, 99.0, prompt=50.0, generated=10.0), line(2, 0, 9.0, generated=90.0, engine=1)]
    exhausted = [one.key.engine for one in explain(lines).symptoms if one.symptom == "kv_exhausted"]
    assert exhausted == ["0"]


def test_flags_of_the_log_are_used(explain: Explain) -> None:
    args = "INFO 05-05 10:20:00 [utils.py:1] non-default args: {'max_num_seqs': 64, 'enable_lora': True}"
    lines = [line(64, 30, 20.0, prompt=3000.0 * (i % 2), generated=900.0) for i in range(4)]
    found = explain([args, *lines])
    (limited,) = found.symptoms
    assert limited.symptom == "sequence_limited"
    assert limited.evidence["max_num_seqs"] == 64
    assert "LoRA" in limited.advice.actions[0].text


def test_a_line_without_usage_is_no_all_clear(explain: Explain) -> None:
    found = explain(["Running: 0 reqs, Waiting: 2 reqs"])
    assert (found.exit_code, symptoms(found)) == (2, {})
    assert "it is unknown why requests wait" in found.notes[0]
