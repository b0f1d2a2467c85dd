"""A KV cache that is too small for its load."""

from __future__ import annotations

from kvwatch.core.history.regimes import Regime
from kvwatch.core.history.window import Sample
from kvwatch.core.judgement.advice import levers
from kvwatch.core.judgement.derive import MINUTE, TWO_MINUTES
from kvwatch.core.judgement.symptoms.row import Judgement, Runbook, Severity, Symptom
from kvwatch.core.judgement.symptoms.thrashing import preemptions
from kvwatch.core.judgement.symptoms.views import EngineView, gauges, requires
from kvwatch.core.judgement.thresholds import seconds, share
from kvwatch.core.model.signals import CORE

_STEADY = 0.25
"""A steady rise: each of the two steps between its thirds has at least this share of it. A sudden one has not."""


@requires(*CORE)
def _kv_near_full(view: EngineView) -> Judgement:
    limits = view.limits
    need = limits["kv_near_full.share"] * TWO_MINUTES
    full = view.regime_seconds(TWO_MINUTES, Regime.FULL, Regime.KV_LIMITED)
    waited = view.regime_seconds(MINUTE, Regime.KV_LIMITED)
    evidence = {
        **gauges(view),
        "full_seconds": full,
        "window_seconds": TWO_MINUTES,
        "threshold_seconds": need,
        "threshold_usage_ratio": limits["regime.full_usage"],
    }
    if full > need and waited <= limits["kv_exhausted.share"] * MINUTE:
        return Judgement.active_if(view.recently(lambda row: row.regime == Regime.FULL), evidence)
    left, within = _seconds_to_full(view), limits["kv_near_full.course_within"]
    if left is None or left > within:
        return Judgement.clear(**evidence)
    return Judgement.active_if(
        True, evidence | {"full_in_seconds": left, "threshold_full_in_seconds": within}
    )


def _seconds_to_full(view: EngineView) -> float | None:
    """Seconds until the cache is full if usage rises as over the last two minutes; None if it does not rise steadily.

    It takes a whole window, a usage above a floor and a rise from third to third, so that no ramp-up of a fresh load
    counts.
    """
    rows: list[Sample] = view.samples(TWO_MINUTES)
    known = [(row.covered, row.usage) for row in rows if row.usage is not None]
    newest = rows[-1] if rows else None
    if newest is None or newest.usage is None or newest.waiting or not newest.running or len(known) < 8:
        return None
    start, end = known[0][0], known[-1][0]
    span = end - start
    if span < 0.9 * TWO_MINUTES or not view.limits["kv_near_full.course_from"] <= newest.usage < 1:
        return None
    thirds = [
        [usage for t, usage in known if low <= (t - start) / span <= low + 1 / 3] for low in (0, 1 / 3, 2 / 3)
    ]
    if not all(thirds):
        return None
    first, second, third = map(_mean, thirds)
    if min(second - first, third - second) <= _STEADY * (third - first):
        return None
    # The newest third must rise as well, and the slower of the two rises counts.
    middle = end - span / 6
    early = [usage for t, usage in known if middle - span / 6 <= t < middle]
    late = [usage for t, usage in known if t >= middle]
    if not early or not late:
        return None
    slope = min((third - first) / (span * 2 / 3), (_mean(late) - _mean(early)) / (span / 6))
    return (1.0 - newest.usage) / slope if slope > 0 else None


def _mean(values: list[float]) -> float:
    return sum(values) / len(values)


@requires(*CORE)
def _kv_exhausted(view: EngineView) -> Judgement:
    waited = view.regime_seconds(MINUTE, Regime.KV_LIMITED)
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
    still = view.recently(lambda row: row.regime == Regime.KV_LIMITED)
    return Judgement.active_if(waited > need and still, evidence)


ROWS: tuple[Symptom, ...] = (
    Symptom(
        id="kv_exhausted",
        title="Requests wait for KV cache",
        when="regime kv_limited for > {share} of 1 min",
        severity=Severity.WARNING,
        judge=_kv_exhausted,
        thresholds=(share("share", 0.5, "Fires above this share of 1 min in regime kv_limited."),),
        meaning="The cache is full, and requests queue for blocks. See kv_thrashing for preemptions.",
        causes=(
            "The load needs more cache than this GPU has",
            "Requests are longer than planned",
            "One of several engines gets more than its share: if engine_imbalance fires too, fix that first",
        ),
        levers=(
            levers.ROUTE_BY_LOAD,
            levers.SHED_LOAD,
            levers.ROUTE_LONG,
            levers.CAP_OUTPUT,
            levers.ADD_REPLICA,
            levers.SHARE_PREFIX,
            levers.FP8_CACHE,
            levers.MORE_MEMORY,
            levers.TENSOR_PARALLEL,
            levers.QUANTIZED_WEIGHTS,
        ),
        do_not=(
            levers.NOT_MORE_SLOTS,
            levers.NOT_FEWER_SLOTS,
            levers.NOT_LENGTH_LIMIT,
        ),
        runbook=Runbook(
            "Requests wait before their first token; the wait grows with the load.",
            ("regimes", "demand", "usage", "waiting", "lengths", "capacity", "ttft"),
            "at the same load, demand falls below 1 and no time is spent in regime kv_limited",
        ),
        explains=("kv_near_full", "sequence_limited", "prefix_cache_thrash", "ttft_high"),
        origin="a public incident: mean TTFT 280 s, of which 278 s in the queue of a full cache; few"
        " preemptions",
    ),
    Symptom(
        id="kv_near_full",
        title="KV cache is full or filling up; no queue yet",
        when="cache full for > {share} of 2 min with hardly any queue, or usage ≥ {course_from} and on course"
        " to be full within {course_within}",
        severity=Severity.INFO,
        keep_s=120,
        judge=_kv_near_full,
        thresholds=(
            share("share", 0.5, "Fires if the cache is full for more than this share of 2 min."),
            share("course_from", 0.8, "A rise of KV cache usage counts only at or above this usage."),
            seconds(
                "course_within", 300, "Fires if usage, at its current rise, reaches 100 % within this time."
            ),
        ),
        meaning="The current load just fits. Further requests may wait or be preempted.",
        causes=("The load is about to outgrow the cache",),
        levers=(
            levers.PLAN_CAPACITY,
            levers.WAIT_AND_WATCH,
            levers.CAP_OUTPUT,
            levers.ROUTE_LONG,
            levers.FP8_CACHE,
            levers.MORE_MEMORY,
        ),
        do_not=(
            levers.NOT_MORE_SLOTS,
            levers.NOT_FEWER_SLOTS_NEAR_CAPACITY,
            levers.NOT_LENGTH_LIMIT,
        ),
        runbook=Runbook(
            "None yet. With a little more load, requests wait or are preempted.",
            ("above", "usage", "demand", "waiting"),
            "KV cache usage stays below 95 % at the same load",
        ),
        origin="high usage can be healthy (vllm-project/vllm #20302, #5176), so the severity is info",
    ),
)
