"""PromQL selectors of exported metrics. Only names in the catalogue are accepted."""

from __future__ import annotations

from kvwatch.core.export.catalogue import METRICS, PREFIX, Metric, Type

_BY_NAME = {row.name: row for row in METRICS}
_PARTS = ("_bucket", "_sum", "_count")


def family(name: str) -> Metric:
    """The metric of a series (named without prefix), also for a histogram's parts. KeyError if it is not exported."""
    if name in _BY_NAME:
        return _BY_NAME[name]
    for part in _PARTS:
        row = _BY_NAME.get(name.removesuffix(part)) if name.endswith(part) else None
        if row and row.type is Type.HISTOGRAM:
            return row
    raise KeyError(f"kvwatch exports no {name}: add a row to METRICS in kvwatch/core/export/catalogue.py")


def select(name: str, *matchers: str) -> str:
    """A selector, for example of ``up``. Empty matchers are left out."""
    family(name)
    inside = ",".join(matcher for matcher in matchers if matcher)
    return PREFIX + name + (f"{{{inside}}}" if inside else "")


def bucket_matcher(seconds: float) -> str:
    """Matches a bucket bound in both spellings: Prometheus before 3 keeps ``1.0``, later releases write ``1``."""
    if seconds == int(seconds):
        return f'le=~"{int(seconds)}([.]0)?"'
    return f'le="{seconds:g}"'
