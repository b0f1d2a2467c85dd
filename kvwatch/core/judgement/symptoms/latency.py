"""Slow first tokens without another symptom that covers them."""

from __future__ import annotations

from collections.abc import Mapping
from statistics import median
from typing import Any

from kvwatch.core.history.window import above
from kvwatch.core.judgement.advice import levers
from kvwatch.core.judgement.derive import FIVE_MINUTES, MINUTE
from kvwatch.core.judgement.percentiles import LATENCIES, percentile_name
from kvwatch.core.judgement.symptoms.row import Judgement, Runbook, Severity, Symptom
from kvwatch.core.judgement.symptoms.views import WAITING, EngineView, once_per_sample, requires
from kvwatch.core.judgement.symptoms.warmup import may_be_cold
from kvwatch.core.judgement.thresholds import Threshold, multiple, seconds, share

_TTFT, _ITL = "time_to_first_token_seconds", "inter_token_latency_seconds"
_QUEUE, _PREFILL = "request_queue_time_seconds", "request_prefill_time_seconds"
_TTFT_P95 = percentile_name(LATENCIES[_TTFT], 0.95)
_ITL_P95 = percentile_name(LATENCIES[_ITL], 0.95)
_MIN_HISTORY = 10
"""A rise is measured only after this many minutes with a TTFT."""
_SOME = 2.0
"""A minute has both waiting and no waiting if each lasts at least this many seconds of it."""


@once_per_sample
def _ttft_parts(view: EngineView) -> Mapping[str, Any]:
    """Queue and prefill as parts of the time to first token of finished requests."""
    queue, prefill = view.observed_mean(_QUEUE), view.observed_mean(_PREFILL)
    both = (queue or 0.0) + (prefill or 0.0)
    prefill_share = None if queue is None or prefill is None or both <= 0 else prefill / both
    larger = None if prefill_share is None else "prefill" if prefill_share >= 0.5 else "queue"
    return {
        "mean_queue_seconds": queue,
        "mean_prefill_seconds": prefill,
        "prefill_share_ratio": prefill_share,
        "larger_part": larger,
    }


def _queue_recurs(view: EngineView) -> bool:
    """Whether a queue comes and goes: at least `ttft_high.minutes` of the last five have one for some of the time."""
    watched, waited = [0.0] * 5, [0.0] * 5
    for row, duration in view.weighted_samples(FIVE_MINUTES):
        minute = min(int((view.now - row.t) // MINUTE), 4)
        watched[minute] += duration
        waited[minute] += duration * (row.regime in WAITING)
    some = sum(_SOME <= part <= whole - _SOME for part, whole in zip(waited, watched, strict=True))
    return some >= view.limits["ttft_high.minutes"]


@requires(_TTFT)
def _ttft_high(view: EngineView) -> Judgement:
    limits = view.limits
    p95, itl = view.derived.get(_TTFT_P95), view.derived.get(_ITL_P95)
    earlier = [row.ttft_p95 for row in view.minutes_before(FIVE_MINUTES) if row.ttft_p95 is not None]
    usual = median(earlier) if len(earlier) >= _MIN_HISTORY else None
    waited, now = (view.regime_seconds(window, *WAITING) for window in (FIVE_MINUTES, MINUTE))
    seen = view.observed(_TTFT)
    late = above(seen, limits["ttft_high.seconds"]) if seen else 0.0
    served = seen.count if seen else 0.0
    evidence = {
        "first_tokens": served,
        "late_first_tokens": late,
        _TTFT_P95: p95,
        "usual_seconds": usual,
        _ITL_P95: itl,
        **_ttft_parts(view),
        "waiting_seconds": waited,
        "window_seconds": FIVE_MINUTES,
        f"threshold_{_TTFT_P95}": limits["ttft_high.seconds"],
        "threshold_late_first_tokens": limits["ttft_high.late"],
        "threshold_first_tokens_of_a_rise": limits["ttft_high.requests"],
        "threshold_times_usual": limits["ttft_high.times"],
        f"threshold_{_ITL_P95}": limits["ttft_high.inter_token"],
    }
    if p95 is None or may_be_cold(view) or (itl is not None and itl > limits["ttft_high.inter_token"]):
        return Judgement.clear(**evidence)
    if waited > limits["ttft_high.waited"] and now <= 0.5 * MINUTE and not _queue_recurs(view):
        return Judgement.clear(**evidence)  # late because of a queue that has gone
    risen = usual is not None and p95 >= max(limits["ttft_high.times"] * usual, limits["ttft_high.rise_from"])
    many = served >= limits["ttft_high.requests"]
    high = p95 >= limits["ttft_high.seconds"] and late >= limits["ttft_high.late"]
    return Judgement.active_if(high or (risen and many), evidence)


@requires(_TTFT, _QUEUE, _PREFILL, "request_prompt_tokens")
def _shared_prefix_slow(view: EngineView) -> Judgement:
    limits, ratio_name = view.limits, "prefix_cache_hit_ratio"
    name = percentile_name("request_prompt_tokens_percentile", 0.5)
    prompts, p95, ratio = (view.derived.get(one) for one in (name, _TTFT_P95, ratio_name))
    off = view.snapshot.config.enable_prefix_caching is False
    parts = _ttft_parts(view)
    evidence = {
        name: prompts,
        _TTFT_P95: p95,
        **parts,
        ratio_name: ratio,
        "prefix_caching": "off" if off else "on",
        f"threshold_{name}": limits["shared_prefix_slow.prompt_tokens"],
        f"threshold_{_TTFT_P95}": limits["shared_prefix_slow.seconds"],
        "threshold_hit_ratio": limits["shared_prefix_slow.hit_ratio"],
    }
    long = prompts is not None and prompts >= limits["shared_prefix_slow.prompt_tokens"]
    late = p95 is not None and p95 >= limits["shared_prefix_slow.seconds"]
    if not long or not late or parts["larger_part"] != "prefill" or may_be_cold(view):
        return Judgement.clear(**evidence)
    if off:
        return Judgement.active_if(True, evidence)
    if ratio is None:
        return Judgement.unknown(view.derived.unknown.get(ratio_name, "the hit rate is unknown"))
    if ratio_name in view.derived.untrusted:
        return Judgement.unknown(view.derived.untrusted[ratio_name])
    return Judgement.active_if(ratio < limits["shared_prefix_slow.hit_ratio"], evidence)


ROWS: tuple[Symptom, ...] = (
    Symptom(
        id="ttft_high",
        title="Slow first tokens",
        when="TTFT p95 over 5 min ≥ {seconds} with ≥ {late} late first tokens, or ≥ {times} × its median of the"
        " hour and ≥ {rise_from} with ≥ {requests} first tokens; inter-token latency p95 ≤ {inter_token}; not"
        " after a cold start or a queue that has cleared",
        severity=Severity.WARNING,
        for_s=15,
        keep_s=30,
        judge=_ttft_high,
        thresholds=(
            seconds("seconds", 2, "Fires if TTFT p95 over 5 min is at least this."),
            multiple(
                "times",
                3,
                "Also fires if TTFT p95 is at least this multiple of its median of the last hour.",
                low=1,
            ),
            Threshold("late", 4, "requests", "Fewer late first tokens in 5 min are ignored."),
            seconds("rise_from", 0.5, "A rise (ttft_high.times) counts only if TTFT p95 is at least this."),
            Threshold(
                "requests",
                100,
                "requests",
                "A rise (ttft_high.times) counts only with at least this many first tokens in 5 min: among"
                " fewer, one long prompt can cause it.",
            ),
            seconds(
                "inter_token",
                0.2,
                "Ignored while inter-token latency p95 is above this: then every step is slow, not only the"
                " first.",
            ),
            seconds(
                "waited",
                15,
                "Ignored if requests waited for longer than this in 5 min and the queue has cleared: then the"
                " queue was the cause.",
            ),
            Threshold(
                "minutes",
                3,
                "minutes",
                "A queue does not count as cleared if it came and went in at least this many of the 5 minutes.",
                low=1,
                high=5,
            ),
        ),
        meaning="Outputs start late and then stream at a normal pace. The evidence shows whether queue or"
        " prefill is the larger part of TTFT. Requests whose clients gave up are not counted.",
        causes=(
            "Long prompts without prefix hits (larger part: prefill)",
            "Bursts that are too short to be seen as a queue between scrapes (larger part: queue)",
            (
                "Work before the request reaches vLLM's engine: tokenizing, images, a busy event loop (neither part"
                " is large)"
            ),
        ),
        levers=(
            levers.when_larger(levers.SMOOTH_BURSTS, "queue"),
            levers.when_larger(levers.ADD_REPLICA, "queue"),
            levers.when_larger(levers.FIXED_TEXT_FIRST, "prefill"),
            levers.when_larger(levers.SHORTEN_PROMPTS, "prefill"),
            levers.step(
                "check_frontend",
                "check the work before the engine: tokenizing, images, a busy API server process",
                when=lambda at: at.evidence.get("larger_part") not in {"queue", "prefill"},
                condition="if neither queue nor prefill is large",
            ),
            levers.when_larger(levers.ENABLE_PREFIX_CACHING, "prefill"),
            levers.when_larger(levers.MORE_BATCHED_TOKENS, "prefill"),
        ),
        runbook=Runbook(
            "Users wait for the first token. After that, the output streams at a normal pace.",
            ("ttft", "queue", "prefill", "itl", "prompts", "hits"),
            "TTFT p95 is back at its former value",
        ),
        origin="2 s and 0.2 s as in ChrisAdkin8/k8s-ai-observability and vllm-doctor; the larger part as in vLLM's"
        " own split of request times",
    ),
    Symptom(
        id="shared_prefix_slow",
        title="Slow first tokens: long prompts miss the prefix cache",
        when="median prompt ≥ {prompt_tokens} tokens, TTFT p95 ≥ {seconds}, prefill is the larger part of TTFT,"
        " and the hit rate is < {hit_ratio} or prefix caching is off",
        severity=Severity.WARNING,
        for_s=30,
        judge=_shared_prefix_slow,
        thresholds=(
            Threshold(
                "prompt_tokens",
                1000,
                "tokens",
                "Fires only if the median prompt over 1 h has at least this many tokens.",
            ),
            seconds("seconds", 2, "Fires only if TTFT p95 is at least this."),
            share("hit_ratio", 0.2, "Fires below this prefix cache hit rate."),
        ),
        meaning="Prefill is the larger part of TTFT. Prompts are long, and hardly any of their tokens are found"
        " in the prefix cache, or caching is off. For prompts that start with the same text, most of this work"
        " can be avoided.",
        causes=(
            (
                "Ids, times or names at the start of the template: after the first different token, nothing is"
                " found"
            ),
            "Prefix caching is off",
            "Prompts have nothing in common: then only shorter prompts or more prefill capacity help",
        ),
        levers=(
            levers.IDENTICAL_PREFIX,
            levers.FIXED_TEXT_FIRST,
            levers.step(
                "order_documents", "order retrieved documents the same way each time, the most common first"
            ),
            levers.SHORTEN_PROMPTS,
            levers.ENABLE_PREFIX_CACHING,
        ),
        do_not=(levers.NOT_CACHE,),
        runbook=Runbook(
            "Users wait for the first token, and the GPU computes the same prefixes again and again.",
            ("prompts", "hits", "trusted", "ttft", "prefill", "config"),
            "the hit rate rises and TTFT falls, for prompts as long as before",
        ),
        explains=("ttft_high", "prefix_cache_ineffective", "prefix_cache_off"),
        origin="vLLM's documentation of automatic prefix caching: it saves prefill only for prompts that start"
        " with the same tokens",
    ),
)
