"""Actions that several symptoms share, so that the same advice has the same words.

Their order, where several apply, is the order in which to tune: length, concurrency, cache precision, reuse.
"""

from __future__ import annotations

from kvwatch.core.symptoms.model import Action

LENGTH = Action(
    "limit the length first: what the service really serves, not the model's maximum", "--max-model-len"
)
MORE_KV = Action("give the cache more memory, if the GPU has some left", "--gpu-memory-utilization")
FEWER = Action("admit no more at once than fit the cache (see the evidence)", "--max-num-seqs")
FP8 = Action(
    "halve the bytes per token with an FP8 cache, after checking that GPU and attention backend support it, that"
    " the scales are right, and that answers on long contexts stay good",
    "--kv-cache-dtype fp8",
)
REPLICA = Action("add a replica, or route long requests to a server of their own")
PREFIX = Action("share prefixes: fixed text first, variable values last", "--enable-prefix-caching")
