"""Formats numbers, shares, sizes and durations for people, and numbers for machines."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import Any

NOTHING = "–"
"""Stands for a number that is missing."""


def format_number(value: Any, digits: int = 3) -> str:
    """A value with `digits` significant digits, or all those before the point; never with an exponent.

    Measured numbers in a table have three digits; prose has two (`kvwatch.text.evidence.format_value`).
    """
    if isinstance(value, bool) or value is None:
        return {True: "yes", False: "no", None: NOTHING}[value]
    if isinstance(value, int | float):
        return _round(value, digits)
    if isinstance(value, Mapping):
        return ", ".join(f"{name} {format_number(one, digits)}" for name, one in value.items()) or "none"
    if isinstance(value, list | tuple | set | frozenset):
        return join_list(format_number(one, digits) for one in value)
    return str(value)


def _round(value: float, digits: int) -> str:
    if not math.isfinite(value):
        return NOTHING
    size = abs(value)
    if size >= 10**digits - 0.5:
        return f"{value:,.0f}"
    if 0 < size < 0.0005:
        return "about 0"
    return f"{value:.3f}".rstrip("0").rstrip(".") if size < 0.01 else f"{value:.{digits}g}"


def join_list(words: Iterable[str]) -> str:
    return ", ".join(words) or "none"


def format_percent(share: float) -> str:
    """A share as a percentage: ``2.5 %``, ``91 %``, ``99.6 %``. Only 1 itself is ``100 %``."""
    if not math.isfinite(share):
        return NOTHING
    percent = 100 * share
    size = abs(percent)
    if 0 < size < 0.05:
        return "about 0 %"
    if size >= 9.95 and not 99.5 <= size < 99.95:
        return f"{percent:,.0f} %"
    return f"{percent:.1f}".removesuffix(".0") + " %"


def format_gib(size: float) -> str:
    """Bytes in GiB: ``0.25 GiB``, ``3.5 GiB``, ``78.4 GiB``. Below 0.1 GiB in MiB."""
    gib = size / (1 << 30)
    if gib and abs(gib) < 0.1:
        return f"{_round(gib * 1024, 2)} MiB"
    return f"{_round(gib, 3)} GiB"


def format_duration(seconds: float) -> str:
    """A duration: ``58 ms``, ``0.25 s``, ``1.5 s``, ``47 s``, ``4 min``, ``1:02:03``."""
    if not math.isfinite(seconds):
        return NOTHING
    if 0 < abs(seconds) < 0.0995:
        return f"{_round(1000 * seconds, 2)} ms"
    if abs(seconds) < 119.5:
        return f"{_round(seconds, 2)} s"
    if abs(seconds) < 3570:
        return f"{seconds / 60:.0f} min"
    minutes, rest = divmod(round(abs(seconds)), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{'-' if seconds < 0 else ''}{hours}:{minutes:02}:{rest:02}"


def plain_number(value: float) -> str:
    """A number for machines: six digits, or all those before the point; never with an exponent."""
    if not math.isfinite(value):
        return "unknown"
    if abs(value) >= 1e5:
        return f"{value:.0f}"
    short = f"{value:.6g}"
    return f"{value:.9f}".rstrip("0").rstrip(".") if "e" in short else short
