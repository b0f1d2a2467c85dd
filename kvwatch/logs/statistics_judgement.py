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

from kvwatch.core.history.regimes import Regime
from kvwatch.core.history.window import increase
from kvwatch.core.judgement.derive import TWO_MINUTES
from kvwatch.core.judgement.lifecycle import Stage
from kvwatch.core.judgement.pipeline import advance
from kvwatch.core.judgement.policy import Policy
from kvwatch.core.judgement.state import State, Transition, initial
from kvwatch.core.judgement.symptoms import BY_ID
from kvwatch.core.judgement.symptoms.thrashing import generated_per_prompt_token
from kvwatch.core.model.snapshot import CacheConfig, EngineKey
from kvwatch.logs.log_patterns import LogFacts, one
from kvwatch.logs.statistics import SPACING_S, Counters, Statistics, StatisticsLine, logged

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
_EVERY = frozenset(BY_ID)
_FEW = 6
"""So few lines are a fragment: judged for what they show, however short that was."""
_LINES_MEDIUM, _LINES_LOW = 3, 2
"""Lines in a row that show a thing alike: from so many on it is probable, and in a longer log told at all."""
_ORDER = ("low", "medium", "high")
_HELD_S = 130.0
"""How long a line is held: a little more than the longest window of a symptom."""
_FULL_IN_A_FRAGMENT = 0.8
"""Usage from which a cache counts as full where only an instant of it is seen beside a queue: of a saturated one it
swings between 0.65 and 1.0."""

Batch = Sequence[StatisticsLine]


@dataclass(frozen=True, slots=True)
class LoggedSymptom:
    """A symptom that the lines show: of which engine, with which evidence, how sure, and in which line first."""

    symptom: str
    key: EngineKey
    evidence: Mapping[str, Any]
    confidence: str
    line: int
    actions: tuple[str, ...]
    explained_by: tuple[str, ...] = ()


def shown(statistics: Statistics, facts: LogFacts, *, begins: bool) -> list[LoggedSymptom]:
    """The symptoms that the lines of one start show. `begins`: the log has them from the start on."""
    batches = list(_batches(statistics.readings))
    if not batches:
        return []
    run, findings = _Run.begin(facts, begins=begins), _Findings()
    stretch = 0
    for number, batch in enumerate(batches):
        before = run.limited
        findings.note(run.state, run.take(batch), batch, "high" if run.timed else "medium")
        stretch = stretch + 1 if run.limited is before and before is not None else 1
        if run.limited is None or stretch < _LINES_LOW:
            continue
        if number + 1 == len(batches) or not run.goes_on(batches[number + 1]):
            sure = "medium" if stretch >= _LINES_MEDIUM else "low"
            findings.hold(run, batch, sure, _TOLD_BY[run.limited])
    if len(batches) < _FEW:
        _judge_fragment(findings, batches, run)
    elif _stands_still(batches[-1]):
        findings.hold(run, batches[-1], "medium", _TOLD_BY[Regime.STALLED])
    return findings.explained()


def _batches(readings: Sequence[StatisticsLine]) -> Iterator[Batch]:
    """Lines of several engines that belong together: until one of them speaks again."""
    held: dict[str, StatisticsLine] = {}
    for reading in readings:
        if reading.engine in held:
            yield list(held.values())
            held = {}
        held[reading.engine] = reading
    if held:
        yield list(held.values())


def _judge_fragment(findings: _Findings, batches: Sequence[Batch], run: _Run) -> None:
    """Holds the end of a few lines, whatever it shows."""
    last = batches[-1]
    queued = any(reading.parts.get("waiting") for reading in last)
    if queued and run.state.limits["regime.full_usage"] > _FULL_IN_A_FRAGMENT:
        run = _Run.begin(run.facts, begins=run.begins, thresholds={"regime.full_usage": _FULL_IN_A_FRAGMENT})
        for batch in batches:
            run.take(batch)
    alike = sum(any(reading.parts.get("waiting") for reading in batch) == queued for batch in batches)
    findings.hold(run, last, "medium" if alike >= _LINES_MEDIUM else "low", _EVERY)


def _stands_still(batch: Batch) -> bool:
    return any(
        (reading.parts.get("running") or reading.parts.get("waiting"))
        and not reading.prompt
        and not reading.parts.get("generation")
        for reading in batch
    )


# -- the lines, given to `advance` ---------------------------------------------------------------------------------


@dataclass
class _Run:
    """The lines so far, judged. `timed`: the log says when each was written."""

    facts: LogFacts
    begins: bool
    state: State
    engines: dict[str, tuple[StatisticsLine, Counters]] = field(default_factory=dict)
    t: float | None = None
    timed: bool = True

    @classmethod
    def begin(cls, facts: LogFacts, *, begins: bool, thresholds: Mapping[str, float] | None = None) -> _Run:
        policy = Policy(
            max_num_seqs=one(facts, "max_num_seqs"), disabled=_NOT_HERE, thresholds=thresholds or {}
        )
        return cls(facts, begins, initial(TARGET, policy))

    @property
    def limited(self) -> Regime | None:
        """The regime that holds an engine back, if one does; of several the first."""
        return next((e.regime for e in self.state.engines.values() if e.regime in _TOLD_BY), None)

    def take(self, batch: Batch, *, after_s: float | None = None) -> tuple[Transition, ...]:
        """Gives lines to `advance`; `after_s`: so long after those before, whatever they say."""
        t = self._time(batch, after_s)
        base = 0.0 if self.begins else 1.0
        for reading in batch:
            _, counters = self.engines.get(reading.engine, (None, Counters(base)))
            counters.add(reading, t)
            self.engines[reading.engine] = (reading, counters)
        now = {reading.engine: self.engines[reading.engine] for reading in batch}
        keys = {
            engine: EngineKey(TARGET, str(self.facts.get("model", "")), engine) for engine, _ in now.items()
        }
        outcome = logged(
            {keys[engine]: told for engine, told in now.items()},
            _config(self.facts),
            _features(self.facts),
            wall=t,
            longest=one(self.facts, "max_model_len"),
        )
        self.t = t
        self.state, changes = advance(self.state, outcome, t)
        return changes

    def branch(self) -> _Run:
        """A copy to go on with; the state itself never changes."""
        engines = {name: (reading, copy(counters)) for name, (reading, counters) in self.engines.items()}
        return replace(self, engines=engines)

    def goes_on(self, batch: Batch) -> bool:
        """Whether the next lines show the same regime."""
        after = self.branch()
        after.take(batch)
        return after.limited is self.limited

    def outgrown(self) -> bool:
        """Whether the lines so far show outputs that outgrow prompts, of any engine."""
        start = (self.state.now or 0.0) - TWO_MINUTES
        engines = self.state.engines.values()
        shares = [generated_per_prompt_token(engine.windows.samples.since(start)) for engine in engines]
        enough = self.state.limits["kv_thrashing.outgrown"]
        return any(share is not None and share >= enough for share in shares)

    def preempted(self) -> bool:
        """Whether the lines count preemptions, and there were some."""
        start = (self.state.now or 0.0) - TWO_MINUTES
        counts = [
            increase(e.windows.samples.since(start), "preemptions_total") for e in self.state.engines.values()
        ]
        return any(counts)

    def _time(self, batch: Batch, after_s: float | None) -> float:
        said = max((reading.t for reading in batch if reading.t is not None), default=None)
        if after_s is None and said is not None and (self.t is None or said > self.t):
            return said
        self.timed = self.timed and (after_s is not None or said is not None)
        return 0.0 if self.t is None else self.t + (SPACING_S if after_s is None else after_s)


def _config(facts: LogFacts) -> CacheConfig:
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


def _features(facts: LogFacts) -> frozenset[str]:
    flags = (("enable_lora", "lora"), ("kv_transfer_config", "kv transfer"))
    return frozenset(feature for flag, feature in flags if facts.get(flag))


# -- what fires ----------------------------------------------------------------------------------------------------


class _Findings:
    """The symptoms that fired, each with the best confidence in which it did."""

    def __init__(self) -> None:
        self._found: dict[tuple[EngineKey, str], LoggedSymptom] = {}

    def note(
        self,
        state: State,
        changes: Sequence[Transition],
        batch: Batch,
        confidence: str,
        only: frozenset[str] = _EVERY,
    ) -> None:
        """Notes what fired with a batch."""
        for change in changes:
            if change.after is not Stage.FIRING or change.symptom not in only:
                continue
            estimated = "preemptions_per_request_at_most" in change.evidence
            sure = min(confidence, "medium", key=_ORDER.index) if estimated else confidence
            old = self._found.get((change.key, change.symptom))
            if old is not None and _ORDER.index(old.confidence) >= _ORDER.index(sure):
                continue
            engine = state.engines.get(change.key) or next(iter(state.engines.values()))
            self._found[change.key, change.symptom] = LoggedSymptom(
                change.symptom,
                change.key,
                dict(change.evidence),
                sure,
                next((r.number for r in batch if r.engine == change.key.engine), batch[-1].number),
                tuple(action.text for action in BY_ID[change.symptom].actions_for(engine.snapshot)),
            )

    def hold(self, run: _Run, batch: Batch, confidence: str, only: frozenset[str]) -> None:
        """Notes what would fire if a line stayed true for a while.

        Prompts are computed in lumps, so that one line is in no proportion: whether outputs outgrow the room that is
        made for prompts is for the real lines to say.
        """
        after = run.branch()
        if run.limited is Regime.KV_LIMITED and not (run.outgrown() or run.preempted()):
            only -= {"kv_thrashing"}
        for _ in range(round(_HELD_S / SPACING_S)):
            self.note(after.state, after.take(batch, after_s=SPACING_S), batch, confidence, only)

    def explained(self) -> list[LoggedSymptom]:
        """All, causes before their effects, each effect with what accounts for it."""

        def causes(effect: LoggedSymptom) -> Iterator[str]:
            for other in self._found.values():
                together = other.key == effect.key or not (other.key.engine and effect.key.engine)
                if together and effect.symptom in BY_ID[other.symptom].explains:
                    yield other.symptom

        told = [
            replace(effect, explained_by=tuple(dict.fromkeys(causes(effect))))
            for effect in self._found.values()
        ]
        return sorted(told, key=lambda effect: bool(effect.explained_by))
