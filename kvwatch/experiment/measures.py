"""The measures that are compared: how each is computed, which direction is good, and how much data it needs."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum

from kvwatch.core.history.regimes import Regime
from kvwatch.experiment.series import ENGINE_SECONDS, FULL_SECONDS, RUNNING, SECONDS, WAITING, column


class Better(StrEnum):
    """Which direction is good; NEITHER for what is good or bad only together with other measures."""

    LOWER = "lower"
    HIGHER = "higher"
    NEITHER = "neither"


class MeasureGroup(StrEnum):
    """Headings of the table."""

    LATENCY = "latency"
    THROUGHPUT = "throughput"
    LOAD = "requests"
    CACHE = "KV cache"
    REGIMES = "time per regime"


class Scale(StrEnum):
    """RATIO: a difference is a share of the baseline, computed from logarithms; for numbers above zero, whose errors
    grow with them. DIFFERENCE: it has the unit of the measure; for numbers that may be zero."""

    RATIO = "ratio"
    DIFFERENCE = "difference"


@dataclass(frozen=True, slots=True)
class Measure:
    """One number of a run: the ratio of two columns, the `q`-quantile of a histogram, or without either the
    `q`-quantile of KV usage.

    `needs` are the signals it is computed from. `events` is the column that must reach `least` in both runs. `margin`
    is the difference that does not matter, in the unit of a DIFFERENCE; of a RATIO it is an option of the command.
    `headline` measures decide the overall verdict and share its error rate of 5 %.
    """

    id: str
    title: str
    group: MeasureGroup
    needs: tuple[str, ...]
    unit: str = ""
    numerator: str = ""
    denominator: str = ""
    histogram: str = ""
    q: float = 0.0
    better: Better = Better.LOWER
    scale: Scale = Scale.RATIO
    margin: float = 0.0
    events: str = ""
    least: float = 0.0
    headline: bool = False


_BEYOND = 4.0
"""Observations required beyond a quantile: 80 in all for p95, 400 for p99. With fewer it is only the largest few."""
_FEW = 20.0
_RARE = 60.0
"""Requests required for rare events: if 60 have none, fewer than 5 % do (rule of three)."""
_LATENCIES = (
    ("ttft", "TTFT", "time_to_first_token_seconds", ("p50", "p95")),
    ("itl", "ITL", "inter_token_latency_seconds", ("p95",)),
    ("queue", "queue time", "request_queue_time_seconds", ()),
    ("e2e", "e2e latency", "e2e_request_latency_seconds", ("p95",)),
)
"""Short name, title, histogram and headline quantiles of each latency."""
_QUANTILES = (("p50", 0.5), ("p95", 0.95), ("p99", 0.99))
_FINISHED, _BY_SOURCE = "requests_finished_total", "prompt_tokens_by_source_total"
_USAGE, _GAUGES = "kv_cache_usage_ratio", ("kv_cache_usage_ratio", "requests_running", "requests_waiting")
HIT_RATIO = "prefix_cache_hit_ratio"


def _latencies() -> Iterator[Measure]:
    """The mean, exact whatever the buckets are, and quantiles of each latency."""
    for short, title, signal, headlines in _LATENCIES:
        count = column(signal, "count")
        yield Measure(
            f"{short}_mean_seconds",
            f"{title} mean",
            MeasureGroup.LATENCY,
            (signal,),
            "s",
            numerator=column(signal, "sum"),
            denominator=count,
            events=count,
            least=_FEW,
        )
        for name, q in _QUANTILES:
            yield Measure(
                f"{short}_{name}_seconds",
                f"{title} {name}",
                MeasureGroup.LATENCY,
                (signal,),
                "s",
                histogram=signal,
                q=q,
                events=count,
                least=max(_FEW, round(_BEYOND / (1 - q))),
                headline=name in headlines,
            )


def _throughput(id_: str, title: str, counter: str, *, headline: bool = False) -> Measure:
    return Measure(
        id_,
        title,
        MeasureGroup.THROUGHPUT,
        (counter,),
        "/s",
        numerator=counter,
        denominator=SECONDS,
        better=Better.HIGHER,
        events=counter,
        least=_FEW,
        headline=headline,
    )


def _share(
    id_: str,
    title: str,
    group: MeasureGroup,
    parts: tuple[str, str],
    *,
    needs: tuple[str, ...] = (),
    better: Better = Better.NEITHER,
    least: float = 0.0,
) -> Measure:
    """A share (0-1). `parts` are its numerator and denominator; the denominator also counts the events."""
    return Measure(
        id_,
        title,
        group,
        needs or parts,
        "%",
        numerator=parts[0],
        denominator=parts[1],
        better=better,
        scale=Scale.DIFFERENCE,
        margin=0.05,
        events=parts[1] if least else "",
        least=least,
    )


_LOAD, _CACHE = MeasureGroup.LOAD, MeasureGroup.CACHE
MEASURES = (
    *_latencies(),
    _throughput("generation_tokens_per_second", "generated tokens", "generation_tokens_total", headline=True),
    _throughput("prompt_tokens_per_second", "prompt tokens", "prompt_tokens_total"),
    _throughput("requests_finished_per_second", "finished requests", _FINISHED),
    Measure(
        "requests_running_mean",
        "running, mean",
        _LOAD,
        ("requests_running",),
        numerator=RUNNING,
        denominator=SECONDS,
        better=Better.NEITHER,
    ),
    Measure(
        "requests_waiting_mean",
        "waiting, mean",
        _LOAD,
        ("requests_waiting",),
        numerator=WAITING,
        denominator=SECONDS,
        scale=Scale.DIFFERENCE,
        margin=0.5,
        headline=True,
    ),
    _share(
        "requests_failed_ratio",
        "requests with an error",
        _LOAD,
        (f"{_FINISHED}/error", _FINISHED),
        needs=(_FINISHED,),
        better=Better.LOWER,
        least=_RARE,
    ),
    Measure(
        "kv_cache_usage_median_ratio",
        "KV usage, median",
        _CACHE,
        (_USAGE,),
        "%",
        q=0.5,
        better=Better.NEITHER,
        scale=Scale.DIFFERENCE,
        margin=0.05,
    ),
    _share(
        "kv_cache_usage_full_time_ratio",
        "time with KV usage ≥ 95 %",
        _CACHE,
        (FULL_SECONDS, ENGINE_SECONDS),
        needs=(_USAGE,),
    ),
    Measure(
        "preemptions_per_finished_request",
        "preemptions per finished request",
        _CACHE,
        ("preemptions_total", _FINISHED),
        numerator="preemptions_total",
        denominator=_FINISHED,
        scale=Scale.DIFFERENCE,
        margin=0.05,
        events=_FINISHED,
        least=_RARE,
        headline=True,
    ),
    _share(
        HIT_RATIO,
        "prefix hit ratio",
        _CACHE,
        ("prefix_cache_hit_tokens_total", "prefix_cache_queried_tokens_total"),
        better=Better.HIGHER,
    ),
    _share(
        "prompt_tokens_reused_ratio",
        "prompt tokens from the cache",
        _CACHE,
        (f"{_BY_SOURCE}/local_cache_hit", _BY_SOURCE),
        needs=(_BY_SOURCE,),
        better=Better.HIGHER,
    ),
    *(
        _share(
            f"{regime}_time_ratio",
            regime.replace("_", " "),
            MeasureGroup.REGIMES,
            (column("regime", regime), ENGINE_SECONDS),
            needs=_GAUGES,
        )
        for regime in Regime
        if regime not in {Regime.UNKNOWN, Regime.DOWN}
    ),
)
"""In the order of the report."""
HEADLINES = tuple(measure for measure in MEASURES if measure.headline)
