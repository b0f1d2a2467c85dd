"""Symptoms of the server as a whole."""

from __future__ import annotations

from typing import Any

from kvwatch.core.judgement.symptoms.evidence_tools import clear, judge_if, unknown
from kvwatch.core.judgement.symptoms.row import (
    Action,
    Evidence,
    Judgement,
    Scope,
    Severity,
    Symptom,
    TargetView,
)
from kvwatch.core.judgement.thresholds import Threshold
from kvwatch.core.model import log_verdict
from kvwatch.core.model.log_verdict import LogVerdict
from kvwatch.core.model.outcome import REACHABLE, Failure
from kvwatch.core.model.signals import CORE
from kvwatch.core.model.snapshot import NOT_YET


def _engine_restarted(view: TargetView) -> Judgement:
    restart = view.restart
    shown = view.limits["engine_restarted.shown"]
    if restart is None or view.now - restart.at > shown:
        return clear()
    high = (
        restart.pressure_before is not None
        and restart.pressure_before >= view.limits["engine_restarted.pressure"]
    )
    evidence = {
        "seconds_ago": view.now - restart.at,
        "unseen_seconds": restart.unseen_s,
        "counters_that_fell": restart.counters_fell,
        "kv_cache_usage_before_ratio": restart.usage_before,
        "cache_pressure_before": restart.pressure_before,
        "requests_waiting_before": restart.waiting_before,
        "pressure_was_high": high,
        **_from_log(log_verdict.failed_run(view.log)),
    }
    return judge_if(True, evidence)


def _target_down(view: TargetView) -> Judgement:
    error = view.failure or view.last_failure
    mostly = view.failing_share >= view.limits["target_down.share"]
    if error is None or error in REACHABLE or (view.failure is None and not mostly):
        return clear()
    evidence = {
        "failure": str(error),
        "detail": view.detail,
        "failing_seconds": view.failing_for,
        "failing_share": view.failing_share,
        "threshold_seconds": view.limits["target_down.for"],
        "threshold_share": view.limits["target_down.share"],
    }
    return judge_if(True, evidence)


def _signals_missing(view: TargetView) -> Judgement:
    if view.failure is not None and view.failure not in REACHABLE:
        return unknown("the server is not scraped")
    evidence: dict[str, Any] = {"unknown_families": list(view.unknown_families)[:10]}
    if view.failure is not None:
        evidence |= {"failure": str(view.failure), "detail": view.detail}
        return judge_if(True, evidence)
    if not view.engines:
        if view.configured:
            return clear(
                detail="idle since its start: this vLLM exposes its engine's metrics with the first request"
            )
        evidence["detail"] = (
            "a vLLM answers, without any engine metric: was it started with --disable-log-stats?"
        )
        return judge_if(True, evidence)
    lacking = {
        f"{key.model_name}/{key.engine}: {name}": one.snapshot.missing[name]
        for key, one in view.engines.items()
        for name in CORE
        if name in one.snapshot.missing and not one.snapshot.missing[name].startswith(NOT_YET)
    }
    return judge_if(bool(lacking), evidence | {"missing": lacking})


def _startup_kv_failure(view: TargetView) -> Judgement:
    if view.ever_up:
        return clear()
    if view.failure is None or view.failure not in _STARTING:
        return clear(failure=str(view.failure or "none"))
    evidence = {
        "failure": str(view.failure),
        "detail": view.detail,
        "failing_seconds": view.failing_for,
        "threshold_seconds": view.limits["startup_kv_failure.for"],
        **_from_log(log_verdict.failed_start(view.log)),
    }
    return judge_if(True, evidence)


def _from_log(found: LogVerdict | None) -> Evidence:
    return found.evidence() if found is not None else {}


#: How a server fails that is starting, or failed to.
_STARTING = frozenset({Failure.REFUSED, Failure.TIMEOUT, Failure.CONNECTION, Failure.HTTP_STATUS})

ROWS: tuple[Symptom, ...] = (
    Symptom(
        id="target_down",
        title="vLLM is not answering",
        when="scrapes fail for {for}, or for {share} of about the last minute; the kind of failure is named",
        severity=Severity.CRITICAL,
        scope=Scope.TARGET,
        for_s=30,
        keep_s=0,
        judge=_target_down,
        thresholds=(
            Threshold(
                "target_down.share",
                0.8,
                "ratio",
                "Share of about the last minute, the newest weighing most, in which scrapes fail.",
                high=1,
            ),
        ),
        meaning="Scrapes fail, all or nearly all, for a while; nothing is known about the server.",
        causes=(
            "the server stopped or is still loading its model",
            "wrong address or port, or something between (network policy, TLS)",
            "its event loop is too busy to answer in time (kind: timeout)",
        ),
        actions=(
            Action("look at the server's process and the last lines of its log"),
            Action("ask /health and /metrics by hand from this host"),
        ),
        explains=(
            "engine_stalled",
            "kv_usage_stuck",
            "kv_thrashing",
            "kv_exhausted",
            "kv_near_full",
            "request_never_fits",
            "long_request_hogs_cache",
            "sequence_limited",
            "prefill_limited",
            "requests_deferred",
            "ttft_high",
            "shared_prefix_slow",
            "prefix_cache_thrash",
            "engine_imbalance",
            "requests_failing",
        ),
        origin="as Prometheus' up == 0; the kind of failure is named because the remedy differs by kind",
    ),
    Symptom(
        id="startup_kv_failure",
        title="vLLM has never come up since kvwatch began to watch",
        when="never up since kvwatch began, and refused, timed out or answered with an error for {for}",
        severity=Severity.CRITICAL,
        scope=Scope.TARGET,
        for_s=900,
        keep_s=0,
        judge=_startup_kv_failure,
        meaning="Loading a model takes minutes; this has taken longer. Until now kvwatch took it"
        " to be starting. Most servers that never come up could not make their KV cache, and the log says so.",
        causes=(
            "the weights leave too little memory for the cache",
            "--max-model-len is longer than the cache holds",
            "another process holds the GPU's memory",
            "it is still loading (a large model from slow storage), or the address is wrong",
        ),
        actions=(
            Action("find the first error in the server's log: the last one only says that the engine failed"),
            Action(
                "if it says 'to serve at least one request': lower --max-model-len to the length that the log"
                " proposes",
                "--max-model-len",
            ),
            Action(
                "if it says 'no available memory for the cache blocks': raise --gpu-memory-utilization, or have fewer"
                " weights on each GPU (a quantised or smaller model, more GPUs)",
                "--gpu-memory-utilization",
            ),
            Action(
                "if it says 'free memory is less than desired': lower --gpu-memory-utilization or free the GPU, the"
                " opposite of the case before",
                "--gpu-memory-utilization",
            ),
            Action(
                "halve the bytes per token with --kv-cache-dtype fp8, after checking support, scales and quality",
                "--kv-cache-dtype",
            ),
        ),
        explains=("target_down",),
        explains_while_pending=True,
        told=log_verdict.failed_start,
        origin="vLLM's own start-up errors; the two about memory have opposite remedies (vllm-project/vllm #2248,"
        " #10439)",
    ),
    Symptom(
        id="engine_restarted",
        title="vLLM restarted",
        when="its start time moved, or several counters fell at once; shown for {shown}",
        severity=Severity.WARNING,
        scope=Scope.TARGET,
        for_s=0,
        keep_s=0,
        judge=_engine_restarted,
        thresholds=(
            Threshold("engine_restarted.shown", 300, "seconds", "Shown for this long after it."),
            Threshold(
                "engine_restarted.pressure", 0.5, "ratio", "Score from which pressure was high.", high=1
            ),
        ),
        meaning="The server is a new process: its counters began anew, its cache is cold.",
        causes=(
            "a deployment, or someone restarted it",
            "out of memory under load, if pressure was high just before",
            "a crash: the end of the old log says",
        ),
        actions=(
            Action("read the last lines of the log before the restart"),
            Action(
                "if it ran out of GPU memory under load: lower --gpu-memory-utilization",
                "--gpu-memory-utilization",
            ),
            Action("or make its steps smaller: lower --max-num-batched-tokens", "--max-num-batched-tokens"),
        ),
        told=log_verdict.failed_run,
        origin="process_start_time_seconds moved, or several counters fell at once; out of memory under load:"
        " vllm-project/vllm #57475, #49224",
    ),
    Symptom(
        id="signals_missing",
        title="vLLM answers, but what kvwatch needs is not there",
        when="usage, running or waiting missing, or no engine on the page, for {for}",
        severity=Severity.WARNING,
        scope=Scope.TARGET,
        for_s=30,
        keep_s=0,
        judge=_signals_missing,
        meaning="Without usage, running and waiting nothing can be told about the cache; this is not 'all is well'.",
        causes=(
            "statistics are switched off",
            "a release or a relay exposes other names (see unknown_families)",
            "the address is not vLLM's /metrics",
        ),
        actions=(
            Action("remove --disable-log-stats from the server's options", "--disable-log-stats"),
            Action("tell kvwatch the spelling (KVWATCH_SPELLINGS) or a new name (KVWATCH_ALIASES)"),
            Action("behind Ray Serve: set log_engine_metrics=True in the deployment"),
        ),
        origin="vllm-project/vllm #8612, #27341; ray-project/ray #59071",
    ),
)
