"""Numbers and durations as people read them."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import Any

NOTHING = "–"


"""What stands for a number that is not there."""


def format_number(value: Any) -> str:
    """A value short, for people: three digits, or all of those before the point; never an exponent."""
    if isinstance(value, bool) or value is None:
        return {True: "yes", False: "no", None: NOTHING}[value]
    if isinstance(value, int | float):
        return _short(value)
    if isinstance(value, Mapping):
        return ", ".join(f"{name} {format_number(one)}" for name, one in value.items()) or "none"
    if isinstance(value, list | tuple | set | frozenset):
        return join_list(map(format_number, value))
    return str(value)


def _short(value: float) -> str:
    if not math.isfinite(value):
        return NOTHING
    size = abs(value)
    if size >= 999.5:
        return f"{value:,.0f}"
    if 0 < size < 0.0005:
        return "about 0"
    return f"{value:.3f}".rstrip("0").rstrip(".") if size < 0.01 else f"{value:.3g}"


def join_list(words: Iterable[str]) -> str:
    return ", ".join(words) or "none"


def format_gib(count_bytes: float) -> str:
    """Bytes in GiB with two decimals; less than 0.1 GiB in MiB."""
    value = count_bytes / (1 << 30)
    return f"{value:.2f} GiB" if value >= 0.1 or not value else f"{value * 1024:.2f} MiB"


def format_duration(seconds: float) -> str:
    """A time span for people: ``0.25 s``, ``47 s``, ``4 min``, ``1:02:03``."""
    if not math.isfinite(seconds):
        return NOTHING
    if abs(seconds) < 119.5:
        return f"{_short(seconds)} s" if abs(seconds) < 10 else f"{seconds:.0f} s"
    if abs(seconds) < 3570:
        return f"{seconds / 60:.0f} min"
    minutes, rest = divmod(round(abs(seconds)), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{'-' if seconds < 0 else ''}{hours}:{minutes:02}:{rest:02}"


def plain_number(value: float) -> str:
    """A number for machines: six digits, or all of those before the point; never an exponent."""
    if not math.isfinite(value):
        return "unknown"
    if abs(value) >= 1e5:
        return f"{value:.0f}"
    short = f"{value:.6g}"
    return f"{value:.9f}".rstrip("0").rstrip(".") if "e" in short else short
