"""The evidence of a finding as samples, so that whoever has only the metrics reads the numbers too."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

from kvwatch.core.lifecycle import Lifecycle
from kvwatch.core.report import parted, spoken
from kvwatch.core.symptoms import Evidence

NEWS_EVERY_S = 60.0
"""How often other names or texts may come into the evidence of a symptom that fires: each is a series of its own."""
MOST = 24
"""Samples of one finding; what comes later in its evidence is left out."""
_MOST_CHARACTERS = 120


def samples(evidence: Mapping[str, Any]) -> Iterator[tuple[str, str, float]]:
    """What was judged, without the thresholds: name, text, value. What is no number has a text, and 1 as its value.

    A mapping is one sample for each of its items, named ``name{item}``.
    """
    judged, _ = parted(evidence)
    flat = (one for name, value in judged.items() for one in _flat(name, value))
    for _, sample in zip(range(MOST), flat, strict=False):
        yield sample


def told(life: Lifecycle, now: float) -> Lifecycle:
    """A symptom that fires, with the evidence to export: the newest, unless that has other names or texts than what
    is told so soon after those came. What a server says would otherwise make a series at every scrape."""
    same = _numbers_moved(life.told, life.evidence) or _labels(life.told) == _labels(life.evidence)
    if life.told_at is None or (not same and now - life.told_at >= NEWS_EVERY_S):
        return replace(life, told=life.evidence, told_at=now)
    return replace(life, told=life.evidence) if same else life


def _numbers_moved(before: Evidence, after: Evidence) -> bool:
    """Whether nothing but numbers differs, as from most samples to the next: names and texts are then the same."""
    return list(before) == list(after) and all(
        one == other or (type(one) is type(other) is float and math.isfinite(one) and math.isfinite(other))
        for one, other in zip(before.values(), after.values(), strict=True)
    )


def _labels(evidence: Mapping[str, Any]) -> list[tuple[str, str]]:
    return [(name, text) for name, text, _ in samples(evidence)]


def _flat(name: str, value: Any) -> Iterator[tuple[str, str, float]]:
    if isinstance(value, Mapping):
        for item, one in value.items():
            yield from _flat(f"{name}{{{item}}}"[:_MOST_CHARACTERS], one)
    elif isinstance(value, int | float):
        if math.isfinite(value):
            yield name, "", float(value)
    elif value is not None:
        yield name, " ".join(spoken(name, value).split())[:_MOST_CHARACTERS], 1.0
