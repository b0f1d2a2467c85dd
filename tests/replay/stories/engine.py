"""Stories of engines that do not do what their gauges say."""

from kvwatch.core.judgement.lifecycle import Stage
from tests.replay.stories.registry import HITS, MISSING, NEAR_MISSES, hungry, recorded, register, working
from tests.support.pages import Server
from tests.support.watch import Watch

recorded(HITS, "engine_stalled", "0.9.2--x-engine-died-metrics-frozen", ends=Stage.FIRING)


@register(HITS, "engine_stalled", Stage.FIRING)
def frozen_for_half_a_minute() -> Watch:
    watch, server = Watch(), Server(usage=0.4, running=3)
    server.finish(1)
    for _ in range(33):
        watch.see(server)
    return watch


recorded(
    NEAR_MISSES, "engine_stalled", "0.32.0--p-engine-stalled", "0.32.0--c-kv-saturation", "0.11.2--b-healthy"
)


@register(NEAR_MISSES, "engine_stalled", Stage.INACTIVE)
def frozen_for_a_moment_less() -> Watch:
    watch, server = Watch(), Server(usage=0.4, running=3)
    for _ in range(4):
        server.finish(1)
        for _ in range(29):
            watch.see(server)
    return watch


@register(MISSING, "engine_stalled", Stage.UNKNOWN)
def no_counter_that_would_tell() -> Watch:
    progress = {"generation_tokens", "prompt_tokens", "request_success", "iteration_tokens"}
    watch, server = Watch(), Server(usage=0.4, running=3, preemptions=1, without=frozenset(progress))
    for _ in range(90):
        watch.see(server)
    return watch


@register(HITS, "kv_usage_stuck", Stage.FIRING)
def blocks_held_by_nobody() -> Watch:
    watch, server = Watch(), Server()
    server.finish(3)
    hungry(server, 0.4, 0, 0)
    for _ in range(70):
        watch.see(server)
    return watch


@register(NEAR_MISSES, "kv_usage_stuck", Stage.INACTIVE)
def blocks_held_for_a_moment_less() -> Watch:
    return working(181, lambda server, i: hungry(server, 0.4, 0 if i % 60 else 1, 0))


@register(NEAR_MISSES, "kv_usage_stuck", Stage.INACTIVE)
def it_works_though_nothing_is_seen_to_run() -> Watch:
    return working(120, lambda server, _i: hungry(server, 0.4, 0, 0))


@register(NEAR_MISSES, "kv_usage_stuck", Stage.INACTIVE)
def one_block_of_an_idle_server() -> Watch:
    return working(120, lambda server, _i: hungry(server, 0.05, 0, 0))


@register(NEAR_MISSES, "kv_usage_stuck", Stage.INACTIVE)
def asleep_with_its_last_gauges() -> Watch:
    return working(120, lambda server, _i: hungry(server, 0.4, 0, 0), Server(awake=0))


recorded(NEAR_MISSES, "kv_usage_stuck", "0.32.0--a-idle", "0.32.0--b-healthy")


@register(MISSING, "kv_usage_stuck", Stage.UNKNOWN)
def waiting_is_not_exposed() -> Watch:
    lacking = Server(without=frozenset({"num_requests_waiting"}))
    return working(150, lambda server, _i: hungry(server, 0.4, 0, 0), lacking)


# Before vLLM 0.10.2 the gauges of requests that were cut off by their clients stand still.


def left_behind(parting: float, later: float = 0.0, **more: object) -> Watch:
    """An old server whose gauges stand still after its last step: `parting` clients went away at that step, `later`
    some seconds after it."""
    old = frozenset({"inter_token_latency_seconds"})
    watch, server = Watch(), Server(usage=0.4, running=3, waiting=2, answered=0, without=old, **more)  # type: ignore[arg-type]
    for _ in range(20):
        server.finish(1)
        watch.see(server)
    server.finish(1)
    server.answered = (server.answered or 0) + parting
    for i in range(100):
        server.answered += later if i == 20 else 0
        watch.see(server)
    return watch


@register(NEAR_MISSES, "engine_stalled", Stage.INACTIVE)
@register(HITS, "kv_usage_stuck", Stage.FIRING)
def the_clients_of_all_that_is_shown_went_away() -> Watch:
    return left_behind(parting=5)


@register(HITS, "engine_stalled", Stage.FIRING)
@register(NEAR_MISSES, "kv_usage_stuck", Stage.INACTIVE)
def clients_give_up_on_an_engine_that_hangs() -> Watch:
    return left_behind(parting=1, later=4)


@register(HITS, "engine_stalled", Stage.FIRING)
def a_newer_engine_follows_aborts_so_what_it_shows_is_there() -> Watch:
    watch, server = Watch(), Server(usage=0.4, running=3, waiting=2, answered=0)
    server.finish(1)
    watch.see(server)
    server.finish(1)
    server.answered = 7
    for _ in range(40):
        watch.see(server)
    return watch


recorded(HITS, "engine_stalled", "0.32.0--request-never-fits", "0.13.0--request-never-fits")


@register(HITS, "engine_stalled", Stage.FIRING)
@register(NEAR_MISSES, "kv_usage_stuck", Stage.INACTIVE)
def answers_that_only_tokenise_go_on_while_the_engine_hangs() -> Watch:
    old = frozenset({"inter_token_latency_seconds"})
    watch, server = Watch(), Server(usage=0.4, running=3, waiting=2, answered=0, without=old)
    for i in range(120):
        server.tokenized += 20
        if i < 20:
            server.finish(1)
        watch.see(server)
    return watch
