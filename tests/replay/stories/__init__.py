"""Each symptom: stories in which it fires, in which it only just does not, in which a signal is missing.

Stories are recordings of real servers where there is one, else a made-up server whose pages go through the real
parser. Each module has the stories of the rows in the module of the same name in `kvwatch.core.judgement.symptoms`.
"""

from tests.replay.stories import (
    cache,
    engine,
    hardware,
    latency,
    lengths,
    load,
    prefix,
    queue,
    server,
    warmup,
)
from tests.replay.stories.registry import HITS, MISSING, NEAR_MISSES, Case

__all__ = [
    "HITS",
    "MISSING",
    "NEAR_MISSES",
    "Case",
    "cache",
    "engine",
    "hardware",
    "latency",
    "lengths",
    "load",
    "prefix",
    "queue",
    "server",
    "warmup",
]
