"""The regime of an engine at a sample: why requests wait, if they do.

Exactly one regime applies at any time. The time in each is counted, so that Prometheus can compute over any window
what made requests wait.

How to distinguish cache from slots
    A long queue alone makes the demand ratio large, whatever requests wait for: twenty running at 0.32 with two
    hundred waiting for prefill "demand" 3.5 caches. So waiting for the cache requires both a demand above what fits
    and a cache that was short within the last seconds (`cache_short`). Usage alone does not show it either: on a real
    saturated server it swings between 0.65 and 1.0, because each preemption frees a whole request. Hence the memory
    of a few seconds.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum

from kvwatch.core.history.window import Sample, increase, rate


class Regime(StrEnum):
    """Why requests wait, if they do. A closed set."""

    IDLE = "idle"
    FLOWING = "flowing"
    FULL = "full"
    KV_LIMITED = "kv_limited"
    SEQUENCE_LIMITED = "sequence_limited"
    PREFILL_LIMITED = "prefill_limited"
    DEFERRED = "deferred"
    STALLED = "stalled"
    UNKNOWN = "unknown"
    DOWN = "down"


MEANING: Mapping[Regime, str] = {
    Regime.IDLE: "no request runs or waits",
    Regime.FLOWING: "requests run, no request waits, the cache has room",
    Regime.FULL: "requests run, no request waits, the cache is full",
    Regime.KV_LIMITED: "requests wait for KV cache blocks",
    Regime.SEQUENCE_LIMITED: "requests wait for a batch slot",
    Regime.PREFILL_LIMITED: "requests wait for prefill",
    Regime.DEFERRED: "requests wait for a LoRA slot, a KV transfer or a grammar",
    Regime.STALLED: "the engine has requests, and they make no progress",
    Regime.UNKNOWN: "a required signal is missing",
    Regime.DOWN: "the server is not scraped",
}

_MIN_RECENT = 3
"""With fewer samples in the last seconds, the newest three count instead."""
_PREFILL_ONLY = 20
"""Prompt tokens per generated token from which an engine does little but prefill."""
_MIN_QUEUED = 4
"""A plateau needs this many samples with a queue."""


@dataclass(frozen=True, slots=True)
class RegimeInputs:
    """What decides the regime of one sample. None is unknown.

    `since_progress` and `since_prompt` are the seconds since any counter of progress, and since prompt tokens, last
    moved. `busy_for` is how long the engine has had requests without a break. `stale_gauges`: the gauges still show
    requests whose clients have all disconnected. `cold`: nothing was generated or finished since the start. `ceiling`
    is --max-num-seqs, if set. `long_prompt` is the share of the cache that a long recent prompt needs.
    """

    usage: float | None
    running: float | None
    waiting: float | None
    deferred: float
    demand: float | None
    asleep: bool
    cold: bool
    since_progress: float | None
    since_prompt: float | None
    busy_for: float
    stale_gauges: bool
    ceiling: float | None
    long_prompt: float | None


def regime_of(at: RegimeInputs, recent: Sequence[Sample], limits: Mapping[str, float], now: float) -> Regime:
    """The regime at a sample, given the samples before it within `regime.plateau` seconds."""
    if at.usage is None or at.running is None or at.waiting is None:
        return Regime.UNKNOWN
    if at.asleep or at.stale_gauges or (at.running <= 0 and at.waiting <= 0):
        return Regime.IDLE
    if _stalled(at, limits):
        return Regime.STALLED
    if at.waiting <= 0:
        return Regime.FULL if at.usage >= limits["regime.full_usage"] else Regime.FLOWING
    if at.deferred > at.waiting / 2:
        return Regime.DEFERRED
    if _waits_for_slot(at, at.usage, recent, limits, now):
        return Regime.SEQUENCE_LIMITED
    if _waits_for_cache(at, at.usage, recent, limits, now):
        return Regime.KV_LIMITED
    if at.since_progress is not None and at.since_progress > limits["regime.progress_memory"]:
        return Regime.UNKNOWN  # not yet stalled, and nothing shows what requests wait for
    prompts = at.since_prompt is not None and at.since_prompt <= limits["regime.prefill_memory"]
    one_long_prompt = (
        at.since_prompt is not None and not prompts and at.running > 0 and _nothing_generated(recent)
    )
    if not one_long_prompt and _at_ceiling(at.running, at.ceiling, recent, limits, now):
        return Regime.SEQUENCE_LIMITED
    return Regime.PREFILL_LIMITED if prompts or one_long_prompt else Regime.UNKNOWN


def _stalled(at: RegimeInputs, limits: Mapping[str, float]) -> bool:
    after = limits["regime.cold_stalled_after" if at.cold else "regime.stalled_after"]
    return at.since_progress is not None and at.since_progress >= after and at.busy_for >= after


def _waits_for_slot(
    at: RegimeInputs, usage: float, recent: Sequence[Sample], limits: Mapping[str, float], now: float
) -> bool:
    """Whether all slots are taken, nothing was preempted, and the cache would take a long prompt: vLLM checks slots
    before blocks, so whatever the usage, it is a slot that requests wait for.

    A stated ceiling needs no such room: with all slots taken no request is tried against the cache.
    """
    if increase(recent, "preemptions_total") or at.since_progress is None:
        return False
    if at.since_progress > limits["regime.progress_memory"]:
        return False
    if at.ceiling is None:  # a plateau may also be as many as the cache holds
        lately = [
            row.usage or 0.0 for row in recent if row.t >= now - limits["regime.plateau"] and row.waiting
        ]
        highest = max([usage, *lately])
        if at.long_prompt is None or highest >= limits["regime.full_usage"] or 1 - highest < at.long_prompt:
            return False
    return _at_ceiling(at.running or 0.0, at.ceiling, recent, limits, now)


def _waits_for_cache(
    at: RegimeInputs, usage: float, recent: Sequence[Sample], limits: Mapping[str, float], now: float
) -> bool:
    more_than_fits = at.demand is not None and at.demand >= limits["regime.demand"]
    if at.demand is None and usage >= limits["regime.full_usage"]:
        # No request runs, so there is no footprint; requests wait for a full cache as long as it makes progress.
        return at.since_progress is not None and at.since_progress <= limits["regime.progress_memory"]
    if at.ceiling is not None and _at_ceiling(at.running or 0.0, at.ceiling, recent, limits, now):
        # With all slots taken vLLM tries no request against the cache, so one that just fits is no shortage.
        return more_than_fits and cache_short(usage, at.running or 0.0, recent, limits, now, fits=1.0)
    if (
        at.long_prompt is not None and 1 - usage < at.long_prompt
    ):  # the free part is too small for a long prompt
        idle_prefill = at.since_prompt is not None and at.since_prompt >= limits["regime.short_memory"]
        if more_than_fits or idle_prefill:
            return True
    return more_than_fits and cache_short(usage, at.running or 0.0, recent, limits, now)


def cache_short(
    usage: float,
    running: float,
    recent: Sequence[Sample],
    limits: Mapping[str, float],
    now: float,
    *,
    fits: float | None = None,
) -> bool:
    """Whether the cache is short, or was within the last `regime.short_memory` seconds (or the last three samples).

    Short means full, preempting, or without room for one more request of the mean footprint. Such a request fits up
    to a usage of `fits`; by default the usage from which the cache counts as full.
    """
    full = limits["regime.full_usage"]
    start = now - limits["regime.short_memory"]
    lately = [row for row in recent if row.t >= start]
    if len(lately) < _MIN_RECENT:
        lately = list(recent[-_MIN_RECENT:])
    moments = [(usage, running), *((row.usage, row.running) for row in lately)]
    if any(_no_room(used, of, full, full if fits is None else fits) for used, of in moments):
        return True
    return bool(increase(lately, "preemptions_total"))


def _no_room(usage: float | None, running: float | None, full: float, fits: float) -> bool:
    if usage is None:
        return False
    return usage >= full or bool(running and usage * (running + 1) / running >= fits)


def _at_ceiling(
    now_running: float,
    ceiling: float | None,
    recent: Sequence[Sample],
    limits: Mapping[str, float],
    now: float,
) -> bool:
    """Whether running requests are at --max-num-seqs or, if that is not set, on a plateau while requests wait.

    A slot is empty for a moment whenever a request ends: with four slots a quarter of real samples shows three. So
    running counts as at the ceiling if it was there within the last `regime.slot_memory` seconds (or at the last
    three samples with a queue). Plateau: in most samples with a queue, running was within 2 % of its maximum in the
    window.
    """
    start = now - limits["regime.slot_memory"]
    waited = [(row.t, row.running) for row in recent if row.waiting and row.running]
    within = [(t, running) for t, running in waited if t >= start]
    lately = [
        now_running,
        *(running for _, running in (within if len(within) >= _MIN_RECENT else waited[-_MIN_RECENT:])),
    ]
    if ceiling is not None:
        return max(lately) >= _near(ceiling)
    top = max([now_running, *(row.running for row in recent if row.running is not None)])
    queued = [now_running, *(row.running for row in recent if row.running is not None and row.waiting)]
    if top <= 0 or len(queued) < _MIN_QUEUED or max(lately) < _near(top) or _prefills_only(recent, top):
        return False
    return sum(running >= _near(top) for running in queued) >= limits["regime.plateau_share"] * len(queued)


def _prefills_only(recent: Sequence[Sample], running: float) -> bool:
    """Whether the engine generates next to nothing for its prompts. Prefill then limits the number of running
    requests, and a flat number is no ceiling."""
    generated, prompts = rate(recent, "generation_tokens_total"), rate(recent, "prompt_tokens_total")
    if generated is None or prompts is None:
        return False
    return generated < running and prompts > _PREFILL_ONLY * generated


def _nothing_generated(recent: Sequence[Sample]) -> bool:
    """Whether a working engine generated nothing within the window, because it computes one long prompt."""
    return len(recent) >= _MIN_QUEUED and rate(recent, "generation_tokens_total") == 0


def _near(ceiling: float) -> float:
    return ceiling - ceiling // 50
