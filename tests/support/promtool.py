"""Tests of rules as promtool takes them: series in, which alerts fire or what is recorded out."""

from __future__ import annotations

import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

RULES = Path(__file__).parents[2] / "alerts" / "kvwatch.rules.yml"


@dataclass(frozen=True)
class Case:
    """Series by name with labels, as promtool writes their values, and what `query` finds at a time.

    By default the query is for the alert `alert`, and `found` are the labels of those that fire beside its name.
    """

    name: str
    series: Mapping[str, str]
    at: str
    found: Sequence[Mapping[str, str]] = ()
    alert: str = ""
    query: str = ""
    values: Mapping[str, float] = field(default_factory=dict)
    """Expected samples, if not alerts: series -> value."""

    def written(self) -> dict[str, Any]:
        query = self.query or f'ALERTS{{alertname="{self.alert}",alertstate="firing"}}'
        expected: list[dict[str, Any]] = [
            {"labels": series, "value": value} for series, value in self.values.items()
        ]
        for labels in self.found:
            everything = {"alertname": self.alert, "alertstate": "firing", **labels}
            inside = ",".join(f'{name}="{value}"' for name, value in everything.items())
            expected.append({"labels": f"ALERTS{{{inside}}}", "value": 1})
        return {
            "name": self.name,
            "interval": "1m",
            "input_series": [{"series": name, "values": values} for name, values in self.series.items()],
            "promql_expr_test": [{"expr": query, "eval_time": self.at, "exp_samples": expected}],
        }


def run(folder: Path, tests: Sequence[dict[str, Any]], rules: Path = RULES) -> None:
    """Fails with what promtool says if any of the tests does."""
    path = folder / "cases.yml"
    document = {
        "rule_files": [str(rules)],
        "evaluation_interval": "1m",
        "group_eval_order": ["kvwatch-fleet", "kvwatch-symptoms", "kvwatch-meta"],
        "tests": list(tests),
    }
    path.write_text(yaml.safe_dump(document, sort_keys=False, allow_unicode=True), encoding="utf-8")
    done = subprocess.run(
        ["promtool", "test", "rules", str(path)], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
