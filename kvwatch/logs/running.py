"""What the lines of statistics show of a server that runs: the same symptoms as live, through the same `advance`.

A log shows an instant every ten seconds, and often there are only a few lines of it. What fires on the lines as they
stand is told with confidence. Where they end before a symptom's time is over, the question is what would fire if it
went on so: the last line is *held*, that is, given to `advance` again and again, on a branch of the state, and what
fires there is told with less.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from copy import copy
from dataclasses import dataclass, field, replace
from typing import Any

from kvwatch.core.lifecycle import Stage
from kvwatch.core.pipeline import advance
from kvwatch.core.policy import Policy
from kvwatch.core.regimes import Regime
from kvwatch.core.snapshot import CacheConfig, EngineKey
from kvwatch.core.state import State, Transition, initial
from kvwatch.core.symptoms import BY_ID
from kvwatch.logs.facts import Facts, one
from kvwatch.logs.statistics import SPACING_S, Counters, Reading, Statistics, logged

TARGET = "log"
#: Symptoms of scraping, and of starts, which the log itself tells.
_NOT_HERE = frozenset({"target_down", "startup_kv_failure", "signals_missing", "engine_restarted"})
#: Regimes that hold requests back, and what tells of them.
_TOLD_BY: Mapping[Regime, frozenset[str]] = {
    Regime.KV_LIMITED: frozenset({"kv_exhausted", "kv_thrashing", "long_request_hogs_cache"}),
    Regime.SEQUENCE_LIMITED: frozenset({"sequence_limited"}),
    Regime.PREFILL_LIMITED: frozenset({"prefill_limited"}),
    Regime.DEFERRED: frozenset({"requests_deferred"}),
    Regime.STALLED: frozenset({"engine_stalled", "request_never_fits"}),
}
_FEW = 6
"""So few lines are a fragment: judged for what they show, however short that was."""
_SURE, _TWICE = 3, 2
_ORDER = ("low", "medium", "high")
_HELD_S = 130.0
"""How long a line is held: a little more than the longest window of a symptom."""
_FULL_IN_A_FRAGMENT = 0.8
"""Usage from which a cache counts as full where only an instant of it is seen beside a queue: of a saturated one it
swings between 0.65 and 1.0."""


@dataclass(frozen=True, slots=True)
class Shown:
    """A symptom that the lines show: of which engine, with which evidence, how sure, and in which line first."""

    symptom: str
    key: EngineKey
    evidence: Mapping[str, Any]
    confidence: str
    line: int
    actions: tuple[str, ...]
    explained_by: tuple[str, ...] = ()


@dataclass
class _Run:
    """The lines so far, judged."""

    state: State
    engines: dict[str, tuple[Reading, Counters]] = field(default_factory=dict)
    t: float | None = None
    timed: bool = True


Batch = Sequence[Reading]


def shown(statistics: Statistics, facts: Facts, *, begins: bool) -> list[Shown]:
    """The symptoms that the lines of one start show. `begins`: the log has them from the start on."""
    batches = list(_batches(statistics.readings))
    if not batches:
        return []
    fragment = len(batches) < _FEW
    policy = _policy(facts, {})
    run = _Run(initial(TARGET, policy))
    found: dict[tuple[EngineKey, str], Shown] = {}
    stretch, limited_by = 0, Regime.UNKNOWN
    for number, batch in enumerate(batches):
        before = _limiting(run.state)
        changes = _give(run, batch, facts, base=0.0 if begins else 1.0)
        _note(found, run.state, changes, batch, "high" if run.timed else "medium")
        limited_by = _limiting(run.state)
        stretch = stretch + 1 if limited_by is before and limited_by is not Regime.UNKNOWN else 1
        last = number + 1 == len(batches)
        if limited_by is Regime.UNKNOWN or stretch < _TWICE:
            continue
        if last or not _next_is_alike(run, batches[number + 1], facts):
            sure = "medium" if stretch >= _SURE else "low"
            _hold(found, run, batch, facts, sure, only=_TOLD_BY[limited_by])
    if fragment or _stands_still(batches[-1]):
        _hold_end(found, batches, run, facts, begins=begins, fragment=fragment)
    return _explained(list(found.values()))


def unclear(statistics: Statistics) -> str:
    """Why the newest line tells nothing of what holds requests back, though some are there; empty if it does."""
    newest = statistics.readings[-1] if statistics.readings else None
    if newest is None or not (newest.parts.get("running") or newest.parts.get("waiting")):
        return ""
    lacking = [name for name in ("running", "waiting", "usage", "generation") if name not in newest.parts]
    if not lacking:
        return ""
    return f"the lines do not show {', '.join(lacking)}: what requests wait for, and whether any move, can't be told"


def _batches(readings: Sequence[Reading]) -> Iterator[Batch]:
    """Lines of several engines that belong together: until one of them speaks again."""
    held: dict[str, Reading] = {}
    for reading in readings:
        if reading.engine in held:
            yield list(held.values())
            held = {}
        held[reading.engine] = reading
    if held:
        yield list(held.values())


def _policy(facts: Facts, thresholds: Mapping[str, float]) -> Policy:
    return Policy(max_num_seqs=one(facts, "max_num_seqs"), disabled=_NOT_HERE, thresholds=thresholds)


def _give(
    run: _Run, batch: Batch, facts: Facts, *, base: float, after_s: float | None = None
) -> tuple[Transition, ...]:
    """Gives the lines to `advance`; `after_s`: so long after those before, whatever they say."""
    said = max((reading.t for reading in batch if reading.t is not None), default=None)
    if after_s is not None and run.t is not None:
        t = run.t + after_s
    elif said is not None and (run.t is None or said > run.t):
        t = said
    else:
        t = 0.0 if run.t is None else run.t + SPACING_S
        run.timed = run.timed and said is not None
    for reading in batch:
        _, counters = run.engines.get(reading.engine, (None, Counters(base)))
        counters.add(reading, t)
        run.engines[reading.engine] = (reading, counters)
    now = {reading.engine: run.engines[reading.engine] for reading in batch}
    outcome = logged(
        TARGET, str(facts.get("model", "")), now, _config(facts), _features(facts), interval_s=SPACING_S, wall=t,
        longest=one(facts, "max_model_len"),
    )  # fmt: skip
    run.t = t
    run.state, changes = advance(run.state, outcome, t)
    return changes


def _config(facts: Facts) -> CacheConfig:
    caching, dtype = facts.get("enable_prefix_caching"), facts.get("kv_cache_dtype")
    return CacheConfig(
        block_size=one(facts, "block_size"),
        num_gpu_blocks=one(facts, "gpu_blocks", "num_gpu_blocks_override"),
        cache_dtype=dtype if isinstance(dtype, str) else None,
        enable_prefix_caching=caching if isinstance(caching, bool) else None,
        gpu_memory_utilization=one(facts, "util"),
        kv_cache_size_tokens=one(facts, "kv_tokens"),
        kv_cache_max_concurrency=one(facts, "max_concurrency"),
        known=True,
    )


def _features(facts: Facts) -> frozenset[str]:
    flags = (("enable_lora", "lora"), ("kv_transfer_config", "kv transfer"))
    return frozenset(feature for flag, feature in flags if facts.get(flag))


# -- what fires --------------------------------------------------------------------------------------------------------


def _note(
    found: dict[tuple[EngineKey, str], Shown], state: State, changes: Sequence[Transition], batch: Batch,
    confidence: str, only: frozenset[str] | None = None,
) -> None:  # fmt: skip
    for change in changes:
        where = (change.key, change.symptom)
        if change.after is not Stage.FIRING or (only and change.symptom not in only):
            continue
        if where in found and _ORDER.index(found[where].confidence) >= _ORDER.index(confidence):
            continue
        engine = state.engines.get(change.key) or next(iter(state.engines.values()))
        line = next((one.number for one in batch if one.engine == change.key.engine), batch[-1].number)
        actions = tuple(action.text for action in BY_ID[change.symptom].actions_for(engine.snapshot))
        found[where] = Shown(change.symptom, change.key, dict(change.evidence), confidence, line, actions)


def _limiting(state: State) -> Regime:
    """The regime that holds an engine back, if one does; of several the first."""
    return next((e.regime for e in state.engines.values() if e.regime in _TOLD_BY), Regime.UNKNOWN)


def _branch(run: _Run) -> _Run:
    """A copy to go on with; the state itself never changes."""
    engines = {name: (reading, copy(counters)) for name, (reading, counters) in run.engines.items()}
    return _Run(run.state, engines, run.t, run.timed)


def _next_is_alike(run: _Run, batch: Batch, facts: Facts) -> bool:
    after = _branch(run)
    _give(after, batch, facts, base=1.0)
    return _limiting(after.state) is _limiting(run.state)


def _hold(
    found: dict[tuple[EngineKey, str], Shown], run: _Run, batch: Batch, facts: Facts, confidence: str,
    only: frozenset[str] | None = None,
) -> None:  # fmt: skip
    """What would fire if a line stayed true for a while."""
    after = _branch(run)
    for _ in range(round(_HELD_S / SPACING_S)):
        changes = _give(after, batch, facts, base=1.0, after_s=SPACING_S)
        _note(found, after.state, changes, batch, confidence, only)


def _hold_end(
    found: dict[tuple[EngineKey, str], Shown], batches: Sequence[Batch], run: _Run, facts: Facts, *,
    begins: bool, fragment: bool,
) -> None:  # fmt: skip
    """The end of the log held: of a fragment whatever it shows, else only whether it stands still."""
    last = batches[-1]
    if not fragment:
        _hold(found, run, last, facts, "medium", only=_TOLD_BY[Regime.STALLED])
        return
    queued = any(reading.parts.get("waiting") for reading in last)
    if queued and (one_line := max((r.parts.get("usage", 0.0) for r in last), default=0.0)):
        run = _run_of(
            batches, facts, begins, {"regime.full_usage": _FULL_IN_A_FRAGMENT} if one_line < 95 else {}
        )
    shows = sum(_alike(batch, last) for batch in batches)
    _hold(found, run, last, facts, "medium" if shows >= _SURE else "low")


def _run_of(batches: Sequence[Batch], facts: Facts, begins: bool, thresholds: Mapping[str, float]) -> _Run:
    run = _Run(initial(TARGET, _policy(facts, thresholds)))
    for batch in batches:
        _give(run, batch, facts, base=0.0 if begins else 1.0)
    return run


def _alike(one_batch: Batch, other: Batch) -> bool:
    """Whether two lines show a queue, or the want of one, alike."""
    queues = [any(reading.parts.get("waiting") for reading in batch) for batch in (one_batch, other)]
    return queues[0] == queues[1]


def _stands_still(batch: Batch) -> bool:
    return any(
        (reading.parts.get("running") or reading.parts.get("waiting"))
        and not reading.prompt
        and not reading.parts.get("generation")
        for reading in batch
    )


def _explained(found: list[Shown]) -> list[Shown]:
    """Causes before their effects, each effect with what accounts for it."""

    def causes(effect: Shown) -> Iterator[str]:
        for other in found:
            together = other.key == effect.key or not (other.key.engine and effect.key.engine)
            if together and effect.symptom in BY_ID[other.symptom].explains:
                yield other.symptom

    told = [replace(effect, explained_by=tuple(dict.fromkeys(causes(effect)))) for effect in found]
    return sorted(told, key=lambda effect: bool(effect.explained_by))
