"""Log lines: one for each thing that happened, readable by people and by machines."""

from __future__ import annotations

import io
import json
import logging
import math
from dataclasses import replace

import pytest

from kvwatch.core.export.findings import findings
from kvwatch.core.judgement.lifecycle import Stage
from kvwatch.core.judgement.pipeline import advance
from kvwatch.core.judgement.state import Event, State, Transition, initial
from kvwatch.core.judgement.symptoms import SYMPTOMS, Severity
from kvwatch.core.model.outcome import Failure, Scrape, ScrapeError
from kvwatch.core.model.snapshot import EngineKey
from kvwatch.sidecar import log
from kvwatch.sidecar.log import LogThrottle, RateLimiter
from tests.support.loopback import pages

SATURATED = "0.32.0--c-kv-saturation.jsonl.gz"
RESTART = "0.32.0--i-restart.jsonl.gz"
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
    log.configure_logging(style, level, stream)  # type: ignore[arg-type]
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
    if symptom.id == "engine_restarted":  # the event says it, with more
        levels = dict.fromkeys(Severity, "debug")
    assert json.loads(line)["level"] == levels[symptom.severity]


def test_what_is_only_pending_is_not_told_by_default() -> None:
    pending = Transition(1.0, 1.0, KEY, "kv_exhausted", Stage.INACTIVE, Stage.PENDING, {})
    over = Transition(2.0, 2.0, KEY, "kv_exhausted", Stage.PENDING, Stage.INACTIVE, {})
    assert lines("text", pending, over, level="info") == []
    assert len(lines("text", pending, over)) == 2


def test_what_fires_says_what_to_do_first_and_what_explains_it() -> None:
    before, after = down_while_saturated()
    stream = io.StringIO()
    log.configure_logging("json", "debug", stream)
    firing = [one for one in findings(after) if one.explained_by]
    assert firing, "nothing is explained by another"
    changes = [
        Transition(1.0, 1.0, one.key, one.symptom.id, Stage.PENDING, Stage.FIRING, one.evidence)
        for one in findings(after)
    ]
    log.log_changes(before, after, changes)
    told = {line["symptom"]: line for line in map(json.loads, stream.getvalue().splitlines())}
    for one in findings(after):
        assert told[one.symptom.id]["first_action"] == one.advice.actions[0].sentence
        assert told[one.symptom.id].get("explained_by", []) == list(one.explained_by)


def down_while_saturated() -> tuple[State, State]:
    """A target whose cache ran full, before and after it has been down for a while."""
    state = initial("vllm")
    for n, body in enumerate(pages(SATURATED)[:70]):
        state, _ = advance(state, Scrape(body, 1e9 + n), 1000.0 + n)
    before = state
    for n in range(70, 120):
        state, _ = advance(state, ScrapeError(Failure.REFUSED, "nothing listens", 1e9 + n), 1000.0 + n)
    return before, state


def test_what_is_over_needs_no_action() -> None:
    over = Transition(1.0, 1.0, KEY, "kv_exhausted", Stage.FIRING, Stage.INACTIVE, {})
    stream = io.StringIO()
    log.configure_logging("json", "debug", stream)
    log.log_changes(initial("vllm"), initial("vllm"), [over])
    assert "first_action" not in json.loads(stream.getvalue())


def test_a_restart_is_one_line() -> None:
    stream = io.StringIO()
    log.configure_logging("json", "info", stream)
    state = initial("vllm")
    for n, body in enumerate((pages(RESTART)[0], pages(RESTART)[-1])):
        before = state
        state, changes = advance(state, Scrape(body, 1e9 + n), 1000.0 + 60 * n)
        log.log_changes(before, state, changes)
    told = [
        line
        for line in map(json.loads, stream.getvalue().splitlines())
        if line.get("event") == "restart" or line.get("symptom") == "engine_restarted"
    ]
    (line,) = told
    assert (line["level"], line["message"]) == ("warning", "vLLM restarted")
    assert line["detail"]["unseen_seconds"] == 60.0
    assert line["first_action"]


def test_servers_that_take_turns_are_a_warning_with_the_remedy() -> None:
    stream = io.StringIO()
    log.configure_logging("json", "info", stream)
    log.log_state_event(Event(1.0, 1.0, "several_servers", EngineKey("vllm")))
    line = json.loads(stream.getvalue())
    assert (line["level"], line["event"], line["target"]) == ("warning", "several_servers", "vllm")
    assert "several servers answer in turn behind this address" in line["message"]
    assert "give each its own target" in line["message"]


@pytest.mark.parametrize(
    ("value", "text"), [(1234567.0, "1234567"), (15668.0, "15668"), (1e-5, "0.00001"), (0.5, "0.5")]
)
def test_no_number_as_text_has_an_exponent(value: float, text: str) -> None:
    change = Transition(1.0, 1.0, KEY, "kv_exhausted", Stage.PENDING, Stage.FIRING, {"n": value})
    assert lines("text", change)[0].endswith(f" evidence.n={text}")


# -- whether it can be scraped ------------------------------------------------------------------------------------


def reached(*polls: tuple[float, bool]) -> list[dict[str, object]]:
    """What is said while polls at these times are good or not."""
    stream = io.StringIO()
    log.configure_logging("json", "debug", stream)
    seen = log.Reachability()
    error = ScrapeError(Failure.TIMEOUT, "no complete answer within 0.9 s", 0.0)
    for now, good in polls:
        state = replace(initial("vllm"), now=now, wall=1e9 + now, up=good, error=None if good else error)
        seen.update(state)
    return [json.loads(line) for line in stream.getvalue().splitlines()]


def test_one_failure_between_good_scrapes_is_no_news() -> None:
    told = reached((0, True), (1, False), (2, True), (3, False), (4, False), (5, True))
    assert [line["up"] for line in told] == [True]


@pytest.mark.parametrize("times", [(10, 11, 12.5), (10, 13)], ids=["three polls", "three seconds"])
def test_a_failure_that_lasts_is_told_once_with_since_when(times: tuple[float, ...]) -> None:
    told = reached((9, True), *((time, False) for time in times), (20, False), (21, True))
    assert [line["up"] for line in told] == [True, False, True]
    assert told[1]["since"] == "2001-09-09T01:46:50.000Z"
    assert told[1]["failure"] == "timeout"
    assert len(reached((9, True), *((time, False) for time in times[:-1]))) == 1


def test_a_server_that_never_answered_is_told_of_at_once() -> None:
    assert [line["up"] for line in reached((0, False), (1, False), (2, True))] == [False, True]


def test_nothing_that_a_server_says_can_break_a_line_or_forge_one() -> None:
    nasty = EngineKey("vllm", 'a\nlevel=error message="\x1b[31mforged"\r', "0")
    stream = io.StringIO()
    log.configure_logging("text", "debug", stream)
    log.log_state_event(Event(1.0, 1.0, "engine_appeared", nasty))
    (line,) = stream.getvalue().splitlines()
    assert "\x1b" not in line
    assert r"a\nlevel=error" in line


def test_an_unexpected_error_is_told_with_its_traceback_once_a_minute_and_kind() -> None:
    stream = io.StringIO()
    log.configure_logging("json", "debug", stream)
    problems = log.ProblemLog()
    for now in (0.0, 1.0, 59.0, 60.0):
        for error in (ValueError("one"), KeyError("two")):
            try:
                raise error
            except (ValueError, KeyError) as caught:
                problems.log(caught, now, target="vllm")
    told = [json.loads(line) for line in stream.getvalue().splitlines()]
    assert [line["error"] for line in told] == ["ValueError", "KeyError"] * 2
    assert all("Traceback" in line["traceback"] for line in told)


def test_what_libraries_complain_of_is_one_line_a_kind_and_minute_with_a_count() -> None:
    stream, clock = io.StringIO(), [0.0]
    log.configure_logging("json", "info", stream)
    (theirs,) = logging.getLogger("asyncio").handlers
    theirs.filters[:] = [LogThrottle(now=lambda: clock[0])]
    assert logging.getLogger("uvicorn.error").handlers == [theirs]
    for second in (0.0, 1.0, 59.0, 60.0, 61.0):
        clock[0] = second
        for n in range(1000):
            logging.getLogger("asyncio").error(f"socket.accept() out of system resource\nsocket: {n}")  # noqa: G004
            logging.getLogger("uvicorn.error").warning("Invalid HTTP request received.")
    logging.getLogger("asyncio").error("Task exception was never retrieved")
    told = [json.loads(line) for line in stream.getvalue().splitlines()]
    assert [(line["message"].split("\n")[0], line.get("not_shown")) for line in told] == [
        ("socket.accept() out of system resource", None),
        ("Invalid HTTP request received.", None),
        ("socket.accept() out of system resource", 2999),
        ("Invalid HTTP request received.", 2999),
        ("Task exception was never retrieved", None),
    ]


def test_endless_kinds_of_complaints_are_bounded_too() -> None:
    throttle = LogThrottle(now=lambda: 0.0)
    passed = sum(
        throttle.filter(logging.LogRecord("asyncio", logging.ERROR, "", 0, f"kind {n}", None, None))
        for n in range(10_000)
    )
    assert passed <= 201


def test_engines_that_come_and_go_fast_are_summed_up() -> None:
    stream = io.StringIO()
    log.configure_logging("json", "info", stream)
    limiter, state, many = RateLimiter(), initial("vllm"), 50
    for second in range(122):
        keys = [EngineKey("vllm", "m", f"{second}-{n}") for n in range(many)]
        kinds = ("engine_appeared", "engine_vanished")
        events = tuple(Event(float(second), 0.0, kind, key) for key in keys for kind in kinds)
        after = replace(state, now=float(second), events=events if second < 121 else ())
        log.log_changes(state, after, (), limiter)
    told = [json.loads(line) for line in stream.getvalue().splitlines()]
    sums = [line for line in told if "one by one" in line["message"]]
    assert len(told) == 3 * 10 + 2
    assert [(line["engine_appeared"], line["engine_vanished"]) for line in sums] == [(2995, 2995)] * 2
    assert {line["target"] for line in sums} == {"vllm"}


def test_a_few_engines_are_told_one_by_one() -> None:
    limiter = RateLimiter()
    assert all(limiter.admits("engine_appeared", 0.0) for _ in range(8))
    assert limiter.suppressed(60.0) == {}


def test_a_traceback_as_text_follows_its_line() -> None:
    stream = io.StringIO()
    log.configure_logging("text", "debug", stream)
    try:
        math.sqrt(-1)
    except ValueError as caught:
        log.ProblemLog().log(caught, 0.0)
    first, *rest = stream.getvalue().splitlines()
    assert "unexpected error" in first
    assert rest[0] == "Traceback (most recent call last):"


def test_the_clients_lines_for_each_request_are_not_shown() -> None:
    stream = io.StringIO()
    log.configure_logging("text", "debug", stream)
    logging.getLogger("httpx").info("HTTP Request: GET")
    assert stream.getvalue() == ""
