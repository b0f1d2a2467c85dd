"""One option changed on a real server under one load: the effect is found and named; nothing changed: none is."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from kvwatch.core.judgement.policy import Policy
from kvwatch.experiment.comparison import Candidate, compare
from kvwatch.experiment.comparison_data import as_data
from kvwatch.experiment.differences import DIFFERENT, DifferenceVerdict
from kvwatch.experiment.measured_run import MeasuredRun, run_of
from kvwatch.recording import Record

Recorded = Callable[[str], MeasuredRun]


def against_base(recorded: Recorded, name: str) -> Candidate:
    (found,) = compare([recorded("base-a"), recorded(name)]).candidates
    return found


def changed(candidate: Candidate) -> dict[str, tuple[str, str]]:
    return {one.title: (one.baseline, one.candidate) for one in candidate.changed if not one.follows}


def test_fewer_slots(recorded: Recorded) -> None:
    found = against_base(recorded, "slots-1")
    assert changed(found) == {"--max-num-seqs, as observed": ("10 or more", "1")}
    assert not found.cautions
    assert found.verdict is DifferenceVerdict.WORSE
    said = {name: one.verdict for name, one in found.differences.items()}
    assert (
        said["ttft_p50_seconds"]
        is said["queue_p50_seconds"]
        is said["e2e_mean_seconds"]
        is DifferenceVerdict.WORSE
    )
    assert said["requests_finished_per_second"] is DifferenceVerdict.WORSE
    assert said["sequence_limited_time_ratio"] is DifferenceVerdict.HIGHER
    assert said["prefix_cache_hit_ratio"] is DifferenceVerdict.SAME


def test_prefix_caching_off(recorded: Recorded) -> None:
    found = against_base(recorded, "caching-off")
    assert changed(found) == {"--enable-prefix-caching": ("True", "False")}
    assert not found.cautions
    assert found.verdict is DifferenceVerdict.WORSE
    said = {name: one.verdict for name, one in found.differences.items()}
    assert said["ttft_p50_seconds"] is said["e2e_mean_seconds"] is DifferenceVerdict.WORSE
    assert said["prompt_tokens_reused_ratio"] is DifferenceVerdict.WORSE
    assert said["prefix_cache_hit_ratio"] is DifferenceVerdict.UNKNOWN
    assert said["kv_limited_time_ratio"] is DifferenceVerdict.HIGHER


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
    assert found.verdict is DifferenceVerdict.WORSE
    said = {name: one.verdict for name, one in found.differences.items()}
    assert said["ttft_p50_seconds"] is said["ttft_p95_seconds"] is DifferenceVerdict.WORSE
    assert said["preemptions_per_finished_request"] is DifferenceVerdict.WORSE
    assert said["kv_cache_usage_median_ratio"] is said["kv_limited_time_ratio"] is DifferenceVerdict.HIGHER
    assert said["prefix_cache_hit_ratio"] is DifferenceVerdict.SAME


def test_numbers_are_those_computed_without_scipy(recorded: Recorded) -> None:
    """``half-kv.json`` has baseline, candidate, difference, interval, p and verdict of each measure, as computed with
    the standard library alone, draw by draw."""
    expected = json.loads((Path(__file__).parent / "half-kv.json").read_text(encoding="utf-8"))
    for row in as_data(compare([recorded("base-a"), recorded("half-kv")]))["measures"]:
        (found,) = row["differences"]
        numbers = [one["value"] for one in row["values"]] + [
            found[name] for name in ("value", "low", "high", "p")
        ]
        assert found["verdict"] == expected[row["id"]][-1]
        for number, before in zip(numbers, expected[row["id"]], strict=False):
            assert number == (None if before is None else pytest.approx(before, rel=1e-6, abs=1e-9)), row[
                "id"
            ]


def test_nothing_changed(recorded: Recorded) -> None:
    """The same server, started and recorded anew."""
    found = against_base(recorded, "base-c")
    assert found.changed == ()
    assert {one.id for one in found.cautions} == {"no_option_changed", "recording_too_short"}
    assert found.verdict is DifferenceVerdict.NOT_SHOWN
    assert found.differences["prefix_cache_hit_ratio"].verdict is DifferenceVerdict.SAME
    assert not {one.verdict for one in found.differences.values()} & DIFFERENT


def test_nothing_changed_within_a_run(pages: Callable[[str], list[Record]]) -> None:
    """Forty seconds of a server under a steady load, and the forty after them."""
    records = pages("0.32.0--b-healthy")[5:86]
    first, second = (
        run_of(part, name, Policy()) for part, name in ((records[:41], "a"), (records[40:], "b"))
    )
    (found,) = compare([first, second]).candidates
    assert found.changed == ()
    assert found.verdict in {DifferenceVerdict.SAME, DifferenceVerdict.NOT_SHOWN}
    assert {one.id for one in found.cautions} == {"no_option_changed", "recording_too_short"}
    said = {name: one.verdict for name, one in found.differences.items()}
    assert said["requests_waiting_mean"] is said["preemptions_per_finished_request"] is DifferenceVerdict.SAME
    assert said["kv_limited_time_ratio"] is said["kv_cache_usage_full_time_ratio"] is DifferenceVerdict.SAME


def test_what_recording_keeps(recorded: Recorded) -> None:
    run = recorded("base-a")
    assert run.name == "base-a"
    assert run.configuration["version"].startswith("0.32.0")
    assert run.configuration["max_model_len"] == "768"
    assert 9 < run.warmup_s < 12
    assert 168 < run.duration_s < 171
