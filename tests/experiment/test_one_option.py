"""One option changed on a real server under one load: the effect is found and named; nothing changed: none is."""

from __future__ import annotations

from collections.abc import Callable

from kvwatch.experiment import Run, compare
from kvwatch.experiment.comparison import Candidate
from kvwatch.experiment.verdict import Verdict

Recorded = Callable[[str], Run]


def against_base(recorded: Recorded, name: str) -> Candidate:
    (found,) = compare([recorded("base-a"), recorded(name)]).candidates
    return found


def changed(candidate: Candidate) -> dict[str, tuple[str, str]]:
    return {one.title: (one.baseline, one.candidate) for one in candidate.changed if not one.follows}


def test_fewer_slots(recorded: Recorded) -> None:
    found = against_base(recorded, "slots-1")
    assert changed(found) == {"--max-num-seqs, as seen": ("10 or more", "1")}
    assert not found.cautions
    assert found.verdict is Verdict.WORSE
    said = {name: one.verdict for name, one in found.differences.items()}
    assert said["ttft_p50_seconds"] is said["queue_p50_seconds"] is said["e2e_mean_seconds"] is Verdict.WORSE
    assert said["requests_finished_per_second"] is Verdict.WORSE
    assert said["sequence_limited_time_ratio"] is Verdict.HIGHER
    assert said["prefix_cache_hit_ratio"] is Verdict.SAME


def test_half_the_blocks(recorded: Recorded) -> None:
    found = against_base(recorded, "half-kv")
    assert changed(found) == {"--num-gpu-blocks-override": ("48", "25")}
    followed = {one.title: (one.baseline, one.candidate) for one in found.changed if one.follows}
    assert followed == {
        "KV cache blocks": ("48", "25"),
        "KV cache capacity, tokens": ("1,536", "800"),
        "longest requests that fit at once": ("2", "1.04"),
    }
    assert not found.cautions
    assert found.verdict is Verdict.WORSE
    said = {name: one.verdict for name, one in found.differences.items()}
    assert said["ttft_p50_seconds"] is said["ttft_p95_seconds"] is Verdict.WORSE
    assert said["preemptions_per_finished_request"] is Verdict.WORSE
    assert said["kv_cache_usage_median_ratio"] is said["kv_limited_time_ratio"] is Verdict.HIGHER
    assert said["prefix_cache_hit_ratio"] is Verdict.SAME


def test_what_recording_keeps(recorded: Recorded) -> None:
    run = recorded("base-a")
    assert run.name == "base-a"
    assert run.configuration["version"].startswith("0.32.0")
    assert run.configuration["max_model_len"] == "768"
    assert 9 < run.warmup_s < 12
    assert 168 < run.duration_s < 171
