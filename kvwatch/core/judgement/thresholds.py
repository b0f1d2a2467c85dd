"""The numbers that judgements turn on and operators may move, with default, unit and meaning.

Named `<row>.<what>`, as `--threshold`, the settings file and the evidence spell them. The rows of
`symptoms` add their own; those of the regimes and derived numbers are here.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import NoReturn


@dataclass(frozen=True, slots=True)
class Threshold:
    """A default and its meaning. `unit` is ``ratio`` (0-1 unless said) or what is counted, as ``seconds``."""

    name: str
    default: float
    unit: str
    help: str
    low: float = 0.0
    high: float = 1e12


REGIME_THRESHOLDS: tuple[Threshold, ...] = (
    Threshold(
        "regime.full_usage",
        0.95,
        "ratio",
        high=1.0,
        help="KV usage from which the cache counts as full. vLLM's own dashboards turn red at 0.98; a saturated"
        " cache swings below 1.0 because each preemption frees a whole request (seen on a real 0.32).",
    ),
    Threshold(
        "regime.short_memory",
        15,
        "seconds",
        low=1,
        help="How long after it was full the cache counts as short: usage dips each time a request ends or is"
        " preempted, up to 7 s on a real saturated server.",
    ),
    Threshold(
        "regime.demand",
        1.0,
        "ratio",
        high=100,
        help="KV demand ratio from which what is admitted and waiting no longer fits the cache together.",
    ),
    Threshold(
        "regime.plateau",
        60,
        "seconds",
        low=5,
        help="How far back the ceiling of running requests is looked for, where --max-num-seqs is not stated.",
    ),
    Threshold(
        "regime.plateau_share",
        0.6,
        "ratio",
        high=1.0,
        help="Share of samples with a queue in which running is at its highest, from which that is its ceiling.",
    ),
    Threshold(
        "regime.slot_memory",
        5,
        "seconds",
        help="How long after all slots were taken they still count as taken: a slot is empty for a step when a"
        " request ends.",
    ),
    Threshold(
        "regime.progress_memory",
        10,
        "seconds",
        low=1,
        help="A queue is put down to slots or prefill only while something moved within this time.",
    ),
    Threshold(
        "regime.stalled_after",
        30,
        "seconds",
        low=1,
        help="No counter and no usage moves for this long with requests in the engine: it is stalled.",
    ),
    Threshold(
        "regime.cold_stalled_after",
        300,
        "seconds",
        low=1,
        help="The same until the engine has generated its first token or finished its first request: that compiles"
        " and warms up, 89 s in a public report.",
    ),
    Threshold(
        "regime.prefill_memory",
        30,
        "seconds",
        low=1,
        help="Prompt tokens arrive in lumps, at a request's first output; this long without one means that no"
        " prefill is seen to go on.",
    ),
)

SYMPTOM_THRESHOLDS: tuple[Threshold, ...] = (
    Threshold(
        "symptom.memory",
        5,
        "seconds",
        low=1,
        help="What a symptom is about must have been seen within this time, so that no burst fires after its end.",
    ),
    Threshold(
        "queue.wait",
        0.5,
        "seconds",
        help="A queue for slots, prefill or what is deferred is none to tell of while a request waits less than this"
        " on average (waiting / finished a second): on a large server some have always just arrived.",
    ),
)

DERIVED_THRESHOLDS: tuple[Threshold, ...] = (
    Threshold(
        "hit_ratio.overrun",
        1.2,
        "ratio",
        low=1,
        high=100,
        help="Look-ups of the prefix cache per prompt token (beyond what is in flight) from which the hit ratio"
        " is not trusted: up to vLLM 0.26 every attempt to schedule counts, so under pressure they run away.",
    ),
    Threshold(
        "score.preemption_full",
        0.1,
        "ratio",
        high=1.0,
        help="Preemptions / (preemptions + finished requests) at which the preemption part is at its full weight.",
    ),
)


class Limits(dict[str, float]):
    """The thresholds in force: the defaults of `table`, overridden. Unknown names are a ValueError. To be read only;
    a dict because judges look at a hundred of them at every sample."""

    def __init__(self, table: tuple[Threshold, ...], overrides: Mapping[str, float]) -> None:
        errors = check(table, overrides)
        if errors:
            raise ValueError("; ".join(errors))
        super().__init__({row.name: row.default for row in table} | dict(overrides))

    def __missing__(self, name: str) -> NoReturn:
        raise LookupError(f"no threshold {name!r}: add a Threshold row to its symptom, or to thresholds.py")


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
