"""Symptoms of an engine that does not do what its gauges say: its progress, its gauges."""

from __future__ import annotations

from kvwatch.core.history.regimes import Regime
from kvwatch.core.history.window import increase
from kvwatch.core.judgement.symptoms.evidence_tools import gauges, judge_if, missing_signals, unknown
from kvwatch.core.judgement.symptoms.row import Action, EngineView, Judgement, Scope, Severity, Symptom
from kvwatch.core.judgement.thresholds import Threshold
from kvwatch.core.model.signals import CORE


def _engine_stalled(view: EngineView) -> Judgement:
    if reason := missing_signals(view, "requests_running", "requests_waiting"):
        return unknown(reason)
    if "last_progress_age_seconds" in view.derived.unknown:
        return unknown(view.derived.unknown["last_progress_age_seconds"])
    stalled = view.regime is Regime.STALLED
    evidence = {
        **gauges(view),
        "last_progress_age_seconds": view.derived.get("last_progress_age_seconds"),
        "threshold_seconds": view.limits[
            "regime.cold_stalled_after" if view.snapshot.cold else "regime.stalled_after"
        ],
        "signs_of_life": _signs_of_life(view) if stalled else "none",
    }
    return judge_if(stalled, evidence)


def _signs_of_life(view: EngineView) -> str:
    """Whether the engine's loop still turns while nothing gets on: then its schedule is stuck, not its process.

    An engine that hangs or died changes nothing on its page. One whose scheduler finds nothing that it may run still
    counts what comes into its queue and, before vLLM 0.27, its look-ups of the prefix cache.
    """
    age = view.derived.get("last_progress_age_seconds") or 0.0
    rows = [row for row in view.samples(max(age - _SETTLED_S, 0.0)) if row.t >= view.now - age + _SETTLED_S]
    if len({(row.running, row.waiting) for row in rows}) > 1:
        return "its queue still changes: it schedules nothing of it"
    if increase(rows, "prefix_cache_queried_tokens_total"):
        return "it still tries to schedule: nothing of its queue fits"
    return "none"


#: Gauges may be written a moment after the last progress.
_SETTLED_S = 3.0


def _kv_usage_stuck(view: EngineView) -> Judgement:
    if reason := missing_signals(view, *CORE):
        return unknown(reason)
    usage, running, waiting = (view.snapshot.number(name) for name in CORE)
    mark = view.limits["kv_usage_stuck.usage"]
    evidence = {**gauges(view), "threshold_usage_ratio": mark}
    asleep = view.snapshot.part("engine_sleep_state", "awake") == 0.0
    age = view.derived.get("last_progress_age_seconds")
    works = (
        age is not None and age < view.limits["symptom.memory"]
    )  # its requests are elsewhere, or too quick to see
    nobody = (running == 0 and waiting == 0) or view.stale_gauges
    if view.stale_gauges:
        evidence["detail"] = "the clients of all these requests went away while the engine still worked"
    return judge_if(usage is not None and usage > mark and nobody and not asleep and not works, evidence)


ROWS: tuple[Symptom, ...] = (
    Symptom(
        id="engine_stalled",
        title="The engine is stalled while its health check may be green",
        when="regime stalled: requests in the engine, and no counter and no usage moves for 30 s"
        " (300 s before its first token)",
        severity=Severity.CRITICAL,
        scope=Scope.ENGINE,
        for_s=0,
        keep_s=60,
        judge=_engine_stalled,
        meaning="Requests are in the engine, scrapes succeed, and no counter and no usage has moved. A hung engine"
        " freezes its gauges, so nothing else tells.",
        causes=(
            "the engine process hangs or died without the API server noticing",
            "a request at the head of the queue can never be scheduled (signs_of_life in the evidence)",
        ),
        actions=(
            Action("send one short request: if it is answered, nothing hangs, and the gauges are stale"),
            Action(
                "collect before restarting: the log's last lines, py-spy dump of the engine process, nvidia-smi"
            ),
            Action("restart the server; route traffic away from it until then"),
            Action(
                "if signs_of_life says that it still schedules: a request at the head can never run. Keep"
                " --max-model-len below what the cache holds, and --max-num-batched-tokens above the longest prompt",
                "--max-model-len",
            ),
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
        title="Cache in use while nothing runs or waits",
        when="usage > {usage} for {for} with nothing running or waiting, or only requests whose clients"
        " have gone",
        severity=Severity.WARNING,
        scope=Scope.ENGINE,
        for_s=60,
        keep_s=10,
        judge=_kv_usage_stuck,
        thresholds=(Threshold("kv_usage_stuck.usage", 0.05, "ratio", "Usage above this.", high=1),),
        meaning="Blocks are held by nobody who is alive, or the gauge is frozen; routers that go by it will avoid"
        " this server.",
        causes=(
            "blocks leaked after aborted requests",
            "the gauge was not written since its requests were aborted (before vLLM 0.10.2 always so)",
            "blocks of finished requests wait to be fetched by a decode server (disaggregated prefill)",
        ),
        actions=(
            Action("send one short request: a frozen gauge goes right with the next step"),
            Action("if usage stays, restart at a quiet moment and report it"),
        ),
        origin="vllm-project/vllm #29928 (usage 0.99 for ever, the router starved the pod)",
    ),
)
