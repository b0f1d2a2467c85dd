"""What the stories and scenarios of a test run say about each symptom, as a small table."""

from collections import Counter
from collections.abc import Iterable

from kvwatch.core.judgement.symptoms import SYMPTOMS

#: What a test shows about its symptom, by its name.
SHOWS = {
    "test_fires_in_its_story": "hit",
    "test_does_not_fire_in_a_near_miss": "near miss",
    "test_is_unknown_where_a_signal_is_missing": "unknown",
    "test_what_must_fire_fires": "scenarios: fires",
    "test_what_must_not_fire_does_not": "stays silent",
}
PROPERTY = "shows about a symptom"

Shown = tuple[str, str, bool]
"""A symptom, what a test shows about it, and whether it passed."""


def shown(properties: Iterable[tuple[str, object]], *, passed: bool) -> list[Shown]:
    """What a test with these properties shows."""
    told = [value for name, value in properties if name == PROPERTY and isinstance(value, str)]
    return [(symptom, kind, passed) for value in told for symptom, _, kind in [value.partition(": ")]]


def table(found: Iterable[Shown]) -> list[str]:
    """One row a symptom: how many stories and scenarios passed, and of how many where some did not."""
    of: Counter[tuple[str, str]] = Counter()
    good: Counter[tuple[str, str]] = Counter()
    for symptom, kind, passed in found:
        of[symptom, kind] += 1
        good[symptom, kind] += passed
    if not of:
        return []
    known = [row.id for row in SYMPTOMS]
    names = [name for name in known if any(name == symptom for symptom, _ in of)]
    names += sorted({symptom for symptom, _ in of} - set(known))
    widths = [max(map(len, names)), *map(len, SHOWS.values())]

    def cell(name: str, kind: str) -> str:
        passed, all_of = good[name, kind], of[name, kind]
        return "-" if not all_of else str(passed) if passed == all_of else f"{passed} of {all_of}"

    rows = [["", *SHOWS.values()]]
    rows += [[name, *(cell(name, kind) for kind in SHOWS.values())] for name in names]
    return [
        "  ".join(text.ljust(width) for text, width in zip(row, widths, strict=True)).rstrip() for row in rows
    ]
