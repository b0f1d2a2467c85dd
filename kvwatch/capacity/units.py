"""Numbers as people write them for vLLM, and as they read them."""

from __future__ import annotations

import re

GIB = 1 << 30
_NUMBER = re.compile(r"(?P<number>\d+(?:\.\d+)?)(?P<unit>[kmgt]i?|[KMGT])?", re.ASCII)
_POWERS = {"k": 1, "m": 2, "g": 3, "t": 4}


def tokens(text: str) -> int:
    """A number of tokens, as ``8192``, ``32k`` (32,000) or ``32K`` (32,768).

    As vLLM reads its own flags (`human_readable_int`): a small letter counts in thousands, a capital one in 1,024.
    """
    found = _NUMBER.fullmatch(text.strip())
    if not found:
        raise ValueError("write a whole number, or for example 32k (32,000) or 32K (32,768)")
    unit = found["unit"] or ""
    if not unit and "." in found["number"]:
        raise ValueError("write a whole number, or for example 32k (32,000) or 32K (32,768)")
    base = 1024 if unit.isupper() or unit.endswith("i") else 1000
    value = int(float(found["number"]) * base ** _POWERS[unit[0].lower()]) if unit else int(found["number"])
    if value <= 0:
        raise ValueError("must be above 0")
    return value


def gib(count: float) -> str:
    """Bytes in GiB, with the decimals that matter."""
    value = count / GIB
    return f"{value:.2f} GiB" if value >= 0.1 or not value else f"{value * 1024:.2f} MiB"


def thousands(count: float) -> str:
    return f"{count:,.0f}"


def ceil_div(count: int, by: int) -> int:
    return -(-count // by)
