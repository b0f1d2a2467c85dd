"""Computes the derived numbers of an engine from its windows.

A number that is unknown has a reason; it is never zero instead. A number that is shown but must not be judged by is
in `untrusted` with the reason.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from kvwatch.core.history.window import (
    Sample,
    Windows,
    increase,
    rate,
    seconds_where,
    weighted_quantile,
    weights,
)
from kvwatch.core.judgement.derived import Derived, DerivedBuilder
from kvwatch.core.judgement.percentiles import carry_over, derive_percentiles
from kvwatch.core.judgement.policy import Policy
from kvwatch.core.model.signals import CORE
from kvwatch.core.model.snapshot import Snapshot
from kvwatch.core.model.timed_rows import cut

MINUTE, TWO_MINUTES, FIVE_MINUTES = 60.0, 120.0, 300.0
_NO_RATE = "the counter is missing, or no time is covered yet"


def demand(usage: float | None, running: float | None, waiting: float | None) -> float | None:
    """KV demand ratio at one moment: usage x (running + waiting) / running.

    The share of the cache that all running and waiting requests need at the present mean footprint; 1.0 is exactly
    full. 0 if there are no requests; None while requests wait and none runs.
    """
    if usage is None or running is None or waiting is None:
        return None
    if running <= 0:
        return 0.0 if waiting <= 0 else None
    return usage * (running + waiting) / running


def capacity_tokens(snapshot: Snapshot) -> tuple[float | None, str]:
    """Tokens that the cache holds, or None and the reason.

    vLLM's own number (0.24+) comes first: with hybrid models and context parallelism, blocks x block size is not the
    capacity.
    """
    config = snapshot.config
    if config.kv_cache_size_tokens is not None:
        return config.kv_cache_size_tokens, ""
    if not config.known:
        return None, "vLLM's cache configuration is not exposed"
    if config.hybrid:
        return None, "hybrid model: blocks x block size is not its capacity, and this vLLM does not report it"
    if config.num_gpu_blocks is None or config.block_size is None:
        return None, "this vLLM does not report its number of blocks"
    return config.num_gpu_blocks * config.block_size, ""


def pressure(occupancy: float, queueing: float, preemption: float) -> float:
    """Cache-pressure score, 0-1: 0.5 x occupancy + 0.3 x queueing + 0.2 x preemption, each part 0-1.

    A full cache without waiting requests scores at most 0.5, because full is no fault.
    """
    return 0.5 * occupancy + 0.3 * queueing + 0.2 * preemption


def preemption_part(preemptions: float, finished: float, full_at: float) -> float:
    """The preemption part of the score: preemptions / (preemptions + finished), scaled so that `full_at` gives 1."""
    total = preemptions + finished
    return min(preemptions / total / full_at, 1.0) if total > 0 else 0.0


def derive(
    snapshot: Snapshot,
    windows: Windows,
    before: Derived,
    policy: Policy,
    limits: Mapping[str, float],
    *,
    now: float,
    full: bool,
    progress_at: float | None,
) -> Derived:
    """All derived numbers at a sample. Between two full pages the percentiles of `before` stay."""
    builder = DerivedBuilder()
    five = windows.samples.since(now - FIVE_MINUTES)
    two = cut(five, now - TWO_MINUTES)
    one = cut(five, now - MINUTE)
    capacity, why = capacity_tokens(snapshot)
    builder.put("kv_cache_capacity_tokens", capacity, why)
    _cache(builder, one, limits, now)
    _prefix(builder, five, snapshot, limits)
    _work(builder, one, two, progress_at, now)
    if full:
        derive_percentiles(builder, windows, policy, now)
    else:
        carry_over(builder, before)
    return builder.build()


def _cache(builder: DerivedBuilder, rows: Sequence[Sample], limits: Mapping[str, float], now: float) -> None:
    """Demand, peaks and the pressure score with its parts, over one minute."""
    newest = rows[-1]
    weighted = weights(rows, now - MINUTE)
    lacking = [
        name
        for name, v in zip(CORE, (newest.usage, newest.running, newest.waiting), strict=True)
        if v is None
    ]
    missing = f"missing: {', '.join(lacking)}" if lacking else ""
    demands = [(row.demand, seconds) for row, seconds in weighted if row.demand is not None]
    weight = sum(seconds for _, seconds in demands)
    average = sum(d * s for d, s in demands) / weight if weight else newest.demand
    if newest.demand is None:
        average = None
    builder.put(
        "kv_cache_demand_ratio",
        average,
        missing or "requests wait and none runs, so the mean footprint is unknown",
    )
    recent = [row for row in rows if row.t >= now - MINUTE]
    usages = [row.usage for row in recent if row.usage is not None]
    waits = [row.waiting for row in recent if row.waiting is not None]
    builder.put("kv_cache_usage_peak_1m_ratio", max(usages, default=None), missing)
    builder.put("requests_waiting_peak_1m", max(waits, default=None), missing)

    occupancy = (
        None
        if newest.usage is None
        else weighted_quantile([(row.usage, s) for row, s in weighted if row.usage is not None], 0.9)
    )
    if occupancy is None:
        occupancy = newest.usage
    known = sum(s for row, s in weighted if row.regime != "unknown")
    queueing = None
    if not lacking:
        queueing = (
            seconds_where(weighted, lambda row: row.regime == "kv_limited") / known if known > 0 else 0.0
        )
    preempted, finished = increase(rows, "preemptions_total"), increase(rows, "requests_finished_total")
    if len(rows) == 1:
        preempted = finished = None if newest.total("preemptions_total") is None else 0.0
    preemption = None
    if preempted is not None:
        preemption = preemption_part(preempted, finished or 0.0, limits["score.preemption_full"])
    builder.put("cache_pressure_occupancy_ratio", occupancy, missing)
    builder.put("cache_pressure_queueing_ratio", queueing, missing)
    builder.put("cache_pressure_preemption_ratio", preemption, "preemptions_total is missing")
    score = None
    if occupancy is not None and queueing is not None and preemption is not None:
        score = pressure(occupancy, queueing, preemption)
    builder.put("cache_pressure_score", score, missing or "preemptions_total is missing")


def _prefix(
    builder: DerivedBuilder, rows: Sequence[Sample], snapshot: Snapshot, limits: Mapping[str, float]
) -> None:
    """Prefix cache hit ratio over five minutes, and whether to trust it."""
    name = "prefix_cache_hit_ratio"
    queried = increase(rows, "prefix_cache_queried_tokens_total")
    hits = increase(rows, "prefix_cache_hit_tokens_total")
    if snapshot.config.enable_prefix_caching is False:
        builder.unknown[name] = "prefix caching is off"
    elif queried is None or hits is None:
        reason = snapshot.missing.get("prefix_cache_queried_tokens_total", "not seen twice yet")
        if "prefix_cache_lifetime_hit_ratio" in snapshot.values:
            reason = "this vLLM exposes only a hit rate since its start, which covers no window"
        builder.unknown[name] = reason
    elif queried <= 0:
        builder.unknown[name] = "no token was looked up in 5 minutes"
    else:
        builder.values[name] = min(hits / queried, 1.0)
        reason = _overrun(rows, snapshot, queried, limits)
        if reason:
            builder.untrusted[name] = reason
    _external(builder, rows, snapshot)
    total = increase(rows, "prompt_tokens_by_source_total")
    if total:
        local = increase(rows, "prompt_tokens_by_source_total/local_cache_hit") or 0.0
        external = increase(rows, "prompt_tokens_by_source_total/external_kv_transfer") or 0.0
        builder.values["prompt_tokens_reused_ratio"] = min((local + external) / total, 1.0)
    else:
        builder.unknown["prompt_tokens_reused_ratio"] = snapshot.missing.get(
            "prompt_tokens_by_source_total", "no request reached its first output in 5 minutes"
        )


def _external(builder: DerivedBuilder, rows: Sequence[Sample], snapshot: Snapshot) -> None:
    """Hit ratio of an external cache over five minutes. Without such a cache vLLM counts no look-ups."""
    queried = increase(rows, "external_prefix_cache_queried_tokens_total")
    hits = increase(rows, "external_prefix_cache_hit_tokens_total")
    name = "external_prefix_cache_hit_ratio"
    if queried and hits is not None:
        builder.values[name] = min(hits / queried, 1.0)
    else:
        builder.unknown[name] = snapshot.missing.get(
            "external_prefix_cache_queried_tokens_total",
            "no token was looked up in an external cache in 5 minutes",
        )


def _overrun(rows: Sequence[Sample], snapshot: Snapshot, queried: float, limits: Mapping[str, float]) -> str:
    """Why the hit ratio can't be trusted; empty if it can.

    vLLM counts look-ups when it admits a request, and prompt tokens at the first output. So requests in flight
    explain a difference of at most running requests x mean prompt.
    """
    preempted = increase(rows, "preemptions_total")
    if preempted and "preempted lookups excluded" not in snapshot.features:
        return "requests were preempted, and this vLLM counts their own blocks as hits when they resume"
    prompt = increase(rows, "prompt_tokens_total")
    if prompt is None:
        return ""
    count = increase(rows, "request_prompt_tokens") or 0.0
    mean = (increase(rows, "request_prompt_tokens/sum") or 0.0) / count if count else 0.0
    running = max((row.running or 0.0 for row in rows), default=0.0)
    if queried > limits["hit_ratio.overrun"] * prompt + (running + 1) * max(mean, 256.0):
        return (
            f"{queried:.0f} tokens were looked up for {prompt:.0f} prompt tokens: this vLLM counts a look-up at every"
            " attempt to schedule, so under pressure a few waiting requests dominate the ratio"
        )
    return ""


def _work(
    builder: DerivedBuilder,
    one: Sequence[Sample],
    two: Sequence[Sample],
    progress_at: float | None,
    now: float,
) -> None:
    """Throughput over one minute, preemptions per finished request over two, and the age of the last progress."""
    builder.put("prompt_tokens_per_second", rate(one, "prompt_tokens_total"), _NO_RATE)
    builder.put(
        "generation_tokens_per_second",
        rate(one, "generation_tokens_total"),
        _NO_RATE,
    )
    preempted, finished = increase(two, "preemptions_total"), increase(two, "requests_finished_total")
    per_request = None if preempted is None else preempted / max(finished or 0.0, 1.0)
    builder.put(
        "preemptions_per_finished_request", per_request, "preemptions_total is missing, or not seen twice yet"
    )
    age = None if progress_at is None else max(now - progress_at, 0.0)
    builder.put("last_progress_age_seconds", age, "no progress counter is exposed")
