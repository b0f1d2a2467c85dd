"""Stories of requests that wait for anything but the cache."""

from kvwatch.core.judgement.lifecycle import Stage
from kvwatch.core.judgement.policy import Policy
from tests.replay.stories.registry import HITS, MISSING, NEAR_MISSES, hungry, recorded, register, working
from tests.support.pages import Server
from tests.support.watch import Watch

recorded(HITS, "sequence_limited", "0.32.0--d-queue-no-cache-pressure")


@register(HITS, "sequence_limited", Stage.FIRING)
def all_slots_taken() -> Watch:
    return working(70, lambda server, _i: hungry(server, 0.1, 4, 30), policy=Policy(max_num_seqs=4))


@register(NEAR_MISSES, "sequence_limited", Stage.INACTIVE)
def slots_are_left() -> Watch:
    def each(server: Server, _i: int) -> None:
        hungry(server, 0.1, 3, 30)
        server.prompt_tokens += 100

    return working(90, each, policy=Policy(max_num_seqs=8))


recorded(
    NEAR_MISSES, "sequence_limited", "0.32.0--b-healthy", "0.32.0--c-kv-saturation", "0.32.0--h-long-prompts"
)


@register(MISSING, "sequence_limited", Stage.UNKNOWN)
def running_is_not_exposed() -> Watch:
    lacking = Server(without=frozenset({"num_requests_running"}))
    return working(120, lambda server, _i: hungry(server, 0.1, 4, 30), lacking)


def behind(server: Server, i: int) -> None:
    """Prompts come faster than they are computed."""
    hungry(server, 0.32, 17 + i % 5, 5 + i)
    server.generation_tokens -= 45  # 5 a second are left
    server.prompt_tokens += 6000


@register(HITS, "prefill_limited", Stage.FIRING)
def prompts_come_faster_than_they_are_computed() -> Watch:
    return working(70, behind)


@register(NEAR_MISSES, "prefill_limited", Stage.INACTIVE)
def behind_for_half_a_minute() -> Watch:
    def each(server: Server, i: int) -> None:
        if i < 29:
            behind(server, i)
        else:
            hungry(server, 0.3, 17, 0)

    return working(90, each)


recorded(
    NEAR_MISSES,
    "prefill_limited",
    "0.32.0--h-long-prompts",
    "0.32.0--c-kv-saturation",
    "0.32.0--d-queue-no-cache-pressure",
)


@register(MISSING, "prefill_limited", Stage.UNKNOWN)
def waiting_can_not_be_seen() -> Watch:
    return working(120, behind, Server(without=frozenset({"num_requests_waiting"})))


@register(HITS, "requests_deferred", Stage.FIRING)
def most_of_what_waits_is_deferred() -> Watch:
    def each(server: Server, _i: int) -> None:
        hungry(server, 0.1, 4, 8)
        server.deferred = 5

    return working(70, each, Server(lora=True))


@register(NEAR_MISSES, "requests_deferred", Stage.INACTIVE)
def half_of_what_waits_is_deferred() -> Watch:
    def each(server: Server, _i: int) -> None:
        hungry(server, 0.1, 4, 8)
        server.deferred = 4

    return working(90, each, Server(lora=True))


# Eleven seconds of it, then enough slots.
recorded(NEAR_MISSES, "requests_deferred", "0.32.0--k2-lora")


@register(MISSING, "requests_deferred", Stage.UNKNOWN)
def nothing_of_the_queue_can_be_seen() -> Watch:
    lacking = frozenset({"num_requests_waiting", "num_requests_waiting_by_reason"})
    return working(120, lambda server, _i: hungry(server, 0.1, 4, 8), Server(without=lacking))


recorded(HITS, "prefill_limited", "0.32.0--prefill-bound")
recorded(HITS, "requests_deferred", "0.32.0--deferred")
