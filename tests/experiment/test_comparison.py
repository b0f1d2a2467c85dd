"""Recorded runs of real servers against each other: what changed, what it did, and what to be careful about."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from kvwatch.core.model.snapshot import Histogram
from kvwatch.experiment.cautions import distance
from kvwatch.experiment.comparison import Candidate, Comparison, compare
from kvwatch.experiment.comparison_data import as_data
from kvwatch.experiment.configuration import changes, options_changed
from kvwatch.experiment.differences import DifferenceVerdict
from kvwatch.experiment.measured_run import MeasuredRun

Recorded = Callable[[str], MeasuredRun]
SHARED, OFF = "0.32.0--e-shared-prefix", "0.32.0--g-prefix-caching-off"
HEALTHY, SATURATED, QUEUED = (
    "0.32.0--b-healthy",
    "0.32.0--c-kv-saturation",
    "0.32.0--d-queue-no-cache-pressure",
)


@pytest.fixture(scope="module")
def caching_off(recorded: Recorded) -> Comparison:
    return compare([recorded(SHARED), recorded(OFF)])


def cautions(comparison: Comparison) -> set[str]:
    (candidate,) = comparison.candidates
    return {one.id for one in (*candidate.cautions, *comparison.cautions)}


def only(comparison: Comparison) -> Candidate:
    (candidate,) = comparison.candidates
    return candidate


def test_prefix_caching_off_is_found_and_named(caching_off: Comparison) -> None:
    candidate = only(caching_off)
    assert [(one.title, one.baseline, one.candidate) for one in candidate.changed] == [
        ("--enable-prefix-caching", "True", "False")
    ]
    assert candidate.verdict is DifferenceVerdict.WORSE
    said = {name: one.verdict for name, one in candidate.differences.items()}
    assert said["ttft_mean_seconds"] is said["ttft_p50_seconds"] is DifferenceVerdict.WORSE
    assert (
        said["generation_tokens_per_second"] is said["prompt_tokens_reused_ratio"] is DifferenceVerdict.WORSE
    )
    assert said["kv_cache_usage_median_ratio"] is DifferenceVerdict.HIGHER
    assert said["preemptions_per_finished_request"] is DifferenceVerdict.SAME
    assert candidate.differences["prefix_cache_hit_ratio"].reason == "prefix caching is off"
    assert {"arrivals", "short"} <= cautions(caching_off)  # each client waits for its answer
    assert "several_options_changed" not in cautions(caching_off)


def test_numbers_are_those_of_the_pages(caching_off: Comparison) -> None:
    """Against what the load generator counted, and what replay derives from the same windows."""
    before, after = caching_off.sides
    finished = [one.totals.sum("requests_finished_total") for one in (before, after)]
    assert finished == [392, 79]
    hits = before.by_id["prefix_cache_hit_ratio"].value
    assert hits == pytest.approx(before.by_id["prompt_tokens_reused_ratio"].value, abs=0.01)
    assert hits == pytest.approx(
        1472 / 1532, abs=0.01
    )  # whole blocks of 1,500 shared tokens, of those and 32 more
    quantiles = [before.by_id[f"e2e_{name}_seconds"].value or 0 for name in ("p50", "p95", "p99")]
    assert quantiles == sorted(quantiles)


def test_a_run_against_itself_is_the_same_and_said_to_be_itself(recorded: Recorded) -> None:
    found = compare([recorded(HEALTHY), recorded(HEALTHY)])
    said = {one.verdict for one in only(found).differences.values()}
    assert not said & {
        DifferenceVerdict.BETTER,
        DifferenceVerdict.WORSE,
        DifferenceVerdict.HIGHER,
        DifferenceVerdict.LOWER,
    }
    assert all(one.value in {0, None} for one in only(found).differences.values())
    assert {"same_run", "no_option_changed"} <= cautions(found)


def test_fewer_slots_are_seen_where_requests_wait_for_one(recorded: Recorded) -> None:
    """The first has 128 blocks and no ceiling in sight, the second 2,048 and never more than 4 running."""
    found = compare([recorded(SATURATED), recorded(QUEUED)])
    changed = {one.name: (one.baseline, one.candidate) for one in only(found).changed}
    assert changed["max_num_seqs"] == ("18 or more", "4")
    assert changed["num_gpu_blocks_override"] == ("128", "2048")
    assert changed["kv_cache_tokens"] == ("4,096", "65,536")
    assert {"several_options_changed", "arrivals", "generation_lengths"} <= cautions(found)
    differs = only(found).differences
    assert differs["sequence_limited_time_ratio"].verdict is DifferenceVerdict.HIGHER
    assert (differs["kv_limited_time_ratio"].value or 0) < -0.5


def test_runs_of_two_generations_are_compared_where_both_show_something(recorded: Recorded) -> None:
    found = compare([recorded("0.8.5-v0--b-healthy"), recorded(HEALTHY)])
    assert "generations" in cautions(found)
    by_id = only(found).differences
    assert by_id["prefix_cache_hit_ratio"].verdict is DifferenceVerdict.UNKNOWN
    assert (by_id["prompt_tokens_reused_ratio"].reason or "").startswith("not exposed (looked for ")
    assert by_id["ttft_mean_seconds"].value is not None
    assert by_id["kv_cache_usage_median_ratio"].value is not None
    (row,) = [one for one in as_data(found)["measures"] if one["id"] == "prefix_cache_hit_ratio"]
    assert row["values"][0]["value"] is None
    assert row["values"][1]["value"] > 0.2


def test_what_a_run_went_through_is_said(recorded: Recorded) -> None:
    healthy = recorded(HEALTHY)
    assert {"restarted", "failed_scrapes", "cold"} <= cautions(
        compare([healthy, recorded("0.32.0--i-restart")])
    )
    assert "engines" in cautions(compare([healthy, recorded("0.32.0--j-data-parallel-2")]))
    assert "models" in cautions(compare([healthy, replace(healthy, models=("other",))]))
    assert "failing" in cautions(compare([healthy, recorded("0.32.0--failing")]))
    assert "not_settled" in cautions(compare([healthy, recorded("0.32.0--prefill-bound")]))
    slow = replace(healthy, interval_s=5.0, several_servers=True, unread=3, duration_s=200.0)
    assert {"intervals", "several_servers", "unread", "durations"} <= cautions(compare([healthy, slow]))
    assert not {"intervals", "unread", "durations"} & cautions(compare([healthy, recorded(HEALTHY)]))


def test_long_runs_may_speak_of_the_worst_case(recorded: Recorded) -> None:
    short = recorded(HEALTHY)
    long = replace(short, duration_s=1800.0)
    assert "short" not in cautions(compare([long, long]))
    assert "short" in cautions(compare([short, long]))


def test_runs_of_one_configuration_that_differ_are_a_warning(recorded: Recorded) -> None:
    before, after = recorded(SHARED), recorded(OFF)
    disguised = replace(after, configuration=before.configuration)
    found = compare([before, disguised])
    assert {"differs_unchanged", "no_option_changed"} <= cautions(found)
    assert only(found).verdict is DifferenceVerdict.WORSE


def test_every_further_run_is_compared_with_the_first(recorded: Recorded) -> None:
    runs = [recorded(SHARED), recorded(OFF), recorded(SHARED)]
    found = compare(runs)
    assert found.candidates[0].verdict is DifferenceVerdict.WORSE
    assert found.candidates[0].differences == compare(runs[:2]).candidates[0].differences
    data = as_data(found)
    assert [len(row["values"]) for row in data["measures"]] == [3] * len(data["measures"])
    assert [len(row["differences"]) for row in data["measures"]] == [2] * len(data["measures"])


def test_an_untrusted_hit_ratio_is_judged_by_nobody(recorded: Recorded) -> None:
    run = recorded("0.20.2--c-kv-saturation")
    assert "prefix_cache_hit_ratio" in run.untrusted
    found = only(compare([run, run])).differences["prefix_cache_hit_ratio"]
    assert found.verdict is DifferenceVerdict.NOT_ENOUGH
    assert found.reason == run.untrusted["prefix_cache_hit_ratio"]


@pytest.mark.parametrize(
    ("before", "after", "options"),
    [
        ({"block_size": "16"}, {"block_size": "16"}, 0),
        ({"block_size": "16", "num_gpu_blocks": "100"}, {"block_size": "32", "num_gpu_blocks": "50"}, 1),
        (
            {"num_gpu_blocks": "100", "kv_cache_tokens": "1,600"},
            {"num_gpu_blocks": "90", "kv_cache_tokens": "1,440"},
            1,
        ),
        (
            {"num_gpu_blocks": "27412", "kv_cache_tokens": "438,592"},
            {"num_gpu_blocks": "27406"},
            0,
        ),  # as profiled
        ({"cache_dtype": "auto", "block_size": "16"}, {"cache_dtype": "fp8", "block_size": "32"}, 2),
        ({"version": "0.20.2"}, {"mamba_cache_mode": "none"}, 0),  # an older vLLM does not show it
        ({"max_num_seqs": "9 or more"}, {"max_num_seqs": "4"}, 1),
        ({"max_num_seqs": "4"}, {"max_num_seqs": "9 or more"}, 1),
        (
            {"max_num_seqs": "3 or more"},
            {"max_num_seqs": "4"},
            0,
        ),  # it may have the same ceiling, not reached
        ({"max_num_seqs": "3 or more"}, {"max_num_seqs": "9 or more"}, 0),
        ({"max_num_seqs": "8"}, {"max_num_seqs": "4"}, 1),
    ],
)
def test_options_are_counted_and_what_follows_from_them_is_not(
    before: dict[str, str], after: dict[str, str], options: int
) -> None:
    assert options_changed(changes(before, after)) == options


def test_how_far_distributions_are_apart() -> None:
    one = Histogram(0.0, 10.0, (1.0, 2.0), (5.0, 10.0))
    assert distance(one, one) == 0
    assert distance(one, Histogram(0.0, 20.0, (1.0, 2.0), (2.0, 20.0))) == pytest.approx(0.4)
    assert distance(one, Histogram(0.0, 10.0, (1.0, 3.0), (5.0, 10.0))) is None
    assert distance(one, Histogram(0.0, 0.0)) is None
