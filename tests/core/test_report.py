"""State as data: only numbers of now, unix times, and values in words."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvwatch.core.export import report
from kvwatch.core.judgement.derived import Derived
from kvwatch.core.judgement.lifecycle import Lifecycle, Stage
from kvwatch.core.judgement.pipeline import advance
from kvwatch.core.judgement.state import State, initial
from kvwatch.core.judgement.symptoms import SYMPTOMS
from kvwatch.core.model.outcome import Failure, Scrape, ScrapeError
from kvwatch.text.evidence import evidence_label, evidence_rows, evidence_title, format_value
from kvwatch.text.numbers import format_gib, format_number, plain_number
from tests.support.loopback import pages

SATURATED = "0.32.0--c-kv-saturation.jsonl.gz"
WALL = 1_700_000_000.0


def watched(seconds: int = 70) -> State:
    """In the middle of the saturation."""
    state = initial("vllm")
    for n, body in enumerate(pages(SATURATED)[:seconds]):
        state, _ = advance(state, Scrape(body, WALL + 1000 + n), 1000.0 + n)
    return state


def down(state: State, after: float) -> State:
    now = (state.now or 0.0) + after
    return advance(state, ScrapeError(Failure.REFUSED, "nothing listens", WALL + now), now)[0]


# -- numbers of now -----------------------------------------------------------------------------------------------


def test_a_server_that_is_up_tells_its_numbers() -> None:
    told = report.target(watched())
    (engine,) = told["engines"]
    assert engine["signals"]["kv_cache_usage_ratio"] > 0.9
    assert engine["derived"]["cache_pressure_score"] > 0.5
    assert told["server"]


@pytest.mark.parametrize("kind", list(Failure))
def test_of_a_server_that_is_not_scraped_no_number_is_told(kind: Failure) -> None:
    before = watched()
    now = (before.now or 0.0) + 40
    state, _ = advance(before, ScrapeError(kind, "x", WALL + now), now)
    told = report.target(state)
    (engine,) = told["engines"]
    assert engine["signals"] == {}
    assert set(engine["missing"].values()) >= {"not scraped for 40 s"}
    assert engine["derived"]
    assert set(engine["derived"].values()) == {None}
    assert engine["unknown"] == dict.fromkeys(engine["derived"], "not scraped for 40 s")
    assert (engine["at_least"], engine["untrusted"], engine["caveats"]) == ([], {}, {})
    assert told["server"] == {}


def test_of_an_engine_that_is_not_on_the_newest_page_no_number_is_told() -> None:
    state = watched()
    other = pages(SATURATED)[69].replace(b'engine="0"', b'engine="1"')
    now = (state.now or 0.0) + 5
    state, _ = advance(state, Scrape(other, WALL + now), now)
    gone, there = report.target(state)["engines"]
    assert (gone["engine"], gone["signals"]) == ("0", {})
    assert set(gone["derived"].values()) == {None}
    assert set(gone["unknown"].values()) == {"not scraped for 5 s"}
    assert there["signals"]


def test_how_long_is_told_at_the_moment_of_asking() -> None:
    state = down(watched(), 2)
    (engine,) = report.target(state, now=(state.now or 0.0) + 598)["engines"]
    assert set(engine["unknown"].values()) == {"not scraped for 10 min"}


def test_a_replay_tells_the_numbers_of_the_last_good_page() -> None:
    (before,), (after,) = watched().engines.values(), down(watched(), 40).engines.values()
    assert report.engine(after)["signals"] == report.engine(before)["signals"]
    assert report.engine(after)["derived"] == report.engine(before)["derived"]


def test_an_engine_without_any_derived_number_has_none_to_take_away() -> None:
    (engine,) = watched(1).engines.values()
    told = report.engine(type(engine)(engine.key, engine.snapshot, engine.regime, 0, 0), unseen_s=1.0)
    assert told["derived"] == {} == Derived().values


# -- times --------------------------------------------------------------------------------------------------------


def test_since_when_a_symptom_is_what_it_is_is_unix_time() -> None:
    state = watched()
    told = report.target(state)
    lives = {**told["symptoms"], **told["engines"][0]["symptoms"]}
    assert set(lives) == {row.id for row in SYMPTOMS}
    for life in lives.values():
        assert "since" not in life
        assert WALL + 1000 <= life["since_at"] <= WALL + (state.now or 0.0)
    firing = {one["symptom"]: one["since_at"] for one in told["findings"]}
    assert firing
    assert all(lives[name]["since_at"] == pytest.approx(since) for name, since in firing.items())


def test_before_anything_was_judged_there_is_no_such_time() -> None:
    assert report.lifecycle(Lifecycle(), wall_offset=5.0)["since_at"] is None
    assert report.lifecycle(Lifecycle(Stage.FIRING, 7.0), wall_offset=None)["since_at"] is None
    assert report.wall_offset(initial("vllm")) is None
    assert report.target(initial("vllm"))["symptoms"] == {}


# -- in words -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "value", "words"),
    [
        ("kv_cache_usage_ratio", 0.98765, "99 %"),
        ("kv_cache_usage_ratio", 0.906, "91 %"),
        ("kv_cache_usage_ratio", 0.996, "99.6 %"),
        ("kv_cache_usage_ratio", 1, "100 %"),
        ("failing_share", 0.0251, "2.5 %"),
        ("kv_cache_demand_ratio", 1.4, "140 %"),
        ("kv_cache_usage_ratio", 0.00123, "0.1 %"),
        ("kv_cache_usage_ratio", 1e-9, "about 0 %"),
        ("kv_cache_usage_ratio", math.nan, "–"),
        ("queried_tokens", 17090.0, "17,090"),
        ("queried_tokens", 1234567, "1,234,567"),
        ("queried_tokens", 999.7, "1,000"),
        ("preemptions", 3.0, "3"),
        ("failing_seconds", 47.0, "47 s"),
        ("failing_seconds", 47.4, "47 s"),
        ("inter_token_latency_seconds", 0.0577, "58 ms"),
        ("mean_queue_seconds", 7.99, "8 s"),
        ("mean_queue_seconds", 0.253, "0.25 s"),
        ("mean_queue_seconds", 0.0, "0 s"),
        ("preemptions_per_request", 1.513, "1.5"),
        ("mean_tokens_held_each", 947.2, "947"),
        ("window_seconds", 60.0, "60 s"),
        ("threshold_seconds", 240.0, "4 min"),
        ("threshold_seconds", 3599.0, "0:59:59"),
        ('time_to_first_token_percentile_seconds{percentile="95"}', 18.84, "19 s"),
        ("seconds_ago", 3723.4, "1:02:03"),
        ("seconds_ago", -3723.4, "-1:02:03"),
        ("tokens_per_second", 3600.0, "3,600"),
        ("pressure_was_high", True, "yes"),
        ("pressure_was_high", False, "no"),
        ("idle_seconds", None, "–"),
        ("idle_seconds", True, "yes"),
        ("requests_that_fit", math.nan, "–"),
        ("idle_seconds", math.inf, "–"),
        ("unknown_families", [], "none"),
        ("unknown_families", ["a", "b"], "a, b"),
        ("missing", {}, "none"),
        (
            "missing",
            {"a/0: x": "not exposed", "idle_seconds": 240.0},
            "a/0: x not exposed, idle seconds 4 min",
        ),
        ("detail", "as it is", "as it is"),
    ],
)
def test_a_value_in_words(name: str, value: object, words: str) -> None:
    assert format_value(name, value) == words


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("requests_waiting", "requests waiting"),
        ("window_seconds", "window"),
        ("seconds", ""),
        ("seconds_ago", "seconds ago"),
        ("tokens_per_second", "tokens per second"),
        ('request_total_tokens_percentile{percentile="99"}', "request total tokens p99"),
        ('time_to_first_token_percentile_seconds{percentile="95"}', "time to first token p95"),
    ],
)
def test_a_name_in_words_leaves_its_unit_to_the_value(name: str, words: str) -> None:
    assert evidence_label(name) == words


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("kv_cache_usage_ratio", "KV cache usage"),
        ("prefix_cache_hit_ratio", "Prefix cache hit rate"),
        ("ttft_p95_seconds", "TTFT p95"),
        ("seconds", "Time"),
        ("preemptions", "Preemptions"),
    ],
)
def test_a_name_at_the_head_of_a_line(name: str, words: str) -> None:
    assert evidence_title(name) == words


@given(st.floats(allow_nan=False, allow_infinity=False), st.sampled_from(["x", "x_seconds", "x_ratio"]))
def test_no_number_is_ever_written_with_an_exponent(value: float, name: str) -> None:
    for text in (format_value(name, value), format_number(value), plain_number(value)):
        assert "e" not in text.replace("about", "").replace("-", "")


@given(st.integers(-(10**12), 10**12))
def test_a_count_is_written_whole_for_people_and_for_machines(value: int) -> None:
    assert plain_number(float(value)) == str(value)
    assert int(format_number(value).replace(",", "")) == value


@pytest.mark.parametrize(
    ("size", "text"),
    [
        (0, "0 GiB"),
        (80 << 30, "80 GiB"),
        (3.456 * (1 << 30), "3.46 GiB"),
        (50 << 20, "50 MiB"),
        (-(2 << 30), "-2 GiB"),
    ],
)
def test_a_size_in_words(size: float, text: str) -> None:
    assert format_gib(size) == text


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (15668.0, "15668"),
        (0.9876543, "0.987654"),
        (12345.678, "12345.7"),
        (1e-7, "0.0000001"),
        (math.inf, "unknown"),
    ],
)
def test_a_number_for_machines(value: float, text: str) -> None:
    assert plain_number(value) == text


def test_each_number_of_the_evidence_stands_beside_what_it_was_held_against() -> None:
    evidence = {
        "failing_seconds": 44.0,
        "failing_share": 0.5,
        "preemptions": 14,
        "window_seconds": 120.0,
        "threshold_seconds": 30.0,
        "threshold_share": 0.8,
        "threshold_preemptions": 3,
        "threshold_times": 4,
    }
    assert evidence_rows(evidence) == [
        ("failing_seconds", ("failing_seconds", 44.0), ("threshold_seconds", 30.0)),
        ("failing_share", ("failing_share", 0.5), ("threshold_share", 0.8)),
        ("preemptions", ("preemptions", 14), ("threshold_preemptions", 3)),
        ("window_seconds", ("window_seconds", 120.0), None),
        ("times", None, ("threshold_times", 4)),
    ]


def test_a_threshold_that_may_be_of_two_numbers_is_held_against_neither() -> None:
    evidence = {"full_seconds": 9.0, "waiting_seconds": 8.0, "threshold_seconds": 30.0}
    assert [one.limit for one in evidence_rows(evidence)] == [None, None, ("threshold_seconds", 30.0)]
