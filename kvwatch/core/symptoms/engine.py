"""Symptoms of the engine that serves from the cache: its slots, its progress, its gauges."""

from __future__ import annotations

from kvwatch.core.derive import MINUTE
from kvwatch.core.regimes import Regime
from kvwatch.core.signals import CORE
from kvwatch.core.symptoms.model import Action, EngineView, Judgement, Scope, Severity, Symptom
from kvwatch.core.symptoms.tools import gauges, judged, lacks, lately, regime_seconds, unknown
from kvwatch.core.thresholds import Threshold


def _sequence_limited(view: EngineView) -> Judgement:
    if reason := lacks(view, *CORE):
        return unknown(reason)
    waited = regime_seconds(view, MINUTE, Regime.SEQUENCE_LIMITED)
    need = view.limits["sequence_limited.share"] * MINUTE
    evidence = gauges(view) | {
        "sequence_limited_seconds": waited,
        "window_seconds": MINUTE,
        "threshold_seconds": need,
    }
    return judged(waited > need and lately(view, lambda row: row.regime == Regime.SEQUENCE_LIMITED), evidence)


def _engine_stalled(view: EngineView) -> Judgement:
    if reason := lacks(view, "requests_running", "requests_waiting"):
        return unknown(reason)
    if "last_progress_age_seconds" in view.derived.unknown:
        return unknown(view.derived.unknown["last_progress_age_seconds"])
    evidence = gauges(view) | {
        "last_progress_age_seconds": view.derived.get("last_progress_age_seconds"),
        "threshold_seconds": view.limits["regime.stalled_after"],
    }
    return judged(view.regime is Regime.STALLED, evidence)


def _kv_usage_stuck(view: EngineView) -> Judgement:
    if reason := lacks(view, *CORE):
        return unknown(reason)
    usage, running, waiting = (view.snapshot.number(name) for name in CORE)
    mark = view.limits["kv_usage_stuck.usage"]
    evidence = gauges(view) | {"threshold_usage_ratio": mark}
    asleep = view.snapshot.part("engine_sleep_state", "awake") == 0.0
    age = view.derived.get("last_progress_age_seconds")
    works = (
        age is not None and age < view.limits["symptom.memory"]
    )  # its requests are elsewhere, or too quick to see
    stuck = usage is not None and usage > mark and running == 0 and waiting == 0 and not asleep and not works
    return judged(stuck, evidence)


ROWS: tuple[Symptom, ...] = (
    Symptom(
        id="engine_stalled",
        title="The engine is stalled while its health check may be green",
        severity=Severity.CRITICAL,
        scope=Scope.ENGINE,
        for_s=0,
        keep_s=60,
        judge=_engine_stalled,
        meaning="Requests are in the engine, scrapes succeed, and no counter and no usage has moved. A hung engine"
        " freezes its gauges, so nothing else tells.",
        causes=(
            "the engine process hangs or died without the API server noticing",
            "a request at the head of the queue can never be scheduled",
            "before vLLM 0.10: the clients of the last requests went away, and the gauges kept their last values",
        ),
        actions=(
            Action("send one short request: if it is answered, the gauges are stale and nothing hangs"),
            Action(
                "collect before restarting: the log's last lines, py-spy dump of the engine process, nvidia-smi"
            ),
            Action("restart the server; route traffic away from it until then"),
        ),
        explains=("kv_near_full", "kv_exhausted", "kv_thrashing", "sequence_limited", "kv_usage_stuck"),
        origin="vllm-project/vllm #45414, #45388, #39734; real recordings of a stopped and of a dead engine",
    ),
    Symptom(
        id="sequence_limited",
        title="Requests wait for a slot while the cache has room",
        severity=Severity.WARNING,
        scope=Scope.ENGINE,
        for_s=0,
        keep_s=60,
        judge=_sequence_limited,
        thresholds=(
            Threshold("sequence_limited.share", 0.5, "ratio", "Share of 1 min in the regime.", high=1),
        ),
        meaning="As many requests run as --max-num-seqs allows; more would fit the cache.",
        causes=(
            "--max-num-seqs is low for this load",
            "LoRA before vLLM 0.20 (which does not tell why requests wait): --max-loras adapters are in use",
        ),
        actions=(
            Action(
                "raise --max-num-seqs stepwise, by half, towards requests_that_fit, and watch inter-token latency",
                "--max-num-seqs",
            ),
            Action("if inter-token latency is at its limit already, add a replica"),
        ),
        origin="kaito-project/kaito #2216 (running stuck at 256, cache at 20 %)",
    ),
    Symptom(
        id="kv_usage_stuck",
        title="Cache in use while nothing runs or waits",
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
            "the gauge was not written since a mass abort",
            "blocks of finished requests wait to be fetched by a decode server (disaggregated prefill)",
        ),
        actions=(
            Action("send one short request: a frozen gauge goes right with the next step"),
            Action("if usage stays, restart at a quiet moment and report it"),
        ),
        origin="vllm-project/vllm #29928 (usage 0.99 for ever, the router starved the pod)",
    ),
)
