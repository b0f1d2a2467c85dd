"""How many requests fit in the KV cache at once: the one answer for findings, `plan --url`, checklist and alerts.

Theory of operation
    A request in flight holds its prompt and what it has generated so far. At a random moment the requests that are
    seen are those with long outputs more often (each stays in proportion to its output), and each is somewhere
    between its first token and its last, every point being as likely. With a prompt of P tokens and an output of O:

        mean     m = E[P] + E[O^2] / (2 E[O]) + half a block
        variance v = Var[P] + E[O^3] / (3 E[O]) - (E[O^2] / (2 E[O]))^2

    Prompts and outputs are taken as independent, and n requests as a normal sum. The answer is the largest n of which
    the sum exceeds the cache at most 5 % of the time: n m + 1.645 sqrt(n v) <= capacity.

    Neither the present footprint (requests that have just begun are small) nor capacity / p95 length (as if all were
    at their longest at once) is a good `--max-num-seqs`: on a recorded server 8 and 3, where 6 ended the preemptions
    at no cost.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from math import floor, isfinite, sqrt
from typing import Any

from kvwatch.core.history.window import Windows, histogram_increase
from kvwatch.core.judgement.derived import Derived
from kvwatch.core.judgement.percentiles import HOUR, LENGTHS
from kvwatch.core.model.snapshot import Histogram, Snapshot

ENOUGH_REQUESTS = 100.0
"""Finished requests from which lengths are worth advice."""
FEW_REQUESTS = 20.0
"""Fewer finished requests give no lengths at all."""
PERCENTILE = 95
"""Share of the time, %, in which so many requests fit."""
_QUANTILE = 1.645
"""Standard normal quantile of `PERCENTILE`."""
_OVERFLOW = 0.05
"""Share of observations in a histogram's last bucket from which its lengths are lower bounds."""


@dataclass(frozen=True, slots=True)
class Fits:
    """`requests` of `at_tokens` (mean tokens that one holds in flight) fit `PERCENTILE` % of the time.

    `lower_bound`: many lengths lie in vLLM's last bucket, so `at_tokens` is at least this, and `requests` at most.
    """

    requests: int
    at_tokens: float
    lower_bound: bool = False

    def as_data(self) -> dict[str, Any]:
        return {
            "requests": self.requests,
            "at_tokens": round(self.at_tokens),
            "percentile": PERCENTILE,
            "lower_bound": self.lower_bound,
        }


@dataclass(frozen=True, slots=True)
class _Moments:
    """E[X], E[X^2], E[X^3] of lengths, tokens."""

    first: float
    second: float
    third: float
    lower_bound: bool


def engine_fits(
    snapshot: Snapshot, derived: Derived, windows: Windows, lifetime: Mapping[str, Histogram], now: float
) -> Fits | None:
    """How many requests of the last hour's lengths fit in an engine; of those since the server's start (`lifetime`)
    if the hour has fewer than `FEW_REQUESTS`. None with fewer than that in all, or without a capacity."""
    minutes = windows.minutes.since(now - HOUR)
    lengths = [histogram_increase(minutes, name) for name in LENGTHS]
    if any(one is None or one.count < FEW_REQUESTS for one in lengths):
        lengths = [lifetime.get(name) for name in LENGTHS]
    prompts, outputs = lengths
    if prompts is None or outputs is None or min(prompts.count, outputs.count) < FEW_REQUESTS:
        return None
    hit_ratio = "prefix_cache_hit_ratio"
    shared = 0.0 if hit_ratio in derived.untrusted else derived.get(hit_ratio) or 0.0
    capacity = derived.get("kv_cache_capacity_tokens")
    return requests_that_fit(capacity, prompts, outputs, block=snapshot.config.block_size, shared=shared)


def requests_that_fit(
    capacity: float | None,
    prompts: Histogram | None,
    outputs: Histogram | None,
    *,
    block: float | None = None,
    shared: float = 0.0,
) -> Fits | None:
    """How many requests of these lengths fit in `capacity` tokens; None without lengths or capacity.

    `block` is the block size, tokens; `shared` the share of prompt tokens found in the prefix cache (0-1), which
    requests hold together.
    """
    prompt, output = _moments(prompts), _moments(outputs)
    if not capacity or prompt is None or output is None:
        return None
    own = 1.0 - min(max(shared, 0.0), 1.0)
    progress = output.second / (2 * output.first)
    mean = own * prompt.first + progress + (block or 0.0) / 2
    variance = own**2 * max(prompt.second - prompt.first**2, 0.0)
    variance += max(output.third / (3 * output.first) - progress**2, 0.0)
    # n m + q sqrt(n v) = C is quadratic in sqrt(n).
    spread = _QUANTILE * sqrt(variance)
    root = (sqrt(spread**2 + 4 * mean * capacity) - spread) / (2 * mean)
    if not isfinite(root):  # counters beyond what a number holds
        return None
    return Fits(max(floor(root**2 + 1e-9), 1), mean, prompt.lower_bound or output.lower_bound)


def _moments(seen: Histogram | None) -> _Moments | None:
    """Moments of the lengths in a histogram: uniform inside a bucket, scaled so that the mean is sum / count."""
    if seen is None or seen.count <= 0 or not seen.bounds or seen.sum <= 0:
        return None
    parts = list(_parts(seen))
    mean = sum(count * (low + high) / 2 for low, high, count in parts) / seen.count
    if mean <= 0:
        return None
    scale = seen.sum / seen.count / mean
    second = (
        sum(count * (low * low + low * high + high * high) / 3 for low, high, count in parts) / seen.count
    )
    third = (
        sum(count * (low + high) * (low * low + high * high) / 4 for low, high, count in parts) / seen.count
    )
    beyond = seen.count - seen.counts[-1]
    return _Moments(mean * scale, second * scale**2, third * scale**3, beyond > _OVERFLOW * seen.count)


def _parts(seen: Histogram) -> Iterator[tuple[float, float, float]]:
    """Each bucket: lower and upper bound, count. The last has no upper bound: all of it at the mean that is left."""
    low, below, inside = 0.0, 0.0, 0.0
    for bound, count in zip(seen.bounds, seen.counts, strict=True):
        if count > below:
            yield low, bound, count - below
            inside += (count - below) * (low + bound) / 2
        low, below = bound, count
    beyond = seen.count - below
    if beyond > 0:
        mean = max((seen.sum - inside) / beyond, low)
        yield mean, mean, beyond
