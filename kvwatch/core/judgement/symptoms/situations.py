"""The situation of an engine, from its view: what advice and severity depend on besides the symptom."""

from __future__ import annotations

from kvwatch.core.judgement.advice.situation import Lengths, Situation
from kvwatch.core.judgement.derive import MINUTE
from kvwatch.core.judgement.percentiles import LATENCIES, LENGTHS, TOTAL_LENGTH, percentile_name
from kvwatch.core.judgement.symptoms.row import Evidence
from kvwatch.core.judgement.symptoms.views import EngineView, fits_of, once_per_sample

_PROMPT, _OUTPUT = LENGTHS.values()
_ROOM_USAGE = 0.7
"""Below this mean usage, without a queue, an engine has room for requests of others."""


@once_per_sample
def backlogged(view: EngineView) -> bool:
    """Whether requests waited for nearly all of the last minute: more arrives than is finished."""
    samples = view.weighted_samples(MINUTE)
    seconds = sum(held for _, held in samples)
    waited = sum(held for row, held in samples if row.waiting)
    return seconds > 0 and waited >= view.limits["harm.waiting_share"] * max(seconds, MINUTE / 2)


@once_per_sample
def suffering(view: EngineView) -> bool:
    """Whether users notice it: requests wait all the time or more than the cache holds is wanted, or first tokens are
    later than the objective."""
    ttft = view.derived.get(percentile_name(LATENCIES["time_to_first_token_seconds"], 0.95))
    demand = view.derived.get("kv_cache_demand_ratio")
    late = ttft is not None and ttft >= view.limits["harm.ttft"]
    return late or backlogged(view) or (demand is not None and demand >= view.limits["harm.demand"])


def has_room(view: EngineView) -> bool:
    """Whether an engine could take requests of others."""
    return (
        view.scraped
        and view.mean_usage(MINUTE) < _ROOM_USAGE
        and not view.recently(lambda row: bool(row.waiting))
    )


def situation_of(
    symptom: str, evidence: Evidence, view: EngineView, *, room_elsewhere: bool = False
) -> Situation:
    """The situation of an engine with a symptom."""
    derived, snapshot = view.derived, view.snapshot
    running = [row.running for row in view.windows.samples.rows() if row.running is not None]
    return Situation(
        symptom,
        evidence,
        config=snapshot.config,
        generation=snapshot.generation,
        features=snapshot.features,
        capacity=derived.get("kv_cache_capacity_tokens"),
        fits=fits_of(view),
        lengths=_lengths(view),
        max_model_len=view.max_model_len,
        running=snapshot.number("requests_running"),
        waiting=snapshot.number("requests_waiting"),
        demand=derived.get("kv_cache_demand_ratio"),
        most_running=max(running, default=None),
        ceiling=view.ceiling,
        hit_ratio=None
        if "prefix_cache_hit_ratio" in derived.untrusted
        else derived.get("prefix_cache_hit_ratio"),
        suffering=evidence.get("users_suffer", suffering(view)),
        backlogged=backlogged(view),
        room_elsewhere=room_elsewhere,
    )


def _lengths(view: EngineView) -> Lengths:
    """The lengths of the last hour."""
    names = {
        "output_p50": percentile_name(_OUTPUT, 0.5),
        "output_p95": percentile_name(_OUTPUT, 0.95),
        "total_p50": percentile_name(TOTAL_LENGTH, 0.5),
        "total_p95": percentile_name(TOTAL_LENGTH, 0.95),
        "total_p99": percentile_name(TOTAL_LENGTH, 0.99),
    }
    minutes = view.windows.minutes.rows()
    first, last = (minutes[0], minutes[-1]) if minutes else (None, None)
    count = 0.0
    if first is not None and last is not None:
        signal = "request_generation_tokens"
        before, after = first.by_signal.get(signal), last.by_signal.get(signal)
        count = after.count - before.count if before and after else 0.0
    return Lengths(
        count=count,
        at_least=frozenset(short for short, name in names.items() if name in view.derived.at_least),
        **{short: view.derived.get(name) for short, name in names.items()},
    )
