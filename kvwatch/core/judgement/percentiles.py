"""Percentiles of latencies and lengths, from the increase of histograms over a window."""

from __future__ import annotations

from collections.abc import Mapping

from kvwatch.core.history.window import Windows, histogram_increase, quantile
from kvwatch.core.judgement.derived import Derived, DerivedBuilder
from kvwatch.core.judgement.policy import Policy
from kvwatch.core.model.snapshot import Histogram

FIVE_MINUTES, HOUR = 300.0, 3600.0
QUANTILES = (0.5, 0.95, 0.99)

LATENCIES: Mapping[str, str] = {
    "time_to_first_token_seconds": "time_to_first_token_percentile_seconds",
    "inter_token_latency_seconds": "inter_token_latency_percentile_seconds",
    "request_queue_time_seconds": "request_queue_time_percentile_seconds",
    "request_prefill_time_seconds": "request_prefill_time_percentile_seconds",
    "e2e_request_latency_seconds": "e2e_request_latency_percentile_seconds",
}
"""Histograms with percentiles over 5 minutes, and the derived number's name."""
LENGTHS: Mapping[str, str] = {
    "request_prompt_tokens": "request_prompt_tokens_percentile",
    "request_generation_tokens": "request_generation_tokens_percentile",
}
"""Histograms with percentiles over an hour, and the derived number's name."""
TOTAL_LENGTH = "request_total_tokens_percentile"


def percentile_name(name: str, q: float) -> str:
    """The name of a percentile among the derived numbers."""
    return f'{name}{{percentile="{q * 100:g}"}}'


def derive_percentiles(builder: DerivedBuilder, windows: Windows, policy: Policy, now: float) -> None:
    recent = windows.histograms.since(now - FIVE_MINUTES)
    for signal, name in LATENCIES.items():
        _derive_family(builder, name, histogram_increase(recent, signal), policy)
    minutes = windows.minutes.since(now - HOUR)
    for signal, name in LENGTHS.items():
        _derive_family(builder, name, histogram_increase(minutes, signal), policy)
    for q in QUANTILES:
        parts = [percentile_name(name, q) for name in LENGTHS.values()]
        total = percentile_name(TOTAL_LENGTH, q)
        if all(part in builder.values for part in parts):
            builder.values[total] = sum(builder.values[part] for part in parts)
            if any(part in builder.at_least for part in parts):
                builder.at_least.add(total)
        else:
            builder.unknown[total] = "too few requests finished within an hour"


def _derive_family(builder: DerivedBuilder, name: str, seen: Histogram | None, policy: Policy) -> None:
    count = seen.count if seen else 0.0
    for q in QUANTILES:
        full_name = percentile_name(name, q)
        if seen is None or count < policy.min_observations:
            builder.unknown[full_name] = (
                f"{count:.0f} observations; at least {policy.min_observations:.0f} are needed"
            )
            continue
        found = quantile(seen, q)
        builder.put(full_name, found.value if found else None, "no buckets")
        if found and found.at_least:
            builder.at_least.add(full_name)


def carry_over(builder: DerivedBuilder, before: Derived) -> None:
    """Copies the percentiles of the last full page."""
    builder.values |= {name: value for name, value in before.values.items() if "{percentile=" in name}
    builder.unknown |= {name: reason for name, reason in before.unknown.items() if "{percentile=" in name}
    builder.at_least.update(before.at_least)
