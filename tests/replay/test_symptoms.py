"""Each symptom: a story in which it fires, one in which it only just does not, one in which a signal is missing.

Stories are recordings of real servers where there is one, else a made-up server whose pages go through the real
parser. `test_every_symptom_has_its_three_stories` fails for a new row until it has them.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import pytest

from kvwatch.core.findings import findings
from kvwatch.core.lifecycle import Stage
from kvwatch.core.outcome import Failure
from kvwatch.core.pipeline import next_pace
from kvwatch.core.policy import Policy
from kvwatch.core.symptoms import SYMPTOMS
from tests.core.pages import Server
from tests.core.watch import Watch, replayed

Story = Callable[[], Watch]


@dataclass(frozen=True)
class Case:
    """A story of a symptom. `ends` is where the symptom is in the end, if that matters."""

    symptom: str
    story: Story
    ends: Stage | None = None


HITS: list[Case] = []
NEAR_MISSES: list[Case] = []
MISSING: list[Case] = []


def told(kind: list[Case], symptom: str, ends: Stage | None = None) -> Callable[[Story], Story]:
    """Registers a story."""

    def add(story: Story) -> Story:
        kind.append(Case(symptom, story, ends))
        return story

    return add


def recorded(kind: list[Case], symptom: str, *names: str, ends: Stage | None = None) -> None:
    """Registers recordings as stories."""
    kind.extend(Case(symptom, partial(replayed, name), ends) for name in names)


# -- the server ---------------------------------------------------------------------------------------------------


@told(HITS, "target_down", Stage.FIRING)
def gone_for_half_a_minute() -> Watch:
    watch = Watch()
    watch.see(Server(running=1))
    for _ in range(31):
        watch.fail()
    return watch


@told(HITS, "target_down", Stage.INACTIVE)
def gone_and_back() -> Watch:
    watch = gone_for_half_a_minute()
    watch.see(Server(running=1))
    return watch


@told(HITS, "target_down", Stage.FIRING)
def never_there() -> Watch:
    watch = Watch()
    for _ in range(32):
        watch.fail(Failure.DNS)
    return watch


recorded(HITS, "target_down", "0.10.2--x-engine-died-while-saturated", "0.32.0--i-restart")
recorded(NEAR_MISSES, "target_down", "0.32.0--o-engine-killed")


@told(NEAR_MISSES, "target_down", Stage.PENDING)
def gone_for_a_moment_less() -> Watch:
    watch = Watch()
    for _ in range(3):
        watch.see(Server(running=1))
        for _ in range(30):
            watch.fail(Failure.TIMEOUT)
    return watch


@told(MISSING, "target_down", Stage.INACTIVE)
def something_else_answers() -> Watch:
    watch = Watch()
    for _ in range(60):
        watch.fail(Failure.NOT_VLLM)
    return watch


recorded(HITS, "engine_restarted", "0.32.0--i-restart", ends=Stage.FIRING)


@told(HITS, "engine_restarted", Stage.INACTIVE)
def restarted_a_while_ago() -> Watch:
    watch, server = Watch(), Server(usage=0.99, running=9, waiting=9)
    server.finish(9)
    watch.see(server)
    again = Server(started=1_700_000_900)
    for _ in range(310):
        watch.see(again)
    return watch


@told(HITS, "engine_restarted", Stage.FIRING)
def counters_fell_together() -> Watch:
    watch, server = Watch(), Server(started=None)
    server.finish(9)
    watch.see(server)
    watch.see(Server(started=None))
    return watch


recorded(NEAR_MISSES, "engine_restarted", "0.32.0--p-engine-stalled", "0.32.0--o-engine-killed")


@told(NEAR_MISSES, "engine_restarted", Stage.INACTIVE)
def an_outage_of_the_same_process() -> Watch:
    watch, server = Watch(), Server(running=1)
    server.finish(9)
    watch.see(server)
    for _ in range(20):
        watch.fail()
    server.finish(9)
    watch.see(server)
    return watch


@told(MISSING, "engine_restarted", Stage.INACTIVE)
def one_counter_fell_and_no_start_time() -> Watch:
    watch, server = Watch(), Server(started=None)
    server.finish(9)
    watch.see(server)
    server.generation_tokens = 1
    for _ in range(5):
        watch.see(server)
    return watch


@told(HITS, "signals_missing", Stage.FIRING)
def waiting_was_renamed() -> Watch:
    watch, server = Watch(), Server(running=1, without=frozenset({"num_requests_waiting"}))
    for _ in range(32):
        server.finish(1)
        watch.see(server)
    return watch


@told(HITS, "signals_missing", Stage.FIRING)
def no_vllm_there() -> Watch:
    watch = Watch()
    for _ in range(32):
        watch.fail(Failure.NOT_VLLM)
    return watch


@told(NEAR_MISSES, "signals_missing", Stage.INACTIVE)
def missing_for_a_moment() -> Watch:
    watch, server = Watch(), Server(running=1)
    for i in range(80):
        server.finish(1)
        server.without = frozenset({"num_requests_waiting"} if 10 <= i < 40 else ())
        watch.see(server)
    return watch


@told(NEAR_MISSES, "signals_missing", Stage.INACTIVE)
def not_asked_for_anything_yet() -> Watch:
    gauges = frozenset({"num_requests_waiting", "num_requests_running", "kv_cache_usage_perc"})
    watch, server = Watch(), Server(without=gauges)
    for _ in range(60):
        watch.see(server)
    return watch


recorded(
    NEAR_MISSES, "signals_missing", "0.32.0--j-data-parallel-2", "0.8.5-v0--c-kv-saturation", "0.32.0--a-idle"
)


@told(MISSING, "signals_missing", Stage.UNKNOWN)
def nobody_answers() -> Watch:
    watch = Watch()
    watch.see(Server(running=1))
    for _ in range(90):
        watch.fail()
    return watch


# -- the engine --------------------------------------------------------------------------------------------------


def unscraped(server: Server, seconds: int = 90) -> Watch:
    """A server that was well and is not scraped any more."""
    watch = Watch()
    server.finish(1)
    watch.see(server)
    for _ in range(seconds):
        watch.fail()
    return watch


recorded(HITS, "engine_stalled", "0.9.2--x-engine-died-metrics-frozen", ends=Stage.FIRING)


@told(HITS, "engine_stalled", Stage.FIRING)
def frozen_for_half_a_minute() -> Watch:
    watch, server = Watch(), Server(usage=0.4, running=3)
    server.finish(1)
    for _ in range(33):
        watch.see(server)
    return watch


recorded(
    NEAR_MISSES, "engine_stalled", "0.32.0--p-engine-stalled", "0.32.0--c-kv-saturation", "0.11.2--b-healthy"
)


@told(NEAR_MISSES, "engine_stalled", Stage.INACTIVE)
def frozen_for_a_moment_less() -> Watch:
    watch, server = Watch(), Server(usage=0.4, running=3)
    for _ in range(4):
        server.finish(1)
        for _ in range(29):
            watch.see(server)
    return watch


@told(MISSING, "engine_stalled", Stage.UNKNOWN)
def no_counter_that_would_tell() -> Watch:
    progress = {"generation_tokens", "prompt_tokens", "request_success", "iteration_tokens"}
    watch, server = Watch(), Server(usage=0.4, running=3, preemptions=1, without=frozenset(progress))
    for _ in range(90):
        watch.see(server)
    return watch


# -- the cache --------------------------------------------------------------------------------------------------


def working(
    seconds: int,
    each: Callable[[Server, int], None],
    server: Server | None = None,
    policy: Policy | None = None,
) -> Watch:
    """A server that goes on generating, changed by `each` every second."""
    watch, server = Watch(policy or Policy()), server or Server()
    server.finish(1)
    for i in range(seconds):
        server.generation_tokens += 50
        each(server, i)
        watch.see(server)
    return watch


def hungry(server: Server, usage: float = 0.99, running: int = 10, waiting: int = 20) -> None:
    server.usage, server.running, server.waiting = usage, running, waiting


recorded(
    HITS,
    "kv_thrashing",
    "0.32.0--c-kv-saturation",
    "0.20.2--c-kv-saturation",
    "0.13.0--c-kv-saturation",
    "0.11.2--c-kv-saturation",
    "0.10.2--c-kv-saturation",
    "0.9.2--c-kv-saturation",
    "0.8.5-v0--c-kv-saturation",
    "0.8.5-v0-hidden--c-kv-saturation",
)
recorded(
    NEAR_MISSES,
    "kv_thrashing",
    "0.32.0--b-healthy",
    "0.32.0--d-queue-no-cache-pressure",
    "0.32.0--h-long-prompts",
)


@told(NEAR_MISSES, "kv_thrashing", Stage.INACTIVE)
def a_few_preemptions_among_many_while_nothing_has_finished_yet() -> Watch:
    def each(server: Server, i: int) -> None:
        hungry(server, 0.98, 36, i)
        server.preemptions = i // 22

    return working(120, each)


# A herd of some seconds after a stall: its preemptions are counted when it is over.
recorded(NEAR_MISSES, "kv_thrashing", "0.32.0--p-engine-stalled")


@told(NEAR_MISSES, "kv_thrashing", Stage.INACTIVE)
def two_preemptions_are_no_storm() -> Watch:
    def each(server: Server, i: int) -> None:
        hungry(server)
        server.preemptions = (i > 20) + (i > 60)

    return working(120, each)


@told(NEAR_MISSES, "kv_thrashing", Stage.INACTIVE)
def a_lifetime_of_preemptions() -> Watch:
    def each(server: Server, i: int) -> None:
        hungry(server)
        server.preemptions = 5000
        server.finished += i % 5 == 0

    return working(120, each)


@told(MISSING, "kv_thrashing", Stage.UNKNOWN)
def preemptions_are_not_exposed() -> Watch:
    return working(120, lambda server, _i: hungry(server), Server(without=frozenset({"num_preemptions"})))


@told(HITS, "kv_exhausted", Stage.FIRING)
def full_and_waiting_for_a_minute() -> Watch:
    return working(60, lambda server, _i: hungry(server))


@told(NEAR_MISSES, "kv_exhausted", Stage.INACTIVE)
def full_and_waiting_for_half_a_minute() -> Watch:
    def each(server: Server, i: int) -> None:
        hungry(server, *((0.99, 10, 20) if i < 29 else (0.3, 3, 0)))

    return working(90, each)


@told(NEAR_MISSES, "kv_exhausted", Stage.INACTIVE)
def full_and_nothing_waiting() -> Watch:
    return working(90, lambda server, _i: hungry(server, 0.99, 10, 0))


recorded(
    NEAR_MISSES,
    "kv_exhausted",
    "0.32.0--b-healthy",
    "0.32.0--d-queue-no-cache-pressure",
    "0.32.0--e-shared-prefix",
)


@told(MISSING, "kv_exhausted", Stage.UNKNOWN)
def usage_is_not_exposed() -> Watch:
    return working(120, lambda server, _i: hungry(server), Server(without=frozenset({"kv_cache_usage_perc"})))


recorded(HITS, "sequence_limited", "0.32.0--d-queue-no-cache-pressure")


@told(HITS, "sequence_limited", Stage.FIRING)
def all_slots_taken() -> Watch:
    return working(70, lambda server, _i: hungry(server, 0.1, 4, 30), policy=Policy(max_num_seqs=4))


@told(NEAR_MISSES, "sequence_limited", Stage.INACTIVE)
def slots_are_left() -> Watch:
    def each(server: Server, _i: int) -> None:
        hungry(server, 0.1, 3, 30)
        server.prompt_tokens += 100

    return working(90, each, policy=Policy(max_num_seqs=8))


recorded(
    NEAR_MISSES, "sequence_limited", "0.32.0--b-healthy", "0.32.0--c-kv-saturation", "0.32.0--h-long-prompts"
)


@told(MISSING, "sequence_limited", Stage.UNKNOWN)
def running_is_not_exposed() -> Watch:
    lacking = Server(without=frozenset({"num_requests_running"}))
    return working(120, lambda server, _i: hungry(server, 0.1, 4, 30), lacking)


@told(HITS, "kv_near_full", Stage.FIRING)
def full_for_over_a_minute() -> Watch:
    return working(70, lambda server, _i: hungry(server, 0.97, 10, 0))


@told(HITS, "kv_near_full", Stage.FIRING)
def on_course_to_fill() -> Watch:
    return working(140, lambda server, i: hungry(server, 0.7 + 0.0012 * i, 10, 0))


@told(NEAR_MISSES, "kv_near_full", Stage.INACTIVE)
def high_and_steady() -> Watch:
    return working(200, lambda server, i: hungry(server, 0.93 + 0.01 * (i % 2), 10, 0))


@told(NEAR_MISSES, "kv_near_full", Stage.INACTIVE)
def rising_from_low() -> Watch:
    return working(150, lambda server, i: hungry(server, 0.1 + 0.004 * i, 10, 0))


recorded(NEAR_MISSES, "kv_near_full", "0.32.0--b-healthy", "0.32.0--a-idle", "0.32.0--e-shared-prefix")


@told(MISSING, "kv_near_full", Stage.UNKNOWN)
def usage_is_nan() -> Watch:
    return working(200, lambda server, _i: hungry(server, float("nan"), 10, 0))


@told(HITS, "kv_usage_stuck", Stage.FIRING)
def blocks_held_by_nobody() -> Watch:
    watch, server = Watch(), Server()
    server.finish(3)
    hungry(server, 0.4, 0, 0)
    for _ in range(70):
        watch.see(server)
    return watch


@told(NEAR_MISSES, "kv_usage_stuck", Stage.INACTIVE)
def blocks_held_for_a_moment_less() -> Watch:
    return working(181, lambda server, i: hungry(server, 0.4, 0 if i % 60 else 1, 0))


@told(NEAR_MISSES, "kv_usage_stuck", Stage.INACTIVE)
def it_works_though_nothing_is_seen_to_run() -> Watch:
    return working(120, lambda server, _i: hungry(server, 0.4, 0, 0))


@told(NEAR_MISSES, "kv_usage_stuck", Stage.INACTIVE)
def one_block_of_an_idle_server() -> Watch:
    return working(120, lambda server, _i: hungry(server, 0.05, 0, 0))


@told(NEAR_MISSES, "kv_usage_stuck", Stage.INACTIVE)
def asleep_with_its_last_gauges() -> Watch:
    return working(120, lambda server, _i: hungry(server, 0.4, 0, 0), Server(awake=0))


recorded(NEAR_MISSES, "kv_usage_stuck", "0.32.0--a-idle", "0.32.0--b-healthy")


@told(MISSING, "kv_usage_stuck", Stage.UNKNOWN)
def waiting_is_not_exposed() -> Watch:
    lacking = Server(without=frozenset({"num_requests_waiting"}))
    return working(150, lambda server, _i: hungry(server, 0.4, 0, 0), lacking)


# -- prefix caching ----------------------------------------------------------------------------------------------


def serving(
    seconds: int, prompt: float, hit: float, server: Server | None = None, each_second: int = 1
) -> Watch:
    """A server that finishes requests of some length and hit ratio."""
    watch, server = Watch(), server or Server(usage=0.3, running=2)
    watch.see(server)
    for _ in range(seconds):
        server.finish(each_second, prompt=prompt, hit=hit)
        watch.see(server, pace=next_pace(watch.state, watch.now + 1))
    return watch


def configured(**labels: str) -> Server:
    server = Server(usage=0.3, running=2)
    server.config |= labels
    return server


recorded(HITS, "prefix_cache_off", "0.32.0--g-prefix-caching-off")


@told(HITS, "prefix_cache_off", Stage.FIRING)
def off_and_prompts_long() -> Watch:
    return serving(80, 3000, 0, configured(enable_prefix_caching="False"))


@told(NEAR_MISSES, "prefix_cache_off", Stage.INACTIVE)
def off_and_prompts_short() -> Watch:
    return serving(80, 90, 0, configured(enable_prefix_caching="False"))


@told(NEAR_MISSES, "prefix_cache_off", Stage.INACTIVE)
def on_and_prompts_long() -> Watch:
    return serving(80, 3000, 0.9)


recorded(NEAR_MISSES, "prefix_cache_off", "0.32.0--e-shared-prefix", "0.10.2--c-kv-saturation")


@told(MISSING, "prefix_cache_off", Stage.UNKNOWN)
def no_configuration() -> Watch:
    return serving(120, 3000, 0, Server(running=1, without=frozenset({"cache_config_info"})))


recorded(HITS, "prefix_cache_ineffective", "0.32.0--f-varying-head")


@told(HITS, "prefix_cache_ineffective", Stage.FIRING)
def hardly_a_hit() -> Watch:
    return serving(100, 1000, 0.19)


@told(NEAR_MISSES, "prefix_cache_ineffective", Stage.INACTIVE)
def a_fifth_hits() -> Watch:
    return serving(100, 1000, 0.2)


@told(NEAR_MISSES, "prefix_cache_ineffective", Stage.INACTIVE)
def prompts_of_a_few_blocks() -> Watch:
    return serving(300, 60, 0.0, each_second=2)


@told(NEAR_MISSES, "prefix_cache_ineffective", Stage.INACTIVE)
def too_few_requests() -> Watch:
    watch, server = Watch(), Server(usage=0.3, running=2)
    watch.see(server)
    for i in range(100):
        if i < 19:
            server.finish(1, prompt=5000, hit=0)
        watch.see(server)
    return watch


recorded(NEAR_MISSES, "prefix_cache_ineffective", "0.32.0--e-shared-prefix", "0.32.0--g-prefix-caching-off")


@told(MISSING, "prefix_cache_ineffective", Stage.UNKNOWN)
def look_ups_are_not_exposed() -> Watch:
    lacking = frozenset({"prefix_cache_queries", "prefix_cache_hits"})
    return serving(120, 1000, 0, Server(running=1, without=lacking))


# -- what holds for all ------------------------------------------------------------------------------------------


def label(case: Case) -> str:
    name = case.story.args[0] if isinstance(case.story, partial) else getattr(case.story, "__name__", "")
    return f"{case.symptom}-{name}"


@pytest.mark.parametrize("case", HITS, ids=label)
def test_fires_in_its_story(case: Case) -> None:
    """The symptom fires, and where it fires in the end the finding has evidence, a meaning and actions."""
    watch = case.story()
    assert watch.fired(case.symptom)
    if case.ends is not None:
        assert watch.stage(case.symptom) is case.ends
    for found in findings(watch.state):
        assert found.evidence
        assert found.actions
        assert found.symptom.meaning


@pytest.mark.parametrize("case", NEAR_MISSES, ids=label)
def test_does_not_fire_in_a_near_miss(case: Case) -> None:
    """The symptom never fires, though it nearly does."""
    watch = case.story()
    assert not watch.fired(case.symptom)
    if case.ends is not None:
        assert watch.stage(case.symptom) is case.ends


@pytest.mark.parametrize("case", MISSING, ids=label)
def test_is_unknown_where_a_signal_is_missing(case: Case) -> None:
    """Without what it needs the symptom never fires and is not called clear, with the reason."""
    watch = case.story()
    assert not watch.fired(case.symptom)
    assert watch.stage(case.symptom) is case.ends
    if case.ends is Stage.UNKNOWN:
        lives = {
            **watch.state.symptoms,
            **{k: v for e in watch.state.engines.values() for k, v in e.symptoms.items()},
        }
        assert lives[case.symptom].reason


def test_every_symptom_has_its_three_stories() -> None:
    """A row of the table comes with a hit, a near miss and a missing signal."""
    for cases in (HITS, NEAR_MISSES, MISSING):
        assert {case.symptom for case in cases} == {row.id for row in SYMPTOMS}


@pytest.mark.parametrize(
    "row", [row for row in SYMPTOMS if row.scope.value == "engine"], ids=lambda row: row.id
)
def test_an_engine_that_is_not_scraped_is_unknown(row: object) -> None:
    """While nobody answers, nothing about the engine is known; after the grace period that shows."""
    watch = unscraped(Server(usage=0.99, running=9, waiting=30))
    name = getattr(row, "id", "")
    assert watch.stage(name) is Stage.UNKNOWN


def test_an_idle_server_has_no_symptoms() -> None:
    """Ten minutes of nothing: nothing fires, nothing is pending, nothing is unknown."""
    watch, server = Watch(), Server()
    server.finish(30)
    for _ in range(600):
        watch.see(server)
    stages = {name: watch.stage(name) for name in (*watch.state.symptoms, *watch.engine.symptoms)}
    assert set(stages.values()) == {Stage.INACTIVE}, stages
    assert not watch.transitions


def test_a_cause_outranks_its_effects() -> None:
    """Where one firing symptom accounts for another, the other says so and stands behind it."""
    watch = replayed("0.9.2--x-engine-died-metrics-frozen")
    found = findings(watch.state)
    assert found[0].symptom.id == "engine_stalled"
    assert all(
        "engine_stalled" in other.explained_by for other in found[1:] if other.symptom.id.startswith("kv_")
    )
