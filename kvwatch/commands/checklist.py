"""The checklist of tuning a KV cache, gone through with what a server says of itself.

Seven points, in the order in which one tunes. For each: what the server's own data shows, since its start where it
has counted so long, and what no data shows and only who runs it can know.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from kvwatch.core.export.report import identity
from kvwatch.core.history.window import quantile
from kvwatch.core.judgement.derive import capacity_tokens
from kvwatch.core.judgement.percentiles import QUANTILES
from kvwatch.core.judgement.state import EngineState, State
from kvwatch.core.model.snapshot import EngineKey, Histogram
from kvwatch.text.numbers import format_number


class Mark(StrEnum):
    """What the data makes of a point, from what calls for a look to what needs none."""

    LOOK = "look"
    """It shows something to change or to find out."""
    UNKNOWN = "unknown"
    """It does not tell; the reason is beside it."""
    YOURS = "yours"
    """It can't tell: only who runs the server knows."""
    SHOWN = "shown"
    """It shows that the point is met, as far as data can."""


@dataclass(frozen=True, slots=True)
class CheckedValue:
    """What the data of one engine shows of a point."""

    key: EngineKey
    mark: Mark
    text: str


@dataclass(frozen=True, slots=True)
class Point:
    """One point of the checklist: `shown` by engine, `yours` what only the operator knows."""

    title: str
    shown: tuple[CheckedValue, ...]
    yours: str

    @property
    def mark(self) -> Mark:
        """The one that calls most for a look."""
        return min((one.mark for one in self.shown), key=list(Mark).index, default=Mark.UNKNOWN)

    def as_data(self) -> dict[str, Any]:
        shown = [identity(one.key) | {"mark": str(one.mark), "text": one.text} for one in self.shown]
        return {"point": self.title, "mark": str(self.mark), "shown": shown, "yours": self.yours}


def checklist(state: State) -> tuple[Point, ...]:
    """Every point, for the engines of a state that was read from a good page."""
    return tuple(
        Point(title, tuple(CheckedValue(key, *look(state, one)) for key, one in state.engines.items()), yours)
        for title, look, yours in _POINTS
    )


_Look = Callable[[State, EngineState], tuple[Mark, str]]
_FEW = 20.0
"""Requests since the start from which their percentiles are worth something."""
_MUCH = 0.05
"""Preemptions per finished request since the start that call for a look, a quarter of what is a storm."""


def _shape(_: State, one: EngineState) -> tuple[Mark, str]:
    config = one.snapshot.config
    tokens, why = capacity_tokens(one.snapshot)
    if tokens is None:
        return Mark.UNKNOWN, f"how many tokens the cache holds is not told: {why}"
    blocks = f" in {format_number(config.num_gpu_blocks)} blocks of {format_number(config.block_size)}"
    return (
        Mark.YOURS,
        f"the cache holds {format_number(tokens)} tokens{blocks if config.num_gpu_blocks else ''}",
    )


def _lengths(_: State, one: EngineState) -> tuple[Mark, str]:
    told = []
    for word, signal in (("prompt", "request_prompt_tokens"), ("generated", "request_generation_tokens")):
        seen = one.raw_histograms.get(signal)
        if seen is None or seen.count < _FEW:
            return (
                Mark.UNKNOWN,
                f"{format_number(seen.count if seen else 0)} requests finished: too few to tell lengths",
            )
        told.append(f"{word} {', '.join(f'p{100 * q:g} {_at(seen, q)}' for q in QUANTILES)}")
    count = one.raw_histograms["request_prompt_tokens"].count
    return (
        Mark.SHOWN,
        f"{'; '.join(told)} tokens, of {format_number(count)} requests that finished since the start",
    )


def _at(seen: Histogram, q: float) -> str:
    found = quantile(seen, q)
    return (
        "unknown" if found is None else f"{'≥ ' if found.at_least else ''}{format_number(round(found.value))}"
    )


def _limit(state: State, one: EngineState) -> tuple[Mark, str]:
    facts = state.facts.max_model_len if state.facts else None
    longest = (facts or {}).get(one.key.model_name) or one.snapshot.config.max_model_len
    if longest is None:
        return Mark.UNKNOWN, "this server does not say the longest request that it takes"
    takes = f"it takes requests of up to {format_number(longest)} tokens"
    parts = [one.raw_histograms.get(name) for name in ("request_prompt_tokens", "request_generation_tokens")]
    ends = [quantile(part, 0.99) for part in parts if part is not None and part.count >= _FEW]
    if len(ends) < len(parts) or not all(ends):
        return Mark.UNKNOWN, f"{takes}; too few requests finished to hold that against what is served"
    served = sum(end.value for end in ends if end)
    times = longest / max(served, 1.0)
    most = state.limits["max_model_len_oversized.times"]
    text = f"{takes}, {times:.1f} times the p99 of those served ({format_number(round(served))})"
    return (Mark.LOOK, f"{text}: lower --max-model-len") if times >= most else (Mark.SHOWN, text)


def _load(_: State, one: EngineState) -> tuple[Mark, str]:
    finished, preempted = (
        one.snapshot.number("requests_finished_total"),
        one.snapshot.number("preemptions_total"),
    )
    if finished is None or preempted is None:
        return Mark.UNKNOWN, "finished requests or preemptions are not exposed"
    text = f"{format_number(finished)} requests finished and {format_number(preempted)} preemptions since the start"
    if preempted > _MUCH * max(finished, 1.0) and preempted >= 3:
        return Mark.LOOK, f"{text}: this load does not fit the cache"
    return Mark.YOURS, text


def _prefixes(state: State, one: EngineState) -> tuple[Mark, str]:
    if one.snapshot.config.enable_prefix_caching is False:
        return Mark.LOOK, "prefix caching is off"
    asked = one.snapshot.number("prefix_cache_queried_tokens_total")
    hits = one.snapshot.number("prefix_cache_hit_tokens_total")
    if not asked or hits is None:
        return Mark.UNKNOWN, "nothing was looked up in the prefix cache, or it is not exposed"
    share = hits / asked
    text = f"{share:.0%} of {format_number(asked)} tokens looked up since the start were found in the prefix cache"
    low = share < state.limits["prefix_cache_ineffective.hit_ratio"]
    return (Mark.LOOK, f"{text}: what differs at the head of the prompts?") if low else (Mark.SHOWN, text)


def _precision(_: State, one: EngineState) -> tuple[Mark, str]:
    dtype = one.snapshot.config.cache_dtype
    if dtype is None:
        return Mark.UNKNOWN, "this server does not say the precision of its cache"
    if dtype.startswith("fp8"):
        return Mark.YOURS, f"the cache is in FP8 ({dtype})"
    return Mark.YOURS, f"the cache is not in FP8 (kv-cache-dtype {dtype}): nothing to compare yet"


def _watched(_: State, one: EngineState) -> tuple[Mark, str]:
    wanted = ("kv_cache_usage_ratio", "requests_waiting", "preemptions_total")
    missing = [name for name in wanted if name not in one.snapshot.values]
    if missing:
        return Mark.LOOK, f"not exposed: {', '.join(missing)}"
    return Mark.YOURS, "it exposes KV usage, waiting requests and preemptions"


_POINTS: tuple[tuple[str, _Look, str], ...] = (
    (
        "Layers, KV heads and head dimension are known",
        _shape,
        "the model's config.json has them; they make the bytes per token",
    ),
    (
        "p50, p95 and p99 of input and output lengths are measured",
        _lengths,
        "whether this is the traffic that you plan for; requests that clients gave up are not in it",
    ),
    (
        "A served maximum length is set",
        _limit,
        "whether that is what the service really serves, and where requests beyond p99 go",
    ),
    (
        "Load was tested with the real mix of lengths",
        _load,
        "whether that was the real mix, and for 30 minutes or more of the worst case",
    ),
    (
        "Repeated prefixes and the hit ratio were looked at",
        _prefixes,
        "whether system prompt and tool schema are equal to the letter, and variable values behind them",
    ),
    (
        "FP8 was compared before and after, on the same requests",
        _precision,
        "whether answers on long contexts stayed good, and what throughput and first tokens gained",
    ),
    (
        "KV usage, waiting and preemptions are on a dashboard",
        _watched,
        "whether someone looks at it, and whom the alerts reach",
    ),
)


def lines(points: Iterable[Point]) -> Iterator[tuple[Mark, str, list[str], str]]:
    """The points for people: mark, title, what is shown, with its engine where there are several, what is yours."""
    for point in points:
        several = len(point.shown) > 1
        shown = [f"engine {one.key.engine}: {one.text}" if several else one.text for one in point.shown]
        yield point.mark, point.title, shown or ["no engine is known yet"], point.yours
