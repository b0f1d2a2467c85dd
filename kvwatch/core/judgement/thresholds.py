"""The thresholds of the judgement, with default, unit and meaning. Operators may change each one.

A threshold is named `<row>.<what>`, as `--threshold`, the settings file and the evidence spell it. Those of the
regimes and of derived numbers are here; the rows of `symptoms` add their own.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from difflib import get_close_matches


@dataclass(frozen=True, slots=True)
class Threshold:
    """A default and its meaning. `unit` is ``ratio`` or what is counted, such as ``seconds``."""

    name: str
    default: float
    unit: str
    help: str
    low: float = 0.0
    high: float = 1e12


def share(name: str, default: float, help_: str) -> Threshold:
    """A ratio between 0 and 1."""
    return Threshold(name, default, "ratio", help_, high=1.0)


def multiple(name: str, default: float, help_: str, low: float = 0.0) -> Threshold:
    """A ratio that may be above 1, such as times the usual length."""
    return Threshold(name, default, "ratio", help_, low, 1000)


def seconds(name: str, default: float, help_: str, low: float = 0.0) -> Threshold:
    """A time in seconds, at least `low`."""
    return Threshold(name, default, "seconds", help_, low)


REGIME_THRESHOLDS: tuple[Threshold, ...] = (
    share(
        "regime.full_usage",
        0.95,
        "The cache counts as full at or above this usage. vLLM's dashboards turn red at 0.98, but a saturated"
        " cache often falls below that, because each preemption frees the blocks of a whole request (recorded"
        " on vLLM 0.32).",
    ),
    seconds(
        "regime.short_memory",
        15,
        "Requests count as waiting for the cache up to this long after it was full, had no room for one more"
        " request, or preempted. Usage dips whenever a request ends or is preempted, for up to 7 s on a"
        " recorded saturated server.",
        low=1,
    ),
    Threshold(
        "regime.demand",
        1.0,
        "ratio",
        "At or above this KV demand ratio, the running and waiting requests do not fit in the cache together.",
        high=100,
    ),
    seconds(
        "regime.plateau",
        60,
        "If --max-num-seqs is not set for the target, the limit of running requests is inferred from the"
        " samples of this time.",
        low=5,
    ),
    share(
        "regime.plateau_share",
        0.6,
        "The highest number of running requests counts as their limit if at least this share of the samples with a"
        " queue shows it.",
    ),
    seconds(
        "regime.slot_memory",
        5,
        "All batch slots count as taken up to this long after they were. A slot is empty for one step whenever"
        " a request ends.",
    ),
    seconds(
        "regime.progress_memory",
        10,
        "A queue is attributed to slots or prefill only if the engine made progress within this time.",
        low=1,
    ),
    seconds(
        "regime.stalled_after",
        30,
        "An engine with requests is stalled after this long without a change of any counter or of usage.",
        low=1,
    ),
    seconds(
        "regime.cold_stalled_after",
        300,
        "The same, before the engine has generated its first token or finished its first request. Compiling and"
        " warming up took 89 s in a public report.",
        low=1,
    ),
    seconds(
        "regime.prefill_memory",
        30,
        "Prefill counts as running up to this long after the prompt token counter last rose. vLLM counts a"
        " prompt all at once, at the request's first output.",
        low=1,
    ),
)

SYMPTOM_THRESHOLDS: tuple[Threshold, ...] = (
    share(
        "harm.waiting_share",
        0.8,
        "Users notice a symptom if requests waited for at least this share of the last minute. On a recorded server a"
        " few preemptions near capacity made them wait for less than 0.3.",
    ),
    multiple(
        "harm.demand",
        1.25,
        "Users notice a symptom from this KV demand ratio: running and waiting requests need more than the cache, so"
        " the queue grows.",
    ),
    seconds(
        "harm.ttft",
        2.5,
        "Users notice a symptom if the 95th percentile of time to first token over 5 minutes reaches this: the"
        " objective of the alerts.",
    ),
    seconds(
        "symptom.memory",
        5,
        "A symptom fires only if its condition was seen within this time, so that a burst does not fire after"
        " it has ended.",
        low=1,
    ),
    seconds(
        "queue.wait",
        0.5,
        "Queues for slots, prefill or deferred work are ignored while the mean wait (waiting / finished per"
        " second) is below this. A busy server always has some requests that have just arrived.",
    ),
)

DERIVED_THRESHOLDS: tuple[Threshold, ...] = (
    Threshold(
        "hit_ratio.overrun",
        1.2,
        "ratio",
        "The prefix cache hit rate is not trusted above this many looked-up tokens per prompt token, not"
        " counting requests in flight. Up to vLLM 0.26, every scheduling attempt counts as a look-up, so under"
        " pressure look-ups far exceed prompt tokens.",
        low=1,
        high=100,
    ),
    share(
        "score.preemption_full",
        0.1,
        "The preemption part of the cache-pressure score reaches 1 at this value of preemptions / (preemptions"
        " + finished requests).",
    ),
)


class Limits(dict[str, float]):
    """The thresholds in force: the defaults of `table` with overrides. Read only.

    It is a dict because judges read a hundred of them at every sample. ValueError lists everything that is wrong with
    the overrides.
    """

    def __init__(self, table: tuple[Threshold, ...], overrides: Mapping[str, float]) -> None:
        errors = check(table, overrides)
        if errors:
            raise ValueError("; ".join(errors))
        super().__init__({row.name: row.default for row in table} | dict(overrides))

    def __missing__(self, name: str) -> float:
        near = ", ".join(get_close_matches(name, self)) or "none"
        raise KeyError(
            f"no threshold {name!r}; similar names: {near}. Add it to the `thresholds` of its symptom"
        )


def check(table: tuple[Threshold, ...], overrides: Mapping[str, float]) -> list[str]:
    """What is wrong with a set of overrides, one line each, naming the remedy; empty if nothing."""
    rows = {row.name: row for row in table}
    errors = []
    for name, value in overrides.items():
        row = rows.get(name)
        if row is None:
            close = [n for n in rows if n.split(".")[-1] == name.split(".")[-1]] or sorted(rows)
            errors.append(f"threshold {name!r} is unknown; known ones include {', '.join(close[:6])}")
        elif not row.low <= value <= row.high:
            errors.append(f"threshold {name}={value:g} is outside {row.low:g} to {row.high:g} ({row.unit})")
    return errors
