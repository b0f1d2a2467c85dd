"""The file for `kvwatch render --config`: what it changes, and what it says of mistakes."""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from kvwatch.mixin import alertmanager_config, rules
from kvwatch.mixin.render_options import Options, read
from kvwatch.mixin.rendered_files import main
from tests.support.promtool import run

ROOT = Path(__file__).parents[2]


def written(text: str, folder: Path) -> Path:
    path = folder / "alerts.toml"
    path.write_text(text, encoding="utf-8")
    return path


def alerts(options: Options) -> dict[str, dict[str, Any]]:
    groups = yaml.safe_load(rules.prometheus(options))["groups"]
    return {rule["alert"]: rule for group in groups for rule in group["rules"] if "alert" in rule}


def linked(name: str, options: Options, at: str, labels: dict[str, str], url: str) -> dict[str, Any]:
    """promtool's test that an alert fires with this link, its own words being what they are."""
    rule = alerts(options)[name]
    description = rule["annotations"]["description"]
    for label, value in labels.items():
        description = description.replace(f"{{{{ $labels.{label} }}}}", value)
    told = {"description": description, "dashboard_url": f"https://grafana.example.com/d/{url}"}
    alert = {"exp_labels": rule["labels"] | labels, "exp_annotations": rule["annotations"] | told}
    return {"eval_time": at, "alertname": name, "exp_alerts": [alert]}


def test_alerts_lead_to_the_dashboard_of_their_server(tmp_path: Path) -> None:
    """With a Grafana given; labels are written as addresses need, and what is of no server leads to the fleet."""
    options = Options(grafana_url="https://grafana.example.com/")
    path = tmp_path / "rules.yml"
    path.write_text(rules.prometheus(options), encoding="utf-8")
    of = {"target": "http://gpu1:8000", "job": "kv", "instance": "a:9477"}
    inside = ",".join(f'{name}="{value}"' for name, value in of.items())
    server = "kvwatch-server?var-job=kv&var-instance=a%3A9477&var-target=http%3A%2F%2Fgpu1%3A8000"
    test = {
        "interval": "1m",
        "input_series": [{"series": f"kvwatch_poll_errors_total{{{inside}}}", "values": "0 0 5x20"}],
        "alert_rule_test": [
            linked("KVWatchPollErrors", options, "3m", of, server),
            linked("KVWatchAbsent", options, "20m", {}, "kvwatch-fleet"),
        ],
    }
    run(tmp_path, [test], path)
    own = Options(grafana_url="https://grafana.example.com", dashboard_url="https://example.com/mine")
    assert alerts(own)["KVWatchDown"]["annotations"]["dashboard_url"] == "https://example.com/mine"


def test_everything_can_be_said(tmp_path: Path) -> None:
    """Labels, annotations, severities, links, what is left out, the job, matchers, and the objective."""
    options = read(
        written(
            """\
            runbook_url = "https://wiki.example.com/kv/"
            dashboard_url = "https://grafana.example.com/d/kvwatch"
            job = "monitoring/kvwatch"
            selector = 'cluster="east"'
            disabled = ["KVWatchKvExhausted", "KVWatchAbsent"]
            rule_labels = {release = "prometheus"}
            [labels]
            team = "inference"
            [annotations]
            owner = "llm@example.com"
            [severity]
            KVWatchTtftHigh = "critical"
            [ttft]
            seconds = 1.0
            share = 0.99
            """,
            tmp_path,
        )
    )
    found = alerts(options)
    assert not {"KVWatchKvExhausted", "KVWatchAbsent"} & found.keys()
    one = found["KVWatchTtftHigh"]
    assert one["labels"] == {"severity": "critical", "team": "inference"}
    assert one["annotations"]["runbook_url"] == "https://wiki.example.com/kv/kvwatchttfthigh.md"
    assert one["annotations"]["dashboard_url"] == "https://grafana.example.com/d/kvwatch"
    assert one["annotations"]["owner"] == "llm@example.com"
    assert found["KVWatchDown"]["expr"] == 'up{job="monitoring/kvwatch",cluster="east"} == 0'
    assert "ratio_rate1h > 0.144" in found["KVWatchTtftBudgetFastBurn"]["expr"]
    text = rules.prometheus(options)
    assert 'le=~"1([.]0)?"' in text
    assert "longer than 1 s in the last 1h (objective: at most 1%)" in text
    assert "KVWatchKvExhausted" not in alertmanager_config.config(options)
    assert yaml.safe_load(rules.operator(options))["metadata"]["labels"]["release"] == "prometheus"
    path = tmp_path / "rules.yml"
    path.write_text(text, encoding="utf-8")
    subprocess.run(["promtool", "check", "rules", "--lint-fatal", str(path)], check=True, capture_output=True)


def test_matchers_are_in_every_expression(tmp_path: Path) -> None:
    """None is left that would take in another cluster's series."""
    options = read(written("selector = 'cluster=\"east\"'", tmp_path))
    for group in yaml.safe_load(rules.prometheus(options))["groups"]:
        for rule in group["rules"]:
            asked = rule["expr"].count("kvwatch_") - rule["expr"].count(":kvwatch_")
            asked += rule["expr"].count("up{job=")
            assert rule["expr"].count('cluster="east"') == asked, rule["expr"]


def test_render_writes_them_and_the_check_knows(tmp_path: Path) -> None:
    """With the same file nothing is stale; without it, what it changed is. A page of no alert goes away."""
    (tmp_path / "kvwatch" / "mixin").mkdir(parents=True)
    (tmp_path / "README.md").write_text((ROOT / "README.md").read_text(encoding="utf-8"), encoding="utf-8")
    config = written('[severity]\nKVWatchDown = "critical"', tmp_path)
    left = tmp_path / "alerts" / "runbooks" / "kvwatchgone.md"
    left.parent.mkdir(parents=True)
    left.touch()
    assert main(config=config, root=tmp_path) == 0
    assert not left.exists()
    assert main(config=config, check=True, root=tmp_path) == 0
    assert main(check=True, root=tmp_path) == 1


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("runbook_url = 1", "runbook_url: Input should be a valid string"),
        ('runbook_url = "wiki/kv"', "runbook_url: not a URL; write one that begins with http:// or https://"),
        ('disable = ["KVWatchDown"]', "disable: unknown key; did you mean disabled"),
        ('disabled = ["KVWatchDwn"]', "disabled: unknown alert KVWatchDwn; did you mean KVWatchDown"),
        ('[severity]\nKVWatchDown = "page"', "severity.KVWatchDown: Input should be 'critical', 'warning' or 'info'"),
        ('[labels]\nseverity = "x"', "labels: severity is reserved for kvwatch; choose another name"),
        ('[labels]\n"a-b" = "x"', "labels: a-b: not a valid name; use letters, digits and _"),
        ("selector = 'cluster=east'", "selector: no PromQL matchers; write for example"),
        ("[ttft]\nseconds = 2.0", "ttft: 2 s is not a bucket bound of vLLM; choose one of 0.001,"),
        ("[ttft]\nshare = 0.9", "ttft: with a share of 0.9 the burn rate can't reach 14.4; write more than 0.931"),
        ("runbook_url =", "not TOML"),
    ],
)  # fmt: skip
def test_a_mistake_is_one_clear_line(
    text: str, said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """It says what to write instead, and nothing is written."""
    (tmp_path / "kvwatch" / "mixin").mkdir(parents=True)
    (tmp_path / "README.md").write_text((ROOT / "README.md").read_text(encoding="utf-8"), encoding="utf-8")
    assert main(config=written(text, tmp_path), root=tmp_path) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert said in line
    assert not (tmp_path / "alerts").exists()


def test_a_file_that_is_not_there(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(config=tmp_path / "none.toml", root=ROOT) == 2
    assert "none.toml: No such file or directory" in capsys.readouterr().err
