"""Actions that several symptoms share, so that the same advice has the same words everywhere.

A row lists them in the order to tune: length, concurrency, cache precision, prefix reuse.
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


CAP_OUTPUTS = Action(
    "Cap max_tokens in the requests or at the gateway, if outputs run long. Do not lower --max-model-len for this: it"
    " frees no blocks and rejects longer requests with 400."
)
SHORTER = Action("Shorten prompts: fewer or smaller documents, less history, shorter tool descriptions.")
MORE_KV = Action(
    "Raise --gpu-memory-utilization by 0.01 to 0.02, to at most 0.95, if the GPU has free memory. Too high a value"
    " fails at start-up or under load with CUDA OOM (needs a restart).",
    "--gpu-memory-utilization",
    applies=_memory_to_spare,
)
FEWER = Action(
    "Lower --max-num-seqs stepwise, below the number that ran. At full length the cache holds its capacity / (p95"
    " prompt + p95 output tokens). More requests then queue instead of being preempted (needs a restart).",
    "--max-num-seqs",
)
FP8 = Action(
    "Set --kv-cache-dtype fp8: about half the bytes per token. First check that GPU and attention backend support it,"
    " that the scales are right, and that answers on long contexts stay good (needs a restart).",
    "--kv-cache-dtype",
    applies=_full_precision,
)
REPLICA = Action("Add a replica, or route long requests to a server of their own.")
SHARE = Action("Make prompts share prefixes: fixed text first, variable values last.")
ENABLE_PREFIX_CACHING = Action(
    "Enable prefix caching: --enable-prefix-caching (needs a restart).",
    "--enable-prefix-caching",
    applies=_caching_may_be_off,
)
OFFLOAD = Action(
    "Keep evicted prefixes in host memory: --kv-offloading-size (GiB), if their reuse is worth the transfer time. It"
    " adds no room for running requests (needs a restart).",
    "--kv-offloading-size",
    ("v1",),
    feature="preempted lookups excluded",  # 0.11.1+, as the option
)
