"""The evidence of a finding as samples, so that whoever has only the metrics reads the numbers too."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import Any

from kvwatch.text.evidence import format_value, split_thresholds

MOST = 24
"""Samples of one finding; what comes later in its evidence is left out."""
_MOST_CHARACTERS = 120


def samples(evidence: Mapping[str, Any]) -> Iterator[tuple[str, str, float]]:
    """What was judged, without the thresholds: name, text, value. What is no number has a text, and 1 as its value.

    A mapping is one sample for each of its items, named ``name{item}``.
    """
    judged, _ = split_thresholds(evidence)
    flat = (one for name, value in judged.items() for one in _flat(name, value))
    for _, sample in zip(range(MOST), flat, strict=False):
        yield sample


def _flat(name: str, value: Any) -> Iterator[tuple[str, str, float]]:
    if isinstance(value, Mapping):
        for item, one in value.items():
            yield from _flat(f"{name}{{{item}}}"[:_MOST_CHARACTERS], one)
    elif isinstance(value, int | float):
        if math.isfinite(value):
            yield name, "", float(value)
    elif value is not None:
        yield name, " ".join(format_value(name, value).split())[:_MOST_CHARACTERS], 1.0
