"""The evidence of a finding as samples."""

from __future__ import annotations

import math

from hypothesis import given
from hypothesis import strategies as st

from kvwatch.core.export import evidence_samples
from kvwatch.core.export.catalogue import METRICS, MetricSource
from kvwatch.core.judgement.lifecycle import _same_series
from kvwatch.core.model.outcome import Failure
from tests.support.watch import Watch

_EVIDENCE = next(row for row in METRICS if row.name == "symptom_evidence")


def test_numbers_stay_numbers_and_words_become_texts() -> None:
    found = {
        "preemptions": 99,
        "share": 0.5,
        "pressure_was_high": True,
        "failure": "timeout",
        "ttft_seconds": {"50": 1.5, "95": 20},
        "unknown_families": ["vllm:a", "vllm:b"],
        "detail": "two\nlines",
    }
    assert list(evidence_samples.samples(found)) == [
        ("preemptions", "", 99.0),
        ("share", "", 0.5),
        ("pressure_was_high", "", 1.0),
        ("failure", "timeout", 1.0),
        ("ttft_seconds{50}", "", 1.5),
        ("ttft_seconds{95}", "", 20.0),
        ("unknown_families", "vllm:a, vllm:b", 1.0),
        ("detail", "two lines", 1.0),
    ]


def test_what_says_nothing_is_left_out() -> None:
    """Thresholds too: they are settings, and do not change with the finding."""
    found: dict[str, object] = {
        "a": None,
        "b": float("nan"),
        "c": float("inf"),
        "d": "",
        "e": [],
        "threshold_share": 0.5,
    }
    assert list(evidence_samples.samples(found)) == []


values = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(0, 3),
    st.sampled_from([0.0, 1.0, 2.5, math.nan, math.inf]),
    st.text("ab", max_size=2),
)
facts = st.dictionaries(
    st.sampled_from(["a", "b", "threshold_c"]), values | st.dictionaries(st.text("x", max_size=1), values)
)


@given(facts, facts)
def test_evidence_of_the_same_series_has_the_same_names_and_texts(
    before: dict[str, object], after: dict[str, object]
) -> None:
    if _same_series(before, after):
        assert [row[:2] for row in evidence_samples.samples(before)] == [
            row[:2] for row in evidence_samples.samples(after)
        ]


@given(facts)
def test_new_numbers_make_no_new_series(found: dict[str, object]) -> None:
    moved = {name: value + 0.5 if type(value) is float else value for name, value in found.items()}
    assert _same_series(found, moved) or "nan" in str(found)


def test_a_server_can_not_make_it_long() -> None:
    """However many models are missing however much, and however long their names are."""
    found = {"missing": {f"{'m' * 1000}{n}": "x" * 10_000 for n in range(1000)}}
    got = list(evidence_samples.samples(found))
    assert len(got) == evidence_samples.MAX_SAMPLES
    assert max(len(name) + len(text) for name, text, _ in got) <= 240


def test_a_server_that_says_another_thing_at_every_scrape_makes_no_series_of_each() -> None:
    """Of five minutes of failures that all read differently a Prometheus keeps a handful of series, fresh numbers
    among them."""
    watch, seen = Watch(), set[tuple[str, ...]]()
    for n in range(300):
        watch.fail_saying(Failure.CONNECTION, f"line {n} can't be read: {n!r}")
        seen |= {labels for labels, _ in _EVIDENCE.samples(MetricSource(watch.state, watch.now))}
    details = {labels for labels in seen if "detail" in labels}
    assert 4 <= len(details) <= 5
    down = watch.state.symptoms["target_down"]
    assert down.evidence["detail"].startswith("line 299"), "people read the newest"
    watch.fail_saying(Failure.CONNECTION, down.published["detail"])
    numbers = {labels[4]: value for labels, value in _EVIDENCE.samples(MetricSource(watch.state, watch.now))}
    assert numbers["failing_seconds"] == 300
