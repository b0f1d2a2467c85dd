"""Every query asks for what kvwatch exports: each metric, label and value by name, each metric as what it is."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from copy import deepcopy
from typing import Any

import promql_parser as promql
import pytest

from kvwatch.core.export.catalogue import METRICS, Type
from tests.dashboards.grafana import FILES, Asked, filled, load, panels, queries, variables
from tests.support.expressions import resolve

BOARDS = {path.stem: load(path) for path in FILES}
each = pytest.mark.parametrize("board", BOARDS.values(), ids=BOARDS)
RATES = {"rate", "increase", "irate"}
COUNTERS = {row.full_name for row in METRICS if row.type is Type.COUNTER}
COUNTERS |= {
    row.full_name + part
    for row in METRICS
    if row.type is Type.HISTOGRAM
    for part in ("_bucket", "_sum", "_count")
}
BUCKETS = {row.full_name + "_bucket" for row in METRICS if row.type is Type.HISTOGRAM}


def uses(node: Any, function: str = "", outer: str = "") -> Iterator[tuple[str, str, str]]:
    """Every metric with the function that its range is given to, and the function around that."""
    if isinstance(node, promql.VectorSelector):
        yield node.name or "", function, outer
    if isinstance(node, promql.Call):
        function, outer = node.func.name, function or outer
    for name in ("lhs", "rhs", "expr", "param", "vector_selector"):
        below = getattr(node, name, None)
        if below is not None:
            yield from uses(below, function, outer)
    for one in getattr(node, "args", None) or ():
        yield from uses(one, function, outer)


def misused(expression: str) -> list[str]:
    """Counters whose rate is not taken, gauges of which it is, quantiles of what has no buckets."""
    found = []
    for name, function, outer in uses(promql.parse(expression)):
        counted = name in COUNTERS or name.endswith("_total")
        if counted and function not in RATES:
            found.append(f"{name} is a counter, take its rate")
        if not counted and function in RATES:
            found.append(f"{name} is a gauge, it has no rate")
        if outer == "histogram_quantile" and name not in BUCKETS:
            found.append(f"{name} has no buckets")
    return found


def faults(board: Mapping[str, Any]) -> list[str]:
    """What is wrong, each with panel, query and metric."""
    found = []
    for asked in queries(board):
        expression = filled(asked.expr, variables(board))
        try:
            resolve(expression)
            wrong = misused(expression)
        except (AssertionError, ValueError) as error:
            wrong = [str(error).splitlines()[0]]
        found += [f"{one} ({asked})" for one in wrong]
    return found


@each
def test_every_query_asks_for_what_is_exported(board: dict[str, Any]) -> None:
    found = faults(board)
    assert not found, "\n".join(found)


@each
def test_every_variable_asks_for_what_is_exported(board: dict[str, Any]) -> None:
    """A label of a metric that has it, among what the variables before it leave."""
    asked = [one for one in board["templating"]["list"] if one["type"] == "query"]
    assert asked
    for number, one in enumerate(asked):
        inside = re.fullmatch(r"label_values\((.+), (\w+)\)", one["query"]["query"], re.DOTALL)
        assert inside, one["name"]
        resolve(f"sum by ({inside[2]}) ({filled(inside[1], variables(board))})")
        earlier = {before["name"] for before in asked[:number]}
        assert set(re.findall(r"\$(\w+)", inside[1])) <= earlier, one["name"]


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ("kvwatch_requests_waiting{", "kvwatch_requests_queued{", "kvwatch_requests_queued is not exported"),
        ("target=~", "server=~", "kvwatch_requests_running has no label server"),
        ("sum(", "sum(rate(", ""),
    ],
)
def test_a_broken_panel_is_named(old: str, new: str, said: str) -> None:
    """From a copy with a renamed metric, a wrong label or a torn expression: panel, query, metric."""
    board = deepcopy(BOARDS["kvwatch-server"])
    panel = next(one for one in panels(board) if one["title"] == "Requests")
    target = panel["targets"][1 if "waiting" in old else 0]
    target["expr"] = target["expr"].replace(old, new)
    (told,) = faults(board)
    print(told)
    assert said in told
    assert f"kvwatch-server, panel 'Requests', query {target['refId']}: sum(" in told


@pytest.mark.parametrize(
    "wrong",
    [
        "kvwatch_preemptions_total",
        "rate(kvwatch_requests_running[5m])",
        "histogram_quantile(0.9, rate(kvwatch_time_to_first_token_seconds_sum[5m]))",
        "sum(max_over_time(kvwatch_preemptions_total[5m]))",
    ],
)
def test_a_metric_taken_for_another_type_is_noticed(wrong: str) -> None:
    assert misused(wrong)


def test_ratios_are_of_sums() -> None:
    """No mean of ratios: an average over series is of what is 0 or 1."""
    averaged = [one for board in BOARDS.values() for one in queries(board) if re.search(r"\bavg\b", one.expr)]
    assert [re.findall(r"avg\((\w+)", one.expr) for one in averaged] == [["kvwatch_up"]]


def test_asked_says_where_it_stands() -> None:
    assert str(Asked("board", "What?", "B", "up", "stat")) == "board, panel 'What?', query B: up"
