"""The symptom of a cache that is thrashed: running requests lose their blocks and are computed again."""

from __future__ import annotations

from kvwatch.core.history.regimes import Regime
from kvwatch.core.history.window import Sample, increase
from kvwatch.core.judgement.derive import MINUTE, TWO_MINUTES
from kvwatch.core.judgement.symptoms.actions import FEWER, FP8, LENGTH, MORE_KV, REPLICA
from kvwatch.core.judgement.symptoms.evidence_tools import (
    computed_once,
    gained,
    gauges,
    judge_if,
    missing_signals,
    recently,
    regime_seconds,
    unknown,
)
from kvwatch.core.judgement.symptoms.row import Action, EngineView, Judgement, Scope, Severity, Symptom
from kvwatch.core.judgement.thresholds import Threshold
from kvwatch.core.model.signals import CORE
from kvwatch.core.model.snapshot import FROM_LOG


@computed_once
def preemptions(view: EngineView) -> tuple[float | None, float, float]:
    """Preemptions and finished requests over two minutes, and the requests that the former are measured by.

    Those are the finished ones, or those at work where fewer finish: at the start of a long queue nothing has
    finished yet, and a few preemptions among many that run are no storm. A log does not count finished ones: there
    it is what `_served` makes of them.
    """
    rows = view.samples(TWO_MINUTES)
    preempted, finished = increase(rows, "preemptions_total"), increase(rows, "requests_finished_total")
    if finished is None and FROM_LOG in view.snapshot.features:
        finished = _served(view, rows)
    if preempted is None and len(rows) == 1:
        preempted = 0.0
    at_work = [row.running for row in rows if row.running is not None]
    mean = sum(at_work) / len(at_work) if at_work else 0.0
    return preempted, finished or 0.0, max(finished or 0.0, mean, 1.0)


def _served(view: EngineView, rows: list[Sample]) -> float | None:
    """Requests that came through, estimated: tokens computed per mean footprint of a running one; None if the
    capacity is not known. Prompts computed again make it more, and so the judgement milder."""
    capacity = view.derived.get("kv_cache_capacity_tokens")
    held = [(row.usage or 0.0) / row.running for row in rows if row.running]
    mean = capacity * sum(held) / len(held) if capacity and held else 0.0
    tokens = [increase(rows, name) or 0.0 for name in ("prompt_tokens_total", "generation_tokens_total")]
    return sum(tokens) / mean if mean else None


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


def _kv_thrashing(view: EngineView) -> Judgement:
    if reason := missing_signals(view, *CORE):
        return unknown(reason)
    if reason := missing_signals(view, "preemptions_total"):
        return _uncounted(view, reason)
    preempted, finished, requests = preemptions(view)
    ratio = None if preempted is None else preempted / requests
    mark, wanted = view.limits["regime.full_usage"], view.limits["regime.demand"]
    pressed = recently(
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
        "finished_requests": finished if "requests_finished_total" in view.snapshot.values else None,
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
    return judge_if((storm or again) and pressed, evidence)


def outgrown(rows: list[Sample]) -> float | None:
    """Tokens generated per prompt token; None without prompts.

    While requests wait for the cache, it is about as many preemptions per finished request as there can be: room is
    made for a prompt, so what a finished request leaves is given to new prompts at once, and what these grow by has
    to be taken from one of them. (Of public and recorded incidents: at 0.25 it was 0.2, at 3 to 4 it was 2.2.)
    """
    prompts, generated = increase(rows, "prompt_tokens_total"), increase(rows, "generation_tokens_total")
    return generated / prompts if prompts and generated is not None else None


def _uncounted(view: EngineView, reason: str) -> Judgement:
    """Without a count of preemptions, as in most logs, what the speeds of prompts and outputs tell.

    Either shows that requests are computed again: prompts are computed all the time in a full cache where nothing
    waits and hardly anything is generated; or requests wait for the cache, and outputs are longer than prompts
    (`outgrown`).
    """
    if FROM_LOG not in view.snapshot.features:
        return unknown(reason)
    rows = view.samples(TWO_MINUTES)
    waited, share = regime_seconds(view, MINUTE, Regime.KV_LIMITED), outgrown(rows)
    need, enough = view.limits["kv_exhausted.share"] * MINUTE, view.limits["kv_thrashing.outgrown"]
    evidence = {
        **gauges(view),
        "prompt_tokens": increase(rows, "prompt_tokens_total"),
        "generated_tokens": increase(rows, "generation_tokens_total"),
        "preemptions_per_request_at_most": share,
        "kv_limited_seconds": waited,
        "full_seconds": regime_seconds(view, MINUTE, Regime.FULL, Regime.KV_LIMITED),
        "window_seconds": MINUTE,
        "threshold_seconds": need,
        "threshold_preemptions_per_request_at_most": enough,
        "detail": "the log does not count preemptions: told by the speeds of prompts and outputs",
    }
    full = view.limits["regime.full_usage"]
    if _starved(view):
        return judge_if(recently(view, lambda row: (row.usage or 0.0) >= full and not row.waiting), evidence)
    still = recently(view, lambda row: row.regime == Regime.KV_LIMITED)
    if waited <= need or share is None or share < enough or not still:
        return unknown(reason)
    return judge_if(True, evidence)


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
            Threshold(
                "kv_thrashing.outgrown",
                1,
                "ratio",
                "Or, from a log that counts no preemptions: tokens generated per prompt token while requests wait for"
                " the cache.",
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
)
