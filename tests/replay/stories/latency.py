"""Stories of first tokens that come late."""

from kvwatch.core.judgement.lifecycle import Stage
from kvwatch.core.judgement.pipeline import next_pace
from tests.replay.stories.registry import HITS, MISSING, NEAR_MISSES, hungry, recorded, register
from tests.support.pages import Server
from tests.support.watch import Watch


def late(
    seconds: int,
    ttft: float,
    *,
    server: Server | None = None,
    watch: Watch | None = None,
    prompt: float = 200,
    hit: float = 0.5,
    queued: float = 0.5,
    itl: float = 0.02,
) -> Watch:
    """A server that is an hour old at least, and finishes a request every second."""
    watch, server = watch or Watch(), server or Server(usage=0.2, running=3)
    for _ in range(seconds):
        server.finish(1, prompt=prompt, ttft=ttft, hit=hit, queued=queued, itl=itl)
        watch.see(server, pace=next_pace(watch.state, watch.now + 1))
    return watch


# -- late, and no queue -------------------------------------------------------------------------------------------


def served_well_before(seconds: int = 60, ttft: float = 0.05) -> tuple[Watch, Server]:
    server = Server(usage=0.2, running=3)
    return late(seconds, ttft, server=server), server


@register(HITS, "ttft_high", Stage.FIRING)
def first_tokens_take_over_two_seconds() -> Watch:
    watch, server = served_well_before()
    return late(90, 2.5, server=server, watch=watch)


@register(HITS, "ttft_high", Stage.FIRING)
def three_times_what_is_usual() -> Watch:
    watch, server = served_well_before(1500, 0.1)
    return late(300, 0.9, server=server, watch=watch)


@register(NEAR_MISSES, "ttft_high", Stage.INACTIVE)
def nearly_two_seconds() -> Watch:
    watch, server = served_well_before()
    return late(200, 1.0, server=server, watch=watch)


@register(NEAR_MISSES, "ttft_high", Stage.INACTIVE)
def three_late_ones_of_little_traffic() -> Watch:
    """So few requests that one in twenty is one or two; three of them are late in five minutes."""
    watch, server = served_well_before()
    for i in range(400):
        if i % 8 == 0:
            server.finish(1, ttft=9 if i in {104, 200, 304} else 0.1)
        watch.see(server, pace=next_pace(watch.state, watch.now + 1))
    return watch


@register(NEAR_MISSES, "ttft_high", Stage.INACTIVE)
def three_times_what_is_usual_by_a_few_of_little_traffic() -> Watch:
    """Of a request in five seconds one in nine has a long prompt, as recorded in a mixed load on a real server."""
    watch, server = served_well_before(1500, 0.2)
    for i in range(600):
        if i % 5 == 0:
            server.finish(1, ttft=1.0 if i % 45 == 0 else 0.1)
        watch.see(server, pace=next_pace(watch.state, watch.now + 1))
    return watch


@register(NEAR_MISSES, "ttft_high", Stage.INACTIVE)
def three_times_what_is_usual_and_still_soon() -> Watch:
    watch, server = served_well_before(1500, 0.01)
    return late(300, 0.1, server=server, watch=watch)


@register(NEAR_MISSES, "ttft_high", Stage.INACTIVE)
def every_step_is_slow() -> Watch:
    watch, server = served_well_before()
    return late(200, 2.5, server=server, watch=watch, itl=0.5)


@register(NEAR_MISSES, "ttft_high", Stage.INACTIVE)
def a_queue_that_is_over() -> Watch:
    watch, server = served_well_before()
    for i in range(25):
        hungry(server, 0.99, 10, 20)
        server.generation_tokens += 50
        if i % 2:
            server.finish(3, ttft=9)
        watch.see(server)
    hungry(server, 0.2, 3, 0)
    return late(200, 0.05, server=server, watch=watch)


recorded(
    NEAR_MISSES,
    "ttft_high",
    "0.32.0--b-healthy",
    "0.13.0--b-healthy",
    "0.11.2--e-shared-prefix",
    "0.32.0--p-engine-stalled",
)


@register(MISSING, "ttft_high", Stage.UNKNOWN)
def first_tokens_are_not_timed() -> Watch:
    return late(120, 2.5, server=Server(running=3, without=frozenset({"time_to_first_token_seconds"})))


# -- long prompts, computed whole ---------------------------------------------------------------------------------


@register(HITS, "shared_prefix_slow", Stage.FIRING)
def prefill_of_long_prompts_that_share_nothing() -> Watch:
    return late(120, 2.6, prompt=4000, hit=0.1, queued=0.2)


@register(HITS, "shared_prefix_slow", Stage.FIRING)
def prefill_of_long_prompts_with_caching_off() -> Watch:
    server = Server(usage=0.2, running=3)
    server.config["enable_prefix_caching"] = "False"
    return late(120, 2.6, server=server, prompt=4000, hit=0, queued=0.2)


@register(NEAR_MISSES, "shared_prefix_slow", Stage.INACTIVE)
def most_of_it_is_the_queue() -> Watch:
    return late(120, 2.6, prompt=4000, hit=0.1, queued=0.6)


@register(NEAR_MISSES, "shared_prefix_slow", Stage.INACTIVE)
def a_fifth_is_found() -> Watch:
    return late(120, 2.6, prompt=4000, hit=0.2, queued=0.2)


@register(NEAR_MISSES, "shared_prefix_slow", Stage.INACTIVE)
def prompts_are_short() -> Watch:
    return late(120, 2.6, prompt=90, hit=0.1, queued=0.2)


recorded(NEAR_MISSES, "shared_prefix_slow", "0.32.0--e-shared-prefix", "0.32.0--b-healthy")


@register(MISSING, "shared_prefix_slow", Stage.UNKNOWN)
def prefill_is_not_timed() -> Watch:
    lacking = Server(running=3, without=frozenset({"request_prefill_time_seconds"}))
    return late(120, 2.6, server=lacking, prompt=4000, hit=0.1)
