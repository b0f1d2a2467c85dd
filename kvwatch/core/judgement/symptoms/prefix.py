"""Symptoms of prefix caching."""

from __future__ import annotations

from collections.abc import Sequence

from kvwatch.core.history.window import Minute, Sample, covered, increase
from kvwatch.core.judgement.derive import FIVE_MINUTES, TWO_MINUTES
from kvwatch.core.judgement.percentiles import percentile_name
from kvwatch.core.judgement.symptoms.actions import ENABLE_PREFIX_CACHING, FP8, LENGTH, MORE_KV, OFFLOAD
from kvwatch.core.judgement.symptoms.evidence_tools import (
    clear,
    judge_if,
    minutes_before,
    missing_signals,
    unknown,
)
from kvwatch.core.judgement.symptoms.row import (
    Action,
    EngineView,
    Judgement,
    Scope,
    Severity,
    Symptom,
    Verdict,
)
from kvwatch.core.judgement.thresholds import Threshold

#: Prefixes are found in whole units of so many tokens; from here on that is more than many have in common.
COARSE_UNIT = 256.0


def _mean_prompt(rows: Sequence[Sample | Minute]) -> tuple[float | None, float]:
    """Mean prompt length in tokens and the number of requests it is of."""
    count = increase(rows, "request_prompt_tokens") or 0.0
    total = increase(rows, "request_prompt_tokens/sum")
    return (total / count if total is not None and count else None), count


def _prefix_cache_ineffective(view: EngineView) -> Judgement:
    if reason := missing_signals(view):
        return unknown(reason)
    if view.snapshot.config.enable_prefix_caching is False:
        return clear(prefix_caching="off")
    if reason := missing_signals(view, "prefix_cache_queried_tokens_total", "prefix_cache_hit_tokens_total"):
        return unknown(reason)
    rows = view.samples(FIVE_MINUTES)
    queried = increase(rows, "prefix_cache_queried_tokens_total") or 0.0
    limits = view.limits
    unit = view.snapshot.config.prefix_unit
    mean, requests = _mean_prompt(rows)
    ratio = view.derived.get("prefix_cache_hit_ratio")
    evidence = {
        "prefix_cache_hit_ratio": ratio,
        "queried_tokens": queried,
        "window_seconds": FIVE_MINUTES,
        "mean_prompt_tokens": mean,
        "finished_requests": requests,
        "prefix_unit_tokens": unit,
        "threshold_hit_ratio": limits["prefix_cache_ineffective.hit_ratio"],
        "threshold_queried_tokens": limits["prefix_cache_ineffective.queried_tokens"],
    }
    if queried < limits["prefix_cache_ineffective.queried_tokens"]:
        return clear(**evidence)  # too little was looked up to say anything
    if requests < limits["prefix_cache_ineffective.requests"] or mean is None:
        return clear(**evidence)
    if "prefix_cache_hit_ratio" in view.derived.untrusted:
        return Judgement(Verdict.UNKNOWN, evidence, view.derived.untrusted["prefix_cache_hit_ratio"])
    coarse = unit is not None and unit >= COARSE_UNIT and mean >= COARSE_UNIT
    if unit is not None and mean < limits["prefix_cache_ineffective.blocks"] * unit and not coarse:
        return clear(**evidence)  # prompts of a block or two have little to share
    return judge_if(ratio is not None and ratio < limits["prefix_cache_ineffective.hit_ratio"], evidence)


def _prefix_cache_off(view: EngineView) -> Judgement:
    if reason := missing_signals(view, "cache_config"):
        return unknown(reason)
    enabled = view.snapshot.config.enable_prefix_caching
    if enabled:
        return clear(prefix_caching="on")
    if enabled is None:
        return unknown("vLLM's cache configuration does not say whether prefix caching is on")
    if reason := missing_signals(view, "request_prompt_tokens"):
        return unknown(reason)
    name = percentile_name("request_prompt_tokens_percentile", 0.5)
    median, mark = view.derived.get(name), view.limits["prefix_cache_off.prompt_tokens"]
    evidence = {"prefix_caching": "off", name: median, "threshold_prompt_tokens": mark}
    return judge_if(median is not None and median >= mark, evidence)


def _prefix_lifetime(view: EngineView, rows: Sequence[Sample], computed: float) -> float | None:
    """Seconds until a prefix that nobody uses is evicted: what live requests leave of the cache, by the prompt tokens
    that are computed, and so cached, in a second. None if that can't be told."""
    capacity, watched = view.derived.get("kv_cache_capacity_tokens"), covered(rows)
    usages = [row.usage for row in rows if row.usage is not None]
    if capacity is None or watched <= 0 or computed < 1 or not usages:
        return None
    return capacity * (1 - sum(usages) / len(usages)) / (computed / watched)


def _prefix_cache_thrash(view: EngineView) -> Judgement:
    if reason := missing_signals(view):
        return unknown(reason)
    if view.snapshot.config.enable_prefix_caching is False:
        return clear(prefix_caching="off")
    names = ("prefix_cache_queried_tokens_total", "prefix_cache_hit_tokens_total")
    if reason := missing_signals(view, *names):
        return unknown(reason)
    limits = view.limits
    rows, earlier = view.samples(TWO_MINUTES), minutes_before(view, TWO_MINUTES)
    queried, hits = (increase(earlier, name) or 0.0 for name in names)
    usual = hits / queried if queried >= limits["prefix_cache_thrash.queried_tokens"] else None
    recent, found = (increase(rows, name) or 0.0 for name in names)
    ratio = found / recent if recent >= limits["prefix_cache_thrash.queried_tokens"] else None
    mean, _ = _mean_prompt(rows)
    lifetime = _prefix_lifetime(view, rows, recent - found)
    usual_mean, _ = _mean_prompt(earlier)
    longer = limits["prefix_cache_thrash.longer"]
    alike = not mean or not usual_mean or usual_mean / longer <= mean <= longer * usual_mean
    capacity = view.derived.get("kv_cache_capacity_tokens")
    fit = capacity / mean if capacity is not None and mean else None
    sessions = max((row.running or 0.0) + (row.waiting or 0.0) for row in view.samples(FIVE_MINUTES))
    occupancy = view.derived.get("cache_pressure_occupancy_ratio")
    evidence = {
        "hit_ratio": ratio,
        "usual_hit_ratio": usual,
        "queried_tokens": recent,
        "window_seconds": TWO_MINUTES,
        "mean_prompt_tokens": mean,
        "usual_mean_prompt_tokens": usual_mean,
        "prefix_lifetime_seconds": lifetime,
        "prompts_that_fit": fit,
        "sessions_at_once": sessions,
        "cache_pressure_occupancy_ratio": occupancy,
        "threshold_usual_hit_ratio": limits["prefix_cache_thrash.usual"],
        "threshold_fall_ratio": limits["prefix_cache_thrash.fall"],
        "threshold_occupancy_ratio": limits["prefix_cache_thrash.occupancy"],
        "threshold_lifetime_seconds": limits["prefix_cache_thrash.lifetime"],
    }
    if ratio is None or usual is None:
        return clear(**evidence)  # too little was looked up, now or before, to tell a fall
    if "prefix_cache_hit_ratio" in view.derived.untrusted:
        return Judgement(Verdict.UNKNOWN, evidence, view.derived.untrusted["prefix_cache_hit_ratio"])
    fell = (
        usual >= limits["prefix_cache_thrash.usual"] and usual - ratio >= limits["prefix_cache_thrash.fall"]
    )
    full = occupancy is not None and occupancy >= limits["prefix_cache_thrash.occupancy"]
    crowded = fit is not None and fit < sessions
    brief = lifetime is not None and lifetime <= limits["prefix_cache_thrash.lifetime"]
    return judge_if(fell and alike and (full or crowded or brief), evidence)


ROWS: tuple[Symptom, ...] = (
    Symptom(
        id="prefix_cache_off",
        title="Prefix caching is off and prompts are long",
        when="caching off and median prompt over 1 h ≥ {prompt_tokens} tokens",
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
        id="prefix_cache_thrash",
        title="Prefixes are gone before they are used again",
        when="hit ratio over 2 min ≥ {fall} below what it was (≥ {usual}) for prompts as long as before, while a"
        " prefix lives ≤ {lifetime} in the cache, or fewer prompts fit than there are requests at once, or usage ≥"
        " {occupancy} at its 90th percentile",
        severity=Severity.WARNING,
        scope=Scope.ENGINE,
        for_s=30,
        keep_s=120,
        judge=_prefix_cache_thrash,
        thresholds=(
            Threshold(
                "prefix_cache_thrash.usual",
                0.4,
                "ratio",
                "Hit ratio within the hour before, at least.",
                high=1,
            ),
            Threshold(
                "prefix_cache_thrash.fall", 0.2, "ratio", "Fall of the hit ratio from that, at least.", high=1
            ),
            Threshold(
                "prefix_cache_thrash.queried_tokens",
                10_000,
                "tokens",
                "Looked up in 2 min, and before, at least.",
            ),
            Threshold(
                "prefix_cache_thrash.longer",
                1.5,
                "ratio",
                "Mean prompt, in those of the hour before, at most, and no shorter: else it is another load, which"
                " has not been cached yet.",
                low=1,
                high=1000,
            ),
            Threshold(
                "prefix_cache_thrash.lifetime",
                60,
                "seconds",
                "Time that a prefix which nobody uses lives in the cache, at most.",
            ),
            Threshold(
                "prefix_cache_thrash.occupancy",
                0.8,
                "ratio",
                "90th percentile of KV usage from which live requests leave no room for prefixes.",
                high=1,
            ),
        ),
        meaning="The hit ratio fell from what it was, for prompts as long as before: a conversation's own beginning"
        " is gone when it comes back, and its next turn is computed whole. KV usage does not show it, since cached"
        " prefixes count as free; nor does a hit ratio since the server's start.",
        causes=(
            (
                "more conversations than the cache holds (prefix_lifetime_seconds is shorter than the time between"
                " turns)"
            ),
            "the template changed, and something at its head now differs from prompt to prompt",
            "conversations are spread over servers, each of which then holds a part of all",
        ),
        actions=(
            LENGTH,
            Action("see whether the prompt template was changed when the ratio fell: if so, begin there"),
            Action("lower the number of conversations at once towards prompts_that_fit, or add a replica"),
            FP8,
            Action("send each conversation to the server that has its beginning (sticky routing)"),
            MORE_KV,
            OFFLOAD,
        ),
        explains=("prefix_cache_ineffective", "shared_prefix_slow", "ttft_high"),
        origin="a public report on voice agents: pool tokens / prompt tokens below the sessions at once; a"
        " recording in which 24 sessions follow 4; a fall of 0.1 and a minimum of look-ups as in fbc-cache-lint",
    ),
    Symptom(
        id="prefix_cache_ineffective",
        title="The prefix cache hardly ever hits",
        when="hit ratio over 5 min < {hit_ratio} of ≥ {queried_tokens} tokens looked up by ≥"
        " {requests} requests, of prompts of ≥ {blocks} blocks or found only in units of ≥ 256"
        " tokens",
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
            Threshold("prefix_cache_ineffective.blocks", 4, "blocks", "Mean prompt, at least."),
        ),
        meaning="Prompts are long enough to share a beginning, and hardly any is found in the cache.",
        causes=(
            "ids, times or user names at the head of the template: one different token there ruins the rest",
            "prompts really have nothing in common",
            (
                "the shared part is shorter than what is matched as a whole (prefix_unit_tokens), thousands of"
                " tokens for some hybrid models; the last block of a prompt is always computed"
            ),
        ),
        actions=(
            Action(
                "see whether the shared part is longer than prefix_unit_tokens: only whole ones of that are found"
                " again, and the last one never. Lower it with --prefix-match-unit (vLLM 0.26 and later), or for"
                " hybrid models with --mamba-cache-mode all",
                "--prefix-match-unit",
                ("v1",),
                given=lambda config: (config.prefix_unit or 0.0) >= COARSE_UNIT,
            ),
            Action("put fixed text first (system prompt, tools, examples), variable values last"),
            Action("compare two prompts token by token: where do they part?"),
            Action("send requests of one conversation to the same server"),
        ),
        origin="vLLM's documentation of automatic prefix caching; a minimum of traffic as in llm-d's alerts",
    ),
)
