"""Writes selectors of exported metrics: only names and labels that the catalogue has."""

from __future__ import annotations

from kvwatch.core.export.catalogue import METRICS, PREFIX, Metric, Type

_BY_NAME = {row.name: row for row in METRICS}
_PARTS = ("_bucket", "_sum", "_count")


def family(name: str) -> Metric:
    """The row of a series' name (without prefix), a histogram's parts included; KeyError if there is none."""
    if name in _BY_NAME:
        return _BY_NAME[name]
    for part in _PARTS:
        row = _BY_NAME.get(name.removesuffix(part)) if name.endswith(part) else None
        if row and row.type is Type.HISTOGRAM:
            return row
    raise KeyError(f"kvwatch exports no {name}: add a row to METRICS in kvwatch/core/export/catalogue.py")


def select(name: str, *matchers: str) -> str:
    """A selector, for instance of ``up``; empty matchers are left out."""
    family(name)
    inside = ",".join(matcher for matcher in matchers if matcher)
    return PREFIX + name + (f"{{{inside}}}" if inside else "")


def bound(seconds: float) -> str:
    """Matches a bucket however it is written: Prometheus before 3 keeps ``1.0``, later ones write ``1``."""
    if seconds == int(seconds):
        return f'le=~"{int(seconds)}([.]0)?"'
    return f'le="{seconds:g}"'
