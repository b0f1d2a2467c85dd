"""Percentiles of latencies and lengths, from what histograms gained in a window."""

from __future__ import annotations

from collections.abc import Mapping

from kvwatch.core.history.window import Minute, Windows, histogram_increase, quantile
from kvwatch.core.judgement.derived import Derived, DerivedBuilder
from kvwatch.core.judgement.policy import Policy
from kvwatch.core.model.snapshot import Histogram

FIVE_MINUTES, HOUR = 300.0, 3600.0
QUANTILES = (0.5, 0.95, 0.99)

#: Histograms whose quantiles are derived over 5 minutes, and the number they become.
LATENCIES: Mapping[str, str] = {
    "time_to_first_token_seconds": "time_to_first_token_percentile_seconds",
    "inter_token_latency_seconds": "inter_token_latency_percentile_seconds",
    "request_queue_time_seconds": "request_queue_time_percentile_seconds",
    "request_prefill_time_seconds": "request_prefill_time_percentile_seconds",
    "e2e_request_latency_seconds": "e2e_request_latency_percentile_seconds",
}
#: Histograms whose quantiles are derived over an hour.
LENGTHS: Mapping[str, str] = {
    "request_prompt_tokens": "request_prompt_tokens_percentile",
    "request_generation_tokens": "request_generation_tokens_percentile",
}
TOTAL_LENGTH = "request_total_tokens_percentile"


def labelled(name: str, q: float) -> str:
    """The name of a quantile number."""
    return f'{name}{{percentile="{q * 100:g}"}}'


def percentiles(book: DerivedBuilder, windows: Windows, policy: Policy, now: float) -> None:
    ladders = windows.ladders.since(now - FIVE_MINUTES)
    for signal, name in LATENCIES.items():
        _one_family(book, name, histogram_increase(ladders, signal), policy)
    minutes: list[Minute] = windows.minutes.since(now - HOUR)
    for signal, name in LENGTHS.items():
        _one_family(book, name, histogram_increase(minutes, signal), policy)
    for q in QUANTILES:
        parts = [labelled(name, q) for name in LENGTHS.values()]
        total = labelled(TOTAL_LENGTH, q)
        if all(part in book.values for part in parts):
            book.values[total] = sum(book.values[part] for part in parts)
            if any(part in book.at_least for part in parts):
                book.at_least.add(total)
        else:
            book.unknown[total] = "too few finished requests in an hour"


def _one_family(book: DerivedBuilder, name: str, seen: Histogram | None, policy: Policy) -> None:
    count = seen.count if seen else 0.0
    for q in QUANTILES:
        full_name = labelled(name, q)
        if seen is None or count < policy.min_observations:
            book.unknown[full_name] = (
                f"{count:.0f} observations; at least {policy.min_observations:.0f} are needed"
            )
            continue
        found = quantile(seen, q)
        book.put(full_name, found.value if found else None, "no buckets")
        if found and found.at_least:
            book.at_least.add(full_name)


def carry(book: DerivedBuilder, before: Derived) -> None:
    for name, value in before.values.items():
        if "{percentile=" in name:
            book.values[name] = value
    for name, reason in before.unknown.items():
        if "{percentile=" in name:
            book.unknown[name] = reason
    book.at_least.update(before.at_least)
