"""Every dashboard is one that Grafana 10.4 takes, and keeps what is promised of all of them."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from copy import deepcopy
from typing import Any

import pytest
from grafana_foundation_sdk.cog.encoder import JSONEncoder
from grafana_foundation_sdk.cog.plugins import register_default_plugins
from grafana_foundation_sdk.models.dashboard import Dashboard

from kvwatch.core.export.alert_names import alert_name
from kvwatch.core.history.regimes import Regime
from kvwatch.core.judgement.symptoms import BY_ID, THRESHOLDS
from kvwatch.mixin.dashboards.colours import REGIME
from tests.dashboards.grafana import FILES, FOLDER, load, panels

BOARDS = {path.stem: load(path) for path in FILES}
each = pytest.mark.parametrize("board", BOARDS.values(), ids=BOARDS)
#: So many lines of the grid stand above the fold at 1440 × 900, below the bars of browser and Grafana.
FOLD = 18
#: What the import reads beside the schema, and keys that Grafana writes itself but its schema does not name.
IMPORT = {"__inputs", "__requires"}
UNNAMED = re.compile(
    r"templating\.list\.\d+\.definition|annotations\.list\.\d+\.(step|titleFormat|tagKeys|textFormat|useValueForTime)"
)


def leaves(node: Any, where: str = "") -> Iterator[tuple[str, Any]]:
    """Every value with its path."""
    if isinstance(node, dict):
        for key, value in node.items():
            yield from leaves(value, f"{where}.{key}" if where else key)
    elif isinstance(node, list):
        for number, value in enumerate(node):
            yield from leaves(value, f"{where}.{number}")
    else:
        yield where, node


def unknown(board: Mapping[str, Any]) -> list[str]:
    """What Grafana's own types for 10.4 lose or change when they read the dashboard and write it again."""
    register_default_plugins()
    given = {key: value for key, value in board.items() if key not in IMPORT}
    again = dict(leaves(json.loads(JSONEncoder().encode(Dashboard.from_json(given)))))
    return [path for path, value in leaves(given) if again.get(path) != value and not UNNAMED.fullmatch(path)]


@each
def test_grafanas_schema_knows_every_key(board: dict[str, Any]) -> None:
    assert not unknown(board)
    assert board["schemaVersion"] == 39


def test_what_grafana_does_not_know_is_noticed() -> None:
    """The check itself can fail: for a key of a panel, of its query, and of one in a folded row."""
    board = deepcopy(BOARDS["kvwatch-server"])
    shown = list(panels(board))
    shown[0]["fieldConfig"]["defaults"]["unitt"] = "s"
    shown[1]["targets"][0]["expresion"] = "up"
    shown[-1]["tittle"] = "What"
    assert [path.rpartition(".")[2] for path in unknown(board)] == ["unitt", "expresion", "tittle"]


def test_there_are_three_and_their_addresses_stay() -> None:
    assert {name: board["uid"] for name, board in BOARDS.items()} == {
        "kvwatch-server": "kvwatch-server",
        "kvwatch-fleet": "kvwatch-fleet",
        "kvwatch-experiment": "kvwatch-experiment",
    }
    assert all(path.stem.startswith("kvwatch-") for path in FOLDER.glob("*.json"))


@each
def test_it_stands_among_the_others(board: dict[str, Any]) -> None:
    """Tagged, with links to the others that keep time and variables, and nothing to fill in at an import."""
    assert board["tags"] == ["kvwatch"]
    assert {link["url"] for link in board["links"]} == {f"/d/{uid}" for uid in BOARDS} - {
        f"/d/{board['uid']}"
    }
    assert all(link["keepTime"] and link["includeVars"] for link in board["links"])
    assert board["__inputs"] == []
    assert [one["version"] for one in board["__requires"] if one["type"] == "grafana"] == ["10.4.0"]
    assert "id" not in board


@each
def test_every_panel_can_be_read(board: dict[str, Any]) -> None:
    """A title of its own, two sentences that say what it means, and words where there is nothing to show."""
    titles = [panel["title"] for panel in panels(board)]
    assert len(titles) == len(set(titles))
    for panel in panels(board):
        where, defaults = panel["title"], panel["fieldConfig"]["defaults"]
        assert len(panel["description"]) > 15, where
        assert panel["description"].endswith("."), where
        assert defaults["noValue"] not in {"", "0"}, where
        special = [one["options"] for one in defaults["mappings"] if one["type"] == "special"]
        assert [one["match"] for one in special] == ["nan"], where
        assert not [one for one in defaults["mappings"] if "null" in str(one)], where


@each
def test_panels_lie_beside_each_other(board: dict[str, Any]) -> None:
    """Inside the grid, none on another, each with a number of its own."""
    taken: set[tuple[int, int]] = set()
    numbers = []
    for panel in board["panels"]:
        place = panel["gridPos"]
        cells = {
            (x, y)
            for x in range(place["x"], place["x"] + place["w"])
            for y in range(place["y"], place["y"] + place["h"])
        }
        assert not cells & taken, panel["title"]
        assert max(x for x, _ in cells) < 24, panel["title"]
        taken |= cells
        numbers += [panel["id"], *(one["id"] for one in panel.get("panels", ()))]
    assert len(numbers) == len(set(numbers))


@pytest.mark.parametrize("name", ["kvwatch-server", "kvwatch-fleet"])
def test_the_first_row_is_above_the_fold(name: str) -> None:
    """State, why requests wait, what fires, where it is worst: without scrolling."""
    board = BOARDS[name]
    second = [panel for panel in board["panels"] if panel["type"] == "row"][1]
    assert second["gridPos"]["y"] <= FOLD
    first = " ".join(one["title"] for one in board["panels"] if one["gridPos"]["y"] < second["gridPos"]["y"])
    for word in ("regime", "firing", "worst"):
        assert word in first.lower()


@each
def test_a_regime_has_one_colour_everywhere(board: dict[str, Any]) -> None:
    """All ten have one, each another, and wherever a series is a regime it has all of them."""
    assert REGIME.keys() == {*Regime}
    assert len(set(REGIME.values())) == len(Regime)
    told = 0
    for panel in panels(board):
        if any(target["legendFormat"] == "{{regime}}" for target in panel["targets"]):
            overrides = panel["fieldConfig"]["overrides"]
            colours = {
                one["matcher"]["options"]: one["properties"][0]["value"]["fixedColor"] for one in overrides
            }
            assert colours == REGIME, panel["title"]
            told += 1
    assert told


@each
def test_thresholds_that_a_panel_names_are_those_that_it_draws(board: dict[str, Any]) -> None:
    """A description that names a threshold of kvwatch has its default, and the panel has it as a step."""
    defaults = {one.name: one.default for one in THRESHOLDS}
    for panel in panels(board):
        for name, number in re.findall(r"`([a-z_.]+)` \(([\d.e]+)\)", panel["description"]):
            assert float(number) == defaults[name], panel["title"]
        steps = [one["value"] for one in panel["fieldConfig"]["defaults"]["thresholds"]["steps"][1:]]
        steps += [
            one["value"]
            for override in panel["fieldConfig"]["overrides"]
            for item in override["properties"]
            if item["id"] == "thresholds"
            for one in item["value"]["steps"][1:]
        ]
        known = {*defaults.values(), 0, 1, 0.01}
        assert {*steps} <= known, panel["title"]


def test_links_lead_to_runbooks_and_servers() -> None:
    """From a symptom to the page of its alert, from a line of the fleet to the server, keeping time and variables."""
    links = [
        link
        for board in BOARDS.values()
        for panel in panels(board)
        for override in panel["fieldConfig"]["overrides"]
        for item in override["properties"]
        if item["id"] == "links"
        for link in item["value"]
    ]
    pages = [link["url"] for link in links if link["url"].startswith("https://")]
    drills = [link["url"] for link in links if link["url"].startswith("/d/")]
    assert pages
    assert len(drills) >= 4
    assert all(url.endswith("/kvwatch${__data.fields.page}.md") for url in pages)
    for url in drills:
        assert url.startswith("/d/kvwatch-server?${__url_time_range}&${datasource:queryparam}")
        assert set(re.findall(r"var-(\w+)=", url)) == {"job", "instance", "target"}
    # The label `page` is made of the symptom's first six words.
    for symptom in BY_ID:
        words = re.fullmatch("_?([a-z0-9]*)" * 6, symptom)
        assert words
        assert f"kvwatch{''.join(words.groups())}" == alert_name(symptom).lower()
