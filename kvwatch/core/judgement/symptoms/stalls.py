"""Engines whose gauges show requests but no progress, or usage but no requests."""

from __future__ import annotations

from kvwatch.core.history.regimes import Regime
from kvwatch.core.history.window import increase
from kvwatch.core.judgement.advice import levers
from kvwatch.core.judgement.advice.levers import Lever
from kvwatch.core.judgement.symptoms.row import Judgement, Runbook, Severity, Symptom
from kvwatch.core.judgement.symptoms.views import EngineView, gauges, requires
from kvwatch.core.judgement.thresholds import share
from kvwatch.core.model.signals import CORE

_SETTLED_S = 3.0
"""Gauges may be written this long after the last progress."""


@requires("requests_running", "requests_waiting")
def _engine_stalled(view: EngineView) -> Judgement:
    if "last_progress_age_seconds" in view.derived.unknown:
        return Judgement.unknown(view.derived.unknown["last_progress_age_seconds"])
    stalled = view.regime is Regime.STALLED
    after = "regime.cold_stalled_after" if view.snapshot.cold else "regime.stalled_after"
    evidence = {
        **gauges(view),
        "last_progress_age_seconds": view.derived.get("last_progress_age_seconds"),
        "threshold_seconds": view.limits[after],
        "signs_of_life": _signs_of_life(view) if stalled else "none",
    }
    return Judgement.active_if(stalled, evidence)


def _signs_of_life(view: EngineView) -> str:
    """Whether the engine's loop still runs without progress: then its schedule is stuck, not its process.

    An engine that hangs or died changes nothing on its page. One whose scheduler finds nothing to run still counts
    new requests and, before vLLM 0.27, look-ups in the prefix cache.
    """
    age = view.derived.get("last_progress_age_seconds") or 0.0
    rows = [row for row in view.samples(max(age - _SETTLED_S, 0.0)) if row.t >= view.now - age + _SETTLED_S]
    if len({(row.running, row.waiting) for row in rows}) > 1:
        return "the queue changes, but the scheduler starts no request"
    if increase(rows, "prefix_cache_queried_tokens_total"):
        return "the scheduler keeps trying, but no waiting request fits"
    return "none"


@requires(*CORE)
def _kv_usage_stuck(view: EngineView) -> Judgement:
    usage, running, waiting = (view.snapshot.number(name) for name in CORE)
    threshold = view.limits["kv_usage_stuck.usage"]
    evidence = {**gauges(view), "threshold_usage_ratio": threshold}
    asleep = view.snapshot.part("engine_sleep_state", "awake") == 0.0
    age = view.derived.get("last_progress_age_seconds")
    # Progress without requests: they are on another engine's page, or too short to be seen.
    progresses = age is not None and age < view.limits["symptom.memory"]
    empty = (running == 0 and waiting == 0) or view.stale_gauges
    if view.stale_gauges:
        evidence["detail"] = (
            "the clients of all these requests disconnected while the engine was still running them"
        )
    high = usage is not None and usage > threshold
    return Judgement.active_if(high and empty and not asleep and not progresses, evidence)


ROWS: tuple[Symptom, ...] = (
    Symptom(
        id="engine_stalled",
        title="Engine stalled: its requests make no progress",
        when="regime stalled: the engine has requests, and neither a counter nor KV cache usage changes for 30"
        " s (300 s before its first token)",
        severity=Severity.CRITICAL,
        judge=_engine_stalled,
        meaning="The engine has requests and scrapes succeed, but neither a counter nor KV cache usage changes."
        " /health may still return 200. A hung engine freezes its gauges, so no other symptom shows this.",
        causes=(
            "The engine process hangs or died, and the API server did not notice",
            "The request at the head of the queue can never be scheduled (signs_of_life in the evidence)",
        ),
        levers=(
            levers.step(
                "send_one",
                "send one short request: if it is answered, nothing hangs and the gauges are stale",
            ),
            levers.step(
                "collect",
                "collect evidence: the last lines of the log, py-spy dump of the engine process, nvidia-smi",
            ),
            Lever(id="restart", text="route traffic away and restart vLLM", restart=True),
            Lever(
                id="max_model_len",
                text="--max-model-len below what the cache holds, and --max-num-batched-tokens above the longest"
                " prompt: the scheduler still runs, so the head of the queue can never run",
                cost="longer requests are rejected with HTTP 400",
                option="--max-model-len",
                restart=True,
                when=lambda at: bool(at.evidence.get("signs_of_life")),
                condition="if signs_of_life shows that the scheduler still runs",
            ),
        ),
        runbook=Runbook(
            "Requests hang until their clients give up. Health checks may still pass, so routers keep sending"
            " requests.",
            ("progress", "running", "waiting", "usage"),
            "counters rise again: the seconds without progress stay near 0",
        ),
        explains=(
            "kv_near_full",
            "kv_exhausted",
            "kv_thrashing",
            "long_request_hogs_cache",
            "sequence_limited",
            "prefill_limited",
            "requests_deferred",
            "ttft_high",
            "engine_imbalance",
            "gpu_underused",
        ),
        origin="vllm-project/vllm #45414, #45388, #39734; real recordings of a stopped and of a dead engine",
    ),
    Symptom(
        id="kv_usage_stuck",
        title="KV cache in use without any request",
        when="KV cache usage > {usage} for {for} while nothing runs or waits, or only requests whose clients"
        " disconnected",
        severity=Severity.WARNING,
        for_s=60,
        keep_s=10,
        judge=_kv_usage_stuck,
        thresholds=(share("usage", 0.05, "Fires above this KV cache usage."),),
        meaning="Blocks are in use although no request is, or the gauge is frozen.",
        causes=(
            "Blocks leaked after aborted requests",
            "vLLM did not update the gauge after the requests were aborted (always so before vLLM 0.10.2)",
            "Blocks of finished requests wait for a decode server to fetch them (disaggregated prefill)",
        ),
        levers=(
            levers.step("send_one", "send one short request: the next step corrects a frozen gauge"),
            Lever(
                id="restart",
                text="if usage stays, restart vLLM at a quiet time and report it as a bug of vLLM",
                restart=True,
            ),
        ),
        runbook=Runbook(
            "The cache has less room than it should. Routers that balance by KV cache usage avoid this server.",
            ("usage", "running", "waiting", "progress"),
            "usage falls to 0 while nothing runs or waits",
        ),
        origin="vllm-project/vllm #29928 (usage stayed at 0.99, and the router sent the pod no requests)",
    ),
)
