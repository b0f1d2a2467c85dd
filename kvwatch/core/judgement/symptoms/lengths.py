"""Symptoms of requests that are too long for the cache, and of limits that are too long for the requests."""

from __future__ import annotations

from collections.abc import Callable

from kvwatch.core.history.window import Sample, histogram_increase, increase, seconds_where
from kvwatch.core.judgement.derive import MINUTE
from kvwatch.core.judgement.percentiles import HOUR, LENGTHS, TOTAL_LENGTH, percentile_name
from kvwatch.core.judgement.symptoms.actions import FP8, LENGTH, MORE_KV
from kvwatch.core.judgement.symptoms.evidence_tools import (
    clear,
    gauges,
    judge_if,
    missing_signals,
    recently,
    unknown,
    usable_tokens,
)
from kvwatch.core.judgement.symptoms.row import Action, EngineView, Judgement, Scope, Severity, Symptom
from kvwatch.core.judgement.thresholds import Threshold
from kvwatch.core.model.signals import CORE

_NO_LIMIT = "the longest request that the server takes is unknown: /v1/models does not say it"
#: Fewer finished requests than this say nothing about usual lengths.
_FEW = 5


def _long_request_hogs_cache(view: EngineView) -> Judgement:
    if reason := missing_signals(view, *CORE, "generation_tokens_total"):
        return unknown(reason)
    limits = view.limits
    each, full = limits["long_request_hogs_cache.each"], limits["long_request_hogs_cache.usage"]

    def full_and_waiting(row: Sample) -> bool:
        return bool(row.running and row.waiting) and (row.usage or 0.0) >= full

    def hogged(row: Sample) -> bool:
        return full_and_waiting(row) and (row.usage or 0.0) >= each * (row.running or 0.0)

    held, need = view.held(MINUTE), limits["long_request_hogs_cache.share"] * MINUTE
    by_few, at_all = seconds_where(held, hogged), seconds_where(held, full_and_waiting)
    generated = increase(view.samples(MINUTE), "generation_tokens_total") or 0.0
    footprint, served = _footprint_tokens(view, full_and_waiting), _served_meanwhile(view, full_and_waiting)
    usual = served if served is not None else view.derived.get(percentile_name(TOTAL_LENGTH, 0.5))
    evidence = {
        **gauges(view),
        "full_and_waiting_seconds": at_all,
        "held_by_few_seconds": by_few,
        "window_seconds": MINUTE,
        "threshold_seconds": need,
        "threshold_usage_each_ratio": each,
        "mean_tokens_held_each": footprint,
        "usual_request_tokens": usual,
        "threshold_times_usual": limits["long_request_hogs_cache.times"],
        "generated_tokens": generated,
    }
    if at_all <= need or generated <= 0 or not recently(view, full_and_waiting):
        return clear(**evidence)
    long = (
        None
        if usual is None or footprint is None
        else footprint >= limits["long_request_hogs_cache.times"] * usual
    )
    if by_few > need and usual is not None and footprint is None:
        why = view.derived.unknown.get("kv_cache_capacity_tokens", "the capacity in tokens is unknown")
        return unknown(f"whether the few are longer than usual can't be told: {why}")
    if by_few > need:
        return judge_if(long is not False, evidence)
    # More than a few run: those that are served meanwhile are short, so it is not the few short ones that hold it.
    return judge_if(served is not None and bool(long), evidence)


def _served_meanwhile(view: EngineView, seen: Callable[[Sample], bool]) -> float | None:
    """Mean tokens, prompt and output, of requests that finished while it is so; None if too few did."""
    began = next((row.t for row, _ in view.held(MINUTE) if seen(row)), view.now)
    rows = [row for row in view.windows.histograms.since(view.now - MINUTE) if row.t >= began]
    lengths = [one for name in LENGTHS if (one := histogram_increase(rows, name)) is not None]
    if len(lengths) < len(LENGTHS) or min(one.count for one in lengths) < _FEW:
        return None
    return sum(one.sum / one.count for one in lengths)


def _footprint_tokens(view: EngineView, seen: Callable[[Sample], bool]) -> float | None:
    """Tokens that a running request holds on average, over the last minute; None if the capacity is unknown."""
    capacity = view.derived.get("kv_cache_capacity_tokens")
    held = [(row, seconds) for row, seconds in view.held(MINUTE) if seen(row)]
    running = sum((row.running or 0.0) * seconds for row, seconds in held)
    if capacity is None or not running:
        return None
    return capacity * sum((row.usage or 0.0) * seconds for row, seconds in held) / running


def _request_never_fits(view: EngineView) -> Judgement:
    if reason := missing_signals(view, *CORE):
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
    if running or not waiting or view.stale_gauges or age is None or age < need:
        return clear(**evidence)
    if longest is None:
        return unknown(_NO_LIMIT)
    if usable is None:
        return unknown(
            f"capacity in tokens: {view.derived.unknown.get('kv_cache_capacity_tokens', 'unknown')}"
        )
    return judge_if(longest > usable, evidence)


def _max_model_len_oversized(view: EngineView) -> Judgement:
    lengths = tuple(LENGTHS)
    if reason := missing_signals(view, *lengths):
        return unknown(reason)
    served = histogram_increase(view.windows.minutes.since(view.now - HOUR), lengths[0])
    name = percentile_name(TOTAL_LENGTH, 0.99)
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
        return unknown(_NO_LIMIT)
    if not enough or view.max_model_len is None or p99 is None or name in view.derived.at_least:
        return clear(**evidence)
    return judge_if(view.max_model_len >= times * p99, evidence)


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
        when="for > {share} of 1 min requests wait, usage ≥ {usage}, and the running ones hold ≥ {times}"
        " times each what finishing ones had, or ≥ {each} of the cache each",
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
                2.5,
                "ratio",
                "Tokens held per running request, in lengths of those that finish meanwhile, at least.",
                high=1000,
            ),
        ),
        meaning="Each of the few that run holds a large part of the cache; they make progress, and all others wait"
        " for them.",
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
