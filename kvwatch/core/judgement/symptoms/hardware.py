"""Symptoms of the hardware under a server."""

from __future__ import annotations

from typing import Any

from kvwatch.core.history.integrals import RUNNING, WAITING
from kvwatch.core.judgement.derive import FIVE_MINUTES
from kvwatch.core.judgement.symptoms.evidence_tools import clear, engines_lack, judge_if, mean_usage, unknown
from kvwatch.core.judgement.symptoms.row import (
    Action,
    Judgement,
    Scope,
    Severity,
    Symptom,
    TargetView,
    Verdict,
)
from kvwatch.core.judgement.thresholds import Threshold
from kvwatch.core.model.gpu import UnknownActivity
from kvwatch.core.model.signals import CORE


def _gpu_underused(view: TargetView) -> Judgement:
    if not view.engines:
        return unknown("no engine is scraped")
    if reason := engines_lack(view.engines, *CORE):
        return unknown(reason)
    limits = view.limits
    window = FIVE_MINUTES
    engines = view.engines.values()
    busy = max(engine.spent(window)[RUNNING] for engine in engines)
    usage = max(mean_usage(engine, window) for engine in engines)
    waited = max(engine.spent(window)[WAITING] for engine in engines)
    evidence: dict[str, Any] = {
        "kv_cache_usage_mean_ratio": usage,
        "running_seconds": busy,
        "waiting_seconds": waited,
        "window_seconds": window,
        "threshold_usage_ratio": limits["gpu_underused.usage"],
        "threshold_active_ratio": limits["gpu_underused.active"],
        "threshold_running_seconds": limits["gpu_underused.traffic"] * window,
    }
    if busy < limits["gpu_underused.traffic"] * window or usage >= limits["gpu_underused.usage"]:
        return clear(**evidence)
    active = view.gpu.activity(view.now, window)
    if isinstance(active, UnknownActivity):
        return Judgement(Verdict.UNKNOWN, evidence, active.reason)
    evidence |= {
        "gpu_active_ratio": active.mean,
        "busiest_gpu_active_ratio": active.highest,
        "gpu_active_is": "at most that (utilisation)"
        if active.upper_bound
        else "measured (SM and DRAM activity)",
    }
    if active.upper_bound and active.mean >= limits["gpu_underused.active"]:
        return Judgement(
            Verdict.UNKNOWN,
            evidence,
            "GPU utilisation alone proves nothing when it is high: have the DCGM exporter collect"
            " DCGM_FI_PROF_SM_ACTIVE",
        )
    return judge_if(active.mean < limits["gpu_underused.active"], evidence)


ROWS: tuple[Symptom, ...] = (
    Symptom(
        id="gpu_underused",
        title="The GPU has little to do while requests run",
        when="over 5 min of traffic KV usage < {usage} and GPU activity < {active}",
        severity=Severity.INFO,
        scope=Scope.TARGET,
        for_s=0,
        keep_s=300,
        judge=_gpu_underused,
        thresholds=(
            Threshold("gpu_underused.usage", 0.3, "ratio", "Mean KV usage over 5 min, below.", high=1),
            Threshold("gpu_underused.active", 0.4, "ratio", "Mean GPU activity over 5 min, below.", high=1),
            Threshold(
                "gpu_underused.traffic",
                0.8,
                "ratio",
                "Share of 5 min in which something runs, at least.",
                high=1,
            ),
        ),
        meaning="Both cache and GPU have room over minutes of traffic: the batch is small. Nothing is wrong for"
        " users; it is paid for and not used.",
        causes=(
            "too few requests at once for this GPU",
            "a low --max-num-seqs or --max-num-batched-tokens, if requests wait (waiting_seconds)",
            "time between the steps: tokenising, images, grammars, a slow processor",
        ),
        actions=(
            Action(
                "if requests wait: raise --max-num-seqs stepwise, and watch inter-token latency",
                "--max-num-seqs",
            ),
            Action("if long prompts wait: raise --max-num-batched-tokens", "--max-num-batched-tokens"),
            Action("if none waits: send it more, or serve the same from fewer replicas"),
        ),
        origin="the tuning advice of vLLM's documentation; activity by SM_ACTIVE and DRAM_ACTIVE because"
        " utilisation is 100 % for any kernel (NVIDIA/DCGM #80)",
    ),
)
