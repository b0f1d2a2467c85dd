"""A finding as laid-out text: the parts that the terminal, the page, the log and notifications arrange."""

from __future__ import annotations

from dataclasses import dataclass

from kvwatch.core.export.findings import Finding
from kvwatch.core.judgement.advice.choose import Advice
from kvwatch.core.judgement.advice.levers import RESTART_COST
from kvwatch.core.model.snapshot import EngineKey
from kvwatch.text.evidence import EvidenceText, evidence_texts
from kvwatch.text.numbers import format_duration


@dataclass(frozen=True, slots=True)
class FindingText:
    """The text of one finding, most important first. Names that a server chose are not escaped.

    `where` are the target, the model and the engine, as far as the finding is about one.
    `explained_by` are the ids of symptoms to fix first.
    """

    key: EngineKey
    severity: str
    title: str
    symptom: str
    where: tuple[str, ...]
    firing_for: str
    meaning: str
    evidence: tuple[EvidenceText, ...]
    causes: tuple[str, ...]
    advice: tuple[tuple[str, tuple[str, ...]], ...]
    """What to do and not to do: headings, each with its lines."""
    explained_by: tuple[str, ...]

    @property
    def heading(self) -> str:
        """``CRITICAL: KV cache thrashing``."""
        return f"{self.severity.upper()}: {self.title}"

    @property
    def explanation(self) -> str:
        """What to fix first; empty if no other symptom explains this one."""
        causes = " and ".join(self.explained_by)
        which = "that" if len(self.explained_by) == 1 else "those"
        return f"Caused by {causes}: fix {which} first." if causes else ""

    def evidence_line(self, limit: int | None = None) -> str:
        """The evidence in one line; with `limit` its first numbers that are known."""
        known = [one for one in self.evidence if limit is None or one.value]
        return "; ".join(map(str, known[:limit]))


def finding_text(found: Finding) -> FindingText:
    """The text of a finding."""
    key, symptom = found.key, found.symptom
    where = (key.target, key.model_name, f"engine {key.engine}" if key.engine else "")
    return FindingText(
        key=key,
        severity=str(found.severity),
        title=symptom.title,
        symptom=symptom.id,
        where=tuple(part for part in where if part),
        firing_for=format_duration(found.firing_s),
        meaning=symptom.meaning,
        evidence=evidence_texts(found.evidence),
        causes=tuple(symptom.causes),
        advice=advice_sections(found.advice),
        explained_by=found.explained_by,
    )


def advice_sections(advice: Advice) -> tuple[tuple[str, tuple[str, ...]], ...]:
    """Advice as headings with lines: steps without a restart first, numbered through; then what not to do."""
    lines = [f"{number}. {action.sentence}" for number, action in enumerate(advice.actions, 1)]
    restart = [action.restart for action in advice.actions]
    now = tuple(line for line, later in zip(lines, restart, strict=True) if not later)
    later = tuple(line for line, needed in zip(lines, restart, strict=True) if needed)
    do_not = tuple(f"{text[0].upper()}{text[1:]}." for _, text in advice.do_not)
    sections = (
        ("Do now, no restart:" if later else "Do now:", now),
        (f"With a restart ({RESTART_COST}):", later),
        ("Do not:", do_not),
    )
    return tuple((heading, texts) for heading, texts in sections if texts)
