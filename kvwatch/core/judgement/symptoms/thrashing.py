"""KV cache thrashing: running requests lose their blocks and are recomputed."""

from __future__ import annotations

from kvwatch.core.history.regimes import Regime
from kvwatch.core.history.window import Sample, increase
from kvwatch.core.judgement.advice import levers
from kvwatch.core.judgement.derive import MINUTE, TWO_MINUTES
from kvwatch.core.judgement.symptoms.row import Judgement, Runbook, Severity, Symptom
from kvwatch.core.judgement.symptoms.situations import suffering
from kvwatch.core.judgement.symptoms.views import EngineView, gauges, once_per_sample, requires
from kvwatch.core.judgement.thresholds import Threshold, multiple
from kvwatch.core.model.signals import CORE
from kvwatch.core.model.snapshot import FROM_LOG

_PREFILL_ONLY = 20
"""From this many prompt tokens per generated token, an engine does little but prefill."""


@once_per_sample
def preemptions(view: EngineView) -> tuple[float | None, float, float]:
    """Preemptions over two minutes, finished requests, and the number of requests to divide the preemptions by.

    The divisor is the number of finished requests, or the mean number of running ones if that is larger: at the start
    of a long queue nothing has finished yet, and a few preemptions among many running requests are no storm. A log
    does not count finished requests; they are then estimated (`_estimate_finished`).
    """
    rows = view.samples(TWO_MINUTES)
    preempted, finished = increase(rows, "preemptions_total"), increase(rows, "requests_finished_total")
    if finished is None and FROM_LOG in view.snapshot.features:
        finished = _estimate_finished(view, rows)
    if preempted is None and len(rows) == 1:
        preempted = 0.0
    running = [row.running for row in rows if row.running is not None]
    mean = sum(running) / len(running) if running else 0.0
    return preempted, finished or 0.0, max(finished or 0.0, mean, 1.0)


def _estimate_finished(view: EngineView, rows: list[Sample]) -> float | None:
    """Finished requests, estimated as computed tokens / mean footprint of a running request; None without a capacity.

    Recomputed prompts raise the estimate, so the judgement is milder.
    """
    capacity = view.derived.get("kv_cache_capacity_tokens")
    shares = [(row.usage or 0.0) / row.running for row in rows if row.running]
    mean = capacity * sum(shares) / len(shares) if capacity and shares else 0.0
    tokens = [increase(rows, name) or 0.0 for name in ("prompt_tokens_total", "generation_tokens_total")]
    return sum(tokens) / mean if mean else None


def _recomputed_tokens(view: EngineView) -> float | None:
    """A lower bound of the prompt tokens recomputed in the last two minutes; None if unknown.

    Tokens computed once are those of finished requests and those in the engine, which holds at most peak usage x
    capacity. Tokens found in a cache were not computed. A client that leaves after its first token leaves a request
    that never finishes; if first tokens outnumber finished requests, each counts as a mean prompt.
    """
    rows, capacity = view.samples(TWO_MINUTES), view.derived.get("kv_cache_capacity_tokens")
    prompts, done = increase(rows, "prompt_tokens_total"), increase(rows, "request_prompt_tokens/sum")
    if capacity is None or prompts is None or done is None:
        return None
    found = increase(rows, "prefix_cache_hit_tokens_total") or 0.0
    found += increase(rows, "external_prefix_cache_hit_tokens_total") or 0.0
    in_engine = capacity * max((row.usage for row in rows if row.usage is not None), default=0.0)
    finished = increase(rows, "request_prompt_tokens") or 0.0
    seen = view.observed("time_to_first_token_seconds", TWO_MINUTES)
    begun = seen.count * done / finished if seen is not None and finished else 0.0
    return max(prompts - found - max(done, begun) - in_engine, 0.0)


def _only_prefills(view: EngineView) -> bool:
    """Whether hardly anything is generated besides prefill, in a cache that was full for most of a minute."""
    rows = view.samples(TWO_MINUTES)
    prompts, generated = increase(rows, "prompt_tokens_total"), increase(rows, "generation_tokens_total")
    full = view.regime_seconds(MINUTE, Regime.FULL, Regime.KV_LIMITED)
    return full > MINUTE / 2 and (generated or 0.0) * _PREFILL_ONLY <= (prompts or 0.0)


@requires(*CORE)
def _kv_thrashing(view: EngineView) -> Judgement:
    if reason := view.missing("preemptions_total"):
        return _without_counter(view, reason)
    preempted, finished, requests = preemptions(view)
    limits = view.limits
    full, demand = limits["regime.full_usage"], limits["regime.demand"]
    under_pressure = view.recently(
        lambda row: (row.demand is not None and row.demand >= demand) or (row.usage or 0.0) >= full
    )
    recomputed = _recomputed_tokens(view) if _only_prefills(view) else None
    enough = limits["kv_thrashing.recomputed"] * (view.derived.get("kv_cache_capacity_tokens") or 0.0)
    evidence = {
        **gauges(view),
        "preemptions": preempted,
        "finished_requests": finished if "requests_finished_total" in view.snapshot.values else None,
        "preemptions_per_request": None if preempted is None else preempted / requests,
        "window_seconds": TWO_MINUTES,
        "threshold_preemptions": limits["kv_thrashing.preemptions"],
        "threshold_preemptions_per_request": limits["kv_thrashing.per_request"],
        "kv_cache_usage_peak_1m_ratio": view.derived.get("kv_cache_usage_peak_1m_ratio"),
    }
    if recomputed is not None:
        evidence["recomputed_prompt_tokens_at_least"] = recomputed
        evidence["threshold_recomputed_prompt_tokens_at_least"] = enough
    storm = (
        preempted is not None
        and preempted >= limits["kv_thrashing.preemptions"]
        and preempted >= limits["kv_thrashing.per_request"] * requests
    )
    recomputes = recomputed is not None and recomputed >= enough
    evidence["users_suffer"] = recomputes or suffering(view)
    severity = Severity.CRITICAL if evidence["users_suffer"] else Severity.WARNING
    return Judgement.active_if((storm or recomputes) and under_pressure, evidence, severity)


def generated_per_prompt_token(rows: list[Sample]) -> float | None:
    """Tokens generated per prompt token; None without prompts.

    While requests wait for the cache, this is about the upper bound of preemptions per finished request: vLLM admits
    a request when its prompt fits, and gives freed blocks to new prompts at once, so what running requests grow by
    is taken from one of them. In public and recorded incidents 0.25 came with 0.2 preemptions, 3 to 4 with 2.2.
    """
    prompts, generated = increase(rows, "prompt_tokens_total"), increase(rows, "generation_tokens_total")
    return generated / prompts if prompts and generated is not None else None


def _without_counter(view: EngineView, reason: str) -> Judgement:
    """Judges by the rates of prompt and output tokens, because most logs do not count preemptions.

    Requests are recomputed if prompts are computed all the time in a full cache while nothing waits and hardly
    anything is generated, or if requests wait for the cache and outputs are longer than prompts
    (`generated_per_prompt_token`).
    """
    if FROM_LOG not in view.snapshot.features:
        return Judgement.unknown(reason)
    rows, limits = view.samples(TWO_MINUTES), view.limits
    waited, growth = view.regime_seconds(MINUTE, Regime.KV_LIMITED), generated_per_prompt_token(rows)
    need, enough = limits["kv_exhausted.share"] * MINUTE, limits["kv_thrashing.outgrown"]
    evidence = {
        **gauges(view),
        "prompt_tokens": increase(rows, "prompt_tokens_total"),
        "generated_tokens": increase(rows, "generation_tokens_total"),
        "preemptions_per_request_at_most": growth,
        "kv_limited_seconds": waited,
        "full_seconds": view.regime_seconds(MINUTE, Regime.FULL, Regime.KV_LIMITED),
        "window_seconds": MINUTE,
        "threshold_seconds": need,
        "threshold_preemptions_per_request_at_most": enough,
        "detail": "estimated from prompt and output token rates, because the log does not count preemptions",
    }
    if _only_prefills(view):
        full = limits["regime.full_usage"]
        still = view.recently(lambda row: (row.usage or 0.0) >= full and not row.waiting)
        return Judgement.active_if(still, evidence)
    still = view.recently(lambda row: row.regime == Regime.KV_LIMITED)
    if waited <= need or growth is None or growth < enough or not still:
        return Judgement.unknown(reason)
    return Judgement.active_if(True, evidence)


ROWS: tuple[Symptom, ...] = (
    Symptom(
        id="kv_thrashing",
        title="KV cache thrashing",
        when="≥ {preemptions} preemptions in 2 min and ≥ {per_request} per request under cache pressure, or"
        " prompt tokens of ≥ {recomputed} × the cache recomputed in 2 min while hardly anything is generated",
        severity=Severity.CRITICAL,
        calm_severity=Severity.WARNING,
        for_s=10,
        judge=_kv_thrashing,
        thresholds=(
            multiple(
                "per_request",
                0.3,
                "Fires at or above this many preemptions per finished (or running) request in 2 min.",
            ),
            Threshold("preemptions", 3, "preemptions", "Fewer preemptions than this in 2 min are ignored."),
            Threshold(
                "recomputed",
                0.5,
                "ratio",
                "Also fires at or above this many prompt tokens recomputed in 2 min, in multiples of the"
                " cache.",
            ),
            multiple(
                "outgrown",
                1,
                "For logs: also fires at or above this many generated tokens per prompt token while requests"
                " wait for the cache.",
            ),
        ),
        meaning="The cache is too small for the running requests: they evict each other and are recomputed.",
        causes=(
            "More requests are admitted than the cache holds at their full length",
            "Outputs grow after admission: vLLM checks only that the prompt fits",
            "One of several engines gets more than its share: if engine_imbalance fires too, fix that first",
        ),
        levers=(
            levers.PLAN_CAPACITY,
            levers.WAIT_AND_WATCH,
            levers.ROUTE_BY_LOAD,
            levers.CAP_OUTPUT,
            levers.ROUTE_LONG,
            levers.SHED_LOAD,
            levers.ADD_REPLICA,
            levers.FEWER_SLOTS,
            levers.FEWER_SLOTS_UNMEASURED,
            levers.FP8_CACHE,
            levers.WATERMARK,
            levers.MORE_MEMORY,
            levers.TENSOR_PARALLEL,
        ),
        do_not=(
            levers.NOT_MORE_SLOTS,
            levers.NOT_FEWER_SLOTS_NEAR_CAPACITY,
            levers.NOT_LENGTH_LIMIT,
        ),
        runbook=Runbook(
            "Throughput falls although the GPU is busy. Outputs pause in the middle, and every latency grows.",
            ("preemptions", "demand", "usage", "lengths", "capacity", "ttft", "itl"),
            "preemptions per finished request fall to 0 at the same load, and demand stays below 1",
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
        origin="vllm-project/vllm #44594: 2.4 preemptions per request. A public incident with 0.2 per request was a"
        " queue, not a storm. vllm-project/vllm #21809: nothing waits, usage 0.97, prompts are recomputed all the"
        " time",
    ),
)
