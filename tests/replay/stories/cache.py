"""Stories of a cache that is too small for what is asked of it."""

from kvwatch.core.judgement.lifecycle import Stage
from tests.replay.stories.registry import HITS, MISSING, NEAR_MISSES, hungry, recorded, register, working
from tests.support.pages import Server
from tests.support.watch import Watch

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


@register(NEAR_MISSES, "kv_thrashing", Stage.INACTIVE)
def a_few_preemptions_among_many_while_nothing_has_finished_yet() -> Watch:
    def each(server: Server, i: int) -> None:
        hungry(server, 0.98, 36, i)
        server.preemptions = i // 22

    return working(120, each)


# A herd of some seconds after a stall: its preemptions are counted when it is over.
recorded(NEAR_MISSES, "kv_thrashing", "0.32.0--p-engine-stalled")


@register(NEAR_MISSES, "kv_thrashing", Stage.INACTIVE)
def two_preemptions_are_no_storm() -> Watch:
    def each(server: Server, i: int) -> None:
        hungry(server)
        server.preemptions = (i > 20) + (i > 60)

    return working(120, each)


@register(NEAR_MISSES, "kv_thrashing", Stage.INACTIVE)
def a_lifetime_of_preemptions() -> Watch:
    def each(server: Server, i: int) -> None:
        hungry(server)
        server.preemptions = 5000
        server.finished += i % 5 == 0

    return working(120, each)


@register(MISSING, "kv_thrashing", Stage.UNKNOWN)
def preemptions_are_not_exposed() -> Watch:
    return working(120, lambda server, _i: hungry(server), Server(without=frozenset({"num_preemptions"})))


@register(HITS, "kv_exhausted", Stage.FIRING)
def full_and_waiting_for_a_minute() -> Watch:
    return working(60, lambda server, _i: hungry(server))


@register(NEAR_MISSES, "kv_exhausted", Stage.INACTIVE)
def full_and_waiting_for_half_a_minute() -> Watch:
    def each(server: Server, i: int) -> None:
        hungry(server, *((0.99, 10, 20) if i < 29 else (0.3, 3, 0)))

    return working(90, each)


@register(NEAR_MISSES, "kv_exhausted", Stage.INACTIVE)
def full_and_nothing_waiting() -> Watch:
    return working(90, lambda server, _i: hungry(server, 0.99, 10, 0))


recorded(
    NEAR_MISSES,
    "kv_exhausted",
    "0.32.0--b-healthy",
    "0.32.0--d-queue-no-cache-pressure",
    "0.32.0--e-shared-prefix",
)


@register(MISSING, "kv_exhausted", Stage.UNKNOWN)
def usage_is_not_exposed() -> Watch:
    return working(120, lambda server, _i: hungry(server), Server(without=frozenset({"kv_cache_usage_perc"})))


@register(HITS, "kv_near_full", Stage.FIRING)
def full_for_over_a_minute() -> Watch:
    return working(70, lambda server, _i: hungry(server, 0.97, 10, 0))


@register(HITS, "kv_near_full", Stage.FIRING)
def on_course_to_fill() -> Watch:
    return working(140, lambda server, i: hungry(server, 0.7 + 0.0012 * i, 10, 0))


@register(NEAR_MISSES, "kv_near_full", Stage.INACTIVE)
def high_and_steady() -> Watch:
    return working(200, lambda server, i: hungry(server, 0.93 + 0.01 * (i % 2), 10, 0))


@register(NEAR_MISSES, "kv_near_full", Stage.INACTIVE)
def rising_from_low() -> Watch:
    return working(150, lambda server, i: hungry(server, 0.1 + 0.004 * i, 10, 0))


recorded(NEAR_MISSES, "kv_near_full", "0.32.0--b-healthy", "0.32.0--a-idle", "0.32.0--e-shared-prefix")


@register(MISSING, "kv_near_full", Stage.UNKNOWN)
def usage_is_nan() -> Watch:
    return working(200, lambda server, _i: hungry(server, float("nan"), 10, 0))


def computing_over_and_over(server: Server, i: int, *, done: bool) -> None:
    """Eight prompts of an eighth of the cache fill it; then prompt tokens go on, and next to nothing is generated."""
    server.generation_tokens -= 40  # 10 a second are left
    hungry(server, min(0.13 * (i // 5), 0.97), min(1 + i // 5, 8), 0)
    server.prompt_tokens += 400
    if done:
        server.prompts.seen += [2000] * (i % 5 == 4)
        server.finished += i % 5 == 4


@register(HITS, "kv_thrashing", Stage.FIRING)
def prompts_are_computed_again_though_nothing_waits() -> Watch:
    return working(130, lambda server, i: computing_over_and_over(server, i, done=False))


@register(NEAR_MISSES, "kv_thrashing", Stage.INACTIVE)
def the_same_prompt_tokens_of_requests_that_finish() -> Watch:
    return working(130, lambda server, i: computing_over_and_over(server, i, done=True))
