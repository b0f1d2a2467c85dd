"""What PromQL expressions select, and whether kvwatch exports it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import promql_parser as promql
import yaml

from kvwatch.core.export.catalogue import METRICS, PREFIX, Type
from kvwatch.core.judgement.lifecycle import Stage
from kvwatch.core.judgement.percentiles import QUANTILES
from kvwatch.core.judgement.symptoms import BY_ID

ALERTS = Path(__file__).parents[2] / "alerts"
GROUPS = yaml.safe_load((ALERTS / "kvwatch.rules.yml").read_text(encoding="utf-8"))["groups"]
RULES: list[dict[str, Any]] = [rule for group in GROUPS for rule in group["rules"]]
RECORDED = {rule["record"] for rule in RULES if "record" in rule}
#: What Prometheus adds to what it scrapes; of its own metrics `up` is asked for.
SCRAPED = {"job", "instance", "pod"}
PARTS = {"_bucket": {"le"}, "_sum": set[str](), "_count": set[str]()}
LABELS = {row.full_name: {*row.labels} for row in METRICS} | {
    row.full_name + part: {*row.labels, *more}
    for row in METRICS
    if row.type is Type.HISTOGRAM
    for part, more in PARTS.items()
}
#: Of the process of kvwatch itself, by the Prometheus client; `golden/process.prom` has them with their types.
LABELS |= {
    f"{PREFIX}process_{name}": set()
    for name in ("cpu_seconds_total", "resident_memory_bytes", "virtual_memory_bytes", "start_time_seconds")
}
ALL_LABELS = set[str]().union(SCRAPED, *LABELS.values())
VALUES = {
    "symptom": set(BY_ID),
    "state": {*Stage},
    "to": {*Stage},
    "percentile": {f"{q * 100:g}" for q in QUANTILES},
}


def selectors(node: Any) -> Iterator[Any]:
    """Every selector below a node; label names that it groups or matches by must exist."""
    if isinstance(node, promql.VectorSelector):
        yield node
    for modifier in (getattr(node, "modifier", None),):
        named = [*(getattr(modifier, "labels", None) or ())]
        named += getattr(getattr(modifier, "matching", None), "labels", None) or ()
        named += getattr(modifier, "group_labels", None) or ()
        assert set(named) <= ALL_LABELS, named
    below = [getattr(node, name, None) for name in ("lhs", "rhs", "expr", "param", "vector_selector")]
    for one in [*below, *(getattr(node, "args", None) or ())]:
        if one is not None:
            yield from selectors(one)


def resolve(expression: str) -> set[str]:
    """The names that an expression asks for; fails for a metric, a label or a value that there is not."""
    found = set()
    for selector in selectors(promql.parse(expression)):
        found.add(selector.name)
        if selector.name in RECORDED or selector.name == "up":
            known = ALL_LABELS
        else:
            assert selector.name in LABELS, f"{selector.name} is not exported"
            known = LABELS[selector.name] | SCRAPED
        for matcher in selector.matchers.matchers:
            assert matcher.name in known, f"{selector.name} has no label {matcher.name}"
            wanted = set(matcher.value.split("|"))
            assert wanted <= VALUES.get(matcher.name, wanted), f"{selector.name}: {matcher.value}"
    return found
