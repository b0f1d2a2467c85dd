"""Stories of the load itself: how it is spread, what of it fails."""

from collections.abc import Callable

from kvwatch.core.dialect.vllm import NATIVE_SPELLINGS, RELAY_SPELLINGS, Vocabulary
from kvwatch.core.judgement.lifecycle import Stage
from kvwatch.core.judgement.pipeline import next_pace
from kvwatch.core.judgement.policy import Policy
from kvwatch.core.model.outcome import Scrape
from tests.replay.stories.registry import HITS, MISSING, NEAR_MISSES, hungry, recorded, register
from tests.support.pages import Server
from tests.support.watch import WALL, Watch

# -- two engines --------------------------------------------------------------------------------------------------


def two(seconds: int, each: Callable[[Server, Server, int], None], **more: object) -> Watch:
    """Two engines of one server, changed by `each` every second."""
    watch = Watch()
    one, other = Server(engine="0", **more), Server(engine="1", started=None)  # type: ignore[arg-type]
    one.finish(1)
    other.finish(1)
    for i in range(seconds):
        one.generation_tokens += 50
        other.generation_tokens += 5
        each(one, other, i)
        watch.see(one, other, pace=next_pace(watch.state, watch.now + 1))
    return watch


@register(HITS, "engine_imbalance", Stage.FIRING)
def one_is_fuller_by_far() -> Watch:
    def each(one: Server, other: Server, _i: int) -> None:
        hungry(one, 0.75, 9, 0)
        hungry(other, 0.4, 4, 0)

    return two(130, each)


@register(HITS, "engine_imbalance", Stage.FIRING)
def one_waits_while_the_other_idles() -> Watch:
    def each(one: Server, other: Server, _i: int) -> None:
        hungry(one, 0.2, 4, 6)
        hungry(other, 0.0, 0, 0)

    return two(130, each)


@register(NEAR_MISSES, "engine_imbalance", Stage.INACTIVE)
def fuller_by_a_little_less() -> Watch:
    def each(one: Server, other: Server, _i: int) -> None:
        hungry(one, 0.69, 9, 0)
        hungry(other, 0.4, 4, 0)

    return two(200, each)


@register(NEAR_MISSES, "engine_imbalance", Stage.INACTIVE)
def a_single_long_request_that_nothing_could_spread() -> Watch:
    def each(one: Server, other: Server, _i: int) -> None:
        hungry(one, 0.65, 1, 0)
        hungry(other, 0.0, 0, 0)

    return two(200, each)


@register(NEAR_MISSES, "engine_imbalance", Stage.INACTIVE)
def two_models_that_a_relay_puts_on_one_page() -> Watch:
    watch = Watch()
    one, other = Server(usage=0.7, running=9), Server(usage=0.05, running=1, started=None)
    for _ in range(200):
        one.finish(1)
        other.finish(1)
        page = one.page + other.page.replace('model_name="tiny"', 'model_name="small"')
        watch.outcome(Scrape(page.encode(), WALL + watch.now, 0.001, 1.0))
    return watch


@register(NEAR_MISSES, "engine_imbalance", Stage.INACTIVE)
def one_of_few_requests_is_on_one_of_them() -> Watch:
    def each(one: Server, other: Server, _i: int) -> None:
        hungry(one, 0.4, 1, 0)
        hungry(other, 0.0, 0, 0)

    return two(200, each)


@register(NEAR_MISSES, "engine_imbalance", Stage.INACTIVE)
def unlike_for_a_minute() -> Watch:
    def each(one: Server, other: Server, i: int) -> None:
        hungry(one, 0.8 if i % 200 < 55 else 0.4, 9, 2 if i % 200 < 55 else 0)
        hungry(other, 0.4, 4 if i % 200 >= 55 else 0, 0)

    return two(400, each)


recorded(NEAR_MISSES, "engine_imbalance", "0.32.0--j-data-parallel-2", "0.32.0--c-kv-saturation")


@register(MISSING, "engine_imbalance", Stage.UNKNOWN)
def usage_of_one_is_not_exposed() -> Watch:
    def each(one: Server, other: Server, _i: int) -> None:
        hungry(one, 0.8, 9, 0)
        hungry(other, 0.1, 4, 0)

    return two(220, each, without=frozenset({"kv_cache_usage_perc"}))


# -- requests that fail -------------------------------------------------------------------------------------------


def failing(each: Callable[[Server, int], None], **more: object) -> Watch:
    """A server that finishes ten requests a second for two minutes."""
    watch, server = Watch(), Server(usage=0.2, running=3, **more)  # type: ignore[arg-type]
    watch.see(server)
    for i in range(120):
        server.finish(10)
        each(server, i)
        watch.see(server, pace=next_pace(watch.state, watch.now + 1))
    return watch


def fail(server: Server, **counts: int) -> None:
    """Of the ten of a second, so many end otherwise."""
    for reason, count in counts.items():
        server.finished -= count
        setattr(server, reason, getattr(server, reason) + count)


recorded(HITS, "requests_failing", "0.32.0--l-admission-limit")


@register(HITS, "requests_failing", Stage.FIRING)
def one_in_ten_is_an_error() -> Watch:
    return failing(lambda server, _i: fail(server, errors=1))


@register(HITS, "requests_failing", Stage.FIRING)
def two_in_ten_are_aborted() -> Watch:
    return failing(lambda server, _i: fail(server, aborted=2))


@register(HITS, "requests_failing", Stage.FIRING)
def one_in_fifty_is_refused() -> Watch:
    def each(server: Server, i: int) -> None:
        server.rejected = (server.rejected or 0) + (i % 5 == 0)

    return failing(each, rejected=0)


@register(NEAR_MISSES, "requests_failing", Stage.INACTIVE)
def one_in_twenty_is_an_error() -> Watch:
    return failing(lambda server, i: fail(server, errors=i % 2))


@register(NEAR_MISSES, "requests_failing", Stage.INACTIVE)
def one_in_ten_is_aborted() -> Watch:
    return failing(lambda server, _i: fail(server, aborted=1))


@register(NEAR_MISSES, "requests_failing", Stage.INACTIVE)
def one_of_a_few_is_an_error() -> Watch:
    watch, server = Watch(), Server(usage=0.2, running=3)
    watch.see(server)
    server.finish(8)
    server.errors = 1
    for _ in range(60):
        server.generation_tokens += 5
        watch.see(server)
    return watch


@register(NEAR_MISSES, "requests_failing", Stage.INACTIVE)
def a_lifetime_of_errors_and_refusals() -> Watch:
    return failing(lambda _server, _i: None, errors=5000, rejected=5000)


recorded(NEAR_MISSES, "requests_failing", "0.32.0--b-healthy", "0.8.5-v0--b-healthy")


@register(MISSING, "requests_failing", Stage.UNKNOWN)
def how_requests_end_is_not_exposed() -> Watch:
    return failing(lambda server, _i: fail(server, errors=5), without=frozenset({"request_success"}))


recorded(HITS, "engine_imbalance", "0.32.0--engines-unlike")
recorded(HITS, "requests_failing", "0.32.0--failing")


@register(MISSING, "requests_failing", Stage.UNKNOWN)
def behind_ray_every_request_counts_as_aborted() -> Watch:
    spellings = (*NATIVE_SPELLINGS, *RELAY_SPELLINGS)
    watch, server = Watch(Policy(vocabulary=Vocabulary(spellings))), Server(usage=0.3, running=4)
    for _ in range(120):
        server.finish(1)
        server.aborted, server.finished = server.finished + server.aborted, 0
        watch.outcome(
            Scrape(server.page.replace("vllm:", "ray_vllm_").encode(), WALL + watch.now, 0.001, 1.0)
        )
    return watch
