"""The measures that are compared: how each is computed, which direction is good, and how much data it needs."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum
from functools import partial

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
    numerator: str = ""
    denominator: str = ""
    unit: str = ""
    better: Better = Better.LOWER
    scale: Scale = Scale.RATIO
    margin: float = 0.0
    histogram: str = ""
    q: float = 0.0
    events: str = ""
    least: float = 0.0
    headline: bool = False


_BEYOND = 4.0
"""Observations required beyond a quantile: 80 in all for p95, 400 for p99. With fewer it is only the largest few."""
_FEW = 20.0
_RARE = 60.0
"""Requests required for rare events: if 60 have none, fewer than 5 % do (rule of three)."""
_FINISHED, _PROMPT_SOURCES = "requests_finished_total", "prompt_tokens_by_source_total"
_PREEMPTED, _CACHED = "preemptions_total", f"{_PROMPT_SOURCES}/local_cache_hit"
_HITS = ("prefix_cache_hit_tokens_total", "prefix_cache_queried_tokens_total")
_USAGE, _GAUGES = "kv_cache_usage_ratio", ("kv_cache_usage_ratio", "requests_running", "requests_waiting")
_QUANTILES = (("p50", 0.5), ("p95", 0.95), ("p99", 0.99))
HIT_RATIO = "prefix_cache_hit_ratio"


def _latency(name: str, title: str, signal: str, *headlines: str) -> Iterator[Measure]:
    """The mean, which is exact whatever the buckets are, and quantiles of a histogram."""
    group, count, total = MeasureGroup.LATENCY, column(signal, "count"), column(signal, "sum")
    yield Measure(
        f"{name}_mean_seconds", f"{title} mean", group, (signal,), total, count, "s", events=count, least=_FEW
    )
    for short, q in _QUANTILES:
        least, headline = max(_FEW, round(_BEYOND / (1 - q))), short in headlines
        yield Measure(
            f"{name}_{short}_seconds", f"{title} {short}", group, (signal,), unit="s", histogram=signal, q=q,
            events=count, least=least, headline=headline,
        )  # fmt: skip


def _throughput(id_: str, title: str, counter: str, *, headline: bool = False) -> Measure:
    return Measure(
        id_, title, MeasureGroup.THROUGHPUT, (counter,), counter, SECONDS, "/s", Better.HIGHER, events=counter,
        least=_FEW, headline=headline,
    )  # fmt: skip


_share = partial(Measure, unit="%", scale=Scale.DIFFERENCE, margin=0.05)
_LOAD, _CACHE, _REGIMES = MeasureGroup.LOAD, MeasureGroup.CACHE, MeasureGroup.REGIMES
_HIGHER, _NEITHER, _DIFFERENCE = Better.HIGHER, Better.NEITHER, Scale.DIFFERENCE
MEASURES = (
    *_latency("ttft", "TTFT", "time_to_first_token_seconds", "p50", "p95"),
    *_latency("itl", "ITL", "inter_token_latency_seconds", "p95"),
    *_latency("queue", "queue time", "request_queue_time_seconds"),
    *_latency("e2e", "e2e latency", "e2e_request_latency_seconds", "p95"),
    _throughput("generation_tokens_per_second", "generated tokens", "generation_tokens_total", headline=True),
    _throughput("prompt_tokens_per_second", "prompt tokens", "prompt_tokens_total"),
    _throughput("requests_finished_per_second", "finished requests", _FINISHED),
    Measure("requests_running_mean", "running, mean", _LOAD, ("requests_running",), RUNNING, SECONDS,
            better=_NEITHER),
    Measure("requests_waiting_mean", "waiting, mean", _LOAD, ("requests_waiting",), WAITING, SECONDS,
            scale=_DIFFERENCE, margin=0.5, headline=True),
    _share("requests_failed_ratio", "requests with an error", _LOAD, (_FINISHED,), f"{_FINISHED}/error", _FINISHED,
           events=_FINISHED, least=_RARE),
    _share("kv_cache_usage_median_ratio", "KV usage, median", _CACHE, (_USAGE,), q=0.5, better=_NEITHER),
    _share("kv_cache_usage_full_time_ratio", "time with KV usage ≥ 95 %", _CACHE, (_USAGE,), FULL_SECONDS,
           ENGINE_SECONDS, better=_NEITHER),
    Measure("preemptions_per_finished_request", "preemptions per finished request", _CACHE,
            (_PREEMPTED, _FINISHED), _PREEMPTED, _FINISHED, scale=_DIFFERENCE, margin=0.05, events=_FINISHED,
            least=_RARE, headline=True),
    _share(HIT_RATIO, "prefix hit rate", _CACHE, _HITS, *_HITS, better=_HIGHER),
    _share("prompt_tokens_reused_ratio", "prompt tokens from the cache", _CACHE, (_PROMPT_SOURCES,), _CACHED,
           _PROMPT_SOURCES, better=_HIGHER),
    *(_share(f"{regime}_time_ratio", regime.replace("_", " "), _REGIMES, _GAUGES, column("regime", regime),
             ENGINE_SECONDS, better=_NEITHER)
      for regime in Regime if regime not in {Regime.UNKNOWN, Regime.DOWN}),
)  # fmt: skip
"""In the order of the report."""
HEADLINES = tuple(measure for measure in MEASURES if measure.headline)
