"""Symptoms of first tokens that come late, where nothing else accounts for it."""

from __future__ import annotations

from collections.abc import Mapping
from statistics import median
from typing import Any

from kvwatch.core.history.window import above
from kvwatch.core.judgement.derive import FIVE_MINUTES, MINUTE
from kvwatch.core.judgement.percentiles import LATENCIES, percentile_name
from kvwatch.core.judgement.symptoms.actions import ENABLE_PREFIX_CACHING, SHARE, SHORTER
from kvwatch.core.judgement.symptoms.evidence_tools import (
    WAITING,
    clear,
    computed_once,
    gained,
    judge_if,
    minutes_before,
    missing_signals,
    regime_seconds,
    unknown,
    windowed_mean,
)
from kvwatch.core.judgement.symptoms.row import Action, EngineView, Judgement, Scope, Severity, Symptom
from kvwatch.core.judgement.symptoms.warmup import may_be_cold
from kvwatch.core.judgement.thresholds import Threshold

_TTFT, _ITL = "time_to_first_token_seconds", "inter_token_latency_seconds"
_QUEUE, _PREFILL = "request_queue_time_seconds", "request_prefill_time_seconds"
_TTFT_P95 = percentile_name(LATENCIES[_TTFT], 0.95)
_ITL_P95 = percentile_name(LATENCIES[_ITL], 0.95)
#: Minutes of history before a rise can be told from what is usual.
_USUAL_TAKES = 10
#: Seconds of a minute in which requests wait, and in which none does, for the minute to have some of both.
_SOME = 2.0


@computed_once
def _parts(view: EngineView) -> Mapping[str, Any]:
    """How the time to the first token of finished requests is made up."""
    queue, prefill = windowed_mean(view, _QUEUE), windowed_mean(view, _PREFILL)
    both = (queue or 0.0) + (prefill or 0.0)
    share = None if queue is None or prefill is None or both <= 0 else prefill / both
    larger = None if share is None else "prefill" if share >= 0.5 else "queue"
    return {
        "mean_queue_seconds": queue,
        "mean_prefill_seconds": prefill,
        "prefill_share_ratio": share,
        "larger_part": larger,
    }


def _comes_and_goes(view: EngineView) -> bool:
    """Whether requests wait again and again: in at least `ttft_high.minutes` of the last five some of the time."""
    watched, waited = [0.0] * 5, [0.0] * 5
    for row, seconds in view.held(FIVE_MINUTES):
        minute = min(int((view.now - row.t) // MINUTE), 4)
        watched[minute] += seconds
        waited[minute] += seconds * (row.regime in WAITING)
    some = sum(_SOME <= part <= all_of - _SOME for part, all_of in zip(waited, watched, strict=True))
    return some >= view.limits["ttft_high.minutes"]


def _ttft_high(view: EngineView) -> Judgement:
    if reason := missing_signals(view, _TTFT):
        return unknown(reason)
    limits = view.limits
    p95, itl = view.derived.get(_TTFT_P95), view.derived.get(_ITL_P95)
    earlier = [row.ttft_p95 for row in minutes_before(view, FIVE_MINUTES) if row.ttft_p95 is not None]
    usual = median(earlier) if len(earlier) >= _USUAL_TAKES else None
    waited, now = (regime_seconds(view, window, *WAITING) for window in (FIVE_MINUTES, MINUTE))
    cold = may_be_cold(view)
    seen = gained(view, _TTFT)
    late = above(seen, limits["ttft_high.seconds"]) if seen else 0.0
    served = seen.count if seen else 0.0
    evidence = {
        "first_tokens": served,
        "late_first_tokens": late,
        _TTFT_P95: p95,
        "usual_seconds": usual,
        _ITL_P95: itl,
        **_parts(view),
        "waiting_seconds": waited,
        "window_seconds": FIVE_MINUTES,
        "threshold_seconds": limits["ttft_high.seconds"],
        "threshold_late_first_tokens": limits["ttft_high.late"],
        "threshold_first_tokens_of_a_rise": limits["ttft_high.requests"],
        "threshold_times_usual": limits["ttft_high.times"],
        "threshold_inter_token_seconds": limits["ttft_high.inter_token"],
    }
    if p95 is None or cold or (itl is not None and itl > limits["ttft_high.inter_token"]):
        return clear(**evidence)
    if waited > limits["ttft_high.waited"] and now <= 0.5 * MINUTE and not _comes_and_goes(view):
        return clear(**evidence)  # late because requests waited, and that is over
    risen = usual is not None and p95 >= max(limits["ttft_high.times"] * usual, limits["ttft_high.rise_from"])
    many = served >= limits["ttft_high.requests"]
    high = p95 >= limits["ttft_high.seconds"] and late >= limits["ttft_high.late"]
    return judge_if(high or (risen and many), evidence)


def _shared_prefix_slow(view: EngineView) -> Judgement:
    if reason := missing_signals(view, _TTFT, _QUEUE, _PREFILL, "request_prompt_tokens"):
        return unknown(reason)
    limits, config = view.limits, view.snapshot.config
    name = percentile_name("request_prompt_tokens_percentile", 0.5)
    prompts, p95 = view.derived.get(name), view.derived.get(_TTFT_P95)
    ratio, off = view.derived.get("prefix_cache_hit_ratio"), config.enable_prefix_caching is False
    parts = _parts(view)
    evidence = {
        name: prompts,
        _TTFT_P95: p95,
        **parts,
        "prefix_cache_hit_ratio": ratio,
        "prefix_caching": "off" if off else "on",
        "threshold_prompt_tokens": limits["shared_prefix_slow.prompt_tokens"],
        "threshold_seconds": limits["shared_prefix_slow.seconds"],
        "threshold_hit_ratio": limits["shared_prefix_slow.hit_ratio"],
    }
    long = prompts is not None and prompts >= limits["shared_prefix_slow.prompt_tokens"]
    late = p95 is not None and p95 >= limits["shared_prefix_slow.seconds"]
    if not long or not late or parts["larger_part"] != "prefill" or may_be_cold(view):
        return clear(**evidence)
    if off:
        return judge_if(True, evidence)
    if ratio is None:
        return unknown(view.derived.unknown.get("prefix_cache_hit_ratio", "the hit ratio is unknown"))
    if "prefix_cache_hit_ratio" in view.derived.untrusted:
        return unknown(view.derived.untrusted["prefix_cache_hit_ratio"])
    return judge_if(ratio < limits["shared_prefix_slow.hit_ratio"], evidence)


ROWS: tuple[Symptom, ...] = (
    Symptom(
        id="ttft_high",
        title="First tokens come late",
        when="95th percentile of time to first token over 5 min ≥ {seconds} (≥ {late} late ones), or ≥ {times} ×"
        " what it usually was within the hour and ≥ {rise_from}; inter-token latency ≤ {inter_token}; not"
        " in a cold start, nor left over from a queue that has gone",
        severity=Severity.WARNING,
        scope=Scope.ENGINE,
        for_s=15,
        keep_s=30,
        judge=_ttft_high,
        thresholds=(
            Threshold("ttft_high.seconds", 2, "seconds", "95th percentile over 5 min, at least."),
            Threshold(
                "ttft_high.times",
                3,
                "ratio",
                "Or so many times what that percentile usually was within the hour (median).",
                low=1,
                high=1000,
            ),
            Threshold(
                "ttft_high.late", 4, "requests", "Late first tokens in 5 min, at least: a few are no alarm."
            ),
            Threshold("ttft_high.rise_from", 0.5, "seconds", "A rise counts from here."),
            Threshold(
                "ttft_high.requests",
                100,
                "requests",
                "A rise counts with so many first tokens in 5 min, at least: among fewer, one long prompt makes it.",
            ),
            Threshold(
                "ttft_high.inter_token",
                0.2,
                "seconds",
                "Only while the 95th percentile of inter-token latency is at most this: else all steps are slow.",
            ),
            Threshold(
                "ttft_high.waited",
                15,
                "seconds",
                "After more than this of the 5 min in a queue that has gone, what was late is put down to it.",
            ),
            Threshold(
                "ttft_high.minutes",
                3,
                "minutes",
                "But not where queues come and go: where so many of those five minutes have some of one.",
                low=1,
                high=5,
            ),
        ),
        meaning="Once an answer has begun it comes at a normal pace, but it begins late. The evidence says whether"
        " queue or prefill is the larger part. Requests whose clients gave up are not counted.",
        causes=(
            "long prompts, computed whole (larger part: prefill)",
            "bursts too short for a queue to show at each scrape (larger part: queue)",
            "something before vLLM's engine: tokenising, images, a busy event loop (neither part is large)",
        ),
        actions=(
            SHORTER,
            SHARE,
            ENABLE_PREFIX_CACHING,
            Action(
                "if prefill is the larger part and inter-token latency may rise: raise --max-num-batched-tokens",
                "--max-num-batched-tokens",
            ),
            Action("if the queue is the larger part: smooth the bursts, or add a replica"),
        ),
        origin="2 s and 0.2 s as in ChrisAdkin8/k8s-ai-observability and vllm-doctor; the part that is larger as in"
        " vLLM's own split of request times",
    ),
    Symptom(
        id="shared_prefix_slow",
        title="Long prompts are computed whole, and first tokens wait for it",
        when="median prompt ≥ {prompt_tokens} tokens, 95th percentile of time to first token ≥"
        " {seconds}, prefill the larger part, hit ratio < {hit_ratio} or caching off",
        severity=Severity.WARNING,
        scope=Scope.ENGINE,
        for_s=30,
        keep_s=60,
        judge=_shared_prefix_slow,
        thresholds=(
            Threshold(
                "shared_prefix_slow.prompt_tokens", 1000, "tokens", "Median prompt over 1 h, at least."
            ),
            Threshold(
                "shared_prefix_slow.seconds",
                2,
                "seconds",
                "95th percentile of time to first token, at least.",
            ),
            Threshold("shared_prefix_slow.hit_ratio", 0.2, "ratio", "Prefix hit ratio below this.", high=1),
        ),
        meaning="Prefill is the larger part of the time to the first token, prompts are long, and next to nothing of"
        " them is found in the prefix cache, or caching is off. Where prompts begin alike, that is needless work.",
        causes=(
            "ids, times or names at the head of the template: one different token there ruins the rest",
            "prefix caching is off",
            "prompts really have nothing in common: then only shorter ones or more prefill help",
        ),
        actions=(
            SHORTER,
            Action(
                "make system prompt and tool schema identical, token by token, and put variable values behind them"
            ),
            ENABLE_PREFIX_CACHING,
            Action("order retrieved documents the same way each time, the most common first"),
        ),
        explains=("ttft_high", "prefix_cache_ineffective", "prefix_cache_off"),
        origin="vLLM's documentation of automatic prefix caching: it saves prefill, and only of equal beginnings",
    ),
)
