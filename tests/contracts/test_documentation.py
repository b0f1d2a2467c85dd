"""What the README shows works: its queries, its files of settings, its commands."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import promql_parser
import pytest
import yaml

from kvwatch.cli import COMMANDS
from kvwatch.core.catalogue import METRICS, PREFIX
from kvwatch.mixin.alerts import every
from kvwatch.mixin.options import read
from kvwatch.settings import load

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text(encoding="utf-8")
FOR_ALERTS = "# alerts.toml"
NAMES = {row.full_name for row in METRICS}


def blocks(language: str) -> list[str]:
    """The fenced blocks of a language."""
    return re.findall(rf"^```{language}\n(.*?)^```", README, re.MULTILINE | re.DOTALL)


def asked(expression: str) -> set[str]:
    """The metrics of kvwatch that an expression asks for; fails if it can't be parsed."""
    promql_parser.parse(expression)
    return set(re.findall(rf"\b{PREFIX}\w+", expression))


def test_queries_ask_for_metrics_that_exist() -> None:
    """Every PromQL expression parses, and names only metrics of the catalogue."""
    expressions = blocks("promql")
    assert expressions
    for expression in expressions:
        assert asked(expression) <= NAMES


def test_examples_in_yaml_are_yaml() -> None:
    """Every YAML example can be read, and the rules that it names are there."""
    documents = [yaml.safe_load(block) for block in blocks("yaml")]
    (named,) = [one["rule_files"] for one in documents if "rule_files" in one]
    assert all((ROOT / "alerts" / name).is_file() for name in named)


def test_the_file_for_alerts_is_taken(tmp_path: Path) -> None:
    """The example for `kvwatch render --config` is one, and names alerts that there are."""
    (block,) = [block for block in blocks("toml") if block.startswith(FOR_ALERTS)]
    path = tmp_path / "alerts.toml"
    path.write_text(block, encoding="utf-8")
    assert every(read(path))


def test_the_settings_file_is_taken(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every other TOML example is a settings file that loads as it stands, where the files that it names are."""
    monkeypatch.delenv("KVWATCH_CONFIG", raising=False)
    path = tmp_path / "kvwatch.toml"
    loaded = []
    for block in blocks("toml"):
        if block.startswith(FOR_ALERTS):
            continue
        for name in re.findall(r'"/etc/kvwatch/([\w.]+)"', block):
            (tmp_path / name).write_text("x", encoding="utf-8")
        path.write_text(block.replace("/etc/kvwatch", str(tmp_path)), encoding="utf-8")
        loaded.append(load({"config": str(path)}))
    assert [settings for settings in loaded if settings.thresholds and settings.targets[0].name == "chat"]
    assert [settings for settings in loaded if settings.targets[0].password and settings.targets[0].cert_file]
    assert [settings for settings in loaded if settings.gpu_url and settings.targets[0].gpus]


def test_commands_of_the_readme_exist() -> None:
    """Every command that the README names has a help text."""
    commands = set(
        re.findall(r"`?kvwatch (run|demo|check|record|replay|render|plan|explain|compare)\b", README)
    )
    assert commands == set(COMMANDS)
    for command in commands:
        helped = subprocess.run(
            [sys.executable, "-m", "kvwatch", command, "--help"], capture_output=True, check=False
        )
        assert helped.returncode == 0
