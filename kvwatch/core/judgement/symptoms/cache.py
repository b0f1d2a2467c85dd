"""Symptoms of a cache that is too small for what is asked of it."""

from __future__ import annotations

from kvwatch.core.history.regimes import Regime
from kvwatch.core.history.window import Sample
from kvwatch.core.judgement.derive import MINUTE, TWO_MINUTES
from kvwatch.core.judgement.symptoms.actions import FEWER, FP8, LENGTH, MORE_KV, REPLICA, SHARE
from kvwatch.core.judgement.symptoms.evidence_tools import (
    clear,
    gauges,
    judge_if,
    missing_signals,
    recently,
    regime_seconds,
    unknown,
)
from kvwatch.core.judgement.symptoms.row import Action, EngineView, Judgement, Scope, Severity, Symptom
from kvwatch.core.judgement.symptoms.thrashing import preemptions
from kvwatch.core.judgement.thresholds import Threshold
from kvwatch.core.model.signals import CORE


def _kv_near_full(view: EngineView) -> Judgement:
    if reason := missing_signals(view, *CORE):
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
        return judge_if(recently(view, lambda row: row.regime == Regime.FULL), evidence)
    left = _seconds_to_full(rows, view)
    if left is not None:
        within = view.limits["kv_near_full.course_within"]
        return judge_if(True, evidence | {"full_in_seconds": left, "threshold_full_in_seconds": within})
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


def _kv_exhausted(view: EngineView) -> Judgement:
    if reason := missing_signals(view, *CORE):
        return unknown(reason)
    waited = regime_seconds(view, MINUTE, Regime.KV_LIMITED)
    preempted, finished, _ = preemptions(view)
    need = view.limits["kv_exhausted.share"] * MINUTE
    evidence = {
        **gauges(view),
        "kv_limited_seconds": waited,
        "window_seconds": MINUTE,
        "threshold_seconds": need,
        "preemptions": preempted,
        "finished_requests": finished if "requests_finished_total" in view.snapshot.values else None,
    }
    still = recently(view, lambda row: row.regime == Regime.KV_LIMITED)
    return judge_if(waited > need and still, evidence)


#: Of a rise over three thirds each of the two steps between them has at least this share; a sudden one has not.
_STEADY = 0.25
ROWS: tuple[Symptom, ...] = (
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
