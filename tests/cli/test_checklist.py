"""What the checklist makes of real recordings."""

from __future__ import annotations

from pathlib import Path

import pytest

from kvwatch.commands.checklist import Mark, checklist
from kvwatch.commands.watch import Watch
from kvwatch.core.judgement.policy import Policy
from kvwatch.core.judgement.state import State, initial
from kvwatch.recording import Record, outcome_of, read

RECORDINGS = Path(__file__).resolve().parents[1] / "replay" / "recordings"
LENGTHS, LIMIT, LOAD, PREFIXES, PRECISION, WATCHED = range(1, 7)


def after(name: str, seconds: float) -> State:
    """A server after so many seconds of a recording."""
    watch = Watch("vllm", Policy())
    records = [item for item in read(RECORDINGS / f"{name}.jsonl.gz") if isinstance(item, Record)]
    for record in records:
        if record.t <= records[0].t + seconds:
            watch.feed(outcome_of(record, interval_s=1), record.t)
    return watch.state


@pytest.mark.parametrize(
    ("recording", "point", "mark", "text"),
    [
        ("0.32.0--c-kv-saturation", LENGTHS, Mark.SHOWN, "prompt p50 "),
        ("0.32.0--c-kv-saturation", LIMIT, Mark.SHOWN, "max_model_len is 2,048 tokens, 1."),
        ("0.32.0--c-kv-saturation", LOAD, Mark.LOOK, "this load does not fit in the cache"),
        ("0.32.0--c-kv-saturation", PREFIXES, Mark.LOOK, "hit rate 0 % of "),
        ("0.32.0--c-kv-saturation", PRECISION, Mark.YOURS, "not in FP8 (kv-cache-dtype auto)"),
        ("0.32.0--b-healthy", LOAD, Mark.YOURS, "0 preemptions"),
        ("0.32.0--b-healthy", LIMIT, Mark.LOOK, "consider a lower limit"),
        ("0.32.0--b-healthy", WATCHED, Mark.YOURS, "waiting requests and preemptions are exposed"),
        ("0.32.0--e-shared-prefix", PREFIXES, Mark.SHOWN, "prefix cache hit rate"),
        ("0.32.0--g-prefix-caching-off", PREFIXES, Mark.LOOK, "prefix caching is off"),
        ("0.32.0--a-idle", LENGTHS, Mark.UNKNOWN, "too few for percentiles"),
        ("0.8.5-v0--c-kv-saturation", LIMIT, Mark.UNKNOWN, "does not expose its max_model_len"),
    ],
)
def test_what_the_data_shows_of_a_point(recording: str, point: int, mark: Mark, text: str) -> None:
    found = checklist(after(recording, 80))[point]
    assert text in found.shown[0].text
    assert found.mark is mark


def test_each_engine_is_shown_and_the_most_urgent_mark_counts() -> None:
    points = checklist(after("0.32.0--j-data-parallel-2", 40))
    assert all([one.key.engine for one in point.shown] == ["0", "1"] for point in points)
    assert all(point.mark in {one.mark for one in point.shown} for point in points)


def test_before_anything_is_known_nothing_is_claimed() -> None:
    points = checklist(initial("vllm"))
    assert len(points) == 7
    assert {point.mark for point in points} == {Mark.UNKNOWN}
    assert all(point.yours for point in points)
