"""Stories of prefix caching."""

from kvwatch.core.judgement.lifecycle import Stage
from kvwatch.core.judgement.pipeline import next_pace
from tests.replay.stories.registry import HITS, MISSING, NEAR_MISSES, configured, recorded, register, serving
from tests.support.pages import Server
from tests.support.watch import Watch

recorded(HITS, "prefix_cache_off", "0.32.0--g-prefix-caching-off")


@register(HITS, "prefix_cache_off", Stage.FIRING)
def off_and_prompts_long() -> Watch:
    return serving(80, 3000, 0, configured(enable_prefix_caching="False"))


@register(NEAR_MISSES, "prefix_cache_off", Stage.INACTIVE)
def off_and_prompts_short() -> Watch:
    return serving(80, 90, 0, configured(enable_prefix_caching="False"))


@register(NEAR_MISSES, "prefix_cache_off", Stage.INACTIVE)
def on_and_prompts_long() -> Watch:
    return serving(80, 3000, 0.9)


recorded(NEAR_MISSES, "prefix_cache_off", "0.32.0--e-shared-prefix", "0.10.2--c-kv-saturation")


@register(MISSING, "prefix_cache_off", Stage.UNKNOWN)
def no_configuration() -> Watch:
    return serving(120, 3000, 0, Server(running=1, without=frozenset({"cache_config_info"})))


recorded(HITS, "prefix_cache_ineffective", "0.32.0--f-varying-head")


@register(HITS, "prefix_cache_ineffective", Stage.FIRING)
def hardly_a_hit() -> Watch:
    return serving(100, 1000, 0.19)


@register(NEAR_MISSES, "prefix_cache_ineffective", Stage.INACTIVE)
def a_fifth_hits() -> Watch:
    return serving(100, 1000, 0.2)


@register(NEAR_MISSES, "prefix_cache_ineffective", Stage.INACTIVE)
def prompts_of_a_few_blocks() -> Watch:
    return serving(300, 60, 0.0, each_second=2)


@register(NEAR_MISSES, "prefix_cache_ineffective", Stage.INACTIVE)
def too_few_requests() -> Watch:
    watch, server = Watch(), Server(usage=0.3, running=2)
    watch.see(server)
    for i in range(100):
        if i < 19:
            server.finish(1, prompt=5000, hit=0)
        watch.see(server)
    return watch


recorded(NEAR_MISSES, "prefix_cache_ineffective", "0.32.0--e-shared-prefix", "0.32.0--g-prefix-caching-off")


@register(MISSING, "prefix_cache_ineffective", Stage.UNKNOWN)
def look_ups_are_not_exposed() -> Watch:
    lacking = frozenset({"prefix_cache_queries", "prefix_cache_hits"})
    return serving(120, 1000, 0, Server(running=1, without=lacking))


# -- prefixes that are evicted ------------------------------------------------------------------------------------


def sessions(
    before: float,
    after: float,
    *,
    running: int = 9,
    prompt: float = 2000,
    usage: float = 0.4,
    blocks: int = 1000,
) -> Watch:
    """Twelve minutes at one hit ratio, six at another. The cache holds 16,000 tokens, unless said otherwise."""
    watch, server = Watch(), Server(usage=usage, running=3)
    server.config["num_gpu_blocks"] = str(blocks)
    watch.see(server)
    for i in range(1080):
        server.running = 3 if i < 720 else running
        server.finish(1, prompt=prompt, hit=before if i < 720 else after)
        watch.see(server, pace=next_pace(watch.state, watch.now + 1))
    return watch


@register(HITS, "prefix_cache_thrash", Stage.FIRING)
def more_sessions_than_the_cache_holds_prompts() -> Watch:
    return sessions(0.9, 0.5)


@register(HITS, "prefix_cache_thrash", Stage.FIRING)
def a_prefix_lives_for_less_than_a_minute() -> Watch:
    return sessions(
        0.9, 0.5, running=3, blocks=5000
    )  # 80,000 tokens, 48,000 of them free, 1,000 computed a second


@register(HITS, "prefix_cache_thrash", Stage.FIRING)
def live_requests_leave_no_room_for_prefixes() -> Watch:
    return sessions(0.9, 0.5, running=3, usage=0.9)


@register(NEAR_MISSES, "prefix_cache_thrash", Stage.INACTIVE)
def other_prompts_in_a_cache_that_keeps_them_for_long() -> Watch:
    return sessions(0.9, 0.2, running=7, blocks=12_000)


@register(NEAR_MISSES, "prefix_cache_thrash", Stage.INACTIVE)
def it_falls_by_a_little_less() -> Watch:
    return sessions(0.9, 0.71)


@register(NEAR_MISSES, "prefix_cache_thrash", Stage.INACTIVE)
def it_was_never_high() -> Watch:
    return sessions(0.39, 0.1)


recorded(NEAR_MISSES, "prefix_cache_thrash", "0.32.0--e-shared-prefix", "0.32.0--c-kv-saturation")


@register(MISSING, "prefix_cache_thrash", Stage.UNKNOWN)
def nothing_of_the_prefix_cache_is_exposed() -> Watch:
    lacking = frozenset({"prefix_cache_queries", "prefix_cache_hits"})
    return serving(120, 1000, 0, Server(running=1, without=lacking))


@register(HITS, "prefix_cache_ineffective", Stage.FIRING)
def blocks_that_are_longer_than_what_is_shared() -> Watch:
    return serving(100, 1500, 0.0, configured(mamba_block_size="1024"))


# Four sessions that the cache holds, then twenty-four that it does not; KV usage is the same.
recorded(HITS, "prefix_cache_thrash", "0.32.0--prefix-thrash")
