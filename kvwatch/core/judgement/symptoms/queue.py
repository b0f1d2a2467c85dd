"""Requests that wait for something other than the cache: a batch slot, prefill, a LoRA adapter, a transfer."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from kvwatch.core.history.regimes import Regime
from kvwatch.core.history.window import rate
from kvwatch.core.judgement.advice import levers
from kvwatch.core.judgement.advice.levers import Lever
from kvwatch.core.judgement.derive import MINUTE
from kvwatch.core.judgement.symptoms.row import Judgement, Runbook, Severity, Symptom
from kvwatch.core.judgement.symptoms.views import EngineView, gauges, once_per_sample, requires
from kvwatch.core.judgement.thresholds import share
from kvwatch.core.model.signals import CORE


def _waits(
    symptom: str, regime: Regime, more: Callable[[EngineView], Mapping[str, Any]]
) -> Callable[[EngineView], Judgement]:
    """A judge that fires after more than a share of the last minute in a regime that still lasts.

    On a large server hardly a moment is without a request that came since the last step. A mean wait below
    `queue.wait` is therefore no symptom.
    """

    @requires(*CORE)
    def judge(view: EngineView) -> Judgement:
        waited, need = view.regime_seconds(MINUTE, regime), view.limits[f"{symptom}.share"] * MINUTE
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
        still = view.recently(lambda row: row.regime == regime)
        return Judgement.active_if(waited > need and not short and still, evidence)

    return judge


@once_per_sample
def _mean_wait(view: EngineView) -> float | None:
    """Mean wait of a request by Little's law: mean queue of the last minute / finished per second.

    None while nothing finishes. vLLM's own histogram covers only requests that have finished.
    """
    rows = view.weighted_samples(MINUTE)
    finished = rate(view.samples(MINUTE), "requests_finished_total")
    total = sum(seconds for _, seconds in rows)
    if not finished or not total:
        return None
    return sum((row.waiting or 0.0) * seconds for row, seconds in rows) / total / finished


def _slots(view: EngineView) -> Mapping[str, Any]:
    """The limit of running requests: as stated, or as inferred."""
    if view.ceiling is not None:
        return {"max_num_seqs": view.ceiling, "max_num_seqs_is": "stated"}
    seen = max((row.running for row in view.samples(MINUTE) if row.running is not None), default=None)
    return {"max_num_seqs": seen, "max_num_seqs_is": "inferred from a plateau of running requests"}


def _token_rates(view: EngineView) -> Mapping[str, Any]:
    names = ("prompt_tokens_per_second", "generation_tokens_per_second")
    return {name: view.derived.get(name) for name in names}


def _deferral_hints(view: EngineView) -> Mapping[str, Any]:
    """What is known about the reason for which requests are deferred."""
    texts = {
        "lora": "LoRA adapters are in use",
        "kv transfer": "KV cache is fetched from another server or tier",
    }
    hints = [text for feature, text in texts.items() if feature in view.snapshot.features]
    fetching = view.snapshot.number("requests_kv_fetch")
    return {
        "requests_deferred": view.samples(0.0)[-1].deferred,
        "hints": hints or ["unknown: the metrics do not show which of the three it is"],
        **({} if fetching is None else {"requests_fetching_kv": fetching}),
    }


_COUNT_ADAPTERS = Lever(
    id="count_adapters",
    text="count the LoRA adapters requested at once: above --max-loras, requests wait for an adapter slot",
    feature="lora",
)
"""For servers that do not expose why requests wait."""
_ADAPTERS_IN_USE = (
    "LoRA on vLLM before 0.20: all --max-loras adapter slots are taken, which these releases do not report"
    " separately"
)

ROWS: tuple[Symptom, ...] = (
    Symptom(
        id="sequence_limited",
        title="Requests wait for batch slots",
        when="regime sequence_limited for > {share} of 1 min",
        severity=Severity.WARNING,
        judge=_waits("sequence_limited", Regime.SEQUENCE_LIMITED, _slots),
        thresholds=(share("share", 0.5, "Fires above this share of 1 min in this regime."),),
        meaning="As many requests run as --max-num-seqs (or --max-num-active-seqs) allows. The cache has room"
        " for more.",
        causes=("--max-num-seqs (or --max-num-active-seqs) is too low for this load", _ADAPTERS_IN_USE),
        levers=(
            _COUNT_ADAPTERS,
            levers.ADD_REPLICA,
            levers.MORE_SLOTS,
        ),
        do_not=(levers.NOT_CACHE,),
        runbook=Runbook(
            "First tokens are late although the cache has room.",
            ("regimes", "running", "waiting", "demand", "usage", "itl"),
            "more requests run than before, the queue is empty, and inter-token latency is still acceptable",
        ),
        explains=("ttft_high", "gpu_underused"),
        origin="kaito-project/kaito #2216 (running stuck at 256, cache at 20 %)",
    ),
    Symptom(
        id="prefill_limited",
        title="Requests wait for prefill",
        when="regime prefill_limited for > {share} of 1 min",
        severity=Severity.WARNING,
        judge=_waits("prefill_limited", Regime.PREFILL_LIMITED, _token_rates),
        thresholds=(share("share", 0.5, "Fires above this share of 1 min in this regime."),),
        meaning="Prompts arrive faster than the GPU computes them. Cache and batch have room, so an alert on KV"
        " cache usage does not fire.",
        causes=(
            "More prompt tokens per second than the GPU computes",
            "Long prompts that share no prefix, or whose prefix is no longer cached",
            "A small --max-num-batched-tokens, which splits prompts into small chunks",
            _ADAPTERS_IN_USE,
        ),
        levers=(
            levers.FIXED_TEXT_FIRST,
            levers.SHORTEN_PROMPTS,
            _COUNT_ADAPTERS,
            levers.ADD_REPLICA,
            levers.ENABLE_PREFIX_CACHING,
            levers.MORE_BATCHED_TOKENS,
        ),
        do_not=(levers.NOT_CACHE,),
        runbook=Runbook(
            "First tokens are late. Running requests may continue at normal speed.",
            ("regimes", "waiting", "prefill", "queue", "prompts", "hits", "usage"),
            "at the same load, no time is spent in regime prefill_limited",
        ),
        explains=("ttft_high",),
        origin="llm-d/llm-d-autoscaling #662 (prompts of 6,000 tokens, outputs of 2: the queue grows at a usage"
        " of 32 %)",
    ),
    Symptom(
        id="requests_deferred",
        title="Requests wait for a LoRA slot, KV transfer or grammar",
        when="regime deferred for > {share} of 1 min",
        severity=Severity.WARNING,
        judge=_waits("requests_deferred", Regime.DEFERRED, _deferral_hints),
        thresholds=(share("share", 0.5, "Fires above this share of 1 min in this regime."),),
        meaning="Most waiting requests can't run yet, even if slots and cache are free.",
        causes=(
            "More LoRA adapters are requested at once than --max-loras allows",
            "KV cache arrives slowly from a prefill server or an offload tier",
            "Grammars of structured output are being compiled",
        ),
        levers=(
            levers.step(
                "find_reason",
                "find out which of the three it is (hints in the evidence): adapters, transfers or grammars",
            ),
            Lever(
                id="check_transfers",
                text="check the KV transfers: bandwidth, the prefill servers, errors of the connector in the log",
                feature="kv transfer",
            ),
            levers.step(
                "reuse_grammars", "for structured output, reuse a few grammars: each is compiled only once"
            ),
            Lever(
                id="max_loras",
                text="raise --max-loras to the number of adapters requested at once",
                cost="adapter slots take GPU memory from the cache",
                option="--max-loras",
                restart=True,
                feature="lora",
            ),
        ),
        do_not=(levers.NOT_CACHE,),
        runbook=Runbook(
            "Some requests, mostly those with one adapter, grammar or connector, wait much longer than others.",
            ("reasons", "waiting", "running", "usage"),
            "hardly any request waits with the reason deferred",
        ),
        explains=("ttft_high", "gpu_underused"),
        origin="vLLM's own count of waiting requests by reason (vllm-project/vllm #38435); a recording with"
        " --max-loras 1",
    ),
)
