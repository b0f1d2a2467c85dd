"""The symptom table: one row per symptom, in the module of its judge.

A judge looks at one engine or target at one instant and returns a verdict (clear, active or unknown) with the numbers
behind it. It keeps no state: `lifecycle.py` waits for the row's `for_s` and `keep_s`. Conditions such as "more than
half of a minute" are part of the verdict, because the windows are in the view.

A new symptom needs one row in the module where it belongs, and its stories in `tests/replay/stories`: a hit, a near
miss, a missing signal.
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
    Evidence,
    Judgement,
    Runbook,
    Scope,
    Severity,
    Symptom,
    Verdict,
)
from kvwatch.core.judgement.symptoms.views import EngineView, Restart, TargetView
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
    "EngineView",
    "Evidence",
    "Judgement",
    "Restart",
    "Runbook",
    "Scope",
    "Severity",
    "Symptom",
    "TargetView",
    "Verdict",
    "limits_of",
]

_MODULES = (server, stalls, thrashing, cache, lengths, queue, latency, warmup, prefix, load, hardware)
SYMPTOMS: tuple[Symptom, ...] = tuple(row for module in _MODULES for row in module.ROWS)
BY_ID: Mapping[str, Symptom] = {row.id: row for row in SYMPTOMS}

THRESHOLDS: tuple[Threshold, ...] = (
    *REGIME_THRESHOLDS,
    *DERIVED_THRESHOLDS,
    *SYMPTOM_THRESHOLDS,
    *(
        Threshold(f"{row.id}.{what}", value, "seconds", text, high=86_400)
        for row in SYMPTOMS
        for what, value, text in (
            ("for", row.for_s, f"The condition of {row.id} must hold this long before it fires."),
            ("keep", row.keep_s, f"The condition of {row.id} must be clear this long before it resolves."),
        )
    ),
    *(threshold for row in SYMPTOMS for threshold in row.named_thresholds()),
)
"""Every threshold, for settings, help and `--threshold`."""


def limits_of(overrides: Mapping[str, float]) -> Limits:
    """The thresholds in force; ValueError lists everything that is wrong with `overrides`."""
    return Limits(THRESHOLDS, overrides)
