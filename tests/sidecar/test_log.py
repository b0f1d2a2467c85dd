"""Log lines: one for each thing that happened, readable by people and by machines."""

from __future__ import annotations

import io
import json
import logging
import math

import pytest

from kvwatch.core.lifecycle import Stage
from kvwatch.core.snapshot import EngineKey
from kvwatch.core.state import Event, Transition
from kvwatch.core.symptoms import SYMPTOMS, Severity
from kvwatch.sidecar import log

KEY = EngineKey("vllm", "meta/llama 3", "0")
FIRING = Transition(
    12.0,
    1e9,
    KEY,
    "kv_exhausted",
    Stage.PENDING,
    Stage.FIRING,
    {"kv_cache_usage_ratio": 0.9876543, "requests_waiting": 12.0, "none": None, "nan": math.nan},
)


def lines(style: str, *changes: Transition, level: str = "debug") -> list[str]:
    stream = io.StringIO()
    log.set_up(style, level, stream)  # type: ignore[arg-type]
    for change in changes:
        log.log_transition(change)
    return stream.getvalue().splitlines()


def test_a_transition_as_text_has_who_what_and_the_numbers() -> None:
    (line,) = lines("text", FIRING)
    assert line.startswith("time=20")
    for part in (
        'message="kv_exhausted is firing"',
        "target=vllm",
        'model_name="meta/llama 3"',
        "engine=0",
        "symptom=kv_exhausted",
        "from=pending",
        "to=firing",
        "evidence.kv_cache_usage_ratio=0.987654",
        "evidence.requests_waiting=12",
        "evidence.none=unknown",
        "evidence.nan=unknown",
    ):
        assert part in line


def test_a_transition_as_json_is_one_object_of_strict_json() -> None:
    (line,) = lines("json", FIRING)

    def never(constant: str) -> None:
        raise AssertionError(constant)

    told = json.loads(line, parse_constant=never)
    assert told["level"] in {"error", "warning", "info"}
    assert told["evidence"]["requests_waiting"] == 12
    assert told["evidence"]["nan"] is None
    assert (told["from"], told["to"]) == ("pending", "firing")


@pytest.mark.parametrize("row", SYMPTOMS, ids=lambda row: row.id)
def test_what_fires_speaks_as_loud_as_its_severity(row: object) -> None:
    symptom = next(one for one in SYMPTOMS if one is row)
    change = Transition(1.0, 1.0, KEY, symptom.id, Stage.PENDING, Stage.FIRING, {})
    (line,) = lines("json", change)
    levels = {Severity.CRITICAL: "error", Severity.WARNING: "warning", Severity.INFO: "info"}
    assert json.loads(line)["level"] == levels[symptom.severity]


def test_what_is_only_pending_is_not_told_by_default() -> None:
    pending = Transition(1.0, 1.0, KEY, "kv_exhausted", Stage.INACTIVE, Stage.PENDING, {})
    over = Transition(2.0, 2.0, KEY, "kv_exhausted", Stage.PENDING, Stage.INACTIVE, {})
    assert lines("text", pending, over, level="info") == []
    assert len(lines("text", pending, over)) == 2


def test_nothing_that_a_server_says_can_break_a_line_or_forge_one() -> None:
    nasty = EngineKey("vllm", 'a\nlevel=error message="\x1b[31mforged"\r', "0")
    stream = io.StringIO()
    log.set_up("text", "debug", stream)
    log.log_event(Event(1.0, 1.0, "engine_appeared", nasty))
    (line,) = stream.getvalue().splitlines()
    assert "\x1b" not in line
    assert r"a\nlevel=error" in line


def test_an_unexpected_error_is_told_with_its_traceback_once_a_minute_and_kind() -> None:
    stream = io.StringIO()
    log.set_up("json", "debug", stream)
    complaints = log.Complaints()
    for now in (0.0, 1.0, 59.0, 60.0):
        for error in (ValueError("one"), KeyError("two")):
            try:
                raise error
            except (ValueError, KeyError) as caught:
                complaints.about(caught, now, target="vllm")
    told = [json.loads(line) for line in stream.getvalue().splitlines()]
    assert [line["error"] for line in told] == ["ValueError", "KeyError"] * 2
    assert all("Traceback" in line["traceback"] for line in told)


def test_a_traceback_as_text_follows_its_line() -> None:
    stream = io.StringIO()
    log.set_up("text", "debug", stream)
    try:
        math.sqrt(-1)
    except ValueError as caught:
        log.Complaints().about(caught, 0.0)
    first, *rest = stream.getvalue().splitlines()
    assert "an error that should not happen" in first
    assert rest[0] == "Traceback (most recent call last):"


def test_the_clients_lines_for_each_request_are_not_shown() -> None:
    stream = io.StringIO()
    log.set_up("text", "debug", stream)
    logging.getLogger("httpx").info("HTTP Request: GET")
    assert stream.getvalue() == ""
