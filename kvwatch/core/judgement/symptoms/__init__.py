"""The symptom table: one row each, in the room where its judge lives.

A judge looks at one engine (or one target) at one instant and gives a verdict: clear, active or unknown, with
the numbers it judged. It holds no state: how long a verdict must last is the row's `for_s` and `keep_s`, and
`lifecycle.py` does the waiting. "More than half of a minute" is inside the verdict where the window is.

Adding a symptom is one row in the room that it belongs to, and one replay in the tests: a hit, a near miss, a
missing signal.
"""

from __future__ import annotations

from collections.abc import Mapping

from kvwatch.core.judgement.symptoms import (
    cache,
    hardware,
    latency,
    lengths,
    load,
    prefix,
    queue,
    server,
    stalls,
    thrashing,
    warmup,
)
from kvwatch.core.judgement.symptoms.row import (
    Action,
    EngineView,
    Evidence,
    Judgement,
    Restart,
    Scope,
    Severity,
    Symptom,
    TargetView,
    Verdict,
)
from kvwatch.core.judgement.thresholds import (
    DERIVED_THRESHOLDS,
    REGIME_THRESHOLDS,
    SYMPTOM_THRESHOLDS,
    Limits,
    Threshold,
)

__all__ = [
    "BY_ID",
    "SYMPTOMS",
    "THRESHOLDS",
    "Action",
    "EngineView",
    "Evidence",
    "Judgement",
    "Restart",
    "Scope",
    "Severity",
    "Symptom",
    "TargetView",
    "Verdict",
    "limits_of",
]

SYMPTOMS: tuple[Symptom, ...] = (
    *server.ROWS,
    *stalls.ROWS,
    *thrashing.ROWS,
    *cache.ROWS,
    *lengths.ROWS,
    *queue.ROWS,
    *latency.ROWS,
    *warmup.ROWS,
    *prefix.ROWS,
    *load.ROWS,
    *hardware.ROWS,
)

BY_ID: Mapping[str, Symptom] = {row.id: row for row in SYMPTOMS}

#: Every threshold there is, for settings, help and `--threshold`.
THRESHOLDS: tuple[Threshold, ...] = (
    *REGIME_THRESHOLDS,
    *DERIVED_THRESHOLDS,
    *SYMPTOM_THRESHOLDS,
    *(
        Threshold(f"{row.id}.{what}", value, "seconds", text, high=86_400)
        for row in SYMPTOMS
        for what, value, text in (
            ("for", row.for_s, f"How long {row.id} must hold before it fires."),
            ("keep", row.keep_s, f"How long {row.id} must be clear before it is over."),
        )
    ),
    *(threshold for row in SYMPTOMS for threshold in row.thresholds),
)


def limits_of(overrides: Mapping[str, float]) -> Limits:
    """The thresholds in force; ValueError lists everything that is wrong with `overrides`."""
    return Limits(THRESHOLDS, overrides)
