"""What a log comes to: the verdict on its last start, the line it stands on, what to do, and the symptoms."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

from kvwatch.logs import (
    budget,
    causes,
    flags,
    log_patterns,
    stages,
    start_record,
    statistics,
    statistics_judgement,
)
from kvwatch.logs.advice import fine
from kvwatch.logs.budget import BudgetStep
from kvwatch.logs.lines import Finder
from kvwatch.logs.log_patterns import LogFacts
from kvwatch.logs.notes import asides, few_slots, outlived, stuck, unclear, unfinished
from kvwatch.logs.stages import StartStage
from kvwatch.logs.start_record import Found, StartRecord
from kvwatch.logs.statistics_judgement import LoggedSymptom

#: Every word that a line of interest holds, and those whose messages may go on in the next lines.
_WORDS = tuple(
    dict.fromkeys(
        (*log_patterns.WORDS, *flags.WORDS, *stages.WORDS, *statistics.WORDS, *start_record.WORDS, *causes.OOM_WORDS,
         *causes.WRAPPER_WORDS, *causes.WEAK_WORDS)
    )
)  # fmt: skip
_OPENING = (*causes.WORDS, *start_record.OPENING)
#: What a log of vLLM says of itself: its name, or a record as only it writes them.
_NAMED = re.compile(rb"(?i)\bvllm\b")
_RECORD = re.compile(rb"\b(?:INFO|WARNING|ERROR|DEBUG) \d\d-\d\d \d\d:\d\d:\d\d \[?[\w/.]+\.py:\d+\]")
_HEAD = 1 << 20
_PASTED = 40
"""A log of so few lines is a fragment that someone pasted: it need not say that it is vLLM's."""
_CONTROL = re.compile(rb"[\x00-\x08\x0e-\x1a\x1c-\x1f]")
_FINE = frozenset({"ok", "ok_but_tight"})
_UNTOLD = frozenset({"unknown_root_cause_above", "no_vllm_log"})


@dataclass(frozen=True, slots=True)
class Explanation:
    """A verdict of `causes.CAUSES`; `confidence` is high, medium or low. `evidence` are lines with their numbers."""

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
    failed_later: bool = False
    """The start was fine, and the engine died while it ran."""
    unclear: bool = False
    """The lines of statistics leave out what a judgement needs, or the log ends before the start does."""

    @property
    def code(self) -> int:
        """0: nothing wrong; 1: a cause or a symptom; 2: no answer."""
        if self.verdict in _UNTOLD:
            return 2
        if self.verdict not in _FINE or self.symptoms or self.failed_later:
            return 1
        return 2 if self.unclear else 0


class LogReader:
    """Takes a log in pieces of bytes, in bounded memory, and explains it. `kept` lines of statistics of a start are
    remembered."""

    def __init__(self, *, kept: int = statistics.MOST) -> None:
        self._kept = kept
        self._finder = Finder(_WORDS, _OPENING)
        self._story = StartRecord(kept=kept)
        self._before: StartRecord | None = None
        """The start before the present one."""
        self._starts = 0
        self._head = b""
        self._bytes = 0

    def another_file(self) -> None:
        """What comes now is from another file of the same server: its lines are counted anew."""
        self._take(self._finder.close())
        self._finder = Finder(_WORDS, _OPENING)

    def starts(self) -> tuple[Explanation | None, Explanation | None]:
        """The start before the newest, and the newest, so far; None where there is none."""

        def told(one: StartRecord | None) -> Explanation | None:
            return None if one is None or _says_nothing(one) else _explained(one, [], 1, 0)

        return told(self._before), told(self._story)

    def feed(self, data: bytes) -> None:
        if len(self._head) < _HEAD:
            self._head += data[: _HEAD - len(self._head)].replace(b"\0", b"")
        self._bytes += len(data)
        self._take(self._finder.feed(data))

    def explain(self) -> Explanation:
        """What the log comes to; after the last piece."""
        self._take(self._finder.close())
        lines = self._finder.lines
        if reason := self._no_log():
            return Explanation("no_vllm_log", "high", reason, {}, (), (), starts=0, lines=lines)
        told, notes = self._story, []
        if self._starts > 1:
            notes.append(
                f"the log has {self._starts} starts; judged is the last, from line {told.first_line} on"
            )
        if self._before is not None and _says_nothing(told):
            told = self._before
            notes[-1] = (
                f"the log has {self._starts} starts; the last has only begun, so judged is the one before it, from"
                f" line {told.first_line} on"
            )
        return _explained(told, notes, self._starts, lines)

    def _take(self, lines: Iterator[Any]) -> None:
        for line in lines:
            if not line.following and self._story.ends_at(line):
                if not _says_nothing(self._story):
                    self._before = self._story
                self._starts += 1
                self._story = StartRecord(line.number, kept=self._kept)
            self._story.take(line)

    def _no_log(self) -> str:
        """Why this is no log of vLLM; empty if it is one."""
        self._starts = max(self._starts + 1, 1)
        if not self._bytes:
            return "It is empty."
        sample = self._head[:4096]
        wide = sample.startswith((b"\xff\xfe", b"\xfe\xff"))
        if not wide and len(_CONTROL.findall(sample)) > len(sample) / 50:
            return "It is binary, not text."
        told = self._story
        if told.statistics.seen or told.lines or told.begins or told.wrapper or self._before is not None:
            return ""
        if any(found.verdict not in _ANYBODYS for found in (*told.causes, *told.weak)):
            return ""
        failed = told.other or told.causes
        if _RECORD.search(self._head) or (failed and _NAMED.search(self._head)):
            return ""
        if told.causes and self._finder.lines <= _PASTED:
            return ""
        return fine.no_log({})


#: Verdicts that rest on an error of PyTorch, which every program with a GPU may print.
_ANYBODYS = frozenset(row.verdict for row in causes.CAUSES if not row.signs and not row.weak)


def _says_nothing(told: StartRecord) -> bool:
    """Whether a start has only begun, and nothing went wrong yet."""
    failed = told.causes or told.weak or told.wrapper or told.other
    return not failed and told.stage < StartStage.LOADING and not told.statistics.seen


def _explained(told: StartRecord, notes: list[str], starts: int, lines: int) -> Explanation:
    found, verdict, confidence = _cause(told)
    said = {**told.flags, **told.facts, **(found.facts if found else {})}
    if isinstance(said.get("available_kv_gib"), int | float):
        said.setdefault("available_gib", said["available_kv_gib"])
    if verdict == "ok" and fine.tightness(said):
        verdict = "ok_but_tight"
    later = None
    if verdict in _FINE and told.wrapper and told.stage is StartStage.UP:
        later = told.wrapper
        notes.append(
            f"the engine died while it ran (line {later.line}), and the log does not say why: look for what ended it"
            " (the kernel's log for a process that was killed, dmesg)"
        )
    if found and len(found.ranks) > 1:
        said["ranks"] = ", ".join(found.ranks)
    if told.other and verdict == "unknown_root_cause_above":
        said["other_error"] = told.other.text
    notes += asides(told, said, found)
    breaks_off = unfinished(told) if verdict == "ok" else ""
    notes += [breaks_off] if breaks_off else []
    row = causes.BY_VERDICT[verdict]
    symptoms = statistics_judgement.shown(told.statistics, said, begins=told.begins)
    if hint := few_slots(told.statistics, said):
        symptoms = [
            replace(one, actions=(hint, *one.actions)) if one.symptom == "sequence_limited" else one
            for one in symptoms
        ]
    unseen = unclear(told.statistics)
    if unseen and not symptoms:
        notes.append(unseen)
    told_of = {one.symptom: one.evidence for one in symptoms}
    if (
        told_of.get("kv_exhausted", {"preemptions": 0})["preemptions"] is None
        and "kv_thrashing" not in told_of
    ):
        notes.append(
            "the lines do not count preemptions: whether requests are preempted too, only the metrics say"
        )
    return Explanation(
        verdict,
        confidence,
        row.meaning(said),
        {name: value for name, value in said.items() if name not in _NOT_SHOWN},
        tuple(dict.fromkeys(_evidence(told, found, said, verdict, later))),
        _AFTER_DEATH if later else tuple(row.actions(said)) or stuck(told.statistics),
        budget.waterfall(said),
        tuple(symptoms),
        tuple(notes),
        starts,
        lines,
        later is not None,
        bool(unseen or breaks_off),
    )


_NOT_SHOWN = frozenset({"model", "other_error", "kv_transfer_config"})
_AFTER_DEATH = (
    "look for what ended the engine: the kernel's log (dmesg) for a process that was killed, its workers' lines",
)


def _cause(told: StartRecord) -> tuple[Found | None, str, str]:
    """The cause of a start's failure with its verdict and how sure it is; None if there is none to name.

    The first that says why, not the last. Memory that ran out is told by what vLLM was doing, so a message with a
    cause of its own comes before it.
    """
    named = [one for one in told.causes if not outlived(told, one)]
    explicit = [one for one in named if one.verdict not in _ANYBODYS]
    for found in (explicit or named)[:1]:
        return found, found.verdict, found.confidence
    if told.weak and told.other is None:
        return told.weak[0], told.weak[0].verdict, told.weak[0].confidence
    if told.wrapper is not None and told.stage is not StartStage.UP:
        if (
            told.stage is StartStage.PROFILED
            and "kv_cache_memory_bytes_gib" in told.facts
            and told.other is None
        ):
            # The next step is the check of the pool, and it is pinned.
            return told.wrapper, "kv_pool_smaller_than_max_len", "low"
        return (
            told.other or told.wrapper,
            "unknown_root_cause_above",
            "high" if told.other is None else "medium",
        )
    if told.other is not None and told.stage is not StartStage.UP:
        return told.other, "unknown_root_cause_above", "low"
    sure = (
        "high"
        if told.stage is StartStage.UP and told.begins
        else "medium"
        if told.stage >= StartStage.PROFILED
        else "low"
    )
    return None, "ok", sure


def _evidence(
    told: StartRecord, found: Found | None, said: LogFacts, verdict: str, later: Found | None
) -> Iterator[tuple[int, str]]:
    if found is not None:
        yield found.line, found.text
    if later is not None:
        yield later.line, later.text
    names = (
        ["kv_cache_memory_bytes_gib", "num_gpu_blocks_override"]
        if verdict == "kv_pool_smaller_than_max_len"
        else []
    )
    if verdict in _FINE:
        names = ["kv_tokens", "gpu_blocks", "max_concurrency", "available_kv_gib"]
    for name in names:
        if name in said and name in told.places:
            yield told.places[name]
