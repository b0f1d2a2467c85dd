"""Prefix caching: off, without hits, or evicted too soon."""

from __future__ import annotations

from collections.abc import Sequence

from kvwatch.core.history.window import Minute, Sample, covered, increase
from kvwatch.core.judgement.advice import levers
from kvwatch.core.judgement.advice.levers import Lever
from kvwatch.core.judgement.derive import FIVE_MINUTES, TWO_MINUTES
from kvwatch.core.judgement.percentiles import percentile_name
from kvwatch.core.judgement.symptoms.row import Judgement, Runbook, Severity, Symptom
from kvwatch.core.judgement.symptoms.views import EngineView, requires
from kvwatch.core.judgement.thresholds import Threshold, multiple, seconds, share

_LOOKUPS = ("prefix_cache_queried_tokens_total", "prefix_cache_hit_tokens_total")
_RATIO = "prefix_cache_hit_ratio"
COARSE_UNIT = 256.0
"""vLLM matches prefixes in whole units of tokens. Units from this size are longer than what many prompts share."""


def _mean_prompt(rows: Sequence[Sample | Minute]) -> tuple[float | None, float]:
    """Mean prompt length in tokens, and the number of requests behind it."""
    count = increase(rows, "request_prompt_tokens") or 0.0
    total = increase(rows, "request_prompt_tokens/sum")
    return (total / count if total is not None and count else None), count


@requires()
def _prefix_cache_ineffective(view: EngineView) -> Judgement:
    if view.snapshot.config.enable_prefix_caching is False:
        return Judgement.clear(prefix_caching="off")
    if reason := view.missing(*_LOOKUPS):
        return Judgement.unknown(reason)
    rows, limits = view.samples(FIVE_MINUTES), view.limits
    queried = increase(rows, _LOOKUPS[0]) or 0.0
    unit, ratio = view.snapshot.config.prefix_unit, view.derived.get(_RATIO)
    mean, requests = _mean_prompt(rows)
    evidence = {
        _RATIO: ratio,
        "queried_tokens": queried,
        "window_seconds": FIVE_MINUTES,
        "mean_prompt_tokens": mean,
        "finished_requests": requests,
        "prefix_unit_tokens": unit,
        "threshold_hit_ratio": limits["prefix_cache_ineffective.hit_ratio"],
        "threshold_queried_tokens": limits["prefix_cache_ineffective.queried_tokens"],
    }
    too_few = (
        queried < limits["prefix_cache_ineffective.queried_tokens"]
        or requests < limits["prefix_cache_ineffective.requests"]
    )
    if too_few or mean is None:
        return Judgement.clear(**evidence)
    if _RATIO in view.derived.untrusted:
        return Judgement.unknown(view.derived.untrusted[_RATIO], evidence)
    coarse = unit is not None and unit >= COARSE_UNIT and mean >= COARSE_UNIT
    if unit is not None and mean < limits["prefix_cache_ineffective.blocks"] * unit and not coarse:
        return Judgement.clear(**evidence)  # prompts of a block or two have little to share
    low = ratio is not None and ratio < limits["prefix_cache_ineffective.hit_ratio"]
    return Judgement.active_if(low, evidence)


@requires("cache_config")
def _prefix_cache_off(view: EngineView) -> Judgement:
    enabled = view.snapshot.config.enable_prefix_caching
    if enabled:
        return Judgement.clear(prefix_caching="on")
    if enabled is None:
        return Judgement.unknown("vLLM's cache configuration does not show whether prefix caching is on")
    if reason := view.missing("request_prompt_tokens"):
        return Judgement.unknown(reason)
    name = percentile_name("request_prompt_tokens_percentile", 0.5)
    median, threshold = view.derived.get(name), view.limits["prefix_cache_off.prompt_tokens"]
    evidence = {"prefix_caching": "off", name: median, f"threshold_{name}": threshold}
    return Judgement.active_if(median is not None and median >= threshold, evidence)


def _prefix_lifetime(view: EngineView, rows: Sequence[Sample], computed: float) -> float | None:
    """Seconds until an unused prefix is evicted; None if unknown.

    It is the cache that live requests leave free, divided by the prompt tokens computed (and so cached) per second.
    """
    capacity, watched = view.derived.get("kv_cache_capacity_tokens"), covered(rows)
    usages = [row.usage for row in rows if row.usage is not None]
    if capacity is None or watched <= 0 or computed < 1 or not usages:
        return None
    return capacity * (1 - sum(usages) / len(usages)) / (computed / watched)


@requires()
def _prefix_cache_thrash(view: EngineView) -> Judgement:
    if view.snapshot.config.enable_prefix_caching is False:
        return Judgement.clear(prefix_caching="off")
    if reason := view.missing(*_LOOKUPS):
        return Judgement.unknown(reason)
    limits = view.limits
    rows, earlier = view.samples(TWO_MINUTES), view.minutes_before(TWO_MINUTES)
    enough = limits["prefix_cache_thrash.queried_tokens"]
    queried_before, hits_before = (increase(earlier, name) or 0.0 for name in _LOOKUPS)
    usual = hits_before / queried_before if queried_before >= enough else None
    queried, hits = (increase(rows, name) or 0.0 for name in _LOOKUPS)
    ratio = hits / queried if queried >= enough else None
    (mean, _), (usual_mean, _) = _mean_prompt(rows), _mean_prompt(earlier)
    lifetime = _prefix_lifetime(view, rows, queried - hits)
    capacity = view.derived.get("kv_cache_capacity_tokens")
    fit = capacity / mean if capacity is not None and mean else None
    sessions = max((row.running or 0.0) + (row.waiting or 0.0) for row in view.samples(FIVE_MINUTES))
    occupancy = view.derived.get("cache_pressure_occupancy_ratio")
    evidence = {
        "hit_ratio": ratio,
        "usual_hit_ratio": usual,
        "queried_tokens": queried,
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
        return Judgement.clear(**evidence)  # too few look-ups, now or before, to see a fall
    if _RATIO in view.derived.untrusted:
        return Judgement.unknown(view.derived.untrusted[_RATIO], evidence)
    fell = (
        usual >= limits["prefix_cache_thrash.usual"] and usual - ratio >= limits["prefix_cache_thrash.fall"]
    )
    longer = limits["prefix_cache_thrash.longer"]
    alike = not mean or not usual_mean or usual_mean / longer <= mean <= longer * usual_mean
    full = occupancy is not None and occupancy >= limits["prefix_cache_thrash.occupancy"]
    crowded = fit is not None and fit < sessions
    brief = lifetime is not None and lifetime <= limits["prefix_cache_thrash.lifetime"]
    return Judgement.active_if(fell and alike and (full or crowded or brief), evidence)


ROWS: tuple[Symptom, ...] = (
    Symptom(
        id="prefix_cache_off",
        title="Prefix caching is off for long prompts",
        when="prefix caching off and median prompt over 1 h ≥ {prompt_tokens} tokens",
        severity=Severity.INFO,
        for_s=30,
        judge=_prefix_cache_off,
        thresholds=(
            Threshold(
                "prompt_tokens",
                1000,
                "tokens",
                "Fires if the median prompt over 1 h has at least this many tokens.",
            ),
        ),
        meaning="Every prompt is computed in full. If prompts start with the same text, prefill is wasted on"
        " it.",
        causes=(
            "It was turned off",
            "It is off by default: on the v0 engine, and for hybrid models before vLLM 0.28",
        ),
        levers=(levers.ENABLE_PREFIX_CACHING,),
        runbook=Runbook(
            "First tokens may be later than necessary, and prefill takes GPU time from other requests.",
            ("config", "prompts", "prefill"),
            "tokens are looked up and found in the prefix cache",
        ),
        origin="vLLM's documentation of automatic prefix caching",
    ),
    Symptom(
        id="prefix_cache_thrash",
        title="Prefixes are evicted before they are reused",
        when="hit rate over 2 min ≥ {fall} (absolute) below that of the last hour (≥ {usual}), for prompts as"
        " long as before; and an unused prefix lives ≤ {lifetime}, or the engine has more requests than prompts"
        " fit in the cache, or usage p90 ≥ {occupancy}",
        severity=Severity.WARNING,
        for_s=30,
        keep_s=120,
        judge=_prefix_cache_thrash,
        thresholds=(
            share("usual", 0.4, "A fall counts only if the hit rate of the last hour was at least this."),
            share("fall", 0.2, "Fires if the hit rate fell by at least this much (absolute)."),
            Threshold(
                "queried_tokens",
                10_000,
                "tokens",
                "Ignored if fewer tokens than this were looked up in 2 min, or in the hour before.",
            ),
            multiple(
                "longer",
                1.5,
                "Ignored if the mean prompt length changed by more than this factor: a new load is not cached"
                " yet.",
                low=1,
            ),
            seconds("lifetime", 60, "Fires if an unused prefix stays in the cache for at most this long."),
            share(
                "occupancy",
                0.8,
                "Also fires if the p90 of KV cache usage is at least this: running requests leave no room for"
                " prefixes.",
            ),
        ),
        meaning="The hit rate fell for prompts as long as before. A conversation is evicted before its next"
        " turn, which is then computed in full. KV cache usage does not show this, because cached prefixes"
        " count as free. A hit rate since the server's start does not show it either.",
        causes=(
            "More conversations than the cache holds (prefix_lifetime_seconds is below the time between turns)",
            "The template changed, and its start now differs from prompt to prompt",
            "Conversations are spread over servers, and each server holds only a part of them",
        ),
        levers=(
            levers.step(
                "check_template",
                "check whether the prompt template changed when the ratio fell; if so, begin there",
            ),
            levers.ROUTE_BY_PREFIX,
            levers.ADD_REPLICA,
            levers.FP8_CACHE,
            levers.OFFLOAD,
            levers.MORE_MEMORY,
        ),
        runbook=Runbook(
            "Each turn of a conversation waits until its whole history is recomputed.",
            ("hits", "trusted", "usage", "capacity", "prompts", "prefill"),
            "the hit rate is back at its former value, for prompts as long as before",
        ),
        explains=("prefix_cache_ineffective", "shared_prefix_slow", "ttft_high"),
        origin="a public report on voice agents: pool tokens / prompt tokens below the number of sessions; a"
        " recording in which 24 sessions follow 4; a fall of 0.1 and a minimum of look-ups as in fbc-cache-lint",
    ),
    Symptom(
        id="prefix_cache_ineffective",
        title="Low prefix cache hit rate",
        when="hit rate over 5 min < {hit_ratio}, with ≥ {queried_tokens} tokens looked up by ≥ {requests}"
        " requests, and a mean prompt of ≥ {blocks} blocks, or match units of ≥ 256 tokens",
        severity=Severity.INFO,
        for_s=30,
        keep_s=120,
        judge=_prefix_cache_ineffective,
        thresholds=(
            share("hit_ratio", 0.2, "Fires below this hit rate."),
            Threshold(
                "queried_tokens",
                10_000,
                "tokens",
                "Ignored if fewer tokens than this were looked up in 5 min.",
            ),
            Threshold("requests", 20, "requests", "Ignored if fewer requests than this finished in 5 min."),
            Threshold("blocks", 4, "blocks", "Ignored if the mean prompt has fewer blocks than this."),
        ),
        meaning="Prompts are long enough to share a prefix, but hardly any prompt token is found in the cache.",
        causes=(
            (
                "Ids, times or user names at the start of the template: after the first different token, nothing is"
                " found"
            ),
            "Prompts have nothing in common",
            (
                "The shared part is shorter than one match unit (prefix_unit_tokens; thousands of tokens for some"
                " hybrid models). The last block of a prompt is always computed"
            ),
        ),
        levers=(
            levers.FIXED_TEXT_FIRST,
            levers.step("compare_prompts", "compare two prompts token by token to find where they differ"),
            levers.ROUTE_BY_PREFIX,
            Lever(
                id="prefix_match_unit",
                text="lower the match unit with --prefix-match-unit (vLLM 0.26 and later), or for hybrid models with"
                " --mamba-cache-mode all: only whole units are found again, and never the last one",
                option="--prefix-match-unit",
                restart=True,
                generations=("v1",),
                when=lambda at: (at.config.prefix_unit or 0.0) >= COARSE_UNIT,
                condition="if the match unit is long",
            ),
        ),
        runbook=Runbook(
            "First tokens are as late as without a prefix cache.",
            ("hits", "trusted", "prompts", "config"),
            "the hit rate rises",
        ),
        origin="vLLM's documentation of automatic prefix caching; a minimum of traffic as in llm-d's alerts",
    ),
)
