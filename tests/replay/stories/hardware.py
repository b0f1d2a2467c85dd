"""Stories of the hardware under a server."""

from kvwatch.core.judgement.lifecycle import Stage
from kvwatch.core.judgement.pipeline import next_pace
from kvwatch.core.model.gpu import Gpu, GpuReading
from tests.replay.stories.registry import HITS, MISSING, NEAR_MISSES, register
from tests.support.pages import Server
from tests.support.watch import Watch


def over(gpu: Gpu | None, *, seconds: int = 400, usage: float = 0.1, running: int = 2) -> Watch:
    """A server with some traffic on a GPU that is read every five seconds."""
    watch, server = Watch(), Server(usage=usage, running=running)
    watch.see(server)
    for i in range(seconds):
        server.finish(1)
        reading = GpuReading((gpu,), source="dcgm") if gpu is not None and i % 5 == 0 else None
        watch.see(server, pace=next_pace(watch.state, watch.now + 1), gpu=reading)
    return watch


@register(HITS, "gpu_underused", Stage.FIRING)
def neither_processors_nor_memory_are_active() -> Watch:
    return over(Gpu("0", sm_active=0.3, dram_active=0.2, utilization=1.0))


@register(HITS, "gpu_underused", Stage.FIRING)
def utilisation_is_low_which_proves_it() -> Watch:
    return over(Gpu("0", utilization=0.3))


@register(NEAR_MISSES, "gpu_underused", Stage.INACTIVE)
def memory_is_active() -> Watch:
    return over(Gpu("0", sm_active=0.3, dram_active=0.41, utilization=1.0))


@register(NEAR_MISSES, "gpu_underused", Stage.INACTIVE)
def the_cache_is_in_use() -> Watch:
    return over(Gpu("0", sm_active=0.3, dram_active=0.2), usage=0.31)


@register(NEAR_MISSES, "gpu_underused", Stage.INACTIVE)
def nothing_runs() -> Watch:
    return over(Gpu("0", sm_active=0.0, dram_active=0.0), running=0)


@register(NEAR_MISSES, "gpu_underused", Stage.INACTIVE)
def traffic_of_a_few_minutes() -> Watch:
    return over(Gpu("0", sm_active=0.3, dram_active=0.2), seconds=230)


@register(MISSING, "gpu_underused", Stage.UNKNOWN)
def no_gpu_is_read() -> Watch:
    return over(None)


@register(MISSING, "gpu_underused", Stage.UNKNOWN)
def high_utilisation_alone() -> Watch:
    return over(Gpu("0", utilization=0.9))
