"""Symptoms of requests that wait for anything but the cache: a slot, prefill, a LoRA adapter, a transfer."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from kvwatch.core.history.regimes import Regime
from kvwatch.core.history.window import rate
from kvwatch.core.judgement.derive import MINUTE
from kvwatch.core.judgement.symptoms.actions import ENABLE_PREFIX_CACHING, SHARE, SHORTER
from kvwatch.core.judgement.symptoms.evidence_tools import (
    computed_once,
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


def _waits(
    symptom: str, regime: Regime, more: Callable[[EngineView], Mapping[str, Any]]
) -> Callable[[EngineView], Judgement]:
    """A judge of more than a share of the last minute in a regime, that still lasts.

    On a large server hardly a moment is without a request that came since the last step: what waits for less than
    `queue.wait` is how requests arrive.
    """

    def judge(view: EngineView) -> Judgement:
        if reason := missing_signals(view, *CORE):
            return unknown(reason)
        waited, need = regime_seconds(view, MINUTE, regime), view.limits[f"{symptom}.share"] * MINUTE
        wait, least = _mean_wait(view), view.limits["queue.wait"]
        evidence = {
            **gauges(view),
            f"{regime}_seconds": waited,
            "window_seconds": MINUTE,
            "threshold_seconds": need,
            "estimated_wait_seconds": wait,
            "threshold_wait_seconds": least,
            **more(view),
        }
        short = wait is not None and wait < least
        return judge_if(
            waited > need and not short and recently(view, lambda row: row.regime == regime), evidence
        )

    return judge


@computed_once
def _mean_wait(view: EngineView) -> float | None:
    """How long a request waits on average, by what waited in the last minute and what finished (Little's law); None
    while nothing finishes. The histogram of vLLM tells only of requests that are done."""
    held, rows = view.held(MINUTE), view.samples(MINUTE)
    finished = rate(rows, "requests_finished_total")
    seconds = sum(seconds for _, seconds in held)
    if not finished or not seconds:
        return None
    return sum((row.waiting or 0.0) * seconds for row, seconds in held) / seconds / finished


def _share(symptom: str) -> tuple[Threshold, ...]:
    return (Threshold(f"{symptom}.share", 0.5, "ratio", "Share of 1 min in the regime.", high=1),)


def _ceiling(view: EngineView) -> Mapping[str, Any]:
    """What holds running requests down: as stated, or as seen."""
    if view.ceiling is not None:
        return {"max_num_seqs": view.ceiling, "max_num_seqs_is": "stated"}
    seen = max((row.running for row in view.samples(MINUTE) if row.running is not None), default=None)
    return {"max_num_seqs": seen, "max_num_seqs_is": "the most that ran, on a plateau"}


def _speeds(view: EngineView) -> Mapping[str, Any]:
    names = ("prompt_tokens_per_second", "generation_tokens_per_second")
    return {name: view.derived.get(name) for name in names}


def _reasons(view: EngineView) -> Mapping[str, Any]:
    """What is known of what the deferred ones wait for."""
    row = view.samples(0.0)[-1]
    hints = {"lora": "LoRA adapters are in use", "kv transfer": "KV cache is fetched from elsewhere"}
    known = [text for feature, text in hints.items() if feature in view.snapshot.features]
    fetching = view.snapshot.number("requests_kv_fetch")
    return {
        "requests_deferred": row.deferred,
        "hints": known or ["nothing on the page says which"],
        **({} if fetching is None else {"requests_fetching_kv": fetching}),
    }


#: For servers that don't tell why requests wait.
_ADAPTERS = Action(
    "count the LoRA adapters that are asked for at once: where they are more than --max-loras, it is these that"
    " requests wait for",
    "--max-loras",
    feature="lora",
)
_ADAPTERS_HOLD = (
    "LoRA with vLLM before 0.20, which does not tell it apart: all --max-loras adapters are in use"
)

ROWS: tuple[Symptom, ...] = (
    Symptom(
        id="sequence_limited",
        title="Requests wait for a slot while the cache has room",
        when="regime sequence_limited for > {share} of 1 min",
        severity=Severity.WARNING,
        scope=Scope.ENGINE,
        for_s=0,
        keep_s=60,
        judge=_waits("sequence_limited", Regime.SEQUENCE_LIMITED, _ceiling),
        thresholds=_share("sequence_limited"),
        meaning="As many requests run as --max-num-seqs allows; more would fit the cache.",
        causes=(
            "--max-num-seqs is low for this load",
            _ADAPTERS_HOLD,
        ),
        actions=(
            _ADAPTERS,
            Action(
                "raise --max-num-seqs stepwise, by half, towards requests_that_fit, and watch inter-token latency",
                "--max-num-seqs",
            ),
            Action("if inter-token latency is at its limit already, add a replica"),
        ),
        explains=("ttft_high", "gpu_underused"),
        origin="kaito-project/kaito #2216 (running stuck at 256, cache at 20 %)",
    ),
    Symptom(
        id="prefill_limited",
        title="Requests wait for prefill while slots and cache are free",
        when="regime prefill_limited for > {share} of 1 min",
        severity=Severity.WARNING,
        scope=Scope.ENGINE,
        for_s=0,
        keep_s=60,
        judge=_waits("prefill_limited", Regime.PREFILL_LIMITED, _speeds),
        thresholds=_share("prefill_limited"),
        meaning="Prompts come faster than they are computed. The cache has room and so has the batch: no alert on KV"
        " usage will ever tell.",
        causes=(
            "more prompt tokens a second than the GPU computes",
            "long prompts that share nothing, or nothing that is found again",
            "a small --max-num-batched-tokens, which feeds the prompts in small pieces",
            _ADAPTERS_HOLD,
        ),
        actions=(
            SHORTER,
            _ADAPTERS,
            SHARE,
            ENABLE_PREFIX_CACHING,
            Action(
                "try a larger --max-num-batched-tokens, if inter-token latency may rise",
                "--max-num-batched-tokens",
            ),
            Action("add a replica, or give prefill servers of its own (disaggregated prefill)"),
            Action("do not enlarge the cache for this: it has room"),
        ),
        explains=("ttft_high",),
        origin="llm-d/llm-d-autoscaling #662 (6,000 tokens in, 2 out: waiting without end at a usage of 0.32)",
    ),
    Symptom(
        id="requests_deferred",
        title="Requests are deferred: they wait for a LoRA slot, a KV transfer or a grammar",
        when="regime deferred for > {share} of 1 min",
        severity=Severity.WARNING,
        scope=Scope.ENGINE,
        for_s=0,
        keep_s=60,
        judge=_waits("requests_deferred", Regime.DEFERRED, _reasons),
        thresholds=_share("requests_deferred"),
        meaning="Most of what waits could not run even if there were slots and cache: it waits for something else.",
        causes=(
            "more LoRA adapters are asked for at once than --max-loras lets run together",
            "KV cache comes slowly from a prefill server or an offload tier",
            "grammars of structured output are being compiled",
        ),
        actions=(
            Action("see which of the three it is (hints in the evidence): adapters, transfers or grammars"),
            Action(
                "raise --max-loras to the adapters that are asked for at once, if the GPU memory allows, or send each"
                " adapter to a server of its own",
                "--max-loras",
                feature="lora",
            ),
            Action(
                "look at the transfers: bandwidth, the prefill servers, errors of the connector in the log",
                feature="kv transfer",
            ),
            Action("for structured output: use a few grammars again and again: each is compiled once"),
            Action("do not enlarge the cache for this: it is not what they wait for"),
        ),
        explains=("ttft_high", "gpu_underused"),
        origin="vLLM's own split of waiting requests (vllm-project/vllm #38435); a recording with --max-loras 1",
    ),
)
