"""What the recording rules make of a fleet, in Prometheus' own engine, with numbers worked out by hand."""

from __future__ import annotations

from pathlib import Path

from tests.support.promtool import Case, run


def engine(target: str, number: int = 0, *, instance: str = "a", **more: str) -> str:
    own = {"job": "kvwatch", "instance": instance, "target": target, "model_name": "llama", "engine": number}
    return ",".join(f'{name}="{value}"' for name, value in (own | more).items())


def recorded(name: str, series: dict[str, str], values: dict[str, float], folder: Path) -> None:
    expected = {labels and f"{name}{{{labels}}}": value for labels, value in values.items()}
    run(folder, [Case(name, series, "10m", query=name, values=expected).written()])


MODEL = 'job="kvwatch",model_name="llama"'


def test_time_per_regime_is_a_share_of_the_time_watched(tmp_path: Path) -> None:
    """An engine that waited 15 of 60 s, and one that was down all the time: 1/8 and 1/2 of the model's time."""
    seconds = "kvwatch_regime_seconds_total"
    given = {
        f"{seconds}{{{engine('g1', regime='kv_limited')}}}": "0+15x20",
        f"{seconds}{{{engine('g1', regime='flowing')}}}": "0+45x20",
        f"{seconds}{{{engine('g2', regime='down')}}}": "0+60x20",
        f"{seconds}{{{engine('g2', regime='flowing')}}}": "0+0x20",
    }
    recorded(
        "model:kvwatch_regime_seconds:ratio_rate5m",
        given,
        {
            f'{MODEL},regime="kv_limited"': 0.125,
            f'{MODEL},regime="flowing"': 0.375,
            f'{MODEL},regime="down"': 0.5,
        },
        tmp_path,
    )
    recorded(
        "engine:kvwatch_regime_seconds:ratio_rate5m",
        given,
        {
            engine("g1", regime="kv_limited"): 0.25,
            engine("g1", regime="flowing"): 0.75,
            engine("g2", regime="down"): 1,
            engine("g2", regime="flowing"): 0,
        },
        tmp_path,
    )


def test_demand_is_weighed_by_capacity_over_engines_that_tell_both(tmp_path: Path) -> None:
    """(2 × 1000 + 0.5 × 3000) / 4000; one that waits with nothing running, and one without capacity, stay out."""
    demand, capacity = "kvwatch_kv_cache_demand_ratio", "kvwatch_kv_cache_capacity_tokens"
    given = {
        f"{demand}{{{engine('g1')}}}": "2x20",
        f"{capacity}{{{engine('g1')}}}": "1000x20",
        f"{demand}{{{engine('g2', instance='b')}}}": "0.5x20",
        f"{capacity}{{{engine('g2', instance='b')}}}": "3000x20",
        f"{capacity}{{{engine('g3')}}}": "9000x20",
        f"{demand}{{{engine('g4')}}}": "7x20",
    }
    recorded("model:kvwatch_kv_cache_demand_per_capacity:ratio", given, {MODEL: 0.875}, tmp_path)
    recorded("model:kvwatch_kv_cache_capacity_tokens:sum", given, {MODEL: 4000}, tmp_path)
    recorded("model:kvwatch_kv_cache_demand_ratio:max", given, {MODEL: 7}, tmp_path)


def test_demand_is_counted_in_servers_whatever_their_engines(tmp_path: Path) -> None:
    """A pod of two engines at 2 and 1, one of one engine at 1.5 of twice the cache: 6000 of 4000 tokens, two servers.

    A pod that waits with nothing running tells no demand: it counts on neither side.
    """
    demand, capacity = "kvwatch_kv_cache_demand_ratio", "kvwatch_kv_cache_capacity_tokens"
    given = {}
    for pod, number, wanted, tokens in (("p1", 0, 2, 1000), ("p1", 1, 1, 1000), ("p2", 0, 1.5, 2000)):
        labels = engine("vllm", number, instance=pod, pod=pod)
        given[f"{demand}{{{labels}}}"] = f"{wanted}x20"
        given[f"{capacity}{{{labels}}}"] = f"{tokens}x20"
    given[f"{capacity}{{{engine('vllm', instance='p3', pod='p3')}}}"] = "2000x20"
    recorded("model:kvwatch_kv_cache_demand_servers:count", given, {MODEL: 2}, tmp_path)
    recorded("model:kvwatch_kv_cache_demand_in_servers:sum", given, {MODEL: 3}, tmp_path)


def test_the_hit_ratio_is_one_of_sums_and_leaves_out_what_is_not_trusted(tmp_path: Path) -> None:
    """90 of 100 and 100 of 900 are 0.19, not 0.51; a ratio that is not trusted changes nothing."""
    hit, asked = "kvwatch_prefix_cache_hit_tokens_total", "kvwatch_prefix_cache_queried_tokens_total"
    trusted = "kvwatch_prefix_cache_hit_ratio_trusted"
    given = {}
    for target, hits, queried, good in (("g1", 90, 100, 1), ("g2", 100, 900, 1), ("g3", 500, 500, 0)):
        given[f"{hit}{{{engine(target)}}}"] = f"0+{hits}x20"
        given[f"{asked}{{{engine(target)}}}"] = f"0+{queried}x20"
        given[f"{trusted}{{{engine(target)}}}"] = f"{good}x20"
    name = "model:kvwatch_prefix_cache_hit_tokens_per_queried_token:ratio_rate5m"
    recorded(name, given, {MODEL: 0.19}, tmp_path)
    idle = {series: "5x20" if "_total" in series else "1x20" for series in given}
    recorded(name, idle, {}, tmp_path)


def test_pressure_over_engines_and_the_worst_of_them(tmp_path: Path) -> None:
    score = "kvwatch_cache_pressure_score"
    given = {f"{score}{{{engine(f'g{n}', instance=str(n))}}}": f"{n / 10}x20" for n in range(11)}
    recorded("model:kvwatch_cache_pressure_score:p50", given, {MODEL: 0.5}, tmp_path)
    recorded("model:kvwatch_cache_pressure_score:p90", given, {MODEL: 0.9}, tmp_path)
    recorded("model:kvwatch_cache_pressure_score:max", given, {MODEL: 1}, tmp_path)
    recorded("engine:kvwatch_cache_pressure_score:topk1", given, {engine("g10", instance="10"): 1}, tmp_path)


def test_late_first_tokens_are_of_servers_that_have_the_bound(tmp_path: Path) -> None:
    """30 of 100 and 0 of 200 came late: a tenth. A server without the bound stays out of both sums."""
    name = "kvwatch_time_to_first_token_seconds"
    given = {}
    for target, number, soon, count in (("g1", 0, 30, 50), ("g1", 1, 40, 50), ("g2", 0, 200, 200)):
        given[f"{name}_bucket{{{engine(target, number, le='2.5')}}}"] = f"0+{soon}x20"
        given[f"{name}_count{{{engine(target, number)}}}"] = f"0+{count}x20"
    given[f"{name}_bucket{{{engine('g3', le='4.0')}}}"] = "0+10x20"
    given[f"{name}_count{{{engine('g3')}}}"] = "0+1000x20"
    recorded("model:kvwatch_time_to_first_token_late:ratio_rate5m", given, {MODEL: 0.1}, tmp_path)
    server = 'job="kvwatch",instance="a",target="{}",model_name="llama"'
    recorded(
        "target:kvwatch_time_to_first_token_late:rate5m",
        given,
        {server.format("g1"): 0.5, server.format("g2"): 0},
        tmp_path,
    )


def test_up_and_engines_count_what_is_there(tmp_path: Path) -> None:
    up, running = "kvwatch_up", "kvwatch_requests_running"
    given = {
        f'{up}{{job="kvwatch",instance="a",target="g1"}}': "1x20",
        f'{up}{{job="kvwatch",instance="b",target="g2"}}': "0x20",
        f"{running}{{{engine('g1', 0)}}}": "0x20",
        f"{running}{{{engine('g1', 1)}}}": "3x20",
    }
    recorded("job:kvwatch_up:avg", given, {'job="kvwatch"': 0.5}, tmp_path)
    recorded("model:kvwatch_engines:count", given, {MODEL: 2}, tmp_path)
    recorded("model:kvwatch_engines:count", {}, {}, tmp_path)
