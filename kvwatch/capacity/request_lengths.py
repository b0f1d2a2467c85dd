"""How long requests are: given as percentiles, or as a live server counted them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from kvwatch.capacity.sizing import Layout
from kvwatch.capacity.units import tokens

PERCENTILES = ("p50", "p95", "p99")
CONCURRENCIES = (1, 4, 16, 64)


def parse(text: str) -> dict[str, int]:
    """Lengths of whole requests (prompt and output) in tokens, from ``p50=800,p95=6k,p99=12k``.

    Raises:
        ValueError: it is of another form; the text says what to write.
    """
    found: dict[str, int] = {}
    for part in text.split(","):
        name, equals, value = (word.strip() for word in part.partition("="))
        if not equals or name not in PERCENTILES:
            raise ValueError(f"write {'=..,'.join(PERCENTILES)}=.., lengths of whole requests in tokens")
        if name in found:
            raise ValueError(f"{name} stands there twice")
        found[name] = tokens(value)
    given = [found[name] for name in PERCENTILES if name in found]
    if given != sorted(given):
        raise ValueError("a higher percentile must not be shorter than a lower one")
    return {name: found[name] for name in PERCENTILES if name in found}


def ladder(limit: int | None, lengths: Mapping[str, int]) -> list[int]:
    """Lengths for a table: powers of two up to the limit, the limit, and those that are served."""
    top = limit or max((*lengths.values(), 32_768))
    rungs = {1 << power for power in range(10, 40) if 1 << power <= top}
    few = sorted(rungs)[-7:]
    return sorted({*few, top, *(length for length in lengths.values() if length <= top)})


def table(layout: Layout, rungs: Sequence[int]) -> list[list[int]]:
    """Bytes on each GPU, a row for each length, a column for each number of requests in `CONCURRENCIES`."""
    return [[layout.needed_bytes(length) * count for count in CONCURRENCIES] for length in rungs]
