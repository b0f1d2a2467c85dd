"""The verdict on one start, with its evidence, actions, symptoms and notes."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

from kvwatch.core.judgement.advice.choose import Action
from kvwatch.core.model.log_verdict import FINE
from kvwatch.logs import notes
from kvwatch.logs.cause_row import Cause
from kvwatch.logs.causes import BY_VERDICT, CAUSES
from kvwatch.logs.derived_facts import BudgetStep, memory_budget, with_derived
from kvwatch.logs.log_patterns import LogFacts
from kvwatch.logs.stages import StartStage
from kvwatch.logs.start_record import LoggedError, StartRecord
from kvwatch.logs.statistics_judgement import LoggedSymptom, find_symptoms

UNKNOWN, NO_LOG = "unknown_root_cause_above", "no_vllm_log"
_NOT_EXPORTED = frozenset({"model", "other_error", "kv_transfer_config"})
_AFTER_DEATH = (
    "find what ended the engine: the kernel's log (dmesg) for a killed process, the lines of its workers",
)


@dataclass(frozen=True, slots=True)
class Explanation:
    """A verdict of `causes.CAUSES`. `confidence` is high, medium or low; `evidence` has lines with their numbers."""

    verdict: str
    confidence: str
    meaning: str
    facts: LogFacts
    evidence: tuple[tuple[int, str], ...]
    actions: tuple[str, ...]
    budget: tuple[BudgetStep, ...] = ()
    symptoms: tuple[LoggedSymptom, ...] = ()
    notes: tuple[str, ...] = ()
    starts: int = 1
    lines: int = 0
    died_running: bool = False
    """The start was fine, and the engine died later."""
    incomplete: bool = False
    """The statistics lines lack what a judgement needs, or the log ends in the middle of the start."""

    @property
    def exit_code(self) -> int:
        """0: nothing is wrong; 1: a cause or a symptom; 2: no answer."""
        if self.verdict in {UNKNOWN, NO_LOG}:
            return 2
        if self.verdict not in FINE or self.symptoms or self.died_running:
            return 1
        return 2 if self.incomplete else 0


def explain_start(record: StartRecord) -> Explanation:
    cause, verdict, confidence = _find_cause(record)
    facts = {**record.options, **record.facts, **(cause.facts if cause else {})}
    if isinstance(facts.get("available_kv_gib"), int | float):
        facts.setdefault("available_gib", facts["available_kv_gib"])
    if cause and len(cause.ranks) > 1:
        facts["ranks"] = ", ".join(cause.ranks)
    if record.other_error and verdict == UNKNOWN:
        facts["other_error"] = record.other_error.text
    if verdict == "ok" and with_derived(facts).get("small"):
        verdict = "ok_but_tight"
    row, died = BY_VERDICT[verdict], _death(record, verdict)
    symptoms = _symptoms(record, facts)
    return Explanation(
        verdict,
        confidence,
        row.meaning(facts),
        {name: value for name, value in facts.items() if name not in _NOT_EXPORTED},
        tuple(dict.fromkeys(_evidence(record, cause, died, row))),
        _AFTER_DEATH if died else row.actions(facts) or notes.actions_for_stuck_queue(record.statistics),
        memory_budget(facts),
        symptoms,
        tuple(_notes(record, facts, cause, verdict, symptoms)),
        died_running=died is not None,
        incomplete=bool(notes.note_on_missing_parts(record.statistics) or _note_on_end(record, verdict)),
    )


def _find_cause(record: StartRecord) -> tuple[LoggedError | None, str, str]:
    """The error that made a start fail, the verdict and the confidence; no error if the start did not fail.

    The first error counts, because later ones follow from it. A message with a cause of its own counts before memory
    that ran out, whose cause is inferred from what vLLM was doing.
    """
    causes = [error for error in record.causes if not notes.is_quoted(record, error)]
    specific = [error for error in causes if not BY_VERDICT[error.verdict].generic]
    if causes:
        error = (specific or causes)[0]
        return error, error.verdict, error.confidence
    other, consequence = record.other_error, record.consequence
    if record.hints and other is None:
        return record.hints[0], record.hints[0].verdict, record.hints[0].confidence
    if record.stage is not StartStage.UP:
        if consequence and other is None and (row := _next_step_fails(record)):
            return replace(consequence, verdict=row.verdict, confidence="low"), row.verdict, "low"
        if consequence:
            return other or consequence, UNKNOWN, "medium" if other else "high"
        if other:
            return other, UNKNOWN, "low"
    if record.stage is StartStage.UP and record.has_beginning:
        return None, "ok", "high"
    return None, "ok", "medium" if record.stage >= StartStage.PROFILED else "low"


def _next_step_fails(record: StartRecord) -> Cause | None:
    """The cause that a start probably has which stops after this step without an error of its own."""
    for row in CAUSES:
        if row.stops_after and record.stage is row.stops_after[0] and row.stops_after[1] in record.facts:
            return row
    return None


def _evidence(
    record: StartRecord, cause: LoggedError | None, died: LoggedError | None, row: Cause
) -> Iterator[tuple[int, str]]:
    yield from ((error.line, error.text) for error in (cause, died) if error is not None)
    yield from (record.fact_lines[name] for name in row.evidence if name in record.fact_lines)


def _symptoms(record: StartRecord, facts: LogFacts) -> tuple[LoggedSymptom, ...]:
    found = find_symptoms(record.statistics, facts, from_start=record.has_beginning)
    check = notes.check_other_limits(record.statistics, facts)
    return tuple(
        replace(symptom, advice=symptom.advice.after(Action("check_other_limits", check)))
        if check and symptom.symptom == "sequence_limited"
        else symptom
        for symptom in found
    )


def _death(record: StartRecord, verdict: str) -> LoggedError | None:
    """The error with which the engine died after a start that was fine."""
    return record.consequence if verdict in FINE and record.stage is StartStage.UP else None


def _note_on_end(record: StartRecord, verdict: str) -> str:
    return notes.note_on_end(record) if verdict == "ok" else ""


def _notes(
    record: StartRecord,
    facts: LogFacts,
    cause: LoggedError | None,
    verdict: str,
    symptoms: tuple[LoggedSymptom, ...],
) -> Iterator[str]:
    if died := _death(record, verdict):
        yield (
            f"the engine died while it ran (line {died.line}), and the log does not show why: find what ended it (a"
            " killed process is in the kernel's log, dmesg)"
        )
    yield from notes.notes_on_start(record, facts, cause)
    yield from notes.notes_on_statistics(record.statistics)
    if end := _note_on_end(record, verdict):
        yield end
    if not symptoms and (missing := notes.note_on_missing_parts(record.statistics)):
        yield missing
    evidence: dict[str, Any] = {symptom.symptom: symptom.evidence for symptom in symptoms}
    exhausted = evidence.get("kv_exhausted")
    if exhausted is not None and exhausted["preemptions"] is None and "kv_thrashing" not in evidence:
        yield "the lines do not count preemptions: only the metrics show whether requests are preempted"
