"""What is compared: one row each, with how it is worked out, which way is good, and how much data it needs."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from enum import StrEnum

from kvwatch.core.history.regimes import Regime
from kvwatch.experiment.series import (
    ENGINE_SECONDS,
    FULL_SECONDS,
    RUNNING,
    SECONDS,
    WAITING,
    count,
    in_regime,
)
from kvwatch.experiment.totals import Totals


class Better(StrEnum):
    """Which way is good; NEITHER for what is good or bad only together with other numbers."""

    LOWER = "lower"
    HIGHER = "higher"
    NEITHER = "neither"


class MeasureGroup(StrEnum):
    """What a measure is about, as headings of a table."""

    LATENCY = "latency"
    THROUGHPUT = "throughput"
    LOAD = "requests"
    CACHE = "KV cache"
    REGIMES = "time per regime"


class Scale(StrEnum):
    """How a difference is told: RATIO as per cent of the baseline (for numbers above zero, whose errors grow with
    them; reckoned in logarithms), DIFFERENCE in the number's own unit (for those that may be zero)."""

    RATIO = "ratio"
    DIFFERENCE = "difference"


@dataclass(frozen=True, slots=True)
class Measure:
    """One number of a run.

    `needs` are the signals it is made of. `events` is the column of what must have happened at least `least` times in
    either run. `margin` is the difference that matters to nobody, for a DIFFERENCE in its own unit; for a RATIO that
    is a setting. `headline` rows decide the verdict on the whole and share its 5 % between them.
    """

    id: str
    title: str
    group: MeasureGroup
    of: Callable[[Totals], float | None]
    needs: tuple[str, ...]
    unit: str = ""
    better: Better = Better.LOWER
    scale: Scale = Scale.RATIO
    margin: float = 0.0
    events: str = ""
    least: float = 0.0
    headline: bool = False
    histogram: str = ""
    """The histogram of which it is a quantile, if it is one; `q` is which (0-1)."""
    q: float = 0.0


_BEYOND = 4.0
"""Observations beyond a quantile that it needs: p95 80, p99 400. With less it is the largest few of all."""
_FEW = 20.0
_RARE = 60.0
"""Requests from which on none with a preemption or an error is surely less than 5 %: three by their number."""
_LATENCIES: tuple[tuple[str, str, str, tuple[str, ...]], ...] = (
    ("ttft", "TTFT", "time_to_first_token_seconds", ("p50", "p95")),
    ("itl", "ITL", "inter_token_latency_seconds", ("p95",)),
    ("queue", "queue time", "request_queue_time_seconds", ()),
    ("e2e", "e2e latency", "e2e_request_latency_seconds", ("p95",)),
)
"""Of each latency its short name, its title, its histogram, and which of its quantiles are headlines."""
_QUANTILES = (("p50", 0.5), ("p95", 0.95), ("p99", 0.99))
_FINISHED = "requests_finished_total"
_GAUGES = ("kv_cache_usage_ratio", "requests_running", "requests_waiting")


def _latencies() -> Iterator[Measure]:
    """The mean, exact whatever the buckets are, and quantiles of each latency."""
    for short, title, signal, headlines in _LATENCIES:
        yield Measure(
            f"{short}_mean_seconds",
            f"{title} mean",
            MeasureGroup.LATENCY,
            lambda totals, signal=signal: totals.mean(signal),  # type: ignore[misc]
            (signal,),
            "s",
            events=count(signal),
            least=_FEW,
        )
        for name, q in _QUANTILES:
            yield Measure(
                f"{short}_{name}_seconds",
                f"{title} {name}",
                MeasureGroup.LATENCY,
                _quantile_of(signal, q),
                (signal,),
                "s",
                events=count(signal),
                least=max(_FEW, round(_BEYOND / (1 - q))),
                headline=name in headlines,
                histogram=signal,
                q=q,
            )


def _quantile_of(signal: str, q: float) -> Callable[[Totals], float | None]:
    def of(totals: Totals) -> float | None:
        found = totals.quantile(signal, q)
        return found.value if found else None

    return of


def _throughput(id_: str, title: str, column: str, *, headline: bool = False) -> Measure:
    return Measure(
        id_,
        title,
        MeasureGroup.THROUGHPUT,
        lambda totals: totals.ratio(column, SECONDS),
        (column,),
        "/s",
        better=Better.HIGHER,
        events=column,
        least=_FEW,
        headline=headline,
    )


def _share(
    id_: str,
    title: str,
    group: MeasureGroup,
    column: str,
    *by: str,
    needs: tuple[str, ...] = (),
    **more: object,
) -> Measure:
    return Measure(
        id_,
        title,
        group,
        lambda totals: totals.ratio(column, *by),
        needs or (column, *by),
        "%",
        scale=Scale.DIFFERENCE,
        margin=0.05,
        **more,  # type: ignore[arg-type]
    )


def _regimes() -> Iterator[Measure]:
    for regime in Regime:
        if regime not in {Regime.UNKNOWN, Regime.DOWN}:
            yield _share(
                f"{regime}_time_ratio",
                regime.replace("_", " "),
                MeasureGroup.REGIMES,
                in_regime(regime),
                ENGINE_SECONDS,
                needs=_GAUGES,
                better=Better.NEITHER,
            )


MEASURES: tuple[Measure, ...] = (
    *_latencies(),
    _throughput("generation_tokens_per_second", "generated tokens", "generation_tokens_total", headline=True),
    _throughput("prompt_tokens_per_second", "prompt tokens", "prompt_tokens_total"),
    _throughput("requests_finished_per_second", "finished requests", _FINISHED),
    Measure(
        "requests_running_mean",
        "running, mean",
        MeasureGroup.LOAD,
        lambda totals: totals.ratio(RUNNING, SECONDS),
        ("requests_running",),
        better=Better.NEITHER,
    ),
    Measure(
        "requests_waiting_mean",
        "waiting, mean",
        MeasureGroup.LOAD,
        lambda totals: totals.ratio(WAITING, SECONDS),
        ("requests_waiting",),
        scale=Scale.DIFFERENCE,
        margin=0.5,
        headline=True,
    ),
    _share(
        "requests_failed_ratio",
        "requests with an error",
        MeasureGroup.LOAD,
        f"{_FINISHED}/error",
        _FINISHED,
        needs=(_FINISHED,),
        events=_FINISHED,
        least=_RARE,
    ),
    Measure(
        "kv_cache_usage_median_ratio",
        "KV usage, median",
        MeasureGroup.CACHE,
        lambda totals: totals.usage(0.5),
        ("kv_cache_usage_ratio",),
        "%",
        better=Better.NEITHER,
        scale=Scale.DIFFERENCE,
        margin=0.05,
    ),
    _share(
        "kv_cache_usage_full_time_ratio",
        "time with KV usage ≥ 95 %",
        MeasureGroup.CACHE,
        FULL_SECONDS,
        ENGINE_SECONDS,
        needs=("kv_cache_usage_ratio",),
        better=Better.NEITHER,
    ),
    Measure(
        "preemptions_per_finished_request",
        "preemptions per finished request",
        MeasureGroup.CACHE,
        lambda totals: totals.ratio("preemptions_total", _FINISHED),
        ("preemptions_total", _FINISHED),
        scale=Scale.DIFFERENCE,
        margin=0.05,
        events=_FINISHED,
        least=_RARE,
        headline=True,
    ),
    _share(
        "prefix_cache_hit_ratio",
        "prefix hit ratio",
        MeasureGroup.CACHE,
        "prefix_cache_hit_tokens_total",
        "prefix_cache_queried_tokens_total",
        better=Better.HIGHER,
    ),
    _share(
        "prompt_tokens_reused_ratio",
        "prompt tokens from the cache",
        MeasureGroup.CACHE,
        "prompt_tokens_by_source_total/local_cache_hit",
        "prompt_tokens_by_source_total",
        needs=("prompt_tokens_by_source_total",),
        better=Better.HIGHER,
    ),
    *_regimes(),
)
HIT_RATIO = "prefix_cache_hit_ratio"
HEADLINES = tuple(measure for measure in MEASURES if measure.headline)
