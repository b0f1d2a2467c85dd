"""The rules of Grafana's dashboard linter, read off its source, with what is excluded and why."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import promql_parser as promql
import pytest

from tests.dashboards.grafana import FILES, Asked, filled, load, panels, queries, variables
from tests.dashboards.test_queries import RATES, uses
from tests.support.expressions import selectors

BOARDS = {path.stem: load(path) for path in FILES}
Board = Mapping[str, Any]
Found = Iterator[tuple[str, str]]

#: Rule, dashboard, where in it (all of it if empty) -> why it does not hold there.
_TWO = "it has two sets of variables, instance_a and instance_b, one for each side"
_RANGE = "a figure over the shown time, not a graph"
EXCLUDED = {
    ("template-instance-rule", "kvwatch-experiment", "instance"): _TWO,
    ("target-instance-rule", "kvwatch-experiment", ""): _TWO,
    ("target-rate-interval-rule", "kvwatch-experiment", "A: Latency, p95 of the range"): _RANGE,
    ("target-rate-interval-rule", "kvwatch-experiment", "B: Latency, p95 of the range"): _RANGE,
    ("target-rate-interval-rule", "kvwatch-experiment", "A: Work, mean of the range"): _RANGE,
    ("target-rate-interval-rule", "kvwatch-experiment", "B: Work, mean of the range"): _RANGE,
    ("target-rate-interval-rule", "kvwatch-experiment", "A: Cache over the range"): _RANGE,
    ("target-rate-interval-rule", "kvwatch-experiment", "B: Cache over the range"): _RANGE,
    ("target-rate-interval-rule", "kvwatch-fleet", "Restarts of vLLM"): _RANGE,
    ("target-rate-interval-rule", "kvwatch-server", "Internal errors"): _RANGE,
}
#: Of Grafana's ids of units, those that the dashboards use.
UNITS = {"none", "short", "locale", "percentunit", "s", "dtdurations", "bytes", "Bps", "reqps", "cps"}


def variable(board: Board, name: str) -> dict[str, Any]:
    return next((one for one in board["templating"]["list"] if one["name"] == name), {})


def asked(board: Board) -> Iterator[Asked]:
    """Of panels: the linter leaves annotations alone."""
    return (one for one in queries(board) if one.kind != "annotation")


def template_datasource(board: Board) -> Found:
    one = variable(board, "datasource")
    if (one.get("type"), one.get("query"), one.get("label")) != ("datasource", "prometheus", "Data source"):
        yield "datasource", "no variable `datasource` of Prometheus with the label Data source"


def _template(board: Board, name: str) -> Found:
    one = variable(board, name)
    wanted = {"type": "query", "multi": True, "allValue": ".+", "includeAll": True}
    if not wanted.items() <= one.items() or one["datasource"]["uid"] != "${datasource}":
        yield name, "no variable of several values, All being .+, asked of ${datasource}"


def template_job(board: Board) -> Found:
    return _template(board, "job")


def template_instance(board: Board) -> Found:
    return _template(board, "instance")


def template_label_promql(board: Board) -> Found:
    for one in board["templating"]["list"]:
        if one["type"] == "query":
            inside = re.fullmatch(r"label_values\((.+), ?\w+\)", one["query"]["query"], re.DOTALL)
            if not inside or not [*selectors(promql.parse(filled(inside[1], variables(board))))]:
                yield one["name"], "no label_values of a selector"


def template_on_time_change_reload(board: Board) -> Found:
    for one in board["templating"]["list"]:
        if one["type"] == "query" and one["refresh"] != 2:
            yield one["name"], "not asked again when the time changes"


def panel_datasource(board: Board) -> Found:
    for panel in panels(board):
        if {one["datasource"]["uid"] for one in (panel, *panel["targets"])} != {"${datasource}"}:
            yield panel["title"], "another data source than ${datasource}"


def panel_title_description(board: Board) -> Found:
    for panel in panels(board):
        if not panel["title"] or not panel["description"]:
            yield panel["title"], "no title or no description"


def panel_units(board: Board) -> Found:
    for panel in panels(board):
        units = {panel["fieldConfig"]["defaults"]["unit"]} | {
            item["value"]
            for one in panel["fieldConfig"]["overrides"]
            for item in one["properties"]
            if item["id"] == "unit"
        }
        if not units <= UNITS:
            yield panel["title"], f"units {units - UNITS}"


def panel_no_targets(board: Board) -> Found:
    for panel in panels(board):
        if not panel["targets"]:
            yield panel["title"], "no queries"


def target_promql(board: Board) -> Found:
    for one in asked(board):
        try:
            promql.parse(filled(one.expr, variables(board)))
        except ValueError as error:
            yield one.panel, str(error)


def target_rate_interval(board: Board) -> Found:
    for one in asked(board):
        if set(re.findall(r"\[([$\w]+)\]", one.expr)) - {"$__rate_interval"}:
            yield one.panel, "a range that is not $__rate_interval"


def _target(board: Board, label: str) -> Found:
    for one in asked(board):
        marked = filled(one.expr, variables(board) | {label: "CHOSEN"})
        for selector in selectors(promql.parse(marked)):
            if not [m for m in selector.matchers.matchers if (m.name, m.value) == (label, "CHOSEN")]:
                yield one.panel, f"{selector.name} without {label}=~${label}"


def target_job(board: Board) -> Found:
    return _target(board, "job")


def target_instance(board: Board) -> Found:
    return _target(board, "instance")


def target_counter_agg(board: Board) -> Found:
    for one in asked(board):
        for name, function, _ in uses(promql.parse(filled(one.expr, variables(board)))):
            if name.endswith("_total") and function not in RATES:
                yield one.panel, name


def uneditable_dashboard(board: Board) -> Found:
    if board["editable"]:
        yield "", "can be edited, and edits are lost"


RULES: dict[str, Callable[[Board], Found]] = {
    f"{rule.__name__.replace('_', '-')}-rule": rule
    for rule in (
        template_datasource,
        template_job,
        template_instance,
        template_label_promql,
        template_on_time_change_reload,
        panel_datasource,
        panel_title_description,
        panel_units,
        panel_no_targets,
        target_promql,
        target_rate_interval,
        target_job,
        target_instance,
        target_counter_agg,
        uneditable_dashboard,
    )
}


def excluded(rule: str, board: str, where: str) -> bool:
    return (rule, board, where) in EXCLUDED or (rule, board, "") in EXCLUDED


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("name", BOARDS)
def test_rule(rule: str, name: str) -> None:
    found = [
        f"{where}: {what}" for where, what in RULES[rule](BOARDS[name]) if not excluded(rule, name, where)
    ]
    assert not found, "\n".join(found)


def test_nothing_is_excluded_that_need_not_be() -> None:
    needed = {
        (rule, name, where)
        for rule, check in RULES.items()
        for name in BOARDS
        for where, _ in check(BOARDS[name])
    }
    needed |= {(rule, name, "") for rule, name, _ in needed}
    assert EXCLUDED.keys() <= needed


BREAKS: dict[str, Callable[[dict[str, Any]], Any]] = {
    "template-datasource-rule": lambda board: variable(board, "datasource").update(label="Source"),
    "template-job-rule": lambda board: variable(board, "job").update(allValue=None),
    "template-instance-rule": lambda board: variable(board, "instance").update(multi=False),
    "template-label-promql-rule": lambda board: variable(board, "target").update(query={"query": "up"}),
    "template-on-time-change-reload-rule": lambda board: variable(board, "target").update(refresh=1),
    "panel-datasource-rule": lambda board: board["panels"][1].update(datasource={"uid": "prom"}),
    "panel-title-description-rule": lambda board: board["panels"][1].update(description=""),
    "panel-units-rule": lambda board: board["panels"][1]["fieldConfig"]["defaults"].update(unit="tokens"),
    "panel-no-targets-rule": lambda board: board["panels"][1].update(targets=[]),
    "target-promql-rule": lambda board: board["panels"][1]["targets"][0].update(expr="sum("),
    "target-rate-interval-rule": lambda board: board["panels"][1]["targets"][0].update(expr="rate(up[5m])"),
    "target-job-rule": lambda board: board["panels"][1]["targets"][0].update(expr="up"),
    "target-instance-rule": lambda board: board["panels"][1]["targets"][0].update(expr="up"),
    "target-counter-agg-rule": lambda board: board["panels"][1]["targets"][0].update(expr="x_total"),
    "uneditable-dashboard-rule": lambda board: board.update(editable=True),
}


@pytest.mark.parametrize("rule", RULES)
def test_a_broken_rule_is_noticed(rule: str) -> None:
    board = load(FILES[-1])
    known = set(RULES[rule](board))
    BREAKS[rule](board)
    assert {where for where, _ in set(RULES[rule](board)) - known}
