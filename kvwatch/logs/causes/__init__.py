"""Why vLLM did not start: one row per verdict, with everything that belongs to it.

A new cause is one row in a module of this package and one case in `CASES` of tests/logs/test_starts.py. A number
that no pattern reads yet is one row in `kvwatch.logs.log_patterns`, one that follows from others in
`kvwatch.logs.derived_facts`. tests/logs/test_rows.py reports what a row lacks.

Rows may look alike and need opposite changes, so each has its own actions. A line is compared with the rows in their
order.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import NamedTuple

from kvwatch.logs.causes import incompatible, memory, no_failure, out_of_memory
from kvwatch.logs.causes.row import Action, Cause, VerdictGroup
from kvwatch.logs.stages import StartStage

__all__ = [
    "BY_VERDICT",
    "CAUSES",
    "VERDICTS",
    "WORDS",
    "Action",
    "Cause",
    "Verdict",
    "VerdictGroup",
    "oom_verdict",
]

CAUSES: tuple[Cause, ...] = (*memory.ROWS, *out_of_memory.ROWS, *incompatible.ROWS, *no_failure.ROWS)
BY_VERDICT = {row.verdict: row for row in CAUSES}

WORDS: tuple[str, ...] = tuple(dict.fromkeys(word for row in CAUSES for word in row.words if row.signs))
"""Words of lines that may show a cause. Such a message may continue in the next lines."""
HINT_WORDS: tuple[str, ...] = tuple(
    dict.fromkeys(word for row in CAUSES for word in row.words if not row.signs)
)


class Verdict(NamedTuple):
    """A verdict as the documentation lists it: with the texts for a log without numbers."""

    id: str
    group: VerdictGroup
    meaning: str
    actions: tuple[str, ...]


VERDICTS = tuple(Verdict(row.verdict, row.group, row.meaning({}), row.actions({})) for row in CAUSES)
"""The closed set of verdicts, by group."""


def oom_verdict(functions: Sequence[str], stage: StartStage) -> tuple[str, str]:
    """The verdict on memory that ran out, and the confidence in it.

    "Out of memory" is one message for causes with different remedies; they differ in what vLLM was doing. The
    functions of the traceback (outermost first) show it best. Without one it is the last step that the log shows. A
    bare message is what a running server prints.
    """
    for name in reversed(functions):
        for row in CAUSES:
            if row.oom_functions and stage >= row.oom_from and re.fullmatch(row.oom_functions, name):
                return row.verdict, "high"
    for row in CAUSES:
        if stage in row.oom_stages:
            return row.verdict, "high" if stage is StartStage.UP else "medium"
    return out_of_memory.RUNNING.verdict, "low"
