"""Actions that several symptoms share, so that the same advice has the same words.

Their order, where several apply, is the order in which to tune: length, concurrency, cache precision, reuse.
"""

from __future__ import annotations

from kvwatch.core.judgement.symptoms.row import Action
from kvwatch.core.model.snapshot import CacheConfig


def _memory_to_spare(config: CacheConfig) -> bool:
    return config.gpu_memory_utilization is None or config.gpu_memory_utilization < 0.95


def _full_precision(config: CacheConfig) -> bool:
    return not (config.cache_dtype or "").startswith(("fp8", "int8", "nvfp4", "int4"))


def _caching_may_be_off(config: CacheConfig) -> bool:
    return config.enable_prefix_caching is not True


LENGTH = Action(
    "limit lengths to what the service really serves, not the model's maximum: lower --max-model-len, and max_tokens"
    " in the requests",
    "--max-model-len",
)
SHORTER = Action("shorten prompts: fewer or smaller documents, less history, shorter tool descriptions")
MORE_KV = Action(
    "give the cache more memory, if the GPU has some to spare: raise --gpu-memory-utilization in small steps",
    "--gpu-memory-utilization",
    given=_memory_to_spare,
)
FEWER = Action(
    "lower --max-num-seqs to what fits the cache (requests_that_fit in the evidence)", "--max-num-seqs"
)
FP8 = Action(
    "halve the bytes per token with --kv-cache-dtype fp8, after checking that GPU and attention backend support it,"
    " that the scales are right, and that answers on long contexts stay good",
    "--kv-cache-dtype",
    given=_full_precision,
)
REPLICA = Action("add a replica, or route long requests to a server of their own")
SHARE = Action("share prefixes between requests: fixed text first, variable values last")
ENABLE_PREFIX_CACHING = Action(
    "enable prefix caching: --enable-prefix-caching", "--enable-prefix-caching", given=_caching_may_be_off
)
OFFLOAD = Action(
    "offload what is evicted to host memory: --kv-offloading-size (GiB), where the reuse is worth its transfer time",
    "--kv-offloading-size",
    ("v1",),
    feature="preempted lookups excluded",  # 0.11.1+, as the option
)
