"""The evidence of a finding as samples."""

from __future__ import annotations

from kvwatch.core import evidence
from kvwatch.core.catalogue import METRICS, Reading
from kvwatch.core.outcome import Failure
from tests.core.watch import Watch

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
    assert list(evidence.samples(found)) == [
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
    assert list(evidence.samples(found)) == []


def test_a_server_can_not_make_it_long() -> None:
    """However many models are missing however much, and however long their names are."""
    found = {"missing": {f"{'m' * 1000}{n}": "x" * 10_000 for n in range(1000)}}
    got = list(evidence.samples(found))
    assert len(got) == evidence.MOST
    assert max(len(name) + len(text) for name, text, _ in got) <= 240


def test_a_server_that_says_another_thing_at_every_scrape_makes_no_series_of_each() -> None:
    """Of five minutes of failures that all read differently a Prometheus keeps a handful of series, fresh numbers
    among them."""
    watch, seen = Watch(), set[tuple[str, ...]]()
    for n in range(300):
        watch.fail_saying(Failure.CONNECTION, f"line {n} can't be read: {n!r}")
        seen |= {labels for labels, _ in _EVIDENCE.samples(Reading(watch.state, watch.now))}
    details = {labels for labels in seen if "detail" in labels}
    assert 4 <= len(details) <= 5
    down = watch.state.symptoms["target_down"]
    assert down.evidence["detail"].startswith("line 299"), "people read the newest"
    watch.fail_saying(Failure.CONNECTION, down.told["detail"])
    numbers = {labels[4]: value for labels, value in _EVIDENCE.samples(Reading(watch.state, watch.now))}
    assert numbers["failing_seconds"] == 300
