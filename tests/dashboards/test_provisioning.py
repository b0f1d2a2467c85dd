"""The files by which a Grafana finds the data source and the dashboards."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import yaml

from tests.dashboards.grafana import FILES, FOLDER, load

PROVISIONING = Path(__file__).parents[2] / "deploy" / "compose" / "grafana" / "provisioning"


def read(name: str) -> dict[str, Any]:
    found: dict[str, Any] = yaml.safe_load((PROVISIONING / name).read_text(encoding="utf-8"))
    assert found["apiVersion"] == 1
    return found


def test_the_data_source_is_one_that_the_dashboards_offer() -> None:
    """They choose among the data sources of one type, and the default is taken first."""
    (source,) = read("datasources/prometheus.yml")["datasources"]
    for path in FILES:
        offered = next(one for one in load(path)["templating"]["list"] if one["type"] == "datasource")
        assert source["type"] == offered["query"]
    assert source["isDefault"] is True
    assert source["jsonData"]["timeInterval"]


def test_the_dashboards_are_read_from_a_folder_and_can_not_be_changed() -> None:
    """As the files say themselves, of which the folder holds all, beside pictures."""
    (provider,) = read("dashboards/kvwatch.yml")["providers"]
    assert provider["type"] == "file"
    assert provider["options"]["path"].startswith("/var/lib/grafana/dashboards")
    assert (provider["editable"], provider["allowUiUpdates"]) == (False, False)
    assert len(FILES) == 3
    others = {
        path.suffix for path in FOLDER.rglob("*") if path.is_file() and path.name != "kustomization.yaml"
    }
    assert others == {".json", ".png"}
