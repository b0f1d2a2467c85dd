"""Lengths of whole requests, prompt and output, as percentiles; and the table of lengths against concurrency."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from kvwatch.capacity.sizing import Layout
from kvwatch.capacity.units import tokens

PERCENTILES = ("p50", "p95", "p99")
CONCURRENCIES = (1, 4, 16, 64)


def parse_lengths(text: str) -> dict[str, int]:
    """Lengths of whole requests (prompt and output) in tokens, from ``p50=800,p95=6k,p99=12k``.

    Raises:
        ValueError: the form is wrong; the text shows the right one.
    """
    found: dict[str, int] = {}
    for part in text.split(","):
        name, equals, value = (word.strip() for word in part.partition("="))
        if not equals or name not in PERCENTILES:
            raise ValueError(f"write {'=..,'.join(PERCENTILES)}=.., lengths of whole requests in tokens")
        if name in found:
            raise ValueError(f"{name} is given twice")
        found[name] = tokens(value)
    given = [found[name] for name in PERCENTILES if name in found]
    if given != sorted(given):
        raise ValueError("a higher percentile must not be shorter than a lower one")
    return {name: found[name] for name in PERCENTILES if name in found}


def table_lengths(limit: int | None, lengths: Mapping[str, int]) -> list[int]:
    """Lengths for a table: the largest powers of two up to the limit, the limit, and `lengths`."""
    top = limit or max((*lengths.values(), 32_768))
    powers = [1 << power for power in range(10, 40) if 1 << power <= top][-7:]
    return sorted({*powers, top, *(length for length in lengths.values() if length <= top)})


def memory_table(layout: Layout, lengths: Sequence[int]) -> list[list[int]]:
    """Bytes on each GPU: a row for each length, a column for each number of requests in `CONCURRENCIES`."""
    return [[layout.needed_bytes(length) * count for count in CONCURRENCIES] for length in lengths]
