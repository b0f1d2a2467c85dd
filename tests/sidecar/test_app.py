"""The HTTP interface: the real application, asked by a real client."""

from __future__ import annotations

import asyncio
import base64
import gzip
import hmac
import inspect
import json
import math
import re
import threading
from collections.abc import Callable, Iterator
from functools import cache
from html.parser import HTMLParser
from itertools import pairwise
from typing import Any

import httpx
import pytest
from fastapi import FastAPI
from hypothesis import example, settings
from hypothesis import given as drawn
from hypothesis import strategies as st
from prometheus_client import CollectorRegistry, Metric
from prometheus_client.exposition import choose_encoder
from prometheus_client.openmetrics.parser import text_string_to_metric_families as parse_openmetrics
from prometheus_client.parser import text_string_to_metric_families as parse_text
from prometheus_client.registry import Collector

from kvwatch import __version__
from kvwatch.core.export.alert_names import alert_name
from kvwatch.core.export.findings import Finding, findings, lifecycles
from kvwatch.core.history.regimes import Regime
from kvwatch.core.judgement import pipeline
from kvwatch.core.judgement.lifecycle import Lifecycle
from kvwatch.core.judgement.pipeline import advance, next_pace
from kvwatch.core.judgement.state import State, Transition, initial
from kvwatch.core.judgement.symptoms import SYMPTOMS, Verdict
from kvwatch.core.model.outcome import Failure, Scrape, ScrapeError
from kvwatch.core.model.snapshot import EngineKey
from kvwatch.sidecar.page import assets, document
from kvwatch.sidecar.serving import schemas
from kvwatch.sidecar.serving.app import build
from kvwatch.sidecar.serving.collector import StateCollector, registry_of
from kvwatch.sidecar.serving.metrics_text import Renderer
from kvwatch.sidecar.serving.middleware import TokenAuth
from kvwatch.sidecar.store import FailedScrape, Store
from kvwatch.text.evidence import format_value
from kvwatch.text.numbers import format_duration
from tests.support.loopback import RECORDINGS, TurnedClock, pages
from tests.support.page_colours import CSS, DARK, LIGHT, LINES, REGIMES

SATURATED = "0.32.0--c-kv-saturation.jsonl.gz"
TWO_ENGINES = "0.32.0--j-data-parallel-2.jsonl.gz"
TOKEN = "a-token-nobody-may-see"  # noqa: S105
JSON_ROUTES = (
    "/api/v1/state",
    "/api/v1/findings",
    "/api/v1/events",
    "/api/v1/history",
    "/debug/last-failures",
)
RECORDED = sorted(path.name for path in RECORDINGS.glob("*.gz"))
ROUTES = (
    "/",
    "/static/live.js",
    "/runbooks/kvwatchkvthrashing.md",
    "/metrics",
    "/metrics/",
    "/healthz",
    "/readyz",
    "/openapi.json",
    *JSON_ROUTES,
)


@cache
def watched(recording: str, target: str = "vllm") -> tuple[State, tuple[Transition, ...]]:
    """A target after a recording, one page a second."""
    state = initial(target)
    changes: list[Transition] = []
    for n, body in enumerate(pages(recording)):
        state, found = advance(state, Scrape(body, 1_700_000_000.0 + n), 1000.0 + n)
        changes += found
    return state, tuple(changes)


def store_of(*recordings: str) -> Store:
    store = Store()
    for n, recording in enumerate(recordings):
        store.publish(*watched(recording, f"vllm-{n}" if n else "vllm"))
    return store


def clock_of(store: Store) -> TurnedClock:
    clock = TurnedClock()
    clock.time = max((state.now or 0.0 for state in store.states().values()), default=0.0)
    return clock


def app_of(store: Store, token: str | None = None) -> FastAPI:
    clock = clock_of(store)
    return build(store, registry_of(store, clock), clock, auth=TokenAuth(token))


def ask(app: FastAPI, path: str, method: str = "GET", **headers: str) -> httpx.Response:
    async def run() -> httpx.Response:
        async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://kvwatch") as client:
            return await client.request(method, path, headers=headers)

    return asyncio.run(run())


def data(app: FastAPI, path: str) -> Any:
    def never(constant: str) -> None:
        raise AssertionError(f"{constant} is no JSON")

    answer = ask(app, path)
    assert answer.status_code == 200, answer.text
    assert answer.headers["content-type"] == "application/json"
    return json.loads(answer.text, parse_constant=never)


# -- metrics ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("path", ["/metrics", "/metrics/"])
def test_metrics_are_plain_text_without_a_detour(path: str) -> None:
    answer = ask(app_of(store_of(SATURATED)), path)
    assert answer.status_code == 200
    assert answer.headers["content-type"] == "text/plain; version=0.0.4; charset=utf-8"
    families = {family.name for family in parse_text(answer.text)}
    assert "kvwatch_kv_cache_usage_ratio" in families
    assert all(name.startswith("kvwatch_") for name in families)


def test_openmetrics_for_who_asks_for_it() -> None:
    accept = "application/openmetrics-text;version=1.0.0,text/plain;version=0.0.4;q=0.5"
    answer = ask(app_of(store_of(SATURATED)), "/metrics", accept=accept)
    assert answer.headers["content-type"].startswith("application/openmetrics-text; version=1.0.0")
    assert answer.text.endswith("# EOF\n")
    assert len(list(parse_openmetrics(answer.text))) > 20  # type: ignore[no-untyped-call]


@pytest.mark.parametrize(
    ("accepted", "packed"), [("gzip", True), ("identity", False), ("br, gzip;q=0.5", True)]
)
def test_compressed_for_who_asks_for_it(accepted: str, packed: bool) -> None:
    async def run() -> tuple[str | None, bytes]:
        transport = httpx.ASGITransport(app_of(store_of(SATURATED)))
        async with (
            httpx.AsyncClient(transport=transport, base_url="http://kvwatch") as client,
            client.stream("GET", "/metrics", headers={"accept-encoding": accepted}) as answer,
        ):
            raw = b"".join([piece async for piece in answer.aiter_raw()])
            return answer.headers.get("content-encoding"), raw

    encoding, raw = asyncio.run(run())
    assert (encoding == "gzip") is packed
    assert b"kvwatch_up" in (gzip.decompress(raw) if packed else raw)


PROMETHEUS_3 = (
    "application/openmetrics-text;version=1.0.0;escaping=allow-utf-8;q=0.6,application/openmetrics-text;"
    "version=0.0.1;q=0.5,text/plain;version=1.0.0;escaping=allow-utf-8;q=0.4,text/plain;version=0.0.4;"
    "q=0.3,*/*;q=0.2"
)
"""What it sends."""
_WORDS = st.sampled_from(
    (
        "application/openmetrics-text",
        "text/plain",
        "*/*",
        "gzip",
        "identity",
        "version",
        "escaping",
        "q",
        "charset",
    )
)
_VALUES = st.sampled_from(
    ("1.0.0", "1.0", "0.0.4", "9", "abc", "", "0", "0.5", "1e9", "nan", "-1", '"1.0.0"', "1." * 99)
)
_PARTS = st.one_of(
    _WORDS,
    st.builds("{}={}".format, _WORDS, _VALUES),
    st.text(st.characters(min_codepoint=32, max_codepoint=126), max_size=20),
)
_HEADER = st.lists(st.lists(_PARTS, max_size=5).map(";".join), max_size=5).map(",".join)


@cache
def small_app() -> FastAPI:
    return app_of(store_of(SATURATED))


@settings(max_examples=60, deadline=None)
@example(accept="application/openmetrics-text;version=abc", encoding="")
@example(accept="application/openmetrics-text;version=9", encoding="gzip;q=0")
@example(accept="text/plain;version=;q=", encoding=";;gzip;q=,")
@drawn(accept=_HEADER, encoding=_HEADER)
def test_whatever_a_client_accepts_it_gets_a_page_that_is_what_it_says(accept: str, encoding: str) -> None:
    answer = ask(small_app(), "/metrics", **{"accept": accept, "accept-encoding": encoding})
    assert answer.status_code == 200
    kind = answer.headers["content-type"]
    if kind.startswith("application/openmetrics-text; version=1.0.0;"):
        assert "kvwatch_up" in {family.name for family in parse_openmetrics(answer.text)}  # type: ignore[no-untyped-call]
    else:
        assert kind == "text/plain; version=0.0.4; charset=utf-8"
        assert "kvwatch_up" in {family.name for family in parse_text(answer.text)}


@pytest.mark.parametrize(
    ("accept", "openmetrics"),
    [
        ("application/openmetrics-text", True),
        ("application/openmetrics-text;version=abc", False),
        ("application/openmetrics-text;version=9", False),
        ("application/openmetrics-text;version=9, application/openmetrics-text;version=1.0.0;q=0.1", True),
        ("application/openmetrics-text;version=0.0.1", False),
        ("application/openmetrics-text;q=0", False),
        ("application/openmetrics-text;q=0.2,text/plain;q=0.8", False),
        (
            PROMETHEUS_3,
            True,
        ),
        ("text/plain;version=9", False),
    ],
)
def test_openmetrics_only_in_the_version_that_is_written(accept: str, openmetrics: bool) -> None:
    answer = ask(small_app(), "/metrics", accept=accept)
    assert answer.status_code == 200
    assert answer.text.endswith("# EOF\n") is openmetrics
    assert ("version=1.0.0" in answer.headers["content-type"]) is openmetrics
    assert "9" not in answer.headers["content-type"]


@pytest.mark.parametrize(
    ("accepted", "packed"),
    [
        ("gzip;q=0", False),
        ("gzip; q=0.000", False),
        ("br, GZIP ;q=0.1", True),
        ("not-gzip", False),
        ("gzip, gzip;q=0", False),
    ],
)
def test_gzip_is_not_for_who_refuses_it(accepted: str, packed: bool) -> None:
    answer = ask(small_app(), "/metrics", **{"accept-encoding": accepted})
    assert (answer.headers.get("content-encoding") == "gzip") is packed
    assert "kvwatch_up" in answer.text


def many_engines(count: int) -> Store:
    state = initial("vllm")
    for n, page in enumerate(pages(SATURATED)[40:43]):
        lines = page.splitlines(keepends=True)
        body = b"".join(
            line.replace(b'engine="0"', f'engine="{engine}"'.encode())
            for line in lines
            for engine in (range(count) if b'engine="0"' in line else (0,))
        )
        state, _ = advance(state, Scrape(body, 1_700_000_000.0 + n), 1000.0 + n)
    store = Store()
    store.publish(state)
    return store


def test_a_page_of_very_many_engines_holds_up_nobody_and_is_written_once_for_all_who_wait() -> None:
    store = many_engines(256)
    clock = clock_of(store)
    wrote: list[int] = []
    registry = registry_of(store, clock)

    class Counted(CollectorRegistry):
        def collect(self) -> Iterator[Metric]:
            wrote.append(threading.get_ident())
            yield from registry.collect()

    app = build(store, Counted(), clock)

    async def run() -> tuple[list[httpx.Response], int]:
        async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://kvwatch") as client:
            asking = [asyncio.create_task(client.get("/metrics")) for _ in range(6)]
            turns = 0
            while not all(one.done() for one in asking):
                await asyncio.sleep(0.005)
                turns += 1
            return [await one for one in asking], turns

    answers, turns = asyncio.run(run())
    assert {one.status_code for one in answers} == {200}
    assert all(one.text.count("kvwatch_kv_cache_usage_ratio{") == 256 for one in answers)
    assert len(wrote) <= 2  # the first page was begun before the others asked
    assert threading.get_ident() not in wrote
    assert turns > 10


@pytest.mark.parametrize("host", ["[", "[::1", "a b", ""])
def test_a_host_that_is_none_breaks_nothing(host: str) -> None:
    assert ask(small_app(), "/nothing", host=host).status_code == 404
    assert ask(small_app(), "/metrics", host=host).status_code == 200


# -- JSON -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("recording", RECORDED, ids=lambda name: name[:-9])
def test_every_recording_can_be_told_as_json_and_shown(recording: str) -> None:
    app = app_of(store_of(recording))
    for path in JSON_ROUTES:
        data(app, path)
    assert ask(app, "/").status_code == 200


@pytest.mark.parametrize("recording", RECORDED, ids=lambda name: name[:-9])
def test_pages_are_written_as_the_client_library_writes_them(recording: str) -> None:
    store = store_of(recording, SATURATED)
    registry, renderer = CollectorRegistry(), Renderer()
    registry.register(StateCollector(store, clock_of(store)))
    for accept in ("", "application/openmetrics-text;version=1.0.0"):
        theirs, their_type = choose_encoder(accept)
        ours, our_type = renderer.choose(accept)
        assert our_type == their_type
        assert ours(registry) == theirs(registry)


@pytest.mark.parametrize("recording", [SATURATED, "0.32.0--j-data-parallel-2.jsonl.gz"])
def test_pages_of_one_target_after_another_poll_are_those_of_the_client_library(recording: str) -> None:
    """One renderer writes them all: what it remembers of one page is no longer true of the next."""
    store, clock, renderer = Store(), TurnedClock(), Renderer()
    registry = registry_of(store, clock)
    state = initial("vllm")
    with gzip.open(RECORDINGS / recording, "rt", encoding="utf-8") as lines:
        records = [json.loads(line) for line in lines]
    for n, record in enumerate(records[:60]):
        pace = next_pace(state, record["t"])
        body = record["body"].replace("tiny-llama", 'le=\\"\\\\' + "\0 x").encode()
        state, transitions = advance(state, Scrape(body, record["t"], pace=pace), record["t"])
        store.publish(state, transitions)
        store.count("vllm", polls=1)
        clock.time = record["t"] + 0.25
        for accept in ("", "application/openmetrics-text;version=1.0.0") if n % 5 == 0 else ("",):
            ours, theirs = renderer.choose(accept)[0](registry), choose_encoder(accept)[0](registry)
            assert without_process(ours) == without_process(theirs)
        clock.time += 0.25
        again = renderer.choose("")[0](registry)
        assert without_process(again) == without_process(choose_encoder("")[0](registry))
        assert b"kvwatch_data_age_seconds" in again


def without_process(page: bytes) -> list[bytes]:
    """The lines but those of the process, which goes on meanwhile."""
    return [line for line in page.splitlines() if not line.startswith(b"kvwatch_process_")]


def test_odd_values_and_labels_are_written_as_the_client_library_writes_them() -> None:
    class Odd(Collector):
        def collect(self) -> Iterator[Metric]:
            family = Metric("a", 'a "quoted"\\ \n help', "gauge")
            for n, value in enumerate(
                (0, 1, -1, 1e6, 1e7, 123456789.5, 1e21, 1e-7, math.inf, -math.inf, math.nan, True)
            ):
                family.add_sample("a", {"z": f"{n}", "b": 'x"\n\\'}, value)
            yield family
            yield Metric("c", "a counter without samples", "counter")

    registry = CollectorRegistry()
    registry.register(Odd())
    for accept in ("", "application/openmetrics-text;version=1.0.0"):
        assert Renderer().choose(accept)[0](registry) == choose_encoder(accept)[0](registry)


def test_state_is_everything() -> None:
    whole = data(app_of(store_of(SATURATED)), "/api/v1/state")
    (target,) = whole["targets"]
    (engine,) = target["engines"]
    assert whole["version"] == __version__
    assert target["up"] is True
    assert engine["signals"]["kv_cache_usage_ratio"] >= 0
    assert set(target["polling"]) >= {"polls", "interval_seconds", "age_seconds", "narrowed"}
    assert target["polling"]["age_seconds"] == 0.0


def test_the_state_of_a_server_that_is_down_has_no_numbers_but_says_for_how_long() -> None:
    store = while_down()
    clock = clock_of(store)
    clock.time += 200  # nothing came since
    app = build(store, registry_of(store, clock), clock)
    (target,) = data(app, "/api/v1/state")["targets"]
    (engine,) = target["engines"]
    assert (target["up"], engine["signals"], target["server"]) == (False, {}, {})
    assert engine["derived"]
    assert set(engine["derived"].values()) == {None}
    assert set(engine["unknown"].values()) == {"not scraped for 4 min"}


def saturated() -> Store:
    """In the middle of the saturation, where symptoms fire."""
    state = initial("vllm")
    for n, body in enumerate(pages(SATURATED)[:70]):
        state, _ = advance(state, Scrape(body, 1_700_000_000.0 + n), 1000.0 + n)
    store = Store()
    store.publish(state)
    return store


def test_findings_say_what_to_do() -> None:
    found = data(app_of(saturated()), "/api/v1/findings")["findings"]
    assert found
    assert all(one["actions"] and one["evidence"] and one["meaning"] for one in found)
    assert all(one["engine"] == "0" for one in found)


def test_a_finding_that_can_not_be_told_any_more_is_not_current_and_says_why() -> None:
    app = app_of(while_long_down())
    found = data(app, "/api/v1/findings")["findings"]
    (target,) = data(app, "/api/v1/state")["targets"]
    assert target["findings"] == found
    current = {one["symptom"]: (one["current"], one["reason"]) for one in found}
    assert current.pop("target_down") == (True, None)
    why = "The condition has been unknown for 44 s: the server is not scraped"
    assert current
    assert set(current.values()) == {(False, why)}
    assert {one["current"] for one in data(app_of(saturated()), "/api/v1/findings")["findings"]} == {True}
    schema = data(app, "/openapi.json")["components"]["schemas"]["Finding"]
    assert {"current", "reason"} <= set(schema["required"])
    assert "unknown" in schema["properties"]["current"]["description"]


def test_events_hold_every_transition() -> None:
    store = store_of(SATURATED)
    told = data(app_of(store), "/api/v1/events")
    assert [(t["symptom"], t["from"], t["to"]) for t in told["transitions"]] == [
        (t.symptom, t.before, t.after) for t in store.transitions()
    ]
    assert told["transitions"][0]["t"] == 0.0
    assert told["events"][0]["event"] == "engine_appeared"


def test_history_is_in_columns_with_units() -> None:
    told = data(app_of(store_of(SATURATED)), "/api/v1/history?seconds=20")
    (engine,) = told["engines"]
    assert set(engine["columns"]) == set(told["units"])
    assert {len(column) for column in engine["columns"].values()} == {21}
    at = engine["columns"]["at"]
    assert [round(b - a, 3) for a, b in pairwise(at)] == [1.0] * 20
    assert set(engine["columns"]["regime"]) <= {"idle", "flowing", "full", "kv_limited", "stalled"}


def test_every_column_of_a_history_has_its_unit() -> None:
    tokens = dict.fromkeys(
        (
            "prompt_tokens_total",
            "generation_tokens_total",
            "prefix_cache_queried_tokens_total",
            "prefix_cache_hit_tokens_total",
            "external_prefix_cache_queried_tokens_total",
            "external_prefix_cache_hit_tokens_total",
            "prompt_tokens_by_source_total",
            "prompt_tokens_by_source_total/local_cache_hit",
            "prompt_tokens_by_source_total/external_kv_transfer",
            "request_prompt_tokens/sum",
        ),
        "tokens, increase",
    )
    known = tokens | {
        "at": "unix seconds",
        "kv_cache_usage_ratio": "ratio, 0 to 1",
        "requests_running": "requests",
        "requests_waiting": "requests",
        "requests_deferred": "requests",
        "kv_cache_demand_ratio": "ratio, 1 is exactly full",
        "regime": "name",
        "preemptions_total": "preemptions, increase",
        "requests_finished_total": "requests, increase",
        "requests_finished_total/error": "requests, increase",
        "requests_finished_total/abort": "requests, increase",
        "admission_rejections_total": "requests, increase",
        "http_responses_total": "answers, increase",
        "iteration_tokens": "engine steps, increase",
        "request_prompt_tokens": "requests, increase",
    }
    told = data(app_of(store_of(SATURATED)), "/api/v1/history")
    assert known.items() <= told["units"].items()
    assert set(told["units"]) == set(told["engines"][0]["columns"])
    assert all(told["units"].values())


def test_history_of_the_columns_asked_for() -> None:
    app = app_of(store_of(SATURATED))
    told = data(app, "/api/v1/history?seconds=20&columns=at,requests_waiting")
    whole = data(app, "/api/v1/history?seconds=20")["engines"][0]["columns"]
    assert told["units"] == {"at": "unix seconds", "requests_waiting": "requests"}
    assert told["engines"][0]["columns"] == {name: whole[name] for name in ("at", "requests_waiting")}
    answer = ask(app, "/api/v1/history?columns=at,requests_wating")
    assert answer.status_code == 404
    assert "no column 'requests_wating'; known: admission_rejections_total, at, " in answer.json()["error"]


def test_history_tells_how_late_first_tokens_came() -> None:
    store = saturated()
    (engine,) = data(app_of(store), "/api/v1/history")["engines"]
    told = engine["latencies"]
    at = engine["columns"]["at"]
    assert {len(column) for column in told.values()} == {len(told["at"])}
    assert all(after - before >= 10 for before, after in pairwise(told["at"]))
    assert at[0] < told["at"][0] < told["at"][-1] <= at[-1]
    pairs = zip(told["time_to_first_token_p50_seconds"], told["time_to_first_token_p95_seconds"], strict=True)
    known = [(half, most) for half, most in pairs if half is not None]
    assert known
    assert all(0 < half <= most for half, most in known)
    assert known[-1][1] > 5  # in the middle of the saturation


def restarted() -> Store:
    """A server in saturation that is another process after 70 s, and saturated again."""
    state = initial("vllm")
    before = pages(SATURATED)[:70]
    after = [re.sub(rb"(process_start_time_seconds) \S+", rb"\1 1.9e9", page) for page in before]
    for n, body in enumerate([*before, *after]):
        state, _ = advance(state, Scrape(body, 1.7e9 + n), 1000.0 + n)
    assert state.restarts == 1
    store = Store()
    store.publish(state)
    return store


def test_history_goes_back_beyond_a_restart_and_counts_nothing_across_it() -> None:
    told = data(app_of(restarted()), "/api/v1/history")
    (engine,) = told["engines"]
    columns = engine["columns"]
    assert columns["at"] == [pytest.approx(1.7e9 + n) for n in range(140)]
    assert columns["requests_waiting"][:70] == columns["requests_waiting"][70:]
    counted = columns["preemptions_total"]
    assert all(after >= before for before, after in pairwise(counted))
    assert counted[69] == counted[70] > 0
    assert counted[139] - counted[70] == counted[69] - counted[0]
    at = engine["latencies"]["at"]
    assert min(at) < 1.7e9 + 70 < max(at)
    p95 = engine["latencies"]["time_to_first_token_p95_seconds"]
    assert p95[: len(p95) // 2] == p95[len(p95) // 2 :]


def test_latencies_go_as_far_back_as_asked() -> None:
    app = app_of(restarted())
    (whole,) = data(app, "/api/v1/history?latency_seconds=600&seconds=5")["engines"]
    assert len(whole["columns"]["at"]) == 6
    assert whole["latencies"] == data(app, "/api/v1/history")["engines"][0]["latencies"]
    (short,) = data(app, "/api/v1/history?seconds=5")["engines"]
    assert len(short["latencies"]["at"]) <= 1


def test_the_page_tells_of_a_restart_with_what_was_before_it() -> None:
    page = ask(app_of(restarted()), "/").text
    assert "vLLM restarted 69 s ago" in page
    assert page.count('<line class="restart"') == 1
    assert "1 to 2 min ago, vLLM restarted" in page
    told = re.search(r'data-since="(\S+)" data-restarts="(\S+)"', page)
    assert told
    assert [float(at) for at in told.groups()] == [pytest.approx(1.7e9), pytest.approx(1.7e9 + 70)]


def test_history_of_all_engines_or_of_those_asked_for() -> None:
    app = app_of(store_of(TWO_ENGINES, SATURATED))
    assert len(data(app, "/api/v1/history")["engines"]) == 3
    assert len(data(app, "/api/v1/history?target=vllm")["engines"]) == 2
    assert len(data(app, "/api/v1/history?engine=1")["engines"]) == 1
    (one,) = data(app, "/api/v1/history?target=vllm&engine=1&model_name=tiny-llama")["engines"]
    assert (one["target"], one["engine"]) == ("vllm", "1")


@pytest.mark.parametrize(
    ("query", "known"),
    [
        ("target=x", "vllm, vllm-1"),
        ("engine=7", "0, 1"),
        ("model_name=x", "tiny-llama"),
        ("target=vllm-1&engine=1", "0"),
    ],
)
def test_an_unknown_name_is_not_found_and_the_known_ones_are_told(query: str, known: str) -> None:
    answer = ask(app_of(store_of(TWO_ENGINES, SATURATED)), f"/api/v1/history?{query}")
    assert answer.status_code == 404
    assert answer.json()["error"].endswith(f"known: {known}")


@pytest.mark.parametrize("seconds", ["0", "-1", "nan", "inf", "1e9", "soon"])
def test_a_span_that_makes_no_sense_is_refused_with_one_message(seconds: str) -> None:
    answer = ask(app_of(store_of(SATURATED)), f"/api/v1/history?seconds={seconds}")
    assert answer.status_code == 422
    assert answer.json()["error"].startswith("seconds: ")


def test_failures_are_shown_with_the_beginning_of_what_came() -> None:
    store = store_of(SATURATED)
    store.record_failure(FailedScrape("vllm", 5.0, Failure.HTTP_STATUS, "HTTP status 500", "<h1>sorry"))
    assert data(app_of(store), "/debug/last-failures")["failures"] == [
        {
            "target": "vllm",
            "at": 5.0,
            "kind": "http_status",
            "detail": "HTTP status 500",
            "excerpt": "<h1>sorry",
        }
    ]


def before_the_first_scrape() -> Store:
    return Store([initial("vllm")])


def while_down() -> Store:
    store = store_of(SATURATED)
    state = store.state("vllm")
    now = (state.now or 0.0) + 40
    store.publish(*advance(state, ScrapeError(Failure.REFUSED, "nothing <listens>", 1.7e9), now))
    return store


@pytest.mark.parametrize("make", [before_the_first_scrape, while_down, Store])
def test_everything_is_served_whatever_vllm_does(make: Callable[[], Store]) -> None:
    app = app_of(make())
    assert {path: ask(app, path).status_code for path in ROUTES} == dict.fromkeys(ROUTES, 200)


# -- manners ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("path", ROUTES)
@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "PATCH", "OPTIONS"])
def test_nothing_can_be_changed(path: str, method: str) -> None:
    answer = ask(app_of(before_the_first_scrape()), path, method)
    assert answer.status_code == 405
    assert answer.json() == {"error": "kvwatch is read-only: use GET"}


@pytest.mark.parametrize("path", ROUTES)
def test_head_is_answered_as_get(path: str) -> None:
    assert ask(app_of(before_the_first_scrape()), path, "HEAD").status_code == 200


def test_what_is_not_there_is_json_too() -> None:
    answer = ask(app_of(before_the_first_scrape()), "/no/such/thing")
    assert answer.status_code == 404
    assert "/no/such/thing" in answer.json()["error"]


@pytest.mark.parametrize("path", ["/docs", "/redoc"])
def test_pages_that_need_scripts_from_elsewhere_are_off(path: str) -> None:
    assert ask(app_of(before_the_first_scrape()), path).status_code == 404


def test_the_api_is_described() -> None:
    told = data(app_of(before_the_first_scrape()), "/openapi.json")
    assert set(told["paths"]) >= {"/metrics", "/healthz", "/readyz", *JSON_ROUTES}
    for path in JSON_ROUTES:
        operation = told["paths"][path]["get"]
        assert operation["description"]
        assert "$ref" in operation["responses"]["200"]["content"]["application/json"]["schema"]


def test_the_description_is_for_users_and_says_what_every_parameter_is() -> None:
    told = data(app_of(before_the_first_scrape()), "/openapi.json")
    words = told["info"]["description"]
    assert all(f"`{path}`" in words for path in (*JSON_ROUTES[:4], "/metrics"))
    assert "kvwatch.core" not in words
    parameters = told["paths"]["/api/v1/history"]["get"]["parameters"]
    assert [one["name"] for one in parameters] == [
        *("target", "model_name", "engine"),
        *("seconds", "latency_seconds", "columns"),
    ]
    assert all(one["description"] for one in parameters)
    life = told["components"]["schemas"]["Lifecycle"]["properties"]
    assert "unix seconds" in life["since_at"]["description"]
    assert "since" not in life
    public = {"Finding", "Lifecycle", "Event", "Gpu", "Transition", "Action", "DoNot"}
    assert public <= set(told["components"]["schemas"])
    assert not [name for name in told["components"]["schemas"] if name.endswith("Schema")]


def test_every_kind_of_event_is_described() -> None:
    kinds = re.findall(r'Event\(\s*now, scrape\.wall, "(\w+)"', inspect.getsource(pipeline))
    assert len(kinds) >= 4
    description = schemas.EventSchema.model_fields["event"].description or ""
    assert all(kind in description for kind in kinds)


def test_every_answer_tells_browsers_to_keep_their_guesses_to_themselves() -> None:
    app = app_of(before_the_first_scrape())
    for path in ROUTES:
        headers = ask(app, path).headers
        assert headers["x-content-type-options"] == "nosniff"
        assert headers["x-frame-options"] == "DENY"
        assert headers["cross-origin-resource-policy"] == "same-origin"
        assert headers["cache-control"] == "no-store"
        assert headers["content-security-policy"].startswith("default-src 'none'")


# -- the token --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("path", ROUTES)
def test_with_a_token_only_the_probes_are_open(path: str) -> None:
    app = app_of(before_the_first_scrape(), TOKEN)
    probe = path in {"/healthz", "/readyz"}
    assert ask(app, path).status_code == (200 if probe else 401)
    assert ask(app, path, authorization=f"Bearer {TOKEN}").status_code == 200
    assert ask(app, path, authorization=f"bearer  {TOKEN} ").status_code == 200


def basic(user: str, password: str) -> str:
    return "Basic " + base64.b64encode(f"{user}:{password}".encode()).decode()


@pytest.mark.parametrize("user", ["", "anyone", "prometheus", "ü"])
@pytest.mark.parametrize("path", ROUTES)
def test_a_browser_gives_the_token_as_its_users_password(path: str, user: str) -> None:
    app = app_of(before_the_first_scrape(), TOKEN)
    assert ask(app, path, authorization=basic(user, TOKEN)).status_code == 200
    assert ask(app, path, authorization=basic(user, TOKEN).replace("Basic", "basic ")).status_code == 200


def test_a_token_may_hold_colons_and_letters_of_all_kinds() -> None:
    app = app_of(before_the_first_scrape(), "a:b:ü")
    assert ask(app, "/", authorization=basic("me", "a:b:ü")).status_code == 200
    assert ask(app, "/", authorization=basic("me", "b:ü")).status_code == 401


def test_tokens_are_compared_in_constant_time(monkeypatch: pytest.MonkeyPatch) -> None:
    compared: list[tuple[bytes, bytes]] = []

    def compare(given: bytes, expected: bytes) -> bool:
        compared.append((given, expected))
        return False

    monkeypatch.setattr(hmac, "compare_digest", compare)
    app = app_of(before_the_first_scrape(), TOKEN)
    for given in (basic("me", "x"), "Bearer x"):
        assert ask(app, "/", authorization=given).status_code == 401
    assert compared == [(b"x", TOKEN.encode())] * 2


@pytest.mark.parametrize(
    "given",
    [
        TOKEN,
        f"Basic {TOKEN}",
        f"Bearer {TOKEN}x",
        f"Bearer {TOKEN[:-1]}",
        "Bearer",
        "Bearer ",
        "",
        "Basic",
        "Basic %%%",
        "Basic w",
        basic(TOKEN, ""),
        basic("me", TOKEN + "x"),
        basic("me", ""),
        "Basic " + base64.b64encode(TOKEN.encode()).decode(),
    ],
)
def test_another_token_is_none(given: str) -> None:
    answer = ask(app_of(before_the_first_scrape(), TOKEN), "/metrics", authorization=given)
    assert answer.status_code == 401
    assert answer.headers.get_list("www-authenticate") == ['Basic realm="kvwatch", charset="UTF-8"', "Bearer"]
    assert "Authorization: Bearer TOKEN" in answer.json()["error"]
    assert TOKEN not in answer.text


def test_without_the_token_nobody_learns_what_there_is() -> None:
    assert ask(app_of(before_the_first_scrape(), TOKEN), "/no/such/thing").status_code == 401


# -- the page ---------------------------------------------------------------------------------------------------


class Tags(HTMLParser):
    """What a page is made of, and whether its tags match."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: list[tuple[str, dict[str, str | None]]] = []
        self.open: list[str] = []
        self.text: list[str] = []
        self._within_a_line = False

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.seen.append((tag, dict(attrs)))
        self._within_a_line = ("class", "option") in attrs
        if tag not in {"meta", "link"}:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.seen.append((tag, dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag
        self._within_a_line = self.seen[-1] == ("span", {"class": "option"}) and tag == "span"

    def handle_data(self, data: str) -> None:
        if self._within_a_line:
            self.text[-1] += data
        else:
            self.text.append(data)
        self._within_a_line = False


def page_of(store: Store) -> Tags:
    tags = Tags()
    tags.feed(ask(app_of(store), "/").text)
    assert tags.open == []
    return tags


def test_the_page_shows_findings_with_evidence_and_actions_and_loads_nothing_from_elsewhere() -> None:
    store = saturated()
    tags = page_of(store)
    text = " ".join(tags.text)
    for found in data(app_of(store), "/api/v1/findings")["findings"]:
        assert found["title"] in text
        assert all(one["text"] in text for one in found["actions"])
        assert all(one["text"][1:] in text for one in found["do_not"])
        assert all(name in text for name in found["evidence"])
    options = [attrs for tag, attrs in tags.seen if attrs.get("class") == "option"]
    assert len(options) >= 4  # none is broken at its hyphens: a person copies them
    assert not {"img", "iframe", "object", "style"} & {tag for tag, _ in tags.seen}
    assert not [
        attrs for _, attrs in tags.seen if "style" in attrs or any(name[:2] == "on" for name in attrs)
    ]
    loaded = [attrs.get("src") or attrs.get("href") for tag, attrs in tags.seen if tag in {"script", "link"}]
    assert len(loaded) == 5
    assert {ask(app_of(store), str(path)).status_code for path in loaded} == {200}
    assert all(str(path).startswith("/static/") for path in loaded)
    assert ("noscript", {}) in tags.seen
    assert ("meta", {"http-equiv": "refresh", "content": "5"}) in tags.seen  # within it


def test_a_browser_is_told_to_load_nothing_from_elsewhere_and_to_run_nothing_in_the_page() -> None:
    policy = ask(app_of(saturated()), "/").headers["content-security-policy"]
    rules = dict(rule.split(maxsplit=1) for rule in policy.split("; "))
    assert rules.pop("default-src") == "'none'"
    assert set(rules.values()) == {"'self'", "'none'"}
    assert {"base-uri", "form-action", "frame-ancestors"} <= {
        name for name, of in rules.items() if of == "'none'"
    }


@pytest.mark.parametrize(
    "path", ["/static/nothing.js", "/static/..%2fassets.py", "/static/uplot", "/runbooks/nothing.md"]
)
def test_only_the_files_of_the_page_are_served(path: str) -> None:
    answer = ask(app_of(before_the_first_scrape()), path)
    assert answer.status_code == 404
    assert set(answer.json()) == {"error"}


def test_every_file_of_the_page_has_its_type_and_the_library_its_licence() -> None:
    app = app_of(before_the_first_scrape())
    for name, kind in (
        ("live.js", "text/javascript"),
        ("page.css", "text/css"),
        ("icon.svg", "image/svg+xml"),
    ):
        assert ask(app, f"/static/{name}").headers["content-type"].split(";")[0] == kind
    assert "MIT License" in ask(app, "/static/LICENSE").text
    assert ask(app, "/favicon.ico").content == ask(app, "/static/icon.svg").content


def test_every_symptom_has_its_runbook() -> None:
    app = app_of(before_the_first_scrape())
    for row in SYMPTOMS:
        answer = ask(app, f"/runbooks/{alert_name(row.id).lower()}.md")
        assert answer.status_code == 200
        assert answer.headers["content-type"] == "text/plain; charset=utf-8"
        assert f"# {alert_name(row.id)}\n" in answer.text


def words_of(store: Store) -> str:
    return " ".join(" ".join(page_of(store).text).split())


def rows_of(store: Store) -> list[list[str]]:
    """The cells of the table of engines, as text."""
    rows = re.findall(r"<tr>(.*?)</tr>", table_of(store), re.DOTALL)[1:]
    cells = [re.findall(r"<td[^>]*>(.*?)</td>", row, re.DOTALL) for row in rows]
    return [[" ".join(re.sub(r"<.*?>", "", cell).split()) for cell in row] for row in cells]


def table_of(store: Store) -> str:
    """The table of engines."""
    (found,) = re.findall(r'<table class="engines">.*?</table>', ask(app_of(store), "/").text, re.DOTALL)
    return str(found)


def heads_of(store: Store) -> list[str]:
    return re.findall(r'<th scope="col">(.*?)</th>', table_of(store))


def test_the_page_shows_usage_and_queue_before_the_score() -> None:
    assert heads_of(saturated()) == [
        *("model", "engine", "regime", "finding"),
        *("KV usage", "running", "waiting", "KV demand", "pressure score"),
    ]
    ((model, engine, regime, finding, usage, running, waiting, demand, score),) = rows_of(saturated())
    assert (model, engine, regime) == ("tiny-llama", "0", "kv_limited")
    assert finding == "kv_thrashing and 2 more"
    assert usage.endswith(" %")
    assert all(float(number) > 0 for number in (running, waiting, demand, score))


def test_on_a_narrow_screen_each_number_has_its_columns_name_before_it() -> None:
    assert re.findall(r'<td[^>]* data-name="(.*?)"', table_of(saturated())) == heads_of(saturated())
    assert "content: attr(data-name)" in CSS.split("@media (max-width: 640px)")[1]


def test_the_page_shows_no_number_of_a_server_that_does_not_answer() -> None:
    ((*_, regime, _, usage, running, waiting, demand, score),) = rows_of(while_down())
    assert {usage, running, waiting, demand, score} == {"–"}
    assert "not scraped for 40 s" in regime


def test_the_page_shows_no_number_of_an_engine_that_is_not_on_the_newest_page() -> None:
    store = saturated()
    state = store.state("vllm")
    body = pages(SATURATED)[69].replace(b'engine="0"', b'engine="1"')
    store.publish(*advance(state, Scrape(body, 1.7e9), (state.now or 0.0) + 7))
    gone, there = rows_of(store)
    assert gone[4:] == ["–"] * 5
    assert "not scraped for 7 s" in gone[2]
    assert "–" not in there


def test_the_page_shows_causes_and_values_in_words() -> None:
    store = saturated()
    words = words_of(store)
    for found in data(app_of(store), "/api/v1/findings")["findings"]:
        assert all(cause in words for cause in found["causes"])
        assert all(
            f"{format_value(name, value)} {name}" in words for name, value in found["evidence"].items()
        )
    assert not re.search(r"\d(\.\d+)?e[+-]\d", words)
    assert "every 1 s, the whole page" in words


def test_a_finding_of_a_whole_server_has_no_engine_and_no_stray_comma() -> None:
    words = words_of(while_long_down())
    assert re.search(r"target_down firing for \d+ s on vllm ", words)
    assert " ," not in words


def while_long_down() -> Store:
    store = saturated()
    state = store.state("vllm")
    for _ in range(45):
        now = (state.now or 0.0) + 1
        state, _ = advance(state, ScrapeError(Failure.REFUSED, "nothing listens", 1.7e9 + now), now)
    store.publish(state)
    return store


def test_what_fires_but_can_not_be_told_any_more_says_so() -> None:
    words = words_of(while_long_down())
    assert "The condition has been unknown for 44 s: the server is not scraped." in words
    assert "Caused by target_down: fix that first." in words


def test_what_fires_though_its_condition_is_clear_says_so() -> None:
    store = saturated()
    state = store.state("vllm")
    for n in range(30):  # an idle server, until something is clear but kept
        now = (state.now or 0.0) + 1
        body = pages(SATURATED)[0]
        state, _ = advance(state, Scrape(body, 1.7e9 + now), now)
        firing = [one for one in findings(state) if life_of(state, one).verdict is Verdict.CLEAR]
        if n > 3 and firing:
            break
    else:
        pytest.fail("nothing is clear but kept")
    store.publish(state)
    life = life_of(state, firing[0])
    keep_s = state.limits[f"{firing[0].symptom.id}.keep"]
    clear, kept = format_duration(life.verdict_for_s), format_duration(keep_s)
    assert f"The condition has been clear for {clear}; the finding stays for {kept}" in words_of(store)


def life_of(state: State, one: Finding) -> Lifecycle:
    return next(life for key, name, life in lifecycles(state) if (key, name) == (one.key, one.symptom.id))


def luminance(colour: str) -> float:
    parts = [int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)]
    red, green, blue = (
        part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts
    )
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


@pytest.mark.parametrize("colours", [LIGHT, DARK], ids=["light", "dark"])
def test_every_text_can_be_read_in_light_and_in_the_dark(colours: dict[str, str]) -> None:
    paper = luminance(colours["paper"])
    for name in colours.keys() - {"paper", "line", *LINES}:
        low, high = sorted((luminance(colours[name]), paper))
        assert (high + 0.05) / (low + 0.05) >= 4.5, name
    assert "opacity" not in CSS
    assert set(re.findall(r"var\(--(\w+)\)", CSS)) <= {*colours, "swatch"}


@pytest.mark.parametrize("colours", [LIGHT, DARK], ids=["light", "dark"])
def test_every_line_can_be_seen_in_light_and_in_the_dark(colours: dict[str, str]) -> None:
    paper = luminance(colours["paper"])
    for name in LINES:
        low, high = sorted((luminance(colours[name]), paper))
        assert (high + 0.05) / (low + 0.05) >= 3, name


def test_every_regime_has_a_colour_of_its_own() -> None:
    assert set(REGIMES) == set(Regime)
    assert len(set(REGIMES.values())) == len(Regime)


def test_every_link_of_the_page_leads_somewhere() -> None:
    for store in (before_the_first_scrape(), saturated(), many_engines(16)):
        app = app_of(store)
        tags = page_of(store)
        links = [str(attributes["href"]) for tag, attributes in tags.seen if tag == "a"]
        ids = {f"#{attributes['id']}" for _, attributes in tags.seen if "id" in attributes}
        assert len(links) > 8
        assert {link for link in links if link[0] == "#"} <= ids
        assert {ask(app, link).status_code for link in links if link[0] != "#"} == {200}


def test_nothing_that_a_server_says_becomes_markup() -> None:
    nasty = b"<script>alert(1)</script>\\\"'&amp;"
    body = pages(SATURATED)[60].replace(b'"tiny-llama"', b'"' + nasty + b'"')
    state, _ = advance(initial("vllm"), Scrape(body, 1.7e9), 1000.0)
    store = Store()
    store.publish(state)
    tags = page_of(store)
    assert len([tag for tag, _ in tags.seen if tag == "script"]) == 2  # those of the page itself
    assert "<script>alert(1)</script>" in " ".join(tags.text)


def test_the_page_says_why_a_server_can_not_be_scraped() -> None:
    text = " ".join(page_of(while_down()).text)
    assert "refused" in text
    assert "nothing <listens>" in text


def test_the_page_of_very_many_engines_is_short_and_holds_up_nobody() -> None:
    store = many_engines(256)
    app = build(store, registry_of(store, clock_of(store)), clock_of(store))

    async def run() -> tuple[httpx.Response, int]:
        async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://kvwatch") as client:
            asking = asyncio.create_task(client.get("/"))
            turns = 0
            while not asking.done():
                await asyncio.sleep(0)
                turns += 1
            return await asking, turns

    answer, turns = asyncio.run(run())
    assert answer.text.count('<details class="engine"') == 8
    assert "248 more engines" in answer.text
    assert answer.text.count('data-name="engine"') == 256
    assert turns > 8  # others had their turn between the pieces


@pytest.mark.parametrize("engine", [3, 12])
def test_an_engine_has_a_page_of_its_own(engine: int) -> None:
    store = many_engines(16)
    app = app_of(store)
    page = ask(app, f"/engine?target=vllm&model_name=tiny-llama&engine={engine}")
    assert page.headers["content-security-policy"] == assets.POLICY
    assert re.findall(r'<details class="engine" id="engine-vllm-tiny_2dllama-(\d+)" open>', page.text) == [
        str(engine)
    ]
    assert re.findall(
        r'<tr aria-current="page">\s*<td data-name="model">.*?<td data-name="engine">(\d+)</td>',
        page.text,
        re.DOTALL,
    ) == [str(engine)]


def test_the_page_of_an_engine_that_is_not_there_is_one_line() -> None:
    for asked in ("target=vllm&model_name=tiny-llama&engine=16", "target=other", "target=vllm"):
        answer = ask(app_of(many_engines(16)), f"/engine?{asked}")
        assert answer.status_code == 404
        assert answer.json() == {"error": "no such engine; see / for all engines"}


def test_many_who_look_cost_as_much_as_one(monkeypatch: pytest.MonkeyPatch) -> None:
    wrote: list[float] = []
    parts = document.page_parts

    def counted(store: Store, now: float, of: EngineKey | None) -> Iterator[str]:
        wrote.append(now)
        return parts(store, now, of)

    monkeypatch.setattr(document, "page_parts", counted)
    app = app_of(saturated())

    async def run() -> set[str]:
        async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://kvwatch") as client:
            return {one.text for one in await asyncio.gather(*(client.get("/") for _ in range(8)))}

    assert len(asyncio.run(run())) == 1
    assert len(wrote) == 1


def test_an_error_of_ours_is_json_too() -> None:
    class Broken(Store):
        def states(self) -> Any:
            raise RuntimeError("a mistake of ours")

    store = Broken()
    app = build(store, registry_of(store, TurnedClock()), TurnedClock())

    async def run() -> httpx.Response:
        transport = httpx.ASGITransport(app, raise_app_exceptions=False)
        async with httpx.AsyncClient(transport=transport, base_url="http://kvwatch") as client:
            return await client.get("/api/v1/state")

    answer = asyncio.run(run())
    assert answer.status_code == 500
    assert answer.json() == {"error": "kvwatch failed at this request; see its log"}
