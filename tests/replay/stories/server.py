"""Stories of the server as a whole."""

from kvwatch.core.judgement.lifecycle import Stage
from kvwatch.core.model.outcome import Failure
from tests.replay.stories.registry import HITS, MISSING, NEAR_MISSES, recorded, register
from tests.support.pages import Server
from tests.support.watch import Watch


@register(HITS, "target_down", Stage.FIRING)
def gone_for_half_a_minute() -> Watch:
    watch = Watch()
    watch.see(Server(running=1))
    for _ in range(31):
        watch.fail()
    return watch


@register(HITS, "target_down", Stage.INACTIVE)
def gone_and_back() -> Watch:
    watch = gone_for_half_a_minute()
    watch.see(Server(running=1))
    return watch


@register(HITS, "target_down", Stage.FIRING)
def never_there() -> Watch:
    watch = Watch()
    for _ in range(32):
        watch.fail(Failure.DNS)
    return watch


recorded(HITS, "target_down", "0.10.2--x-engine-died-while-saturated", "0.32.0--i-restart")
recorded(NEAR_MISSES, "target_down", "0.32.0--o-engine-killed")


@register(NEAR_MISSES, "target_down", Stage.PENDING)
def gone_for_a_moment_less() -> Watch:
    watch = Watch()
    for _ in range(3):
        watch.see(Server(running=1))
        for _ in range(30):
            watch.fail(Failure.TIMEOUT)
    return watch


@register(MISSING, "target_down", Stage.INACTIVE)
def something_else_answers() -> Watch:
    watch = Watch()
    for _ in range(60):
        watch.fail(Failure.NOT_VLLM)
    return watch


recorded(HITS, "engine_restarted", "0.32.0--i-restart", ends=Stage.FIRING)


@register(HITS, "engine_restarted", Stage.INACTIVE)
def restarted_a_while_ago() -> Watch:
    watch, server = Watch(), Server(usage=0.99, running=9, waiting=9)
    server.finish(9)
    watch.see(server)
    again = Server(started=1_700_000_900)
    for _ in range(310):
        watch.see(again)
    return watch


@register(HITS, "engine_restarted", Stage.FIRING)
def counters_fell_together() -> Watch:
    watch, server = Watch(), Server(started=None)
    server.finish(9)
    watch.see(server)
    watch.see(Server(started=None))
    return watch


recorded(NEAR_MISSES, "engine_restarted", "0.32.0--p-engine-stalled", "0.32.0--o-engine-killed")


@register(NEAR_MISSES, "engine_restarted", Stage.INACTIVE)
def an_outage_of_the_same_process() -> Watch:
    watch, server = Watch(), Server(running=1)
    server.finish(9)
    watch.see(server)
    for _ in range(20):
        watch.fail()
    server.finish(9)
    watch.see(server)
    return watch


@register(MISSING, "engine_restarted", Stage.INACTIVE)
def one_counter_fell_and_no_start_time() -> Watch:
    watch, server = Watch(), Server(started=None)
    server.finish(9)
    watch.see(server)
    server.generation_tokens = 1
    for _ in range(5):
        watch.see(server)
    return watch


@register(HITS, "signals_missing", Stage.FIRING)
def waiting_was_renamed() -> Watch:
    watch, server = Watch(), Server(running=1, without=frozenset({"num_requests_waiting"}))
    for _ in range(32):
        server.finish(1)
        watch.see(server)
    return watch


@register(HITS, "signals_missing", Stage.FIRING)
def no_vllm_there() -> Watch:
    watch = Watch()
    for _ in range(32):
        watch.fail(Failure.NOT_VLLM)
    return watch


@register(NEAR_MISSES, "signals_missing", Stage.INACTIVE)
def missing_for_a_moment() -> Watch:
    watch, server = Watch(), Server(running=1)
    for i in range(80):
        server.finish(1)
        server.without = frozenset({"num_requests_waiting"} if 10 <= i < 40 else ())
        watch.see(server)
    return watch


@register(NEAR_MISSES, "signals_missing", Stage.INACTIVE)
def not_asked_for_anything_yet() -> Watch:
    gauges = frozenset({"num_requests_waiting", "num_requests_running", "kv_cache_usage_perc"})
    watch, server = Watch(), Server(without=gauges)
    for _ in range(60):
        watch.see(server)
    return watch


recorded(
    NEAR_MISSES, "signals_missing", "0.32.0--j-data-parallel-2", "0.8.5-v0--c-kv-saturation", "0.32.0--a-idle"
)


@register(MISSING, "signals_missing", Stage.UNKNOWN)
def nobody_answers() -> Watch:
    watch = Watch()
    watch.see(Server(running=1))
    for _ in range(90):
        watch.fail()
    return watch


# -- it never came up ---------------------------------------------------------------------------------------------


def never(kind: Failure, seconds: int) -> Watch:
    watch = Watch()
    for _ in range(seconds):
        watch.fail(kind)
    return watch


@register(HITS, "startup_kv_failure", Stage.FIRING)
def refused_for_a_quarter_of_an_hour() -> Watch:
    return never(Failure.REFUSED, 902)


@register(NEAR_MISSES, "startup_kv_failure", Stage.PENDING)
def still_loading() -> Watch:
    return never(Failure.REFUSED, 890)


@register(NEAR_MISSES, "startup_kv_failure", Stage.INACTIVE)
def it_was_up_before() -> Watch:
    watch = Watch()
    watch.see(Server(running=1))
    for _ in range(1000):
        watch.fail()
    return watch


@register(MISSING, "startup_kv_failure", Stage.INACTIVE)
def there_is_no_such_host() -> Watch:
    return never(Failure.DNS, 1000)


recorded(HITS, "target_down", "0.32.0--killed-under-pressure")
recorded(HITS, "engine_restarted", "0.32.0--killed-under-pressure", ends=Stage.FIRING)
recorded(NEAR_MISSES, "target_down", "0.32.0--engine-core-killed")
