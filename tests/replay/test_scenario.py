"""The notation of scripted scenarios: what a text means, what the server shows then, and what is refused."""

from textwrap import dedent

import pytest

from kvwatch.core.dialect.vllm import Vocabulary
from kvwatch.core.exposition.normalise import NormalisedPage, PageNormaliser
from kvwatch.core.history.regimes import Regime
from kvwatch.core.model.outcome import Failure
from kvwatch.core.model.snapshot import EngineKey
from tests.replay import scenario as notation
from tests.replay.scenario import Scenario, ScenarioError, parsed
from tests.replay.scripted import Server, play
from tests.support.pages import CAPTURES, MODEL, polls
from tests.support.watch import Watch


def told(*lines: str) -> Scenario:
    return parsed("\n".join(lines))


def watched(*lines: str) -> Watch:
    return play(told(*lines))


def page_at(t: float, *lines: str) -> NormalisedPage:
    """The whole page at a moment, through the real parser."""
    server = Server(told(*lines))
    server.run_to(t)
    return PageNormaliser(Vocabulary(), "t").read(server.page())


def counter(watch: Watch, name: str) -> float | None:
    return watch.engine.snapshot.number(name)


# -- values -----------------------------------------------------------------------------------------------------


def test_a_ramp_goes_from_end_to_end() -> None:
    watch = watched("0s run=0..10 wait=4 kv=10%..60% out=5/s", "10s end")
    rows = watch.engine.windows.samples.rows()
    assert [row.running for row in rows] == list(range(11))
    assert {row.waiting for row in rows} == {4}
    assert rows[5].usage == pytest.approx(0.35)


def test_a_spread_stays_inside_and_a_cycle_comes_round() -> None:
    watch = watched("0s run=1,2,2 kv=0.2~0.8 out=5/s", "60s end")
    rows = watch.engine.windows.samples.rows()
    usages = [row.usage or 0.0 for row in rows]
    assert min(usages) >= 0.2
    assert max(usages) <= 0.8
    assert sum(usages) / len(usages) == pytest.approx(0.5, abs=0.02)
    assert [row.running for row in rows].count(2) == pytest.approx(2 / 3 * len(rows), abs=1)


def test_what_a_phase_does_not_name_is_nought_in_it() -> None:
    watch = watched("0s run=3 wait=2 kv=0.4 out=9/s", "10s run=1 out=9/s", "20s end")
    last = watch.engine.windows.samples.last
    assert last is not None
    assert (last.running, last.waiting, last.usage) == (1, 0, 0)


@pytest.mark.parametrize("flow", ["3000", "50/s", "3000/m", "180000/h", "0..100/s", "20~80/s"])
def test_rates_and_totals_come_to_the_same(flow: str) -> None:
    found = counter(watched(f"0s run=1 out={flow}", "60s end"), "generation_tokens_total")
    assert found == pytest.approx(3000, rel=0.02)


def test_a_total_is_spread_over_its_phase() -> None:
    lines = ("0s run=1 preempt=41", "2m run=1", "3m end")
    assert [
        page_at(t, *lines).engines[EngineKey("t", MODEL, "0")].number("preemptions_total") for t in (60, 120)
    ] == [
        20,
        41,
    ]
    assert counter(watched(*lines), "preemptions_total") == 41


def test_a_ramped_rate_gains_what_is_under_it() -> None:
    lines = ("0s run=1 prompt=0..100/s", "100s end")
    assert counter(watched(*lines), "prompt_tokens_total") == 5000
    assert page_at(50, *lines).engines[EngineKey("t", MODEL, "0")].number("prompt_tokens_total") == 1250


def test_totals_of_a_phase_for_all_are_spread_over_each_engines_own() -> None:
    lines = ("0s @0 run=1", "0s @1 run=1", "10s preempt=40", "20s @1 run=1", "30s end")
    found = page_at(30, *lines).engines
    assert [found[EngineKey("t", MODEL, engine)].number("preemptions_total") for engine in "01"] == [40, 40]


# -- requests ---------------------------------------------------------------------------------------------------


def test_finished_requests_bring_tokens_and_observations() -> None:
    page = page_at(100, "0s run=2 done=2/s lens=300~500/100 queue=1 prefill=2 itl=0.1 hit=25%", "100s end")
    found = page.engines[EngineKey("t", MODEL, "0")]
    assert found.number("requests_finished_total") == 200
    assert found.number("prompt_tokens_total") == pytest.approx(400 * 200, rel=0.01)
    assert found.number("generation_tokens_total") == 100 * 200
    assert found.number("prefix_cache_queried_tokens_total") == found.number("prompt_tokens_total")
    assert found.number("prefix_cache_hit_tokens_total") == pytest.approx(100 * 200, rel=0.01)
    assert found.part("prompt_tokens_by_source_total", "local_cache_hit") == pytest.approx(
        100 * 200, rel=0.01
    )
    for name, mean in (
        ("time_to_first_token_seconds", 3),
        ("request_queue_time_seconds", 1),
        ("request_prefill_time_seconds", 2),
        ("inter_token_latency_seconds", 0.1),
        ("e2e_request_latency_seconds", 3 + 9.9),
        ("request_prompt_tokens", 400),
        ("request_generation_tokens", 100),
    ):
        histogram = found.histogram(name)
        assert histogram is not None
        assert histogram.sum / histogram.count == pytest.approx(mean, rel=0.01), name


def test_the_shape_of_requests_stays_until_said_anew() -> None:
    page = page_at(20, "0s run=1 done=1/s ttft=7", "10s run=1 done=1/s", "20s end")
    histogram = page.engines[EngineKey("t", MODEL, "0")].histogram("time_to_first_token_seconds")
    assert histogram is not None
    assert (histogram.count, histogram.sum) == (20, 140)


def test_a_slow_one_in_ten_is_in_the_buckets() -> None:
    page = page_at(100, "0s run=1 done=1/s ttft=0.2*9,3", "100s end")
    histogram = page.engines[EngineKey("t", MODEL, "0")].histogram("time_to_first_token_seconds")
    assert histogram is not None
    assert histogram.counts[histogram.bounds.index(0.25)] == 90
    assert histogram.counts[histogram.bounds.index(5.0)] == 100


def test_other_ends_and_rejections_are_counted_apart() -> None:
    lines = ("0s run=1 done=30 abort=20 error=10 reject=5", "10s end")
    found = page_at(10, *lines).engines[EngineKey("t", MODEL, "0")]
    parts = [found.part("requests_finished_total", reason) for reason in ("stop", "abort", "error")]
    assert parts == [30, 20, 10]
    server = Server(told(*lines))
    server.run_to(10)
    assert (
        'admission_rejections_total{model_name="tiny",reason="max_num_queued_reqs"} 5.0'
        in server.page().decode()
    )


def test_lifetime_totals_are_there_before_the_first_poll() -> None:
    watch = watched("before: preempt=5000 prompt=1000", "0s run=1 out=1/s", "60s end")
    assert counter(watch, "preemptions_total") == 5000
    assert watch.derived("preemptions_per_finished_request") == 0


# -- the page ---------------------------------------------------------------------------------------------------


def test_a_page_has_every_signal_that_a_real_one_has() -> None:
    """As those of a real 0.32, of one engine without options."""
    body = polls(CAPTURES / "vllm-0.32.0" / "b-healthy.jsonl.gz")[-1]["body"].encode()
    (real,) = PageNormaliser(Vocabulary(), "t").read(body).engines.values()
    (made,) = page_at(10, "0s run=1 done=1/s", "10s end").engines.values()
    left_out = {"multimodal_cache_queried_items_total", "multimodal_cache_hit_items_total"}
    left_out |= {"prefix_cache_hit_tokens_by_tier_total"}
    assert set(real.values) - set(made.values) <= left_out
    assert set(made.values) <= set(real.values)
    assert made.features == real.features
    assert made.config.known


@pytest.mark.parametrize(
    ("version", "lacking"),
    [
        ("0.32", set()),
        ("0.22", {"admission_rejections_total"}),
        ("0.18", {"requests_waiting_by_reason"}),
        ("0.10.2", {"requests_waiting_by_reason", "prompt_tokens_by_source_total", "engine_sleep_state"}),
    ],
)
def test_an_older_release_lacks_what_it_lacked(version: str, lacking: set[str]) -> None:
    page = page_at(10, f"server: version={version}", "0s run=1 done=1/s", "10s end")
    found = page.engines[EngineKey("t", MODEL, "0")]
    assert lacking <= {*found.missing, *page.server.missing}
    assert "kv_cache_usage_ratio" in found.values


def test_v0_is_spelled_as_v0() -> None:
    watch = watched("server: version=v0", "0s run=2 wait=3 swapped=2 kv=98.7% out=61/s done=0.1/s", "60s end")
    found = watch.engine.snapshot
    assert found.generation == "v0"
    assert found.number("kv_cache_usage_ratio") == pytest.approx(0.987)
    assert "prefix_cache_queried_tokens_total" in found.missing
    assert "vllm:gpu_cache_usage_perc" in watch.state.exposed
    last = watch.engine.windows.samples.last
    assert last is not None
    assert last.waiting == 5


def test_settings_are_the_configuration_and_the_facts() -> None:
    watch = watched(
        "server: blocks=330 block_size=128 gpu_memory_utilization=0.6 cache_dtype=fp8 prefix_caching=off",
        "  max_model_len=32768 max_num_seqs=36 cache.mamba_block_size=1024 without=num_preemptions",
        "0s run=1 out=1/s",
        "30s end",
    )
    config = watch.engine.snapshot.config
    assert (config.num_gpu_blocks, config.block_size, config.kv_cache_size_tokens) == (330, 128, 42240)
    assert (config.gpu_memory_utilization, config.cache_dtype, config.enable_prefix_caching) == (
        0.6,
        "fp8",
        False,
    )
    assert config.hybrid
    assert watch.state.facts is not None
    assert watch.state.facts.max_model_len == {MODEL: 32768}
    assert watch.policy.max_num_seqs == 36
    assert "preemptions_total" in watch.engine.snapshot.missing


def test_engines_have_phases_of_their_own_and_blocks_of_their_own() -> None:
    watch = watched(
        "server: blocks=100",
        "0s @0 run=4 kv=0.9 out=9/s",
        "0s @1 run=0 kv=0",
        "30s @1 run=2 kv=0.2 out=9/s",
        "60s end",
    )
    found = {key.engine: engine.snapshot for key, engine in watch.state.engines.items()}
    assert [found[engine].number("requests_running") for engine in "01"] == [4, 2]
    assert [found[engine].config.num_gpu_blocks for engine in "01"] == [100, 100]
    assert watch.regimes()[Regime.IDLE] == pytest.approx(30, abs=2)


def test_loras_series_pile_up_as_vllm_leaves_them() -> None:
    server = Server(told("server: max_lora=1", "0s run=1 adapters=a/b", "10s run=1 adapters=b/", "20s end"))
    for t in (5, 15):
        server.run_to(t)
    lines = [
        line for line in server.page().decode().splitlines() if line.startswith("vllm:lora_requests_info")
    ]
    assert len(lines) == 2
    assert 'running_lora_adapters="a",waiting_lora_adapters="b"' in lines[0]


# -- what happens -----------------------------------------------------------------------------------------------


def test_a_phase_in_which_the_server_is_down_fails_by_its_kind() -> None:
    watch = watched("0s run=1 out=9/s", "20s down=timeout", "40s run=1 out=9/s", "60s end")
    assert watch.state.outcomes[str(Failure.TIMEOUT)] == 20
    assert watch.state.outcomes["ok"] == 41


def test_nobody_polls_in_a_gap_and_work_goes_on() -> None:
    watch = watched("0s run=1 out=10/s", "20s gap run=1 out=10/s", "60s run=1 out=10/s", "80s end")
    assert sum(watch.state.outcomes.values()) == 41
    assert counter(watch, "generation_tokens_total") == 800
    assert watch.engine.covered == pytest.approx(39)


def test_a_restart_begins_counters_and_clock_anew() -> None:
    watch = watched("0s run=1 done=1/s", "30s down", "50s restart run=1 done=1/s", "60s end")
    assert [event.kind for event in watch.state.events] == ["engine_appeared", "restart"]
    assert counter(watch, "requests_finished_total") == 10
    assert watch.first_fired("engine_restarted") == 50


def test_one_counter_can_be_reset_alone() -> None:
    watch = watched("before: out=1000", "0s run=1 out=10/s", "30s run=1 out=10/s reset=out", "60s end")
    assert counter(watch, "generation_tokens_total") == 300
    assert [event.kind for event in watch.state.events] == ["engine_appeared"]


def test_an_engine_asleep_is_idle() -> None:
    assert watched("0s asleep kv=0.4", "60s end").regime is Regime.IDLE


def test_polls_come_at_the_pace_that_is_said() -> None:
    watch = watched("server: every=10s", "0s run=1 out=9/s", "5m end")
    assert watch.state.outcomes["ok"] == 31
    assert watch.state.last is not None
    assert watch.state.last.interval_s == 10


def test_narrow_pages_judge_as_whole_ones_do() -> None:
    lines = (
        "0s run=10 kv=95% done=0.5/s lens=2000/100",
        "1m run=10 wait=20 kv=97%~100% done=0.5/s preempt=20",
        "4m run=1 done=1/s",
        "6m end",
    )
    narrow, entire = watched(*lines), watched("server: scrape=full", *lines)
    assert narrow.all_fired() == entire.all_fired()
    assert narrow.regimes() == entire.regimes()
    narrow = play(told(*lines), until=359)
    assert narrow.state.last is not None
    assert narrow.state.last.narrowed
    assert narrow.state.last.body_bytes * 3 < len(Server(told(*lines)).page())


# -- the watch --------------------------------------------------------------------------------------------------


def test_a_watch_tells_what_fired_when_and_what_is_found_at_a_moment() -> None:
    lines = ("0s run=10 kv=50% out=50/s", "1m run=10 wait=20 kv=99% out=50/s", "4m run=5 out=50/s", "10m end")
    watch = watched(*lines)
    at = watch.first_fired("kv_exhausted")
    assert at is not None
    assert 60 < at < 120
    assert watch.all_fired()["kv_exhausted"] == at
    assert watch.found(at - 1) == ()
    assert "kv_exhausted" in {found.symptom.id for found in watch.found(at)}
    assert watch.found() == ()
    assert "kv_exhausted" in {found.symptom.id for found in play(told(*lines), until=at).found()}


# -- what is refused --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("lines", "said"),
    [
        (["0s run=1"], "1:4: a scenario ends with a time and 'end'"),
        (["0s run=1", "10s end", "20s run=1"], "3:1: nothing comes after the end"),
        (["0s run=1", "0s end"], "2:1: the end comes after the beginning of the last phase"),
        (["5s run=1", "10s end"], "1:1: engine 0 has no phase that begins at 0s"),
        (["0s run=1", "20s run=2", "10s run=3"], "3:1: 10s is before the phase above it"),
        (["0s run=1", "0s run=2"], "2:1: a phase begins at 0s already"),
        (["0s run=1  kv=high"], "1:14: not a number, a..b, a~b or a list of these: 'high'"),
        (["0s run=1,2,x*2"], "1:12: not a number, a..b, a~b or a list of these: 'x*2'"),
        (["0s lens=100/-5"], "1:13: not a number, a..b, a~b or a list of these: '-5'"),
        (["0s lens=100"], "1:4: lens is prompt/output in tokens: '100'"),
        (["0s out=5/min"], "1:4: a rate is per s, m or h: '5/min'"),
        (["0s preempt=1..5"], "1:12: a total is one number, no ramp: '1..5'"),
        (["0s runs=1"], "1:4: number 'runs' is unknown; did you mean 'run'?"),
        (["0s run=1 run=2"], "1:10: 'run' is said twice in this phase"),
        (["0s run=1 restrat"], "1:10: mark 'restrat' is unknown; did you mean 'restart'?"),
        (["0s @1 run=1 down"], "1:13: 'down' is about the whole server, not one engine"),
        (["0s down=sleepy"], "1:4: not a kind of failure: 'sleepy'"),
        (["0s reset=tokens"], "1:4: counter 'tokens' is unknown; known are"),
        (["server: block=7", "0s run=1"], "1:9: setting 'block' is unknown; did you mean 'blocks'?"),
        (["server: blocks=many", "0s run=1"], "1:9: blocks is a whole number: 'many'"),
        (["server: every=0s", "0s run=1"], "1:9: every is a time like 10s: '0s'"),
        (["server: version=9", "0s run=1"], "1:9: version is v0, v1 or like 0.22: '9'"),
        (["server: fast", "0s run=1"], "1:9: a setting is 'name=value': 'fast'"),
        (["before: runs=1", "0s run=1"], "1:9: lifetime total 'runs' is unknown; known are"),
        (["titel: x"], "1:1: header 'titel' is unknown; did you mean 'title'?"),
        (["title: x", "title: y"], "2:1: 'title' is said twice"),
        (["0s run=1", "title: x"], "2:1: 'title' comes after the first phase"),
        (["soon run=1"], "1:1: neither a time (like 90s) nor a header (like 'title: …'): 'soon'"),
        (
            ["fires: kv_exhausted soon", "0s run=1"],
            "1:8: not 'symptom' or 'symptom by 3m': 'kv_exhausted soon'",
        ),
    ],
)
def test_what_is_wrong_is_said_with_line_and_column(lines: list[str], said: str) -> None:
    ended = (
        [*lines]
        if any("end" in line.split() for line in lines) or lines == ["0s run=1"]
        else [*lines, "9h end"]
    )
    with pytest.raises(ScenarioError) as refused:
        told(*ended)
    assert str(refused.value).startswith(f"scenario:{said}")


def test_comments_and_indented_lines() -> None:
    scenario = told(
        "# what this is about",
        "title: A pool, and # all that",
        "origin: vllm-project/vllm #1",
        "",
        "0s run=1   # begins",
        "   out=5/s",
        "1m30s end",
    )
    assert scenario.origin == "vllm-project/vllm #1"
    assert scenario.title == "A pool, and"
    assert set(scenario.of("0")[0].flows) == {"out"}
    assert scenario.end == 90


def test_the_example_of_the_documentation_is_a_scenario() -> None:
    """What the notation's own text shows can be read, and does what its header says."""
    text = dedent((notation.__doc__ or "").partition("::\n\n")[2].partition("\nHeader\n")[0])
    example = parsed(text)
    watch = play(example)
    assert [must.symptom for must in example.fires] == ["kv_exhausted"]
    assert watch.fired("kv_exhausted")
    assert not watch.fired("kv_thrashing")
