"""The GPU under a server."""

from __future__ import annotations

from typing import Any

from kvwatch.core.history.integrals import RUNNING, WAITING
from kvwatch.core.judgement.advice import levers
from kvwatch.core.judgement.derive import FIVE_MINUTES
from kvwatch.core.judgement.symptoms.row import Judgement, Runbook, Scope, Severity, Symptom
from kvwatch.core.judgement.symptoms.views import TargetView, engines_missing
from kvwatch.core.judgement.thresholds import share
from kvwatch.core.model.gpu import UnknownActivity
from kvwatch.core.model.signals import CORE


def _gpu_underused(view: TargetView) -> Judgement:
    if not view.engines:
        return Judgement.unknown("no engine is scraped")
    if reason := engines_missing(view.engines, *CORE):
        return Judgement.unknown(reason)
    window, engines = FIVE_MINUTES, view.engines.values()
    low_usage, low_activity = view.limits["gpu_underused.usage"], view.limits["gpu_underused.active"]
    traffic = view.limits["gpu_underused.traffic"] * window
    busy = max(engine.seconds_by(window)[RUNNING] for engine in engines)
    usage = max(engine.mean_usage(window) for engine in engines)
    evidence: dict[str, Any] = {
        "kv_cache_usage_mean_ratio": usage,
        "running_seconds": busy,
        "waiting_seconds": max(engine.seconds_by(window)[WAITING] for engine in engines),
        "window_seconds": window,
        "threshold_usage_ratio": low_usage,
        "threshold_active_ratio": low_activity,
        "threshold_running_seconds": traffic,
    }
    if busy < traffic or usage >= low_usage:
        return Judgement.clear(**evidence)
    active = view.gpu.activity(view.now, window)
    if isinstance(active, UnknownActivity):
        return Judgement.unknown(active.reason, evidence)
    evidence |= {
        "gpu_active_ratio": active.mean,
        "busiest_gpu_active_ratio": active.highest,
        "gpu_active_is": "an upper bound (GPU utilization)"
        if active.upper_bound
        else "measured (SM and DRAM activity)",
    }
    if active.upper_bound and active.mean >= low_activity:
        return Judgement.unknown(
            "high GPU utilization proves nothing by itself: let the DCGM exporter collect"
            " DCGM_FI_PROF_SM_ACTIVE",
            evidence,
        )
    return Judgement.active_if(active.mean < low_activity, evidence)


ROWS: tuple[Symptom, ...] = (
    Symptom(
        id="gpu_underused",
        title="GPU underused while requests run",
        when="requests run for ≥ {traffic} of 5 min, mean KV cache usage < {usage} and mean GPU activity <"
        " {active}",
        severity=Severity.INFO,
        scope=Scope.TARGET,
        keep_s=300,
        judge=_gpu_underused,
        thresholds=(
            share("usage", 0.3, "Fires below this mean KV cache usage over 5 min."),
            share("active", 0.4, "Fires below this mean GPU activity over 5 min."),
            share("traffic", 0.8, "Fires only if requests run for at least this share of 5 min."),
        ),
        meaning="Cache and GPU stay far below their limits under continuous traffic, because the batch is"
        " small.",
        causes=(
            "Too few requests at once for this GPU",
            "A low --max-num-seqs or --max-num-batched-tokens, if requests wait (waiting_seconds)",
            "Time between steps: tokenizing, images, grammars, a slow CPU",
        ),
        levers=(
            levers.step(
                "send_more",
                "send more load, or serve this load from fewer replicas",
                when=lambda at: not at.waiting,
                condition="if no request waits",
            ),
            levers.MORE_SLOTS,
            levers.MORE_BATCHED_TOKENS,
        ),
        runbook=Runbook(
            "None for users. Paid hardware stays unused.",
            ("gpu", "usage", "running", "waiting"),
            "the GPU is busier at the same or a higher load, or fewer replicas serve the same load",
        ),
        origin="the tuning advice of vLLM's documentation; SM_ACTIVE and DRAM_ACTIVE as activity because utilization"
        " is 100 % for any kernel (NVIDIA/DCGM #80)",
    ),
)
