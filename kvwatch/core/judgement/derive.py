"""The numbers that people ask for, from what the windows hold. Definitions: one function each.

A number that can't be told is absent, with the reason; it is never zero instead. Those that are shown but
that nobody should judge by are in `untrusted`, with the reason.
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
from kvwatch.core.judgement.percentiles import carry, percentiles
from kvwatch.core.judgement.policy import Policy
from kvwatch.core.model.signals import CORE
from kvwatch.core.model.snapshot import Snapshot
from kvwatch.core.model.timed_rows import cut

MINUTE, TWO_MINUTES, FIVE_MINUTES = 60.0, 120.0, 300.0


def demand(usage: float | None, running: float | None, waiting: float | None) -> float | None:
    """KV demand ratio at one instant: usage x (running + waiting) / running.

    The share of the cache that everything admitted and waiting would need at today's mean footprint; 1.0 is
    exactly full. Nothing in the engine needs nothing (0). Unknown while requests wait and none runs.
    """
    if usage is None or running is None or waiting is None:
        return None
    if running <= 0:
        return 0.0 if waiting <= 0 else None
    return usage * (running + waiting) / running


def capacity_tokens(snapshot: Snapshot) -> tuple[float | None, str]:
    """Tokens that the cache holds, or why that can't be told.

    What vLLM says itself (0.24+) comes first: with hybrid models and context parallelism blocks x block size
    is not the capacity.
    """
    config = snapshot.config
    if config.kv_cache_size_tokens is not None:
        return config.kv_cache_size_tokens, ""
    if not config.known:
        return None, "vLLM's cache configuration is not exposed"
    if config.hybrid:
        return None, "hybrid model: blocks x block size is not its capacity, and this vLLM does not say it"
    if config.num_gpu_blocks is None or config.block_size is None:
        return None, "this vLLM reports no number of blocks"
    return config.num_gpu_blocks * config.block_size, ""


def pressure(occupancy: float, queueing: float, preemption: float) -> float:
    """Cache-pressure score, 0-1: 0.5 x occupancy + 0.3 x queueing + 0.2 x preemption, each part 0-1.

    A full cache with nothing waiting is at most 0.5: full is not yet a fault.
    """
    return 0.5 * occupancy + 0.3 * queueing + 0.2 * preemption


def preemption_part(preemptions: float, finished: float, full_at: float) -> float:
    """The preemption part of the score: preemptions / (preemptions + finished), 1 from `full_at` on."""
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
    """All derived numbers at a sample. `before` keeps the quantiles between two full scrapes."""
    book = DerivedBuilder()
    five = windows.samples.since(now - FIVE_MINUTES)
    two = cut(five, now - TWO_MINUTES)
    one = cut(five, now - MINUTE)
    capacity, why = capacity_tokens(snapshot)
    book.put("kv_cache_capacity_tokens", capacity, why)
    _cache(book, one, limits, now)
    _prefix(book, five, snapshot, limits)
    _work(book, one, two, progress_at, now)
    if full:
        percentiles(book, windows, policy, now)
    else:
        carry(book, before)
    return book.close()


def _cache(book: DerivedBuilder, rows: Sequence[Sample], limits: Mapping[str, float], now: float) -> None:
    """Demand, peaks and the pressure score with its parts, over one minute."""
    newest = rows[-1]
    held = weights(rows, now - MINUTE)
    lacking = [
        name
        for name, v in zip(CORE, (newest.usage, newest.running, newest.waiting), strict=True)
        if v is None
    ]
    missing = f"{', '.join(lacking)} missing" if lacking else ""
    demands = [(row.demand, seconds) for row, seconds in held if row.demand is not None]
    weight = sum(seconds for _, seconds in demands)
    average = sum(d * s for d, s in demands) / weight if weight else newest.demand
    if newest.demand is None:
        average = None
    book.put(
        "kv_cache_demand_ratio",
        average,
        missing or "requests wait and none runs: there is no footprint to go by",
    )
    recent = [row for row in rows if row.t >= now - MINUTE]
    usages = [row.usage for row in recent if row.usage is not None]
    waits = [row.waiting for row in recent if row.waiting is not None]
    book.put("kv_cache_usage_peak_1m_ratio", max(usages, default=None), missing)
    book.put("requests_waiting_peak_1m", max(waits, default=None), missing)

    occupancy = (
        None
        if newest.usage is None
        else weighted_quantile([(row.usage, s) for row, s in held if row.usage is not None], 0.9)
    )
    if occupancy is None:
        occupancy = newest.usage
    known = sum(s for row, s in held if row.regime != "unknown")
    queueing = None
    if not lacking:
        queueing = seconds_where(held, lambda row: row.regime == "kv_limited") / known if known > 0 else 0.0
    preempted, finished = increase(rows, "preemptions_total"), increase(rows, "requests_finished_total")
    if len(rows) == 1:
        preempted = finished = 0.0 if newest.climbs[0] is not None else None
    preemption = None
    if preempted is not None:
        preemption = preemption_part(preempted, finished or 0.0, limits["score.preemption_full"])
    book.put("cache_pressure_occupancy_ratio", occupancy, missing)
    book.put("cache_pressure_queueing_ratio", queueing, missing)
    book.put("cache_pressure_preemption_ratio", preemption, "preemptions_total missing")
    score = None
    if occupancy is not None and queueing is not None and preemption is not None:
        score = pressure(occupancy, queueing, preemption)
    book.put("cache_pressure_score", score, missing or "preemptions_total missing")


def _prefix(
    book: DerivedBuilder, rows: Sequence[Sample], snapshot: Snapshot, limits: Mapping[str, float]
) -> None:
    """Prefix hit ratio over five minutes, and whether to trust it."""
    name = "prefix_cache_hit_ratio"
    queried = increase(rows, "prefix_cache_queried_tokens_total")
    hits = increase(rows, "prefix_cache_hit_tokens_total")
    if snapshot.config.enable_prefix_caching is False:
        book.unknown[name] = "prefix caching is off"
    elif queried is None or hits is None:
        reason = snapshot.missing.get("prefix_cache_queried_tokens_total", "no increase seen yet")
        if "prefix_cache_lifetime_hit_ratio" in snapshot.values:
            reason = "this vLLM exposes only a hit rate since its start, which is no window"
        book.unknown[name] = reason
    elif queried <= 0:
        book.unknown[name] = "nothing was looked up in 5 minutes"
    else:
        book.values[name] = min(hits / queried, 1.0)
        reason = _overrun(rows, snapshot, queried, limits)
        if reason:
            book.untrusted[name] = reason
    _external(book, rows, snapshot)
    total = increase(rows, "prompt_tokens_by_source_total")
    if total:
        local = increase(rows, "prompt_tokens_by_source_total/local_cache_hit") or 0.0
        external = increase(rows, "prompt_tokens_by_source_total/external_kv_transfer") or 0.0
        book.values["prompt_tokens_reused_ratio"] = min((local + external) / total, 1.0)
    else:
        book.unknown["prompt_tokens_reused_ratio"] = snapshot.missing.get(
            "prompt_tokens_by_source_total", "no prompt reached its first output in 5 minutes"
        )


def _external(book: DerivedBuilder, rows: Sequence[Sample], snapshot: Snapshot) -> None:
    """Hit ratio of an external cache over five minutes. Where there is none, vLLM counts no look-ups."""
    queried = increase(rows, "external_prefix_cache_queried_tokens_total")
    hits = increase(rows, "external_prefix_cache_hit_tokens_total")
    name = "external_prefix_cache_hit_ratio"
    if queried and hits is not None:
        book.values[name] = min(hits / queried, 1.0)
    else:
        book.unknown[name] = snapshot.missing.get(
            "external_prefix_cache_queried_tokens_total",
            "nothing was looked up in an external cache in 5 minutes",
        )


def _overrun(rows: Sequence[Sample], snapshot: Snapshot, queried: float, limits: Mapping[str, float]) -> str:
    """Why the hit ratio can't be trusted; empty if it can.

    Look-ups are counted when a request is admitted, prompt tokens at its first output: what is in flight may
    make a difference of running requests x mean prompt, no more.
    """
    preempted = increase(rows, "preemptions_total")
    if preempted and "preempted lookups excluded" not in snapshot.features:
        return "requests were preempted, and this vLLM counts their own blocks as hits when they come back"
    prompt = increase(rows, "prompt_tokens_total")
    if prompt is None:
        return ""
    count = increase(rows, "request_prompt_tokens") or 0.0
    mean = (increase(rows, "request_prompt_tokens/sum") or 0.0) / count if count else 0.0
    running = max((row.running or 0.0 for row in rows), default=0.0)
    if queried > limits["hit_ratio.overrun"] * prompt + (running + 1) * max(mean, 256.0):
        return (
            f"{queried:.0f} tokens were looked up for {prompt:.0f} prompt tokens: this vLLM counts every attempt"
            " to schedule, so under pressure the ratio is that of a few waiting requests"
        )
    return ""


def _work(
    book: DerivedBuilder, one: Sequence[Sample], two: Sequence[Sample], progress_at: float | None, now: float
) -> None:
    """Throughput over one minute, preemptions per finished request over two, age of the last progress."""
    book.put("prompt_tokens_per_second", rate(one, "prompt_tokens_total"), "missing, or no time covered yet")
    book.put(
        "generation_tokens_per_second",
        rate(one, "generation_tokens_total"),
        "missing, or no time covered yet",
    )
    preempted, finished = increase(two, "preemptions_total"), increase(two, "requests_finished_total")
    per_request = None if preempted is None else preempted / max(finished or 0.0, 1.0)
    book.put(
        "preemptions_per_finished_request", per_request, "preemptions_total missing, or no increase seen yet"
    )
    age = None if progress_at is None else max(now - progress_at, 0.0)
    book.put("last_progress_age_seconds", age, "no counter of progress is exposed")
