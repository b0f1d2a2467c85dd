"""What the README shows works: its queries, its rules, its settings file, its commands."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import promql_parser
import pytest
import yaml

from kvwatch.core.catalogue import METRICS, PREFIX
from kvwatch.settings import load

README = (Path(__file__).parents[2] / "README.md").read_text(encoding="utf-8")
NAMES = {row.full_name for row in METRICS}


def blocks(language: str) -> list[str]:
    """The fenced blocks of a language."""
    return re.findall(rf"^```{language}\n(.*?)^```", README, re.MULTILINE | re.DOTALL)


def asked(expression: str) -> set[str]:
    """The metrics of kvwatch that an expression asks for; fails if it can't be parsed."""
    promql_parser.parse(expression)
    return set(re.findall(rf"\b{PREFIX}\w+", expression))


def rules() -> list[dict[str, str]]:
    """The alerting rules of the README."""
    found = [yaml.safe_load(block) for block in blocks("yaml")]
    return [rule for one in found if "groups" in one for group in one["groups"] for rule in group["rules"]]


def test_queries_ask_for_metrics_that_exist() -> None:
    """Every PromQL expression parses, and names only metrics of the catalogue."""
    expressions = [*blocks("promql"), *(rule["expr"] for rule in rules())]
    assert len(expressions) >= 3
    for expression in expressions:
        assert asked(expression) <= NAMES


def test_promtool_takes_the_rules(tmp_path: Path) -> None:
    """The alerting rules load in a Prometheus."""
    (block,) = [block for block in blocks("yaml") if "groups:" in block]
    path = tmp_path / "rules.yml"
    path.write_text(block, encoding="utf-8")
    checked = subprocess.run(["promtool", "check", "rules", str(path)], capture_output=True, check=False)
    assert checked.returncode == 0, checked.stdout.decode() + checked.stderr.decode()


def test_the_settings_file_is_taken(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every TOML example is a settings file that loads as it stands."""
    monkeypatch.delenv("KVWATCH_CONFIG", raising=False)
    path = tmp_path / "kvwatch.toml"
    loaded = []
    for block in blocks("toml"):
        path.write_text(block, encoding="utf-8")
        loaded.append(load({"config": str(path)}))
    assert [settings for settings in loaded if settings.thresholds and settings.targets[0].name == "chat"]
    assert [settings for settings in loaded if settings.gpu_url and settings.targets[0].gpus]


def test_commands_of_the_readme_exist() -> None:
    """Every command that the README names has a help text."""
    commands = set(
        re.findall(r"`?kvwatch (run|demo|check|record|replay|render|plan|explain|compare)\b", README)
    )
    assert commands == {"run", "demo", "check", "record", "replay", "render"}
    for command in commands:
        helped = subprocess.run(
            [sys.executable, "-m", "kvwatch", command, "--help"], capture_output=True, check=False
        )
        assert helped.returncode == 0
