"""Stories of servers that have just started."""

from kvwatch.core.judgement.lifecycle import Stage
from tests.replay.stories.latency import late, served_well_before
from tests.replay.stories.registry import HITS, MISSING, NEAR_MISSES, recorded, register
from tests.support.pages import Server
from tests.support.watch import WALL, Watch


def started(first: float, then: float, *, age: float = 60, requests: int = 3) -> Watch:
    """A server of some age serves its first requests, and then others."""
    watch = Watch()
    server = Server(started=WALL + watch.now - age)
    watch.see(server)
    for _ in range(20):
        watch.see(server)
    server.finish(requests, ttft=first)
    return late(60, then, server=server, watch=watch)


recorded(
    HITS,
    "cold_start",
    "0.13.0--b-healthy",
    "0.11.2--b-healthy",
    "0.11.2--e-shared-prefix",
    "0.13.0--e-shared-prefix",
)


@register(HITS, "cold_start", Stage.FIRING)
def the_first_request_compiles() -> Watch:
    return started(89, 0.2, requests=1)


@register(HITS, "cold_start", Stage.FIRING)
def the_first_request_of_a_server_that_nobody_asked_for_an_hour() -> Watch:
    return started(20, 0.2, requests=1, age=3600)


@register(NEAR_MISSES, "cold_start", Stage.INACTIVE)
def the_first_is_slow_and_so_are_the_others() -> Watch:
    return started(9, 4)


@register(NEAR_MISSES, "cold_start", Stage.INACTIVE)
def the_first_are_fast_and_others_slow() -> Watch:
    return started(0.1, 4, requests=10)


@register(NEAR_MISSES, "cold_start", Stage.INACTIVE)
def a_slow_one_of_an_old_server() -> Watch:
    watch, server = served_well_before()
    server.finish(5, ttft=30)
    return late(60, 0.1, server=server, watch=watch)


recorded(
    NEAR_MISSES, "cold_start", "0.32.0--b-healthy", "0.32.0--p-engine-stalled", "0.32.0--c-kv-saturation"
)


@register(MISSING, "cold_start", Stage.UNKNOWN)
def nothing_says_when_it_started() -> Watch:
    watch, server = Watch(), Server(started=None, running=1)
    watch.see(server)
    server.finish(30, ttft=9)
    return late(90, 0.1, server=server, watch=watch)


recorded(HITS, "cold_start", "0.13.0--cold-start")
recorded(NEAR_MISSES, "cold_start", "0.32.0--killed-under-pressure", "0.32.0--prefill-bound")
