"""The checklist for tuning a KV cache: seven points in the order of tuning.

For each point it reports what the server's own data shows, since its start if its counters reach back so far, and
what only the operator knows.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from kvwatch.commands.terminal_text import percent
from kvwatch.core.export.report import identity
from kvwatch.core.history.window import quantile
from kvwatch.core.judgement.derive import capacity_tokens
from kvwatch.core.judgement.percentiles import QUANTILES
from kvwatch.core.judgement.state import EngineState, State
from kvwatch.core.model.snapshot import EngineKey, Histogram
from kvwatch.text.numbers import format_number


class Mark(StrEnum):
    """The result of a point, most urgent first."""

    LOOK = "look"
    """The data shows something to change or to find out."""
    UNKNOWN = "unknown"
    """The data is missing; the text gives the reason."""
    YOURS = "yours"
    """No data can show it: only the operator knows."""
    SHOWN = "shown"
    """The data shows that the point is met, as far as data can."""


@dataclass(frozen=True, slots=True)
class CheckedValue:
    """What the data of one engine shows about a point."""

    key: EngineKey
    mark: Mark
    text: str


@dataclass(frozen=True, slots=True)
class Point:
    """A point of the checklist: `shown` for each engine; `yours` is what only the operator knows."""

    title: str
    shown: tuple[CheckedValue, ...]
    yours: str

    @property
    def mark(self) -> Mark:
        """The most urgent mark of all engines."""
        return min((one.mark for one in self.shown), key=list(Mark).index, default=Mark.UNKNOWN)

    def as_data(self) -> dict[str, Any]:
        shown = [identity(one.key) | {"mark": str(one.mark), "text": one.text} for one in self.shown]
        return {"point": self.title, "mark": str(self.mark), "shown": shown, "yours": self.yours}


def checklist(state: State) -> tuple[Point, ...]:
    """All points, for all engines of the state after a good page."""
    return tuple(
        Point(
            title, tuple(CheckedValue(key, *check(state, one)) for key, one in state.engines.items()), yours
        )
        for title, check, yours in _POINTS
    )


_MIN_REQUESTS = 20.0
"""Finished requests since the start below which percentiles mean nothing."""
_MAX_PREEMPTIONS = 0.05
"""Preemptions per finished request since the start: a quarter of a storm."""
_LENGTHS = {"prompt": "request_prompt_tokens", "generated": "request_generation_tokens"}


def _shape(_: State, one: EngineState) -> tuple[Mark, str]:
    config = one.snapshot.config
    tokens, why = capacity_tokens(one.snapshot)
    if tokens is None:
        return Mark.UNKNOWN, f"the capacity of the cache is unknown: {why}"
    blocks = f" in {format_number(config.num_gpu_blocks)} blocks of {format_number(config.block_size)}"
    return (
        Mark.YOURS,
        f"the cache holds {format_number(tokens)} tokens{blocks if config.num_gpu_blocks else ''}",
    )


def _lengths(_: State, one: EngineState) -> tuple[Mark, str]:
    parts = []
    for word, signal in _LENGTHS.items():
        lengths = one.raw_histograms.get(signal)
        count = 0.0 if lengths is None else lengths.count
        if lengths is None or count < _MIN_REQUESTS:
            return Mark.UNKNOWN, f"{format_number(count)} requests finished: too few for percentiles"
        percentiles = ", ".join(f"p{100 * q:g} {_percentile(lengths, q)}" for q in QUANTILES)
        parts.append(f"{word} {percentiles}")
    count = one.raw_histograms[_LENGTHS["prompt"]].count
    return (
        Mark.SHOWN,
        f"{'; '.join(parts)} tokens, of {format_number(count)} requests that finished since the start",
    )


def _percentile(lengths: Histogram, q: float) -> str:
    found = quantile(lengths, q)
    if found is None:
        return "unknown"
    return f"{'≥ ' if found.at_least else ''}{format_number(round(found.value))}"


def _limit(state: State, one: EngineState) -> tuple[Mark, str]:
    from_models = state.facts.max_model_len if state.facts else None
    longest = (from_models or {}).get(one.key.model_name) or one.snapshot.config.max_model_len
    if longest is None:
        return Mark.UNKNOWN, "the server does not expose its max_model_len"
    limit = f"max_model_len is {format_number(longest)} tokens"
    lengths = [one.raw_histograms.get(name) for name in _LENGTHS.values()]
    p99s = [quantile(part, 0.99) for part in lengths if part is not None and part.count >= _MIN_REQUESTS]
    known = [p99 for p99 in p99s if p99 is not None]
    if len(known) < len(lengths):
        return Mark.UNKNOWN, f"{limit}; too few requests finished to compare it with their lengths"
    served = sum(p99.value for p99 in known)
    shown = format_number(round(served))
    if any(p99.at_least for p99 in known):
        return Mark.UNKNOWN, f"{limit}; the p99 of served requests is above {shown}, in vLLM's last bucket"
    times = longest / max(served, 1.0)
    text = f"{limit}, {times:.1f} times the p99 of served requests ({shown})"
    if times >= state.limits["max_model_len_oversized.times"]:
        return Mark.LOOK, f"{text}: consider a lower limit; it frees no blocks, but stops runaway requests"
    return Mark.SHOWN, text


def _load(_: State, one: EngineState) -> tuple[Mark, str]:
    finished, preempted = (
        one.snapshot.number("requests_finished_total"),
        one.snapshot.number("preemptions_total"),
    )
    if finished is None or preempted is None:
        return Mark.UNKNOWN, "finished requests or preemptions are not exposed"
    text = f"{format_number(finished)} requests finished and {format_number(preempted)} preemptions since the start"
    if preempted > _MAX_PREEMPTIONS * max(finished, 1.0) and preempted >= 3:
        return Mark.LOOK, f"{text}: this load does not fit in the cache"
    return Mark.YOURS, text


def _prefixes(state: State, one: EngineState) -> tuple[Mark, str]:
    if one.snapshot.config.enable_prefix_caching is False:
        return Mark.LOOK, "prefix caching is off"
    queried = one.snapshot.number("prefix_cache_queried_tokens_total")
    hits = one.snapshot.number("prefix_cache_hit_tokens_total")
    if not queried or hits is None:
        return Mark.UNKNOWN, "the prefix cache was not used, or vLLM does not expose it"
    ratio = hits / queried
    text = f"prefix cache hit rate {percent(ratio)} of {format_number(queried)} tokens since the start"
    if ratio < state.limits["prefix_cache_ineffective.hit_ratio"]:
        return Mark.LOOK, f"{text}: find the first difference between prompts"
    return Mark.SHOWN, text


def _precision(_: State, one: EngineState) -> tuple[Mark, str]:
    dtype = one.snapshot.config.cache_dtype
    if dtype is None:
        return Mark.UNKNOWN, "the server does not expose its KV cache dtype"
    if dtype.startswith("fp8"):
        return Mark.YOURS, f"the cache is in FP8 ({dtype})"
    return Mark.YOURS, f"the cache is not in FP8 (kv-cache-dtype {dtype}): nothing to compare yet"


def _monitoring(_: State, one: EngineState) -> tuple[Mark, str]:
    needed = ("kv_cache_usage_ratio", "requests_waiting", "preemptions_total")
    missing = [name for name in needed if name not in one.snapshot.values]
    if missing:
        return Mark.LOOK, f"not exposed: {', '.join(missing)}"
    return Mark.YOURS, "KV cache usage, waiting requests and preemptions are exposed"


_POINTS: tuple[tuple[str, Callable[[State, EngineState], tuple[Mark, str]], str], ...] = (
    (
        "Layers, KV heads and head dimension are known",
        _shape,
        "the model's config.json has them; they give the bytes per token (see `kvwatch plan`)",
    ),
    (
        "p50, p95 and p99 of input and output lengths are measured",
        _lengths,
        "is this the traffic that you plan for? Requests that clients cancelled are not counted",
    ),
    (
        "The maximum length fits the service",
        _limit,
        "what is the longest request that the service needs, and where do longer ones go?",
    ),
    (
        "Load was tested with the real mix of lengths",
        _load,
        "was it the real mix, with at least 30 minutes of the worst case?",
    ),
    (
        "Repeated prefixes and the prefix cache hit rate were checked",
        _prefixes,
        "are system prompt and tool schema identical token by token, with variable values after them?",
    ),
    (
        "FP8 was compared before and after, on the same requests",
        _precision,
        "is answer quality on long contexts still good, and how much did throughput and TTFT improve?",
    ),
    (
        "KV cache usage, waiting requests and preemptions are on a dashboard",
        _monitoring,
        "does someone look at it, and who receives the alerts?",
    ),
)
