"""One engine in full, as plain data for ``templates/engine.html.j2``."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from kvwatch.core.export import report
from kvwatch.core.export.findings import lifecycles
from kvwatch.core.judgement.derive import pressure
from kvwatch.core.judgement.derived import Derived
from kvwatch.core.judgement.percentiles import LATENCIES, LENGTHS, QUANTILES, TOTAL_LENGTH, percentile_name
from kvwatch.core.judgement.state import EngineState, State
from kvwatch.core.judgement.symptoms import Verdict
from kvwatch.sidecar.page.chart_data import RecentSamples, recent_samples
from kvwatch.sidecar.page.filters import number, percent
from kvwatch.sidecar.page.links import element_id
from kvwatch.text.evidence import evidence_label, format_value
from kvwatch.text.numbers import NOTHING, format_duration

_HIT_RATIO = "prefix_cache_hit_ratio"
_TTFT = {q: percentile_name(LATENCIES["time_to_first_token_seconds"], q) for q in QUANTILES}
_SCORE_PARTS = (
    ("occupancy", pressure(1, 0, 0), "90th percentile of the cache usage"),
    ("queueing", pressure(0, 1, 0), "share of the minute in which requests waited for the cache"),
    ("preemption", pressure(0, 0, 1), "preemptions as a share of preemptions and finished requests"),
)
"""The parts of the score, with their weights and meanings."""
_LENGTHS = (
    ("prompt", LENGTHS["request_prompt_tokens"]),
    ("output", LENGTHS["request_generation_tokens"]),
    ("total", TOTAL_LENGTH),
)


def engine_data(state: State, engine: EngineState, now: float, *, is_open: bool) -> dict[str, Any]:
    """An engine; `is_open` if it is unfolded at first. `now` is monotonic."""
    key, recent = engine.key, recent_samples(state, engine, now)
    unseen_s = report.seconds_unseen(state, engine, now)
    shift = report.wall_offset(state) or 0.0
    return {
        "id": element_id("engine", *key),
        "key": key,
        "regime": engine.regime,
        "is_open": is_open,
        "span_s": recent.span_s,
        "ribbon": recent.ribbon(),
        "charts": _charts(engine.derived, recent, unseen_s),
        # What `charts.js` can't get from /api/v1/history: the oldest sample that counts, and where lines break.
        "script": {
            "target": key.target,
            "model": key.model_name,
            "engine": key.engine,
            "full": f"{recent.full:g}",
            "gap": f"{recent.gap_s:g}",
            "span": f"{recent.span_s:g}",
            "since": f"{recent.rows[0].t + shift:.3f}" if recent.rows else "",
            "restarts": " ".join(f"{at + shift:.3f}" for at in recent.restarts),
        },
        "score": _score(engine.derived if unseen_s is None else Derived()),
        "lengths": _lengths(state, engine),
        "minutes": recent.by_minute(),
        "unknown": _unknown(state, engine),
        "configuration": _configuration(state, engine),
    }


def _charts(
    derived: Derived, recent: RecentSamples, unseen_s: float | None
) -> Iterator[tuple[str, str, str]]:
    """Each chart: the name that `charts.js` knows, a title, and a sentence."""

    def describe(name: str, value: str) -> str:
        """A derived number, or why it is unknown, or why not to trust it."""
        if name in derived.unknown:
            return f"unknown: {derived.unknown[name]}"
        doubt = f" (not trusted: {derived.untrusted[name]})" if name in derived.untrusted else ""
        return f"{'≥ ' if name in derived.at_least else ''}{value}{doubt}"

    hits = describe(_HIT_RATIO, percent(derived.get(_HIT_RATIO)))
    ttft = describe(_TTFT[QUANTILES[0]], "")
    if _TTFT[QUANTILES[0]] in derived.values:
        ttft = ", ".join(
            f"p{100 * q:g} {describe(name, format_duration(derived.get(name) or 0.0))}"
            for q, name in _TTFT.items()
        )
    if unseen_s is not None:
        hits = ttft = f"not scraped for {format_duration(round(unseen_s))}"
    yield "usage", "KV cache usage", recent.usage()
    yield "queue", "Requests", recent.queue()
    yield "preemptions", "Preemptions", recent.preemptions()
    yield "hits", "Prefix cache hit rate", f"last 5 min: {hits}"
    yield "ttft", "Time to first token", f"last 5 min: {ttft}"


def _score(derived: Derived) -> dict[str, Any]:
    """The cache-pressure score and its parts, 0 to 1; None where unknown."""
    score = derived.get("cache_pressure_score")
    parts = []
    for name, weight, meaning in _SCORE_PARTS:
        share = derived.get(f"cache_pressure_{name}_ratio")
        added = None if share is None else share * weight
        parts.append({"name": name, "share": share, "weight": weight, "added": added, "meaning": meaning})
    why = "" if score is not None else derived.unknown.get("cache_pressure_score", "not scraped")
    return {"value": score, "why_unknown": why, "parts": parts}


def _lengths(state: State, engine: EngineState) -> dict[str, Any]:
    """Percentiles of request lengths in the last hour, and the longest request that vLLM accepts, in tokens."""
    derived, longest = engine.derived, _max_model_len(state, engine) or engine.snapshot.config.max_model_len
    median_name = percentile_name(TOTAL_LENGTH, QUANTILES[0])
    is_known = median_name in derived.values
    return {
        "why_unknown": "" if is_known else derived.unknown.get(median_name, "not scraped"),
        "longest": longest,
        "percentiles": [f"p{100 * q:g}" for q in QUANTILES],
        "rows": [
            (title, [_length(derived, percentile_name(name, q), longest) for q in QUANTILES])
            for title, name in _LENGTHS
        ],
    }


def _length(derived: Derived, name: str, longest: float | None) -> tuple[str, float | None]:
    """A percentile in tokens, and its share of the longest request."""
    value = derived.get(name)
    share = value / longest if value is not None and longest else None
    return f"{'≥ ' if name in derived.at_least else ''}{number(value)}", share


def _max_model_len(state: State, engine: EngineState) -> int | None:
    return (state.facts.max_model_len or {}).get(engine.key.model_name) if state.facts else None


def _unknown(state: State, engine: EngineState) -> dict[str, list[str]]:
    """Names of what is unknown or uncertain, by reason."""
    reasons: dict[str, list[str]] = {}
    for key, name, life in lifecycles(state):
        if key == engine.key and life.verdict is Verdict.UNKNOWN:
            reasons.setdefault(life.reason, []).append(name)
    for name, why in (*engine.derived.unknown.items(), *engine.snapshot.missing.items()):
        reasons.setdefault(why, []).append(name)
    for name, why in engine.snapshot.caveats.items():
        reasons.setdefault(f"caution: {why}", []).append(name)
    return reasons


def _configuration(state: State, engine: EngineState) -> list[tuple[str, str]]:
    """What vLLM reports about itself."""
    reported = {
        "version": state.facts.version if state.facts else None,
        "engine_generation": engine.snapshot.generation,
        "longest_request_tokens": _max_model_len(state, engine),
        "kv_cache_capacity_tokens": engine.derived.get("kv_cache_capacity_tokens"),
    } | report.config(engine.snapshot.config)
    return [
        (evidence_label(name) or name, NOTHING if value is None else format_value(name, value))
        for name, value in reported.items()
    ]
