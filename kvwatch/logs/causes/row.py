"""What a row of the table of verdicts is, and how its texts are filled with facts.

A text names facts in braces: ``{util}``, ``{kv_tokens:,}``. Facts that end in ``_gib`` or ``_mib`` are shown with
their unit. A part in brackets is left out if one of its facts is unknown; of alternatives ``[…|…]`` the first whose
facts are known is shown. ``[name?…]`` shows a part if a fact is known and true.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum

from kvwatch.logs.derived_facts import with_derived
from kvwatch.logs.log_patterns import FactValue, LogFacts
from kvwatch.logs.stages import StartStage
from kvwatch.text.numbers import format_gib

_OPTIONAL = re.compile(r"\[([^\[\]]*)\]")
_FACT = re.compile(r"\{(\w+)(?::([^{}]*))?\}")
_CONDITION = re.compile(r"(?:(\w+)\?)?")


class VerdictGroup(StrEnum):
    """What the verdicts of a group have in common."""

    POOL = "KV cache too small"
    GPU = "GPU memory taken by others"
    OUT_OF_MEMORY = "out of memory"
    INCOMPATIBLE = "options that do not go together"
    NO_FAILURE = "no failure, or cause unknown"


@dataclass(frozen=True, slots=True)
class Action:
    """One thing to do. It applies if every fact of `when` is known and true; ``not name`` is the opposite."""

    text: str
    when: tuple[str, ...] = ()

    def applies(self, facts: LogFacts) -> bool:
        return all(
            bool(facts.get(name.removeprefix("not "))) != name.startswith("not ") for name in self.when
        )


@dataclass(frozen=True, slots=True)
class Cause:
    """A verdict on a start, and all that belongs to it."""

    verdict: str
    group: VerdictGroup
    explanation: str
    """What the verdict means, in one or two sentences."""
    remedies: tuple[Action | str, ...] = ()
    """What to do, first things first."""
    words: tuple[str, ...] = ()
    """Every line that shows the cause has one of these words."""
    signs: tuple[str, ...] = ()
    """Patterns: an error line with one of `words` that matches one of them shows the cause."""
    hints: tuple[str, ...] = ()
    """Patterns of places in a traceback. They count if nothing better is found."""
    facts: tuple[str, ...] = ()
    """Patterns whose groups are numbers in the message."""
    evidence: tuple[str, ...] = ()
    """Facts whose lines are quoted after the error."""
    oom_functions: str = ""
    """A pattern of functions: memory that ran out in one of them has this cause."""
    oom_stages: tuple[StartStage, ...] = ()
    """Without a traceback, memory that ran out after one of these steps has this cause."""
    oom_from: StartStage = StartStage.NONE
    """Before this step, `oom_functions` say nothing."""
    stops_after: tuple[StartStage, str] | None = None
    """A start that stops after this step, with this fact known and no error of its own, probably has this cause."""

    @property
    def generic(self) -> bool:
        """Whether it rests on PyTorch's error alone, which every program that uses a GPU may print."""
        return not self.signs and not self.hints

    def matches(self, text: str) -> bool:
        return any(word in text for word in self.words) and any(re.search(sign, text) for sign in self.signs)

    def hinted(self, text: str) -> bool:
        return any(re.search(hint, text) for hint in self.hints)

    def meaning(self, facts: LogFacts) -> str:
        return fill(self.explanation, with_derived(facts))

    def actions(self, facts: LogFacts) -> tuple[str, ...]:
        """The actions that apply to these facts. One that names an unknown fact is left out."""
        facts = with_derived(facts)
        actions = [Action(one) if isinstance(one, str) else one for one in self.remedies]
        return tuple(text for one in actions if one.applies(facts) and (text := fill(one.text, facts)))


def fill(text: str, facts: LogFacts) -> str:
    """`text` with facts; empty if a fact outside of brackets is unknown."""
    filled = [
        next((done for one in part.split("|") if (done := _fill(one, facts)) is not None), "")
        if number % 2
        else _fill(part, facts)
        for number, part in enumerate(_OPTIONAL.split(text))
    ]
    return "".join(part for part in filled if part is not None) if None not in filled else ""


def fact_names(text: str) -> Iterator[str]:
    """The facts that a text names."""
    yield from (found[1] for found in _FACT.finditer(text))
    for part in _OPTIONAL.findall(text):
        yield from (found[1] for one in part.split("|") if (found := _CONDITION.match(one)) and found[1])


def _fill(text: str, facts: LogFacts) -> str | None:
    condition = _CONDITION.match(text)
    if condition is not None and condition[1]:
        if not facts.get(condition[1]):
            return None
        text = text[condition.end() :]
    try:
        return _FACT.sub(lambda found: _show(found[1], facts[found[1]], found[2]), text)
    except KeyError:
        return None


def _show(name: str, value: FactValue, spec: str | None) -> str:
    if isinstance(value, str):
        return value
    if name.endswith("_gib"):
        return format_gib(value * (1 << 30))
    if name.endswith("_mib"):
        return f"{value:g} MiB"
    return format(value, spec or (".0f" if float(value).is_integer() else "g"))
