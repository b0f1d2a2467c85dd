"""Finds the symptoms that statistics lines show, with the same `advance` as for live metrics.

A log has one line every ten seconds, and often only a few. Symptoms that fire on the lines as they are have a high
confidence. If the lines end earlier than a symptom's duration, the last line is repeated on a copy of the
state, as if it stayed true; what fires then has a lower confidence.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from copy import copy
from dataclasses import dataclass, field, replace
from typing import Any

from kvwatch.core.history.regimes import Regime
from kvwatch.core.history.window import increase
from kvwatch.core.judgement.advice.choose import Advice
from kvwatch.core.judgement.derive import TWO_MINUTES
from kvwatch.core.judgement.lifecycle import Stage
from kvwatch.core.judgement.pipeline import advance
from kvwatch.core.judgement.policy import Policy
from kvwatch.core.judgement.state import State, Transition, initial
from kvwatch.core.judgement.symptoms import BY_ID
from kvwatch.core.judgement.symptoms.thrashing import generated_per_prompt_token
from kvwatch.core.model.snapshot import CacheConfig, EngineKey
from kvwatch.logs.log_patterns import LogFacts, first_number
from kvwatch.logs.statistics import SPACING_S, Counters, Statistics, StatisticsLine, report_of_lines

_TARGET = "log"
_DISABLED = frozenset({"target_down", "startup_kv_failure", "signals_missing", "engine_restarted"})
"""Symptoms of scrapes, and of starts, which have a verdict."""
_SYMPTOMS_OF_REGIME: Mapping[Regime, frozenset[str]] = {
    Regime.KV_LIMITED: frozenset({"kv_exhausted", "kv_thrashing", "long_request_hogs_cache"}),
    Regime.SEQUENCE_LIMITED: frozenset({"sequence_limited"}),
    Regime.PREFILL_LIMITED: frozenset({"prefill_limited"}),
    Regime.DEFERRED: frozenset({"requests_deferred"}),
    Regime.STALLED: frozenset({"engine_stalled", "request_never_fits"}),
}
"""Regimes in which requests wait, and the symptoms that show them."""
_ALL_SYMPTOMS = frozenset(BY_ID)
_FRAGMENT = 6
"""Fewer lines are a fragment, whose last line is repeated whatever it shows."""
_LINES_MEDIUM, _LINES_LOW = 3, 2
"""Lines in a row with the same regime: for a medium confidence, and for any in a log that is no fragment."""
_CONFIDENCES = ("low", "medium", "high")
_REPEAT_S = 130.0
"""How long a line is repeated: a little more than the longest window of a symptom."""
_FULL_IN_A_FRAGMENT = 0.8
"""Usage that counts as full in a fragment with a queue: the usage of a saturated cache varies from 0.65 to 1.0."""

Batch = Sequence[StatisticsLine]


@dataclass(frozen=True, slots=True)
class LoggedSymptom:
    """A symptom that the lines of an engine show; `line` is the first one."""

    symptom: str
    key: EngineKey
    evidence: Mapping[str, Any]
    confidence: str
    line: int
    advice: Advice
    explained_by: tuple[str, ...] = ()


def find_symptoms(statistics: Statistics, facts: LogFacts, *, from_start: bool) -> list[LoggedSymptom]:
    """The symptoms in the lines of one start. `from_start`: the log has them from the start on."""
    batches = list(_batches(statistics.lines))
    if not batches:
        return []
    run, findings = _Run.begin(facts, from_start=from_start), _Findings()
    stretch = 0
    for number, batch in enumerate(batches):
        before = run.limit
        findings.add(run, run.advance(batch), batch, "high" if run.timed else "medium")
        stretch = stretch + 1 if run.limit is before and before is not None else 1
        if run.limit is None or stretch < _LINES_LOW:
            continue
        if number + 1 == len(batches) or not run.has_same_limit_after(batches[number + 1]):
            confidence = "medium" if stretch >= _LINES_MEDIUM else "low"
            findings.add_if_repeated(run, batch, confidence, _SYMPTOMS_OF_REGIME[run.limit])
    if len(batches) < _FRAGMENT:
        _judge_fragment(findings, batches, run)
    elif any(line.has_requests and not line.is_moving for line in batches[-1]):
        findings.add_if_repeated(run, batches[-1], "medium", _SYMPTOMS_OF_REGIME[Regime.STALLED])
    return findings.explained()


def _batches(lines: Iterable[StatisticsLine]) -> Iterator[Batch]:
    """Consecutive lines, at most one of each engine."""
    batch: dict[str, StatisticsLine] = {}
    for line in lines:
        if line.engine in batch:
            yield list(batch.values())
            batch = {}
        batch[line.engine] = line
    if batch:
        yield list(batch.values())


def _judge_fragment(findings: _Findings, batches: Sequence[Batch], run: _Run) -> None:
    """Adds what fires if the last of a few lines is repeated."""
    queues = [any(line.parts.get("waiting") for line in batch) for batch in batches]
    if queues[-1] and run.state.limits["regime.full_usage"] > _FULL_IN_A_FRAGMENT:
        run = _Run.begin(
            run.facts, from_start=run.from_start, thresholds={"regime.full_usage": _FULL_IN_A_FRAGMENT}
        )
        for batch in batches:
            run.advance(batch)
    confidence = "medium" if queues.count(queues[-1]) >= _LINES_MEDIUM else "low"
    findings.add_if_repeated(run, batches[-1], confidence, _ALL_SYMPTOMS)


# -- lines through `advance` ---------------------------------------------------------------------------------------


@dataclass
class _Run:
    """The judgement of the lines so far. `timed`: every line has its time."""

    facts: LogFacts
    from_start: bool
    state: State
    engines: dict[str, tuple[StatisticsLine, Counters]] = field(default_factory=dict)
    t: float | None = None
    timed: bool = True

    @classmethod
    def begin(
        cls, facts: LogFacts, *, from_start: bool, thresholds: Mapping[str, float] | None = None
    ) -> _Run:
        policy = Policy(
            max_num_seqs=first_number(facts, "max_num_seqs"), disabled=_DISABLED, thresholds=thresholds or {}
        )
        return cls(facts, from_start, initial(_TARGET, policy))

    @property
    def limit(self) -> Regime | None:
        """The first regime of an engine in which requests wait."""
        return next((e.regime for e in self.state.engines.values() if e.regime in _SYMPTOMS_OF_REGIME), None)

    def advance(self, batch: Batch, *, after_s: float | None = None) -> tuple[Transition, ...]:
        """Judges the next lines; they are `after_s` later than those before, or as the log shows."""
        t = self._time(batch, after_s)
        for line in batch:
            _, counters = self.engines.get(line.engine, (None, Counters(0.0 if self.from_start else 1.0)))
            counters.add(line, t)
            self.engines[line.engine] = (line, counters)
        model = str(self.facts.get("model", ""))
        outcome = report_of_lines(
            {EngineKey(_TARGET, model, line.engine): self.engines[line.engine] for line in batch},
            _config(self.facts),
            _features(self.facts),
            wall=t,
            max_model_len=first_number(self.facts, "max_model_len"),
        )
        self.t = t
        self.state, changes = advance(self.state, outcome, t)
        return changes

    def branch(self) -> _Run:
        """A copy to continue with; the state itself is immutable."""
        engines = {name: (line, copy(counters)) for name, (line, counters) in self.engines.items()}
        return replace(self, engines=engines)

    def has_same_limit_after(self, batch: Batch) -> bool:
        after = self.branch()
        after.advance(batch)
        return after.limit is self.limit

    def outgrown(self) -> bool:
        """Whether outputs of any engine outgrow its prompts in the last two minutes."""
        start = (self.state.now or 0.0) - TWO_MINUTES
        engines = self.state.engines.values()
        shares = [generated_per_prompt_token(engine.windows.samples.since(start)) for engine in engines]
        enough = self.state.limits["kv_thrashing.outgrown"]
        return any(share is not None and share >= enough for share in shares)

    def preempted(self) -> bool:
        """Whether the lines show preemptions in the last two minutes."""
        start = (self.state.now or 0.0) - TWO_MINUTES
        counts = [
            increase(e.windows.samples.since(start), "preemptions_total") for e in self.state.engines.values()
        ]
        return any(counts)

    def _time(self, batch: Batch, after_s: float | None) -> float:
        logged = max((line.t for line in batch if line.t is not None), default=None)
        if after_s is None and logged is not None and (self.t is None or logged > self.t):
            return logged
        self.timed = self.timed and (after_s is not None or logged is not None)
        return 0.0 if self.t is None else self.t + (SPACING_S if after_s is None else after_s)


def _config(facts: LogFacts) -> CacheConfig:
    caching, dtype = facts.get("enable_prefix_caching"), facts.get("kv_cache_dtype")
    return CacheConfig(
        block_size=first_number(facts, "block_size"),
        num_gpu_blocks=first_number(facts, "gpu_blocks", "num_gpu_blocks_override"),
        cache_dtype=dtype if isinstance(dtype, str) else None,
        enable_prefix_caching=caching if isinstance(caching, bool) else None,
        gpu_memory_utilization=first_number(facts, "util"),
        kv_cache_size_tokens=first_number(facts, "kv_tokens"),
        kv_cache_max_concurrency=first_number(facts, "max_concurrency"),
        known=True,
    )


def _features(facts: LogFacts) -> frozenset[str]:
    flags = (("enable_lora", "lora"), ("kv_transfer_config", "kv transfer"))
    return frozenset(feature for flag, feature in flags if facts.get(flag))


# -- findings -----------------------------------------------------------------------------------------------------


class _Findings:
    """The symptoms that fired, each with its highest confidence."""

    def __init__(self) -> None:
        self._found: dict[tuple[EngineKey, str], LoggedSymptom] = {}

    def add(
        self,
        run: _Run,
        changes: Sequence[Transition],
        batch: Batch,
        confidence: str,
        only: frozenset[str] = _ALL_SYMPTOMS,
    ) -> None:
        """Adds what fired when `run` advanced by `batch`."""
        for change in changes:
            if change.after is not Stage.FIRING or change.symptom not in only:
                continue
            estimated = "preemptions_per_request_at_most" in change.evidence
            rank = min(_CONFIDENCES.index(confidence), _CONFIDENCES.index("medium" if estimated else "high"))
            old = self._found.get((change.key, change.symptom))
            if old is not None and _CONFIDENCES.index(old.confidence) >= rank:
                continue
            self._found[change.key, change.symptom] = LoggedSymptom(
                change.symptom,
                change.key,
                dict(change.evidence),
                _CONFIDENCES[rank],
                next((line.number for line in batch if line.engine == change.key.engine), batch[-1].number),
                _advice(change, run.state),
            )

    def add_if_repeated(self, run: _Run, batch: Batch, confidence: str, only: frozenset[str]) -> None:
        """Adds what fires if the batch is repeated for a while.

        Prompts are computed in bursts, so one line shows no proportion: only real lines show whether outputs outgrow
        prompts.
        """
        after = run.branch()
        if run.limit is Regime.KV_LIMITED and not (run.outgrown() or run.preempted()):
            only -= {"kv_thrashing"}
        for _ in range(round(_REPEAT_S / SPACING_S)):
            self.add(after, after.advance(batch, after_s=SPACING_S), batch, confidence, only)

    def explained(self) -> list[LoggedSymptom]:
        """All symptoms, causes before their effects, each effect with its causes."""

        def causes(effect: LoggedSymptom) -> Iterator[str]:
            for other in self._found.values():
                together = other.key == effect.key or not (other.key.engine and effect.key.engine)
                if together and effect.symptom in BY_ID[other.symptom].explains:
                    yield other.symptom

        found = [replace(one, explained_by=tuple(dict.fromkeys(causes(one)))) for one in self._found.values()]
        return sorted(found, key=lambda one: bool(one.explained_by))


def _advice(change: Transition, state: State) -> Advice:
    """The advice that a symptom had when it fired."""
    engine = state.engines.get(change.key)
    lives = state.symptoms if engine is None else engine.symptoms
    return lives[change.symptom].advice
