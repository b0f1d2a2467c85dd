"""Symptoms of requests that are too long for the cache, and of limits that are too long for the requests."""

from __future__ import annotations

from kvwatch.core.derive import MINUTE
from kvwatch.core.percentiles import HOUR, LENGTHS, TOTAL_LENGTH, labelled
from kvwatch.core.signals import CORE
from kvwatch.core.symptoms.actions import FP8, LENGTH, MORE_KV
from kvwatch.core.symptoms.model import Action, EngineView, Judgement, Scope, Severity, Symptom
from kvwatch.core.symptoms.tools import (
    clear,
    gauges,
    judged,
    lacks,
    lately,
    unknown,
    usable_tokens,
)
from kvwatch.core.thresholds import Threshold
from kvwatch.core.window import Sample, increase, ladder_increase, seconds_where

#: Fewer finished requests than this say nothing about usual lengths.
_FEW = 5


def _long_request_hogs_cache(view: EngineView) -> Judgement:
    if reason := lacks(view, *CORE, "generation_tokens_total"):
        return unknown(reason)
    limits = view.limits
    each, full = limits["long_request_hogs_cache.each"], limits["long_request_hogs_cache.usage"]

    def hogged(row: Sample) -> bool:
        usage, running, waiting = row.usage or 0.0, row.running or 0.0, row.waiting or 0.0
        return running >= 1 and waiting >= 1 and usage >= full and usage / running >= each

    held = view.held(MINUTE)
    seconds, need = seconds_where(held, hogged), limits["long_request_hogs_cache.share"] * MINUTE
    generated = increase(view.samples(MINUTE), "generation_tokens_total") or 0.0
    usual = _usual_length(view)
    footprint = _footprint_tokens(view, hogged)
    evidence = {
        **gauges(view),
        "hogged_seconds": seconds,
        "window_seconds": MINUTE,
        "threshold_seconds": need,
        "threshold_usage_each_ratio": each,
        "mean_tokens_held_each": footprint,
        "usual_request_tokens": usual,
        "generated_tokens": generated,
    }
    if seconds <= need or generated <= 0 or not lately(view, hogged):
        return clear(**evidence)
    if usual is not None and footprint is not None:
        return judged(footprint >= limits["long_request_hogs_cache.times"] * usual, evidence)
    return judged(True, evidence)


def _usual_length(view: EngineView) -> float | None:
    """Tokens of a usual request: the median of the hour, or the mean since the start while that is of too few."""
    median = view.derived.get(labelled(TOTAL_LENGTH, 0.5))
    if median is not None:
        return median
    seen = [histogram for name in LENGTHS if (histogram := view.lifetime.get(name)) is not None]
    if len(seen) < len(LENGTHS) or min(histogram.count for histogram in seen) < _FEW:
        return None
    return sum(histogram.sum / histogram.count for histogram in seen)


def _footprint_tokens(view: EngineView, hogged: object) -> float | None:
    """Tokens that a running request holds on average, over the last minute; None if the capacity is unknown."""
    capacity = view.derived.get("kv_cache_capacity_tokens")
    held = [(row, seconds) for row, seconds in view.held(MINUTE) if callable(hogged) and hogged(row)]
    running = sum((row.running or 0.0) * seconds for row, seconds in held)
    if capacity is None or not running:
        return None
    return capacity * sum((row.usage or 0.0) * seconds for row, seconds in held) / running


def _request_never_fits(view: EngineView) -> Judgement:
    if reason := lacks(view, *CORE):
        return unknown(reason)
    age = view.derived.get("last_progress_age_seconds")
    running, waiting = view.snapshot.number("requests_running"), view.snapshot.number("requests_waiting")
    need = view.limits["request_never_fits.nothing_moves"]
    longest, usable = view.max_model_len, usable_tokens(view)
    evidence = {
        **gauges(view),
        "last_progress_age_seconds": age,
        "threshold_seconds": need,
        "max_model_len_tokens": longest,
        "usable_capacity_tokens": usable,
    }
    if running or not waiting or view.abandoned or age is None or age < need:
        return clear(**evidence)
    if longest is None:
        return unknown("the longest request that the server takes is unknown: /v1/models does not say it")
    if usable is None:
        return unknown(
            f"capacity in tokens: {view.derived.unknown.get('kv_cache_capacity_tokens', 'unknown')}"
        )
    return judged(longest > usable, evidence)


def _max_model_len_oversized(view: EngineView) -> Judgement:
    lengths = tuple(LENGTHS)
    if reason := lacks(view, *lengths):
        return unknown(reason)
    served = ladder_increase(view.windows.minutes.since(view.now - HOUR), lengths[0])
    name = labelled(TOTAL_LENGTH, 0.99)
    p99, times = view.derived.get(name), view.limits["max_model_len_oversized.times"]
    evidence = {
        "max_model_len_tokens": view.max_model_len,
        name: p99,
        "finished_requests": served.count if served else 0.0,
        "window_seconds": HOUR,
        "threshold_times": times,
        "threshold_requests": view.limits["max_model_len_oversized.requests"],
    }
    enough = served is not None and served.count >= view.limits["max_model_len_oversized.requests"]
    if enough and view.max_model_len is None:
        return unknown("the longest request that the server takes is unknown: /v1/models does not say it")
    if not enough or view.max_model_len is None or p99 is None or name in view.derived.at_least:
        return clear(**evidence)
    return judged(view.max_model_len >= times * p99, evidence)


ROWS: tuple[Symptom, ...] = (
    Symptom(
        id="request_never_fits",
        title="The request at the head of the queue can never be scheduled",
        when="nothing runs, requests wait, nothing moved for {nothing_moves}, and the longest request"
        " that is taken exceeds the usable capacity",
        severity=Severity.CRITICAL,
        scope=Scope.ENGINE,
        for_s=10,
        keep_s=30,
        judge=_request_never_fits,
        thresholds=(
            Threshold(
                "request_never_fits.nothing_moves",
                20,
                "seconds",
                "Nothing runs or moves for this long.",
                low=1,
            ),
        ),
        meaning="Nothing runs, requests wait, and the server takes requests longer than its cache holds: the one at"
        " the head waits for blocks that there will never be, and everything behind it waits for that.",
        causes=(
            (
                "--max-model-len is larger than the capacity in tokens; the check at the start misses it for models"
                " with sliding windows or states, and by the one block that vLLM keeps for itself"
            ),
        ),
        actions=(
            Action("restart the server: the request does not go away by itself"),
            Action(
                "lower --max-model-len below usable_capacity_tokens, with a margin for hybrid models, so that such a"
                " request is refused at the door",
                "--max-model-len",
            ),
            FP8,
            MORE_KV,
        ),
        explains=("engine_stalled", "kv_exhausted", "sequence_limited", "prefill_limited", "ttft_high"),
        origin="vllm-project/vllm #39734 (running 0, waiting 1 for ever after one very long prompt)",
    ),
    Symptom(
        id="long_request_hogs_cache",
        title="A few long requests hold the cache while others wait",
        when="for > {share} of 1 min requests wait, usage ≥ {usage}, and each running request holds ≥"
        " {each} of the cache and ≥ {times} usual lengths",
        severity=Severity.WARNING,
        scope=Scope.ENGINE,
        for_s=0,
        keep_s=60,
        judge=_long_request_hogs_cache,
        thresholds=(
            Threshold(
                "long_request_hogs_cache.share", 0.5, "ratio", "Share of 1 min in which it is so.", high=1
            ),
            Threshold(
                "long_request_hogs_cache.each", 0.25, "ratio", "Usage per running request, at least.", high=1
            ),
            Threshold("long_request_hogs_cache.usage", 0.7, "ratio", "Usage of all, at least.", high=1),
            Threshold(
                "long_request_hogs_cache.times",
                2,
                "ratio",
                "Tokens held per running request, in median lengths of finished ones, at least.",
                high=1000,
            ),
        ),
        meaning="Each of the few that run holds a large part of the cache; they get on, and all others wait for"
        " them.",
        causes=(
            "very long prompts or outputs among short ones",
            "no limit on max_tokens: outputs grow until --max-model-len",
        ),
        actions=(
            LENGTH,
            Action("give long requests a queue or a server of their own"),
            FP8,
            MORE_KV,
            Action("do not raise --max-num-seqs: there is no cache for more"),
        ),
        explains=("kv_exhausted", "kv_near_full", "ttft_high"),
        origin="vllm-project/vllm #1492 (2 running, 20 waiting, usage 0.987); a recording of a real server",
    ),
    Symptom(
        id="max_model_len_oversized",
        title="--max-model-len is far longer than what is served",
        when="max_model_len ≥ {times} × the 99th percentile of total length over 1 h, ≥ {requests} requests",
        severity=Severity.INFO,
        scope=Scope.ENGINE,
        for_s=60,
        keep_s=300,
        judge=_max_model_len_oversized,
        thresholds=(
            Threshold(
                "max_model_len_oversized.times",
                4,
                "ratio",
                "max_model_len in 99th percentiles of total length, at least.",
                low=1,
                high=1000,
            ),
            Threshold("max_model_len_oversized.requests", 100, "requests", "Finished in 1 h, at least."),
        ),
        meaning="No request comes near the limit. Running requests hold blocks only for tokens that they have, so"
        " lowering the limit frees none at once; it keeps one runaway request from taking them all, and lets the"
        " server start with a smaller cache.",
        causes=("the model's maximum was taken as the limit of the service",),
        actions=(
            Action(
                "set --max-model-len to what is served (the 99th percentile in the evidence, and a margin)",
                "--max-model-len",
            ),
            Action("send rare longer requests to a server of their own, if there are any"),
        ),
        origin="vLLM's documentation on conserving memory: not the model's maximum, but what the service serves",
    ),
)
