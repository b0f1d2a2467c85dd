"""The evidence of a finding as samples, so that the metrics alone show the numbers."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import Any

from kvwatch.text.evidence import format_value, split_thresholds

MAX_SAMPLES = 24
"""Samples per finding; later evidence is left out."""
_MAX_CHARACTERS = 120


def samples(evidence: Mapping[str, Any]) -> Iterator[tuple[str, str, float]]:
    """Name, text and value of each judged number, without thresholds. A value that is no number becomes text, with 1
    as the value.

    A mapping gives one sample per item, named ``name{item}``.
    """
    judged, _ = split_thresholds(evidence)
    flat = (one for name, value in judged.items() for one in _flatten(name, value))
    for _, sample in zip(range(MAX_SAMPLES), flat, strict=False):
        yield sample


def _flatten(name: str, value: Any) -> Iterator[tuple[str, str, float]]:
    if isinstance(value, Mapping):
        for item, one in value.items():
            yield from _flatten(f"{name}{{{item}}}"[:_MAX_CHARACTERS], one)
    elif isinstance(value, int | float):
        if math.isfinite(value):
            yield name, "", float(value)
    elif value is not None:
        yield name, " ".join(format_value(name, value).split())[:_MAX_CHARACTERS], 1.0
