"""The alerts about kvwatch itself and the objective: a case that fires, one just below, one without series."""

from __future__ import annotations

from pathlib import Path

import pytest

from kvwatch.mixin.alerts import meta_alerts
from kvwatch.mixin.render_options import Options
from tests.support.promtool import Case, run

UP = 'up{job="kvwatch",instance="%s"}'
WHERE = 'job="kvwatch",instance="a",target="gpu1"'
WARNING = {"severity": "warning", "job": "kvwatch", "instance": "a", "target": "gpu1"}
FEW, MANY = "0+0.25x480", "0+100x480"


def down() -> list[Case]:
    fires = {"severity": "warning", "job": "kvwatch", "instance": "a"}
    return [
        Case("down for two minutes", {UP % "a": "1 0x5", UP % "b": "1x6"}, "4m", [fires]),
        Case("down for less", {UP % "a": "1 0x5"}, "2m"),
        Case("up again", {UP % "a": "1 0 1x4"}, "5m"),
        Case("another job", {'up{job="node",instance="a"}': "0x6"}, "4m"),
        Case("no series", {}, "4m"),
    ]


def vanished() -> list[Case]:
    fires = {"severity": "warning", "job": "kvwatch"}
    return [
        Case("one of two", {UP % "a": "1x60", UP % "b": "1x20 stale"}, "30m", [fires]),
        Case("all", {UP % "a": "1x20 stale", UP % "b": "1x20 stale"}, "30m", [fires]),
        Case("for less than five minutes", {UP % "a": "1x60", UP % "b": "1x20 stale"}, "25m"),
        Case("replaced", {UP % "a": "1x60", UP % "b": "1x20 stale", UP % "c": "_x18 1x40"}, "30m"),
        Case("down and still known", {UP % "a": "1x60", UP % "b": "1x20 0x40"}, "30m"),
        Case("over by itself", {UP % "a": "1x60", UP % "b": "1x20 stale"}, "37m"),
        Case("no series", {}, "30m"),
    ]


def absent() -> list[Case]:
    return [
        Case("no series for a quarter of an hour", {}, "16m", [{"severity": "warning"}]),
        Case("no series for less", {}, "14m"),
        Case("one that is down", {f"kvwatch_up{{{WHERE}}}": "0x20"}, "16m"),
    ]


def scrapes_failing() -> list[Case]:
    ok, bad = (
        f'kvwatch_scrapes_total{{{WHERE},outcome="ok"}}',
        f'kvwatch_scrapes_total{{{WHERE},outcome="timeout"}}',
    )
    told = f'kvwatch_symptom_state{{{WHERE},symptom="target_down",state="firing"}}'
    return [
        Case("one in nine", {ok: "0+48x60", bad: "0+6x60", told: "0x60"}, "30m", [WARNING]),
        Case("one in eleven", {ok: "0+50x60", bad: "0+5x60"}, "30m"),
        Case("target_down tells", {ok: "0+0x60", bad: "0+60x60", told: "1x60"}, "30m"),
        Case("over", {ok: "0+30x30 930+60x30", bad: "0+30x30 900+0x30"}, "37m"),
        Case("no series", {}, "30m"),
    ]  # fmt: skip


def data_stale() -> list[Case]:
    age, every = f"kvwatch_data_age_seconds{{{WHERE}}}", f"kvwatch_scrape_interval_seconds{{{WHERE}}}"
    up = f"kvwatch_up{{{WHERE}}}"
    return [
        Case("older than thirty seconds and five intervals", {age: "36x5", every: "1x5", up: "1x5"}, "3m", [WARNING]),
        Case("as old", {age: "35x5", every: "1x5", up: "1x5"}, "3m"),
        Case("a long interval", {age: "170x5", every: "30x5", up: "1x5"}, "3m"),
        Case("the server is down", {age: "600x5", every: "1x5", up: "0x5"}, "3m"),
        Case("no series", {every: "1x5", up: "1x5"}, "3m"),
    ]  # fmt: skip


def poll_errors() -> list[Case]:
    errors = f"kvwatch_poll_errors_total{{{WHERE}}}"
    return [
        Case("one", {errors: "0x5 1x10"}, "8m", [WARNING]),
        Case("one long ago", {errors: "0x5 1x60"}, "30m"),
        Case("none", {errors: "0x20"}, "8m"),
        Case("no series", {}, "8m"),
    ]


def reload_failed() -> list[Case]:
    good = 'kvwatch_config_last_reload_successful{job="kvwatch",instance="a"}'
    fires = {"severity": "warning", "job": "kvwatch", "instance": "a"}
    return [
        Case("refused for five minutes", {good: "1 0x10"}, "7m", [fires]),
        Case("refused for less", {good: "1 0x10"}, "5m"),
        Case("mended within five minutes", {good: "1 0x3 1x10"}, "8m"),
        Case("never reloaded", {good: "1x20"}, "8m"),
        Case("no series", {}, "8m"),
    ]


def symptoms_unknown() -> list[Case]:
    engine = f'{WHERE},model_name="llama",engine="0"'
    up = f"kvwatch_up{{{WHERE}}}"
    a, b = (
        f'kvwatch_symptom_state{{{engine},symptom="{s}",state="unknown"}}'
        for s in ("ttft_high", "kv_exhausted")
    )
    fires = WARNING | {"severity": "info", "model_name": "llama", "engine": "0"}
    return [
        Case("two for half an hour", {a: "1x60", b: "1x60", up: "1x60"}, "31m", [fires]),
        Case("for less", {a: "1x60", up: "1x60"}, "29m"),
        Case("known again", {a: "1x25 0x40", up: "1x60"}, "31m"),
        Case("the server is down", {a: "1x60", up: "0x60"}, "31m"),
        Case("only for want of GPU data", {a.replace("ttft_high", "gpu_underused"): "1x60", up: "1x60"}, "31m"),
        Case("no series", {up: "1x60"}, "31m"),
    ]  # fmt: skip


def first_tokens(soon: str, count: str) -> dict[str, str]:
    own = f'{WHERE},model_name="llama"'
    name = "kvwatch_time_to_first_token_seconds"
    return {
        f'{name}_bucket{{{own},engine="0",le="2.5"}}': soon,
        f'{name}_bucket{{{own},engine="0",le="5.0"}}': count,
        f'{name}_count{{{own},engine="0"}}': count,
    }


def fast_burn() -> list[Case]:
    fires = WARNING | {"severity": "critical", "model_name": "llama"}
    no_bound = {name: values for name, values in first_tokens(MANY, MANY).items() if "2.5" not in name}
    return [
        Case("73 % late", first_tokens("0+27x480", MANY), "90m", [fires]),
        Case("71 % late", first_tokens("0+29x480", MANY), "90m"),
        Case("late, and good again for ten minutes", first_tokens("0x110 0+100x60", MANY), "120m"),
        Case("late for the last ten minutes only", first_tokens("0+100x110 11000x60", MANY), "120m"),
        Case("hardly any requests", first_tokens("0x480", FEW), "90m"),
        Case("no requests", first_tokens("5x480", "9x480"), "90m"),
        Case("no such bucket", no_bound, "90m"),
        Case("no series", {}, "90m"),
    ]


def slow_burn() -> list[Case]:
    fires = WARNING | {"model_name": "llama"}
    return [
        Case("31 % late", first_tokens("0+69x480", MANY), "420m", [fires]),
        Case("29 % late", first_tokens("0+71x480", MANY), "420m"),
        Case("late, and good again", first_tokens("0x360 0+100x120", MANY), "420m"),
        Case("hardly any requests", first_tokens("0x480", "0+0.125x480"), "420m"),
        Case("no series", {}, "420m"),
    ]


CASES = {
    "KVWatchDown": down(),
    "KVWatchVanished": vanished(),
    "KVWatchAbsent": absent(),
    "KVWatchScrapesFailing": scrapes_failing(),
    "KVWatchDataStale": data_stale(),
    "KVWatchPollErrors": poll_errors(),
    "KVWatchReloadFailed": reload_failed(),
    "KVWatchSymptomsUnknown": symptoms_unknown(),
    "KVWatchTtftBudgetFastBurn": fast_burn(),
    "KVWatchTtftBudgetSlowBurn": slow_burn(),
}


def test_every_alert_has_its_cases() -> None:
    assert CASES.keys() == {one.name for one in meta_alerts(Options())}
    for cases in CASES.values():
        assert any(case.found for case in cases)
        assert [case for case in cases if "no series" in case.name]


@pytest.mark.parametrize("name", CASES)
def test_an_alert_fires_and_just_does_not(name: str, tmp_path: Path) -> None:
    """Each in a Prometheus of its own."""
    tests = []
    for case in CASES[name]:
        written = Case(f"{name}: {case.name}", case.series, case.at, case.found, alert=name).written()
        tests.append(written)
    run(tmp_path, tests)
