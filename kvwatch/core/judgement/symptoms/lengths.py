"""Requests that are too long for the cache, and limits that are too long for the requests."""

from __future__ import annotations

from collections.abc import Callable

from kvwatch.core.history.window import Sample, histogram_increase, increase, seconds_where
from kvwatch.core.judgement.advice import levers
from kvwatch.core.judgement.advice.levers import Lever
from kvwatch.core.judgement.derive import MINUTE
from kvwatch.core.judgement.percentiles import HOUR, LENGTHS, TOTAL_LENGTH, percentile_name
from kvwatch.core.judgement.symptoms.row import Judgement, Runbook, Severity, Symptom
from kvwatch.core.judgement.symptoms.views import EngineView, gauges, requires
from kvwatch.core.judgement.thresholds import Threshold, multiple, seconds, share
from kvwatch.core.model.signals import CORE

_NO_LIMIT = "the longest request that the server accepts is unknown: /v1/models does not report it"
_CAPACITY = "kv_cache_capacity_tokens"
_FEW = 5
"""Usual lengths are unknown with fewer finished requests than this."""


@requires(*CORE, "generation_tokens_total")
def _long_request_hogs_cache(view: EngineView) -> Judgement:
    limits = view.limits
    each, full = limits["long_request_hogs_cache.each"], limits["long_request_hogs_cache.usage"]
    times, need = limits["long_request_hogs_cache.times"], limits["long_request_hogs_cache.share"] * MINUTE

    def full_and_waiting(row: Sample) -> bool:
        return bool(row.running and row.waiting) and (row.usage or 0.0) >= full

    def held_by_few(row: Sample) -> bool:
        return full_and_waiting(row) and (row.usage or 0.0) >= each * (row.running or 0.0)

    rows = view.weighted_samples(MINUTE)
    by_few, at_all = seconds_where(rows, held_by_few), seconds_where(rows, full_and_waiting)
    generated = increase(view.samples(MINUTE), "generation_tokens_total") or 0.0
    footprint, served = _footprint_tokens(view, full_and_waiting), _served_tokens(view, full_and_waiting)
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
        "threshold_times_usual": times,
        "generated_tokens": generated,
    }
    if at_all <= need or generated <= 0 or not view.recently(full_and_waiting):
        return Judgement.clear(**evidence)
    long = None if usual is None or footprint is None else footprint >= times * usual
    if by_few <= need:
        # More than a few run. Only short requests that finish meanwhile show that the running ones are long.
        return Judgement.active_if(served is not None and bool(long), evidence)
    if usual is not None and footprint is None:
        why = view.derived.unknown.get(_CAPACITY, "the capacity in tokens is unknown")
        return Judgement.unknown(f"can't compare the few running requests with the usual length: {why}")
    return Judgement.active_if(long is not False, evidence)


def _served_tokens(view: EngineView, seen: Callable[[Sample], bool]) -> float | None:
    """Mean tokens, prompt and output, of requests that finished since `seen` began; None if too few did."""
    began = next((row.t for row, _ in view.weighted_samples(MINUTE) if seen(row)), view.now)
    rows = [row for row in view.windows.histograms.since(view.now - MINUTE) if row.t >= began]
    lengths = [one for name in LENGTHS if (one := histogram_increase(rows, name)) is not None]
    if len(lengths) < len(LENGTHS) or min(one.count for one in lengths) < _FEW:
        return None
    return sum(one.sum / one.count for one in lengths)


def _footprint_tokens(view: EngineView, seen: Callable[[Sample], bool]) -> float | None:
    """Mean tokens that a running request holds, over the last minute; None if the capacity is unknown."""
    capacity = view.derived.get(_CAPACITY)
    rows = [(row, duration) for row, duration in view.weighted_samples(MINUTE) if seen(row)]
    running = sum((row.running or 0.0) * duration for row, duration in rows)
    if capacity is None or not running:
        return None
    return capacity * sum((row.usage or 0.0) * duration for row, duration in rows) / running


@requires(*CORE)
def _request_never_fits(view: EngineView) -> Judgement:
    age, capacity = view.derived.get("last_progress_age_seconds"), view.derived.get(_CAPACITY)
    running, waiting = view.snapshot.number("requests_running"), view.snapshot.number("requests_waiting")
    need, longest = view.limits["request_never_fits.nothing_moves"], view.max_model_len
    # One request can hold the capacity less one block, which vLLM keeps for itself.
    usable = None if capacity is None else capacity - (view.snapshot.config.block_size or 0.0)
    evidence = {
        **gauges(view),
        "last_progress_age_seconds": age,
        "threshold_seconds": need,
        "max_model_len_tokens": longest,
        "usable_capacity_tokens": usable,
    }
    if running or not waiting or view.stale_gauges or age is None or age < need:
        return Judgement.clear(**evidence)
    if longest is None:
        return Judgement.unknown(_NO_LIMIT)
    if usable is None:
        return Judgement.unknown(f"capacity in tokens: {view.derived.unknown.get(_CAPACITY, 'unknown')}")
    return Judgement.active_if(longest > usable, evidence)


@requires(*LENGTHS)
def _max_model_len_oversized(view: EngineView) -> Judgement:
    served = histogram_increase(view.windows.minutes.since(view.now - HOUR), next(iter(LENGTHS)))
    count = served.count if served else 0.0
    name, limits = percentile_name(TOTAL_LENGTH, 0.99), view.limits
    p99, times = view.derived.get(name), limits["max_model_len_oversized.times"]
    requests = limits["max_model_len_oversized.requests"]
    evidence = {
        "max_model_len_tokens": view.max_model_len,
        name: p99,
        "finished_requests": count,
        "window_seconds": HOUR,
        "threshold_times": times,
        "threshold_requests": requests,
    }
    enough = served is not None and count >= requests
    if enough and view.max_model_len is None:
        return Judgement.unknown(_NO_LIMIT)
    if not enough or view.max_model_len is None or p99 is None or name in view.derived.at_least:
        return Judgement.clear(**evidence)
    return Judgement.active_if(view.max_model_len >= times * p99, evidence)


ROWS: tuple[Symptom, ...] = (
    Symptom(
        id="request_never_fits",
        title="A request larger than the KV cache blocks the queue",
        when="nothing runs, requests wait, no progress for {nothing_moves}, and --max-model-len exceeds the"
        " usable capacity",
        severity=Severity.CRITICAL,
        for_s=10,
        keep_s=30,
        judge=_request_never_fits,
        thresholds=(seconds("nothing_moves", 20, "Fires after this long without progress.", low=1),),
        meaning="Nothing runs, requests wait, and the server accepts requests longer than its cache holds. The head"
        " of the queue waits for blocks that do not exist, and everything behind it waits too.",
        causes=(
            (
                "--max-model-len exceeds the capacity in tokens. vLLM's start-up check does not catch this for"
                " models with sliding windows or recurrent states, nor if the difference is the one block that"
                " vLLM keeps for itself"
            ),
        ),
        levers=(
            levers.step(
                "route_away", "route traffic to other servers: nothing behind this request is scheduled"
            ),
            Lever(
                id="restart",
                text="restart vLLM: the request does not leave the queue by itself",
                restart=True,
            ),
            Lever(
                id="max_model_len",
                text="--max-model-len {value}, so that vLLM rejects such requests",
                cost="longer requests are rejected with HTTP 400",
                option="--max-model-len",
                restart=True,
                value=lambda at: at.evidence.get("usable_capacity_tokens"),
            ),
            levers.FP8_CACHE,
            levers.MORE_MEMORY,
        ),
        runbook=Runbook(
            "Every request waits behind one that can never run. No request is served.",
            ("waiting", "running", "usage", "longest", "capacity"),
            "requests run again, and --max-model-len is below the capacity",
        ),
        explains=("engine_stalled", "kv_exhausted", "sequence_limited", "prefill_limited", "ttft_high"),
        origin="vllm-project/vllm #39734 (after one very long prompt, 0 run and 1 waits forever)",
    ),
    Symptom(
        id="long_request_hogs_cache",
        title="A few long requests hold the KV cache; others wait",
        when="for > {share} of 1 min: requests wait, usage ≥ {usage}, and a running request holds on average ≥"
        " {times} × the length of finished requests, or ≥ {each} of the cache",
        severity=Severity.WARNING,
        judge=_long_request_hogs_cache,
        thresholds=(
            share("share", 0.5, "Fires if the condition holds for more than this share of 1 min."),
            share(
                "each", 0.25, "A running request counts as long if it holds at least this share of the cache."
            ),
            share("usage", 0.7, "Ignored below this KV cache usage."),
            multiple(
                "times",
                2.5,
                "A running request also counts as long at this multiple of the length of the requests that"
                " finish meanwhile.",
            ),
        ),
        meaning="Few requests run, and each holds a large part of the cache. They make progress; all others"
        " wait for them.",
        causes=(
            "Very long prompts or outputs among short ones",
            "No limit on max_tokens: outputs grow up to --max-model-len",
        ),
        levers=(
            levers.ROUTE_LONG,
            levers.CAP_OUTPUT,
            levers.CAP_OUTPUT_UNMEASURED,
            levers.ROUTE_LONG_UNMEASURED,
            levers.ADD_REPLICA,
            levers.FP8_CACHE,
            levers.MORE_MEMORY,
        ),
        do_not=(levers.NOT_MORE_SLOTS,),
        runbook=Runbook(
            "Short requests wait for as long as a few long ones take.",
            ("running", "waiting", "usage", "lengths", "capacity", "ttft"),
            "no request waits while only a few run",
        ),
        explains=("kv_exhausted", "kv_near_full", "ttft_high"),
        origin="vllm-project/vllm #1492 (2 running, 20 waiting, usage 0.987); a recording of a real server",
    ),
    Symptom(
        id="max_model_len_oversized",
        title="--max-model-len is far above the lengths served",
        when="max_model_len ≥ {times} × the p99 of total length over 1 h, ≥ {requests} requests",
        severity=Severity.INFO,
        for_s=60,
        keep_s=300,
        judge=_max_model_len_oversized,
        thresholds=(
            multiple(
                "times",
                4,
                "Fires if max_model_len is at least this multiple of the p99 of total length.",
                low=1,
            ),
            Threshold("requests", 100, "requests", "Ignored if fewer requests than this finished in 1 h."),
        ),
        meaning="Requests are much shorter than the limit. A lower limit frees no blocks, because vLLM"
        " allocates blocks token by token. It does stop a runaway request from taking the whole cache, and it"
        " lets vLLM start with a smaller cache.",
        causes=("--max-model-len is the model's maximum, not the service's",),
        levers=(
            levers.LENGTH_LIMIT,
            levers.step("route_long", "send rare longer requests, if any, to a server of their own"),
        ),
        runbook=Runbook(
            "None now. One runaway request can take most of the cache.",
            ("longest", "lengths", "capacity"),
            "--max-model-len is close to the p99 of the lengths served",
        ),
        origin="vLLM's documentation on conserving memory: set the limit to the longest request of the service",
    ),
)
