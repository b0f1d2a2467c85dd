"""The server as a whole: down, never up, restarted, without the needed metrics."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from kvwatch.core.judgement.advice import levers
from kvwatch.core.judgement.advice.levers import Lever
from kvwatch.core.judgement.advice.situation import Situation
from kvwatch.core.judgement.symptoms.row import Evidence, Judgement, Runbook, Scope, Severity, Symptom
from kvwatch.core.judgement.symptoms.views import TargetView
from kvwatch.core.judgement.thresholds import seconds, share
from kvwatch.core.model import log_verdict
from kvwatch.core.model.log_verdict import LogVerdict
from kvwatch.core.model.outcome import REACHABLE, Failure
from kvwatch.core.model.signals import CORE
from kvwatch.core.model.snapshot import NOT_YET

_STARTING = frozenset({Failure.REFUSED, Failure.TIMEOUT, Failure.CONNECTION, Failure.HTTP_STATUS})
"""How scrapes of a server fail that is starting or did not start."""


def _engine_restarted(view: TargetView) -> Judgement:
    restart, limits = view.restart, view.limits
    if restart is None or view.now - restart.at > limits["engine_restarted.shown"]:
        return Judgement.clear()
    pressure = restart.pressure_before
    evidence = {
        "seconds_ago": view.now - restart.at,
        "unseen_seconds": restart.unseen_s,
        "counters_that_fell": restart.counters_fell,
        "kv_cache_usage_before_ratio": restart.usage_before,
        "cache_pressure_before": pressure,
        "requests_waiting_before": restart.waiting_before,
        "pressure_was_high": pressure is not None and pressure >= limits["engine_restarted.pressure"],
        **_log_evidence(log_verdict.failed_run(view.log)),
    }
    return Judgement.active_if(True, evidence)


def _target_down(view: TargetView) -> Judgement:
    error = view.failure or view.last_failure
    mostly = view.failing_share >= view.limits["target_down.share"]
    if error is None or error in REACHABLE or (view.failure is None and not mostly):
        return Judgement.clear()
    evidence = {
        "failure": str(error),
        "detail": view.detail,
        "failing_seconds": view.failing_for,
        "failing_share": view.failing_share,
        "threshold_seconds": view.limits["target_down.for"],
        "threshold_share": view.limits["target_down.share"],
    }
    if not view.ever_up and error is Failure.REFUSED and view.failing_for < _may_load_for(view):
        return Judgement.clear(**evidence)
    return Judgement.active_if(True, evidence)


def _may_load_for(view: TargetView) -> float:
    """Seconds for which a server that was never up may be loading its model; as long as a start may take if its log
    shows one that has not failed."""
    loading = view.log is not None and not view.log.failed
    return view.limits["startup_kv_failure.for"] if loading else view.limits["target_down.never_up"]


def _signals_missing(view: TargetView) -> Judgement:
    if view.failure is not None and view.failure not in REACHABLE:
        return Judgement.unknown("the server is not scraped")
    evidence: dict[str, Any] = {"unknown_families": list(view.unknown_families)[:10]}
    if view.failure is not None:
        return Judgement.active_if(True, evidence | {"failure": str(view.failure), "detail": view.detail})
    if not view.engines and view.configured:
        detail = "idle since its start: this vLLM exposes engine metrics only after the first request"
        return Judgement.clear(detail=detail)
    if not view.engines:
        detail = "vLLM answers without engine metrics: was it started with --disable-log-stats?"
        return Judgement.active_if(True, evidence | {"detail": detail})
    missing = {
        f"{key.model_name}/{key.engine}: {name}": engine.snapshot.missing[name]
        for key, engine in view.engines.items()
        for name in CORE
        if name in engine.snapshot.missing and not engine.snapshot.missing[name].startswith(NOT_YET)
    }
    return Judgement.active_if(bool(missing), evidence | {"missing": missing})


def _startup_kv_failure(view: TargetView) -> Judgement:
    if view.ever_up:
        return Judgement.clear()
    if view.failure is None or view.failure not in _STARTING:
        return Judgement.clear(failure=str(view.failure or "none"))
    evidence = {
        "failure": str(view.failure),
        "detail": view.detail,
        "failing_seconds": view.failing_for,
        "threshold_seconds": view.limits["startup_kv_failure.for"],
        **_log_evidence(log_verdict.failed_start(view.log)),
    }
    return Judgement.active_if(True, evidence)


def _log_evidence(found: LogVerdict | None) -> Evidence:
    return found.evidence() if found is not None else {}


def _failure_is(*kinds: Failure) -> Callable[[Situation], bool]:
    return lambda at: at.evidence.get("failure") in set(map(str, kinds))


_DOWN_STEPS = tuple(
    levers.step(
        id_,
        text,
        when=_failure_is(*kinds),
        condition=" or ".join(str(one).replace("_", " ") for one in kinds),
    )
    for id_, text, kinds in (
        (
            "check_process",
            "check the server's process and the last lines of its log: nothing listens on the port",
            (Failure.REFUSED,),
        ),
        (
            "check_load",
            "check the server's processor load and its log: the API process hangs, or is too busy to answer",
            (Failure.TIMEOUT, Failure.CONNECTION),
        ),
        (
            "check_dns",
            "check the host name in the target's URL and the name server of this host",
            (Failure.DNS,),
        ),
        (
            "check_tls",
            "check the certificate (issuer, name, dates) and the setting ca_file of the target",
            (Failure.TLS,),
        ),
        (
            "check_url",
            "check the target's URL, token and proxy: something answers, but not vLLM's /metrics",
            (Failure.HTTP_STATUS, Failure.MALFORMED, Failure.TOO_LARGE),
        ),
    )
)
"""The first step by kind of failure."""

ROWS: tuple[Symptom, ...] = (
    Symptom(
        id="target_down",
        title="vLLM is down",
        when="scrapes fail for {for}, or for {share} of about the last minute",
        severity=Severity.CRITICAL,
        scope=Scope.TARGET,
        for_s=30,
        keep_s=0,
        judge=_target_down,
        thresholds=(
            share(
                "share",
                0.8,
                "Also fires if at least this share of the scrapes in about 1 min failed; the newest count"
                " most.",
            ),
            seconds(
                "never_up",
                150,
                "A server that refuses connections since kvwatch started may be loading its model for this long.",
            ),
        ),
        meaning="All or nearly all scrapes fail, so kvwatch knows nothing about the server. The evidence names"
        " the failure.",
        causes=(
            "The server stopped or is still loading its model",
            "The address or port is wrong, or something in between blocks it (network policy, TLS)",
            "vLLM's event loop is too busy to answer in time (failure: timeout)",
        ),
        levers=(
            *_DOWN_STEPS,
            levers.step("request_by_hand", "request /health and /metrics by hand from this host"),
        ),
        runbook=Runbook(
            "The server most likely answers no request. If only its metrics are unreachable, users notice nothing,"
            " but nothing watches the server.",
            ("up", "outcomes", "restarts"),
            "the newest scrapes succeed",
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
        origin="as Prometheus' up == 0; the evidence names the kind of failure, because each kind has its own"
        " fix",
    ),
    Symptom(
        id="startup_kv_failure",
        title="vLLM has not come up since kvwatch started",
        when="never up since kvwatch started, and connections refused, timed out or answered with an error for {for}",
        severity=Severity.CRITICAL,
        scope=Scope.TARGET,
        for_s=900,
        keep_s=0,
        judge=_startup_kv_failure,
        meaning="Loading a model takes minutes; this has taken longer. Until now kvwatch assumed that vLLM was"
        " starting. Most servers that never come up can't create their KV cache. Their log shows the reason.",
        causes=(
            "The weights leave too little memory for the cache",
            "--max-model-len is longer than the cache holds",
            "Another process holds the GPU's memory",
            "vLLM is still loading a large model from slow storage, or the address is wrong",
        ),
        levers=(
            levers.step(
                "find_first_error",
                "find the first error in the server's log; the last one only says that the engine failed",
            ),
            levers.step("explain", "run `kvwatch explain LOG`: it names the cause and the option to change"),
            Lever(
                id="max_model_len",
                text="if it says 'to serve at least one request': lower --max-model-len to the length in the log",
                cost="longer requests are rejected with HTTP 400",
                option="--max-model-len",
                restart=True,
            ),
            Lever(
                id="gpu_memory_utilization",
                text="if it says 'no available memory for the cache blocks': raise --gpu-memory-utilization, or put"
                " fewer weights on each GPU (a quantized or smaller model, more GPUs)",
                cost="too high fails at start-up or under load with CUDA OOM",
                option="--gpu-memory-utilization",
                restart=True,
            ),
            Lever(
                id="lower_gpu_memory_utilization",
                text="if it says 'free memory is less than desired': lower --gpu-memory-utilization, or free the GPU",
                option="--gpu-memory-utilization",
                restart=True,
            ),
        ),
        runbook=Runbook(
            "The server serves no request until it is up, so capacity is missing.",
            ("up", "outcomes"),
            "the first scrape succeeds",
        ),
        explains=("target_down",),
        log_cause=log_verdict.failed_start,
        origin="vLLM's own start-up errors; the two about memory have opposite remedies (vllm-project/vllm #2248,"
        " #10439)",
    ),
    Symptom(
        id="engine_restarted",
        title="vLLM restarted",
        when="its start time changed, or several counters fell at once; fires for {shown}",
        severity=Severity.WARNING,
        scope=Scope.TARGET,
        keep_s=0,
        judge=_engine_restarted,
        thresholds=(
            seconds("shown", 300, "Fires for this long after the restart."),
            share("pressure", 0.5, "Pressure before the restart counts as high at or above this score."),
        ),
        meaning="The server is a new process: its counters start at 0, and its prefix cache is empty.",
        causes=(
            "A rollout, or a manual restart",
            "Out of memory under load, if cache pressure was high just before",
            "A crash: see the end of the old log",
        ),
        levers=(
            levers.step("read_log", "read the last lines of the log before the restart"),
            Lever(
                id="lower_gpu_memory_utilization",
                text="lower --gpu-memory-utilization, if it ran out of GPU memory under load",
                cost="a smaller cache",
                option="--gpu-memory-utilization",
                restart=True,
            ),
            Lever(
                id="max_num_batched_tokens",
                text="or lower --max-num-batched-tokens: smaller steps need less memory",
                cost="slower prefill",
                option="--max-num-batched-tokens",
                restart=True,
            ),
        ),
        runbook=Runbook(
            "Requests in the server were aborted, unless vLLM drained them first (--shutdown-timeout). The next"
            " requests find an empty prefix cache.",
            ("restarts", "started", "pressure"),
            "the start time does not change again",
        ),
        log_cause=log_verdict.failed_run,
        origin="process_start_time_seconds changed, or several counters fell at once; out of memory under load:"
        " vllm-project/vllm #57475, #49224",
    ),
    Symptom(
        id="signals_missing",
        title="vLLM answers without the metrics that kvwatch needs",
        when="usage, running or waiting missing, or no engine on the page, for {for}",
        severity=Severity.WARNING,
        scope=Scope.TARGET,
        for_s=30,
        keep_s=0,
        judge=_signals_missing,
        meaning="Without KV cache usage, running and waiting requests, kvwatch can't judge the cache. No"
        " finding does not mean that nothing is wrong.",
        causes=(
            "vLLM's statistics are off",
            "A release or a relay exposes other names (see unknown_families)",
            "The address is not vLLM's /metrics",
        ),
        levers=(
            levers.step(
                "set_spelling",
                "give kvwatch the other spelling (KVWATCH_SPELLINGS) or name (KVWATCH_ALIASES)",
            ),
            levers.step("ray", "behind Ray Serve: set log_engine_metrics=True in the deployment"),
            Lever(
                id="log_stats",
                text="remove --disable-log-stats from the options of vLLM",
                option="--disable-log-stats",
                restart=True,
            ),
        ),
        runbook=Runbook(
            "Users notice nothing. No other alert about this server's cache can fire.",
            ("missing", "strange", "config"),
            "no core signal is missing",
        ),
        origin="vllm-project/vllm #8612, #27341; ray-project/ray #59071",
    ),
)
