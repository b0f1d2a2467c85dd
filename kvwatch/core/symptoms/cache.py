"""Symptoms of a cache that is too small for what is asked of it."""

from __future__ import annotations

from kvwatch.core.derive import MINUTE, TWO_MINUTES
from kvwatch.core.regimes import Regime
from kvwatch.core.signals import CORE
from kvwatch.core.snapshot import FROM_LOG
from kvwatch.core.symptoms.actions import FEWER, FP8, LENGTH, MORE_KV, REPLICA, SHARE
from kvwatch.core.symptoms.model import Action, EngineView, Judgement, Scope, Severity, Symptom
from kvwatch.core.symptoms.tools import (
    clear,
    gained,
    gauges,
    judged,
    lacks,
    lately,
    once,
    regime_seconds,
    unknown,
)
from kvwatch.core.thresholds import Threshold
from kvwatch.core.window import Sample, increase


def _kv_near_full(view: EngineView) -> Judgement:
    if reason := lacks(view, *CORE):
        return unknown(reason)
    rows = view.samples(TWO_MINUTES)
    mark, share = view.limits["regime.full_usage"], view.limits["kv_near_full.share"]
    full = regime_seconds(view, TWO_MINUTES, Regime.FULL, Regime.KV_LIMITED)
    waited = regime_seconds(view, MINUTE, Regime.KV_LIMITED)
    evidence = {
        **gauges(view),
        "full_seconds": full,
        "window_seconds": TWO_MINUTES,
        "threshold_seconds": share * TWO_MINUTES,
        "threshold_usage_ratio": mark,
    }
    if full > share * TWO_MINUTES and waited <= view.limits["kv_exhausted.share"] * MINUTE:
        return judged(lately(view, lambda row: row.regime == Regime.FULL), evidence)
    left = _seconds_to_full(rows, view)
    if left is not None:
        within = view.limits["kv_near_full.course_within"]
        return judged(True, evidence | {"full_in_seconds": left, "threshold_full_in_seconds": within})
    return clear(**evidence)


def _seconds_to_full(rows: list[Sample], view: EngineView) -> float | None:
    """Seconds until the cache is full if it goes on as over the last two minutes; None if it does not rise so.

    Asked of a whole window, above a floor, and rising from third to third, so that no ramp-up of a fresh load
    counts.
    """
    usable = [(r.covered, r.usage) for r in rows if r.usage is not None]
    newest = rows[-1] if rows else None
    if newest is None or newest.usage is None or newest.waiting or not newest.running or len(usable) < 8:
        return None
    span = usable[-1][0] - usable[0][0]
    if (
        span < 0.9 * TWO_MINUTES
        or newest.usage < view.limits["kv_near_full.course_from"]
        or newest.usage >= 1
    ):
        return None
    thirds = [
        [u for t, u in usable if low <= (t - usable[0][0]) / span <= low + 1 / 3] for low in (0, 1 / 3, 2 / 3)
    ]
    if not all(thirds):
        return None
    first, second, third = (sum(part) / len(part) for part in thirds)
    if min(second - first, third - second) <= _STEADY * (third - first):
        return None
    # The newest third must rise as well, and it is the slower rise that counts.
    middle = usable[-1][0] - span / 6
    early, late = (
        [u for t, u in usable if middle - span / 6 <= t < middle],
        [u for t, u in usable if t >= middle],
    )
    if not early or not late:
        return None
    slope = min(
        (third - first) / (span * 2 / 3), (sum(late) / len(late) - sum(early) / len(early)) / (span / 6)
    )
    if slope <= 0:
        return None
    left = (1.0 - newest.usage) / slope
    return left if left <= view.limits["kv_near_full.course_within"] else None


@once
def _preemptions(view: EngineView) -> tuple[float | None, float, float]:
    """Preemptions and finished requests over two minutes, and the requests that the former are measured by.

    Those are the finished ones, or those at work where fewer finish: at the start of a long queue nothing has
    finished yet, and a few preemptions among many that run are no storm.
    """
    rows = view.samples(TWO_MINUTES)
    preempted, finished = increase(rows, "preemptions_total"), increase(rows, "requests_finished_total")
    if preempted is None and len(rows) == 1:
        preempted = 0.0
    at_work = [row.running for row in rows if row.running is not None]
    mean = sum(at_work) / len(at_work) if at_work else 0.0
    return preempted, finished or 0.0, max(finished or 0.0, mean, 1.0)


def _recomputed_tokens(view: EngineView) -> float | None:
    """Prompt tokens of the last two minutes that must have been computed again, at least; None if that can't be told.

    What was computed once is the prompts of the requests that finished, and those in the engine, which can hold no
    more than the peak of usage times the capacity. Found tokens were not computed. A client that goes away after its
    first token leaves a request that never finishes, so where more had a first token, it is so many mean prompts.
    """
    rows, capacity = view.samples(TWO_MINUTES), view.derived.get("kv_cache_capacity_tokens")
    came, done = increase(rows, "prompt_tokens_total"), increase(rows, "request_prompt_tokens/sum")
    if capacity is None or came is None or done is None:
        return None
    found = increase(rows, "prefix_cache_hit_tokens_total") or 0.0
    found += increase(rows, "external_prefix_cache_hit_tokens_total") or 0.0
    held = capacity * max((row.usage for row in rows if row.usage is not None), default=0.0)
    finished = increase(rows, "request_prompt_tokens") or 0.0
    seen = gained(view, "time_to_first_token_seconds", TWO_MINUTES)
    begun = seen.count * done / finished if seen is not None and finished else 0.0
    return max(came - found - max(done, begun) - held, 0.0)


def _starved(view: EngineView) -> bool:
    """Next to nothing is generated beside the prompts that are computed, in a cache that was full for most of a
    minute."""
    rows = view.samples(TWO_MINUTES)
    prompts, generated = increase(rows, "prompt_tokens_total"), increase(rows, "generation_tokens_total")
    full = regime_seconds(view, MINUTE, Regime.FULL, Regime.KV_LIMITED)
    return full > MINUTE / 2 and (generated or 0.0) * _PROMPTS_DOMINATE <= (prompts or 0.0)


def _kv_exhausted(view: EngineView) -> Judgement:
    if reason := lacks(view, *CORE):
        return unknown(reason)
    waited = regime_seconds(view, MINUTE, Regime.KV_LIMITED)
    preempted, finished, _ = _preemptions(view)
    need = view.limits["kv_exhausted.share"] * MINUTE
    evidence = {
        **gauges(view),
        "kv_limited_seconds": waited,
        "window_seconds": MINUTE,
        "threshold_seconds": need,
        "preemptions": preempted,
        "finished_requests": finished,
    }
    still = lately(view, lambda row: row.regime == Regime.KV_LIMITED)
    return judged(waited > need and still, evidence)


def _kv_thrashing(view: EngineView) -> Judgement:
    if reason := lacks(view, *CORE):
        return unknown(reason)
    if reason := lacks(view, "preemptions_total"):
        return _churning(view, reason)
    preempted, finished, requests = _preemptions(view)
    ratio = None if preempted is None else preempted / requests
    mark, wanted = view.limits["regime.full_usage"], view.limits["regime.demand"]
    pressed = lately(
        view,
        lambda row: (row.demand is not None and row.demand >= wanted) or (row.usage or 0.0) >= mark,
    )
    recomputed = _recomputed_tokens(view) if _starved(view) else None
    capacity = view.derived.get("kv_cache_capacity_tokens") or 0.0
    enough = view.limits["kv_thrashing.recomputed"] * capacity
    again = recomputed is not None and recomputed >= enough
    evidence = {
        **gauges(view),
        "preemptions": preempted,
        "finished_requests": finished,
        "preemptions_per_request": ratio,
        "window_seconds": TWO_MINUTES,
        "threshold_preemptions": view.limits["kv_thrashing.preemptions"],
        "threshold_preemptions_per_request": view.limits["kv_thrashing.per_request"],
        "kv_cache_usage_peak_1m_ratio": view.derived.get("kv_cache_usage_peak_1m_ratio"),
    }
    if recomputed is not None:
        evidence["recomputed_prompt_tokens_at_least"] = recomputed
        evidence["threshold_recomputed_prompt_tokens_at_least"] = enough
    storm = (
        preempted is not None
        and preempted >= view.limits["kv_thrashing.preemptions"]
        and preempted >= view.limits["kv_thrashing.per_request"] * requests
    )
    return judged((storm or again) and pressed, evidence)


def _churning(view: EngineView, reason: str) -> Judgement:
    """Without a count of preemptions, as most logs are: nothing waits, the cache stays full, and prompts are computed
    all the time with hardly a token generated, so they are computed again. Less than that can't be told."""
    if FROM_LOG not in view.snapshot.features or not _starved(view):
        return unknown(reason)
    rows = view.samples(TWO_MINUTES)
    evidence = {
        **gauges(view),
        "prompt_tokens": increase(rows, "prompt_tokens_total"),
        "generated_tokens": increase(rows, "generation_tokens_total"),
        "full_seconds": regime_seconds(view, MINUTE, Regime.FULL, Regime.KV_LIMITED),
        "window_seconds": MINUTE,
        "threshold_seconds": MINUTE / 2,
        "detail": "the log does not count preemptions; prompts are computed all the time in a full cache, and hardly"
        " anything is generated",
    }
    full = view.limits["regime.full_usage"]
    return judged(lately(view, lambda row: (row.usage or 0.0) >= full and not row.waiting), evidence)


#: Of a rise over three thirds each of the two steps between them has at least this share; a sudden one has not.
_STEADY = 0.25
#: Prompt tokens per generated one from which an engine does little but prefill.
_PROMPTS_DOMINATE = 20

ROWS: tuple[Symptom, ...] = (
    Symptom(
        id="kv_thrashing",
        title="Requests are preempted and computed again",
        when="≥ {per_request} preemptions per request and ≥ {preemptions} in 2 min under pressure, or"
        " prompt tokens worth ≥ {recomputed} of the cache computed again in 2 min while hardly anything is"
        " generated",
        severity=Severity.CRITICAL,
        scope=Scope.ENGINE,
        for_s=10,
        keep_s=60,
        judge=_kv_thrashing,
        thresholds=(
            Threshold(
                "kv_thrashing.per_request",
                0.3,
                "ratio",
                "Preemptions over 2 min per request, finished or at work.",
            ),
            Threshold(
                "kv_thrashing.preemptions", 3, "preemptions", "Fewer preemptions in 2 min are no storm."
            ),
            Threshold(
                "kv_thrashing.recomputed",
                0.5,
                "ratio",
                "Or: prompt tokens computed again in 2 min, as a share of what the cache holds, while next to nothing"
                " is generated.",
                high=1000,
            ),
        ),
        meaning="The cache is too small for what is admitted: running requests lose their blocks and are computed"
        " again, which costs throughput and stretches every latency.",
        causes=(
            "more requests are admitted than the cache holds at their full length",
            "outputs grow after admission, when room was made for the prompt alone",
            "one of several engines gets more than its share (engine_imbalance then fires too): mend that first",
        ),
        actions=(
            LENGTH,
            FEWER,
            Action(
                "keep a few per cent of the blocks free at admission: --watermark 0.02 to 0.05",
                "--watermark",
                ("v1",),
                feature="watermark",
            ),
            FP8,
            MORE_KV,
            REPLICA,
        ),
        explains=(
            "kv_near_full",
            "kv_exhausted",
            "sequence_limited",
            "prefill_limited",
            "prefix_cache_ineffective",
            "prefix_cache_thrash",
            "shared_prefix_slow",
            "ttft_high",
        ),
        origin="vllm-project/vllm #44594 (2.4 preemptions a request); 0.2 a request in a public incident was a queue,"
        " not a storm; vllm-project/vllm #21809 (nothing waits, usage 0.97, and prompts are computed over and over)",
    ),
    Symptom(
        id="kv_exhausted",
        title="Requests wait for KV cache",
        when="regime kv_limited for > {share} of 1 min",
        severity=Severity.WARNING,
        scope=Scope.ENGINE,
        for_s=0,
        keep_s=60,
        judge=_kv_exhausted,
        thresholds=(Threshold("kv_exhausted.share", 0.5, "ratio", "Share of 1 min in kv_limited.", high=1),),
        meaning="The cache is full and requests queue for it. Whether they are preempted too, kv_thrashing says.",
        causes=(
            "the load needs more cache than there is",
            "requests are longer than the cache was planned for",
            "one of several engines gets more than its share (engine_imbalance then fires too)",
        ),
        actions=(
            MORE_KV,
            LENGTH,
            FP8,
            SHARE,
            REPLICA,
            Action("do not raise --max-num-seqs: there is no cache for more"),
        ),
        explains=("kv_near_full", "sequence_limited", "prefix_cache_thrash", "ttft_high"),
        origin="a public incident: 278 of 280 s mean TTFT in the queue of a full cache, few preemptions",
    ),
    Symptom(
        id="kv_near_full",
        title="The cache is full or soon will be, and next to nothing waits yet",
        when="cache full for > {share} of 2 min with next to nothing waiting, or usage ≥ {course_from}"
        " and on course to be full within {course_within}",
        severity=Severity.INFO,
        scope=Scope.ENGINE,
        for_s=0,
        keep_s=120,
        judge=_kv_near_full,
        thresholds=(
            Threshold("kv_near_full.share", 0.5, "ratio", "Share of 2 min with a full cache.", high=1),
            Threshold(
                "kv_near_full.course_from", 0.8, "ratio", "Usage from which a rise is followed.", high=1
            ),
            Threshold("kv_near_full.course_within", 300, "seconds", "On course to be full within this time."),
        ),
        meaning="Nothing is lost yet: it fits, barely. The next requests will wait or preempt.",
        causes=("the load is about to outgrow the cache",),
        actions=(LENGTH, FEWER, FP8),
        origin="high usage can be healthy (vllm-project/vllm #20302, #5176), so this is information",
    ),
)
