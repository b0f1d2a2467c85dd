"""Symptoms of prefix caching."""

from __future__ import annotations

from kvwatch.core.derive import FIVE_MINUTES
from kvwatch.core.percentiles import labelled
from kvwatch.core.symptoms.actions import ENABLE_PREFIX_CACHING
from kvwatch.core.symptoms.model import Action, EngineView, Judgement, Scope, Severity, Symptom, Verdict
from kvwatch.core.symptoms.tools import clear, judged, lacks, unknown
from kvwatch.core.thresholds import Threshold
from kvwatch.core.window import increase


def _mean_prompt(view: EngineView, window: float) -> tuple[float | None, float]:
    """Mean prompt length in tokens and the number of requests it is of."""
    rows = view.samples(window)
    count = increase(rows, "request_prompt_tokens") or 0.0
    total = increase(rows, "request_prompt_tokens/sum")
    return (total / count if total is not None and count else None), count


def _prefix_cache_ineffective(view: EngineView) -> Judgement:
    if reason := lacks(view):
        return unknown(reason)
    if view.snapshot.config.enable_prefix_caching is False:
        return clear(prefix_caching="off")
    if reason := lacks(view, "prefix_cache_queried_tokens_total", "prefix_cache_hit_tokens_total"):
        return unknown(reason)
    rows = view.samples(FIVE_MINUTES)
    queried = increase(rows, "prefix_cache_queried_tokens_total") or 0.0
    limits = view.limits
    block = view.snapshot.config.block_size
    mean, requests = _mean_prompt(view, FIVE_MINUTES)
    ratio = view.derived.get("prefix_cache_hit_ratio")
    evidence = {
        "prefix_cache_hit_ratio": ratio,
        "queried_tokens": queried,
        "window_seconds": FIVE_MINUTES,
        "mean_prompt_tokens": mean,
        "finished_requests": requests,
        "block_size_tokens": block,
        "threshold_hit_ratio": limits["prefix_cache_ineffective.hit_ratio"],
        "threshold_queried_tokens": limits["prefix_cache_ineffective.queried_tokens"],
    }
    if queried < limits["prefix_cache_ineffective.queried_tokens"]:
        return clear(**evidence)  # too little was looked up to say anything
    if requests < limits["prefix_cache_ineffective.requests"] or mean is None:
        return clear(**evidence)
    if "prefix_cache_hit_ratio" in view.derived.untrusted:
        return Judgement(Verdict.UNKNOWN, evidence, view.derived.untrusted["prefix_cache_hit_ratio"])
    if block is not None and mean < limits["prefix_cache_ineffective.blocks"] * block:
        return clear(**evidence)  # prompts of a block or two have little to share
    return judged(ratio is not None and ratio < limits["prefix_cache_ineffective.hit_ratio"], evidence)


def _prefix_cache_off(view: EngineView) -> Judgement:
    if reason := lacks(view, "cache_config"):
        return unknown(reason)
    enabled = view.snapshot.config.enable_prefix_caching
    if enabled:
        return clear(prefix_caching="on")
    if enabled is None:
        return unknown("vLLM's cache configuration does not say whether prefix caching is on")
    if reason := lacks(view, "request_prompt_tokens"):
        return unknown(reason)
    name = labelled("request_prompt_tokens_percentile", 0.5)
    median, mark = view.derived.get(name), view.limits["prefix_cache_off.prompt_tokens"]
    evidence = {"prefix_caching": "off", name: median, "threshold_prompt_tokens": mark}
    return judged(median is not None and median >= mark, evidence)


ROWS: tuple[Symptom, ...] = (
    Symptom(
        id="prefix_cache_off",
        title="Prefix caching is off and prompts are long",
        severity=Severity.INFO,
        scope=Scope.ENGINE,
        for_s=30,
        keep_s=60,
        judge=_prefix_cache_off,
        thresholds=(Threshold("prefix_cache_off.prompt_tokens", 1000, "tokens", "Median prompt over 1 h."),),
        meaning="Each prompt is computed whole. Where prompts share a beginning, that is wasted prefill.",
        causes=("it was switched off", "v0 engine: it is off unless asked for"),
        actions=(
            ENABLE_PREFIX_CACHING,
            Action("then look at the hit ratio: it only helps prompts that begin alike"),
        ),
        origin="vLLM's documentation of automatic prefix caching",
    ),
    Symptom(
        id="prefix_cache_ineffective",
        title="The prefix cache hardly ever hits",
        severity=Severity.INFO,
        scope=Scope.ENGINE,
        for_s=30,
        keep_s=120,
        judge=_prefix_cache_ineffective,
        thresholds=(
            Threshold("prefix_cache_ineffective.hit_ratio", 0.2, "ratio", "Hit ratio below this.", high=1),
            Threshold(
                "prefix_cache_ineffective.queried_tokens", 10_000, "tokens", "Looked up in 5 min, at least."
            ),
            Threshold("prefix_cache_ineffective.requests", 20, "requests", "Finished in 5 min, at least."),
            Threshold("prefix_cache_ineffective.blocks", 4, "ratio", "Mean prompt, in blocks, at least."),
        ),
        meaning="Prompts are long enough to share a beginning, and hardly any is found in the cache.",
        causes=(
            "ids, times or user names at the head of the template: one different token there ruins the rest",
            "prompts really have nothing in common",
            "the shared part is shorter than a block",
        ),
        actions=(
            Action("put fixed text first (system prompt, tools, examples), variable values last"),
            Action("compare two prompts token by token: where do they part?"),
            Action("send requests of one conversation to the same server"),
        ),
        origin="vLLM's documentation of automatic prefix caching; a minimum of traffic as in llm-d's alerts",
    ),
)
