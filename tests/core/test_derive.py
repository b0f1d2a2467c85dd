"""The derived numbers: what they are by definition, what they never do, and when they are unknown."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvwatch.core.judgement.derive import capacity_tokens, demand, preemption_part, pressure
from kvwatch.core.judgement.policy import Policy
from kvwatch.core.model.outcome import Pace
from kvwatch.core.model.snapshot import CacheConfig, EngineKey, Snapshot
from tests.support.pages import Counted, Server
from tests.support.watch import Watch

share = st.floats(0, 1)
counts = st.integers(0, 500)

SCORE = "cache_pressure_score"


# -- demand ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("usage", "running", "waiting", "expected"),
    [
        (0.5, 10, 0, 0.5),
        (0.5, 10, 10, 1.0),
        (1.0, 4, 12, 4.0),
        (0.08, 4, 36, 0.8),
        (0.0, 0, 0, 0.0),
        (0.3, 0, 0, 0.0),
        (0.3, 0, 5, None),
        (None, 1, 1, None),
        (0.5, None, 1, None),
        (0.5, 1, None, None),
    ],
)
def test_demand_is_usage_scaled_to_all_requests(
    usage: float | None, running: float | None, waiting: float | None, expected: float | None
) -> None:
    """Usage x (running + waiting) / running; unknown where requests wait and none runs."""
    assert demand(usage, running, waiting) == expected


@given(share, st.integers(1, 500), counts, counts)
def test_demand_rises_with_the_queue(usage: float, running: int, one: int, other: int) -> None:
    """More waiting never means less demand, and nothing waiting means the usage itself."""
    low, high = demand(usage, running, min(one, other)), demand(usage, running, max(one, other))
    assert low is not None
    assert high is not None
    assert usage * (1 - 1e-12) <= low <= high
    assert demand(usage, running, 0) == pytest.approx(usage)


# -- the score ---------------------------------------------------------------------------------------------------


@given(share, share, share, share)
def test_the_score_is_monotone_in_each_part(a: float, b: float, low: float, high: float) -> None:
    """A part that rises never lowers the score, and the score stays between 0 and 1."""
    low, high = min(low, high), max(low, high)
    assert 0 <= pressure(low, a, b) <= pressure(high, a, b) <= 1 + 1e-12
    assert pressure(a, low, b) <= pressure(a, high, b)
    assert pressure(a, b, low) <= pressure(a, b, high)


@given(share)
def test_a_full_cache_with_nothing_waiting_is_half_at_most(occupancy: float) -> None:
    """Full is not yet a fault."""
    assert pressure(occupancy, 0, 0) <= 0.5


@given(counts, counts, counts, st.floats(0.01, 1))
def test_the_preemption_part_is_monotone(some: int, more: int, finished: int, full_at: float) -> None:
    """More preemptions never lower it, more finished requests never raise it, and it is a share."""
    low, high = min(some, more), max(some, more)
    assert 0 <= preemption_part(low, finished, full_at) <= preemption_part(high, finished, full_at) <= 1
    assert preemption_part(some, finished + more, full_at) <= preemption_part(some, finished, full_at)
    assert preemption_part(0, finished, full_at) == 0


def test_the_preemption_part_is_full_at_ten_percent() -> None:
    """One preemption to nine finished requests is all of it, one to nineteen half."""
    assert preemption_part(1, 9, 0.1) == 1
    assert preemption_part(1, 19, 0.1) == pytest.approx(0.5)
    assert preemption_part(0, 0, 0.1) == 0


moments = st.lists(st.tuples(share, st.integers(1, 40), st.integers(0, 60)), min_size=1, max_size=25)


@given(moments)
@settings(max_examples=40)
def test_no_usage_alone_brings_the_score_over_half(seen: list[tuple[float, int, int]]) -> None:
    """Whatever usage and running do, with nothing waiting and nothing preempted the score is at most 0.5."""
    watch, server = Watch(), Server()
    for usage, running, _ in seen:
        server.usage, server.running = usage, running
        server.generation_tokens += 10
        watch.see(server)
        score = watch.derived(SCORE)
        assert score is not None
        assert 0 <= score <= 0.5


@given(moments)
@settings(max_examples=40)
def test_a_queue_that_the_cache_does_not_cause_never_raises_the_score(
    seen: list[tuple[float, int, int]],
) -> None:
    """While the cache always has room for one more request, a queue changes nothing, however long it is."""
    alone, queued = Watch(), Watch()
    server = Server(prompt_tokens=5)
    for usage, running, waiting in seen:
        server.usage, server.running, server.waiting = usage * 0.94 * running / (running + 1), running, 0
        server.generation_tokens += 10
        alone.see(server)
        server.waiting = waiting
        queued.see(server)
        assert queued.derived(SCORE) == pytest.approx(alone.derived(SCORE))


def test_a_queue_that_the_cache_causes_raises_the_score() -> None:
    """Full and waiting for a minute: occupancy and queueing at their full weight, and preemptions on top."""
    watch, server = Watch(), Server(usage=1.0, running=10, waiting=20)
    for _ in range(70):
        server.generation_tokens += 10
        watch.see(server)
    assert watch.derived(SCORE) == pytest.approx(0.8)
    for _ in range(5):
        server.preemptions += 1
        server.generation_tokens += 10
        watch.see(server)
    assert watch.derived(SCORE) == pytest.approx(1.0)


def test_an_unknown_part_makes_the_score_unknown() -> None:
    """Without preemptions, or without usage, there is no score, and never a zero for it; the rest is there."""
    watch = Watch()
    server = Server(usage=0.9, running=3, without=frozenset({"num_preemptions"}))
    server.finish(1)
    watch.see(server)
    assert watch.derived(SCORE) is None
    assert "preemptions_total" in watch.engine.derived.unknown[SCORE]
    assert watch.derived("cache_pressure_occupancy_ratio") == 0.9
    watch = Watch()
    server = Server(usage=0.9, running=3, without=frozenset({"kv_cache_usage_perc"}))
    server.finish(1)
    watch.see(server)
    assert watch.derived(SCORE) is None
    assert "kv_cache_usage_ratio" in watch.engine.derived.unknown[SCORE]


def test_occupancy_is_a_time_weighted_percentile() -> None:
    """Full for a tenth of the minute or less does not make the cache full."""
    watch, server = Watch(), Server(usage=0.4, running=1)
    for i in range(61):
        server.usage = 1.0 if 30 <= i < 35 else 0.4
        server.generation_tokens += 1
        watch.see(server)
    assert watch.derived("cache_pressure_occupancy_ratio") == 0.4
    assert watch.derived("kv_cache_usage_peak_1m_ratio") == 1.0


# -- capacity ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("config", "expected"),
    [
        (CacheConfig(block_size=16, num_gpu_blocks=100, known=True), 1600),
        (CacheConfig(block_size=64, num_gpu_blocks=100, kv_cache_size_tokens=25_600, known=True), 25_600),
        (
            CacheConfig(
                block_size=4, num_gpu_blocks=100, kv_cache_size_tokens=9_999, hybrid=True, known=True
            ),
            9_999,
        ),
        (CacheConfig(block_size=16, num_gpu_blocks=100, hybrid=True, known=True), None),
        (CacheConfig(block_size=16, known=True), None),
        (CacheConfig(num_gpu_blocks=100, known=True), None),
        (CacheConfig(), None),
    ],
)
def test_capacity_in_tokens(config: CacheConfig, expected: float | None) -> None:
    """What vLLM says comes first, blocks x block size where that is true, and a reason where neither is."""
    value, reason = capacity_tokens(Snapshot(EngineKey("t"), config=config))
    assert value == expected
    assert bool(reason) == (expected is None)


# -- the prefix cache ---------------------------------------------------------------------------------------------

HITS = "prefix_cache_hit_ratio"


def test_the_hit_ratio_is_of_what_was_looked_up_in_the_window() -> None:
    """Hits since the window began by look-ups since then: what happened before kvwatch came is not in it."""
    watch, server = Watch(), Server()
    server.finish(100, hit=0.0)
    watch.see(server)
    server.finish(50, hit=0.75)
    watch.see(server)
    assert watch.derived(HITS) == pytest.approx(0.75)
    assert HITS not in watch.engine.derived.untrusted


def test_without_look_ups_there_is_no_hit_ratio() -> None:
    """Nothing looked up is no ratio, and neither is a cache that is switched off or a gauge of v0."""
    watch, server = Watch(), Server()
    watch.see(server)
    watch.see(server)
    assert watch.derived(HITS) is None
    assert "no token was looked up" in watch.engine.derived.unknown[HITS]
    server.config["enable_prefix_caching"] = "False"
    watch.see(server)
    assert watch.derived(HITS) is None
    assert "off" in watch.engine.derived.unknown[HITS]


def test_look_ups_that_ran_ahead_are_shown_and_not_trusted() -> None:
    """Up to 0.26 a waiting request is looked up at every step: the ratio is then one request's."""
    watch, server = Watch(), Server(usage=1.0, running=4, waiting=9)
    server.finish(30)
    watch.see(server)
    server.finish(30, hit=0.1)
    server.queried += 500_000
    server.hits += 400_000
    watch.see(server)
    assert watch.derived(HITS) is not None
    assert "looked up" in watch.engine.derived.untrusted[HITS]


def test_requests_in_flight_are_no_overrun() -> None:
    """Look-ups come at admission, prompt tokens with the first output: what is in between is no mistrust."""
    watch, server = Watch(), Server(running=30)
    server.finish(10, prompt=1000)
    watch.see(server)
    server.finish(10, prompt=1000)
    server.queried += 30 * 1000
    watch.see(server)
    assert HITS not in watch.engine.derived.untrusted


def test_preemptions_spoil_the_hit_ratio_where_they_count() -> None:
    """Before 0.11.1 a preempted request finds its own blocks: with preemptions the ratio is not trusted."""
    old = frozenset({"engine_sleep_state"})
    for without, trusted in ((old, False), (frozenset[str](), True)):
        watch, server = Watch(), Server(without=without)
        server.finish(50)
        watch.see(server)
        server.finish(50)
        server.preemptions += 3
        watch.see(server)
        assert (HITS in watch.engine.derived.untrusted) == (not trusted)


# -- quantiles ----------------------------------------------------------------------------------------------------


def ttft_name(watch: Watch) -> str:
    """The name of the 95th percentile of TTFT, whatever its ending."""
    known = {**watch.engine.derived.values, **watch.engine.derived.unknown}
    (name,) = (n for n in known if n.startswith("time_to_first_token") and "95" in n)
    return name


def test_too_few_observations_give_no_quantile() -> None:
    """Nineteen are too few and twenty are enough; those from before kvwatch came do not count."""
    watch, server = Watch(), Server()
    server.finish(500, ttft=9.0)
    watch.see(server)
    server.finish(19, ttft=0.3)
    watch.see(server)
    name = ttft_name(watch)
    assert watch.derived(name) is None
    assert "19 observations" in watch.engine.derived.unknown[name]
    server.finish(1, ttft=0.3)
    watch.see(server)
    found = watch.derived(name)
    assert found is not None
    assert 0.1 < found <= 0.5
    assert name not in watch.engine.derived.at_least


def test_a_quantile_in_the_open_tail_is_a_lower_bound() -> None:
    """Beyond the last bound the quantile is that bound, and says so."""
    watch, server = Watch(), Server(ttft=Counted((0.1, 1.0)))
    watch.see(server)
    server.finish(30, ttft=77.0)
    watch.see(server)
    name = ttft_name(watch)
    assert watch.derived(name) == 1.0
    assert name in watch.engine.derived.at_least


def test_a_fast_page_keeps_the_quantiles_of_the_last_full_one() -> None:
    """Between two full scrapes quantiles stay; everything else moves on."""
    watch, server = Watch(), Server()
    watch.see(server)
    server.finish(40)
    watch.see(server)
    name = ttft_name(watch)
    before = watch.derived(name)
    server.finish(40, ttft=30.0)
    server.usage = 0.7
    watch.see(server, pace=Pace.FAST)
    assert watch.derived(name) == before is not None
    assert watch.derived("kv_cache_usage_peak_1m_ratio") == 0.7


def test_the_number_of_observations_is_a_setting() -> None:
    """An operator of a quiet server may be content with fewer."""
    watch, server = Watch(Policy(min_observations=3)), Server()
    watch.see(server)
    server.finish(3)
    watch.see(server)
    assert watch.derived(ttft_name(watch)) is not None


# -- work ---------------------------------------------------------------------------------------------------------


def test_throughput_is_per_second_watched() -> None:
    """Tokens per second over a minute; a gap is neither in the tokens nor in the seconds."""
    watch, server = Watch(), Server(running=1)
    watch.see(server)
    assert watch.derived("generation_tokens_per_second") is None
    for _ in range(10):
        server.generation_tokens += 30
        watch.see(server)
    assert watch.derived("generation_tokens_per_second") == pytest.approx(30)
    server.generation_tokens += 1_000_000
    watch.see(server, after=40)
    server.generation_tokens += 30
    watch.see(server)
    assert watch.derived("generation_tokens_per_second") == pytest.approx(30)


@given(
    st.lists(
        st.tuples(st.sampled_from([0.0, 0.5, 1.0, 20.0]), st.integers(0, 10_000)), min_size=1, max_size=30
    )
)
@settings(max_examples=60)
def test_no_derived_number_is_negative(moves: list[tuple[float, int]]) -> None:
    """Whatever the counters do (fall, stand, jump), every number is absent or at least zero, shares at most one."""
    watch, server = Watch(), Server(usage=0.5, running=2, waiting=1, started=None)
    for dt, value in moves:
        server.generation_tokens = server.prompt_tokens = server.queried = value
        server.hits, server.preemptions, server.finished = value // 2, value // 100, value // 10
        watch.see(server, after=dt)
        for name, number in watch.engine.derived.values.items():
            assert number >= 0, name
            if name.endswith("_ratio") and "demand" not in name:
                assert number <= 1, name


def test_every_number_is_a_value_or_unknown_with_a_reason() -> None:
    """No derived number is both, and none is unknown without saying why."""
    watch, server = Watch(), Server(usage=0.5, running=2)
    names: set[str] = set()
    for i in range(40):
        server.finish(3)
        if i == 20:
            server.without = frozenset({"num_requests_waiting", "num_preemptions"})
        watch.see(server)
        derived = watch.engine.derived
        assert not set(derived.values) & set(derived.unknown)
        assert all(derived.unknown.values())
        assert set(derived.untrusted) <= set(derived.values)
        now = {*derived.values, *derived.unknown}
        assert not names or names == now
        names = now
