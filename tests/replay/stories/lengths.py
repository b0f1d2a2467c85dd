"""Stories of requests that are too long for the cache, and of limits that are too long for the requests."""

from kvwatch.core.judgement.lifecycle import Stage
from kvwatch.core.model.server_info import ServerInfo
from tests.replay.stories.registry import (
    HITS,
    MISSING,
    NEAR_MISSES,
    hungry,
    recorded,
    register,
    working,
)
from tests.support.pages import MODEL, Server
from tests.support.watch import Watch, replayed

# -- a few hold the cache -----------------------------------------------------------------------------------------


def few(server: Server, i: int, usage: float = 0.9, running: int = 2) -> None:
    """Short requests finish, then a few long ones take the cache."""
    if i < 30:
        server.finish(1)
        hungry(server, 0.1, 3, 0)
    else:
        hungry(server, usage, running, 12)


@register(HITS, "long_request_hogs_cache", Stage.FIRING)
def two_hold_nearly_all_of_it() -> Watch:
    return working(100, few)


@register(HITS, "long_request_hogs_cache", Stage.FIRING)
def two_hold_nearly_all_and_nobody_has_finished_yet() -> Watch:
    return working(70, lambda server, _i: hungry(server, 0.987, 2, 20))


@register(NEAR_MISSES, "long_request_hogs_cache", Stage.INACTIVE)
def four_hold_a_little_less() -> Watch:
    return working(120, lambda server, i: few(server, i, 0.98, 4))


@register(NEAR_MISSES, "long_request_hogs_cache", Stage.INACTIVE)
def all_requests_are_as_long() -> Watch:
    def each(server: Server, i: int) -> None:
        hungry(server, 0.9, 3, 12)
        if i % 3 == 0:
            server.finish(1, prompt=4000, output=1000)

    return working(120, each)


@register(NEAR_MISSES, "long_request_hogs_cache", Stage.INACTIVE)
def they_hold_it_and_nobody_waits() -> Watch:
    return working(120, lambda server, _i: hungry(server, 0.9, 2, 0))


recorded(NEAR_MISSES, "long_request_hogs_cache", "0.32.0--c-kv-saturation", "0.9.2--c-kv-saturation")


@register(MISSING, "long_request_hogs_cache", Stage.UNKNOWN)
def what_a_hybrid_model_holds_is_not_said_so_few_may_be_as_long_as_all() -> Watch:
    def each(server: Server, _i: int) -> None:
        hungry(server, 0.9, 3, 12)
        server.finish(1, prompt=4000, output=1000)

    server = Server()
    server.config["mamba_block_size"] = "4096"
    return working(140, each, server)


@register(MISSING, "long_request_hogs_cache", Stage.UNKNOWN)
def whether_it_generates_is_not_exposed() -> Watch:
    return working(120, few, Server(without=frozenset({"generation_tokens"})))


# -- one that never fits ------------------------------------------------------------------------------------------


def at_the_head(length: int | None, server: Server | None = None) -> Watch:
    """Ten requests finish, then one waits that is not scheduled. The cache holds 16,000 tokens."""
    watch, server = Watch(), server or Server()
    facts = None if length is None else ServerInfo(max_model_len={MODEL: length})
    for _ in range(10):
        server.finish(1)
        watch.see(server, facts=facts)
    server.waiting = 1
    for _ in range(110):
        watch.see(server)
    return watch


@register(HITS, "request_never_fits", Stage.FIRING)
def longer_than_the_cache_and_nothing_runs() -> Watch:
    return at_the_head(32_768)


@register(HITS, "request_never_fits", Stage.FIRING)
def as_long_as_the_cache_of_which_vllm_keeps_one_block() -> Watch:
    return at_the_head(16_000)


@register(NEAR_MISSES, "request_never_fits", Stage.INACTIVE)
def whatever_is_taken_fits() -> Watch:
    return at_the_head(15_984)


@register(NEAR_MISSES, "request_never_fits", Stage.INACTIVE)
def others_still_run() -> Watch:
    def each(server: Server, _i: int) -> None:
        hungry(server, 0.2, 1, 3)
        server.config |= {"kv_cache_size_tokens": "16000", "kv_cache_max_concurrency": "0.5"}

    return working(120, each)


recorded(NEAR_MISSES, "request_never_fits", "0.32.0--p-engine-stalled", "0.32.0--c-kv-saturation")


@register(MISSING, "request_never_fits", Stage.UNKNOWN)
def how_long_a_request_may_be_is_not_said() -> Watch:
    return at_the_head(None)


@register(MISSING, "request_never_fits", Stage.UNKNOWN)
def what_a_hybrid_model_holds_is_not_said() -> Watch:
    hybrid = Server()
    hybrid.config["mamba_block_size"] = "4096"
    return at_the_head(32_768, hybrid)


# -- a limit that nothing comes near ------------------------------------------------------------------------------


def limited(length: int | None, requests: int = 200, prompt: float = 900, output: float = 90) -> Watch:
    """A server that takes requests up to a length and serves others, four every second."""
    watch, server = Watch(), Server(usage=0.3, running=2)
    facts = None if length is None else ServerInfo(max_model_len={MODEL: length})
    for i in range(200):
        server.finish(4 if i < requests // 4 else 0, prompt=prompt, output=output)
        watch.see(server, facts=facts)
    return watch


@register(HITS, "max_model_len_oversized", Stage.FIRING)
def many_times_what_is_served() -> Watch:
    return limited(32_768)


@register(NEAR_MISSES, "max_model_len_oversized", Stage.INACTIVE)
def a_little_less_than_four_times() -> Watch:
    return limited(4300)  # 991 + 99 tokens at the 99th percentile, as vLLM's buckets give it


@register(NEAR_MISSES, "max_model_len_oversized", Stage.INACTIVE)
def too_few_requests_to_say() -> Watch:
    return limited(32_768, requests=99)


recorded(NEAR_MISSES, "max_model_len_oversized", "0.32.0--e-shared-prefix", "0.32.0--b-healthy")


@register(MISSING, "max_model_len_oversized", Stage.UNKNOWN)
def the_limit_is_not_said() -> Watch:
    return limited(None)


# -- recordings of a real server ----------------------------------------------------------------------------------

recorded(HITS, "long_request_hogs_cache", "0.32.0--long-request-hogs-cache")


@register(HITS, "request_never_fits", Stage.FIRING)
def recorded_with_what_v1_models_says() -> Watch:
    """A prompt of 2,040 tokens in 64 blocks of 32, of which one is vLLM's own; until its client gives up."""
    return replayed(
        "0.13.0--request-never-fits", facts=ServerInfo(max_model_len={"tiny-llama": 2048}), until=110
    )


# The cache would hold this one: it is longer than what may be scheduled in one step.
recorded(NEAR_MISSES, "request_never_fits", "0.32.0--request-never-fits")
