"""Every expression of rules and runbooks asks for what kvwatch exports, and every file is what it says."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from kvwatch.core.export.catalogue import PREFIX
from kvwatch.core.judgement.symptoms import BY_ID, SYMPTOMS
from kvwatch.mixin.alerts import every
from kvwatch.mixin.render_options import TTFT_BOUNDS, Options
from tests.support.expressions import (
    ALERTS,
    GROUPS,
    RECORDED,
    RULES,
    resolve,
)

ROOT = Path(__file__).parents[2]
RUNBOOKS = sorted((ALERTS / "runbooks").glob("*.md"))


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.get("alert") or rule["record"])
def test_a_rule_asks_for_what_is_exported(rule: dict[str, Any]) -> None:
    assert resolve(rule["expr"])


@pytest.mark.parametrize("rule", [rule for rule in RULES if "alert" in rule], ids=lambda rule: rule["alert"])
def test_a_text_looks_up_what_is_exported(rule: dict[str, Any]) -> None:
    """The queries inside the texts of a symptom's alert; a text about something else has none."""
    queries = re.findall(r"printf `([^`]+)`", rule["annotations"]["description"])
    assert bool(queries) == ("kvwatch_symptom_firing" in rule["expr"])
    assert all(resolve(query.replace("%q", '"x"')) for query in queries)


@pytest.mark.parametrize("page", RUNBOOKS, ids=lambda page: page.stem)
def test_a_runbook_asks_for_what_is_exported(page: Path) -> None:
    queries = re.findall(r"^```promql\n(.*?)^```", page.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL)
    assert len(queries) >= 3
    assert all(resolve(query) for query in queries)


@pytest.mark.parametrize(
    "wrong",
    [
        "kvwatch_no_such_metric",
        'kvwatch_up{engine="0"}',
        'kvwatch_symptom_state{symptom="kv_full"}',
        "sum by (shard) (kvwatch_up)",
        "kvwatch_up / on (shard) kvwatch_up",
        "rate(kvwatch_scrapes[5m])",
    ],
)
def test_what_is_not_exported_is_noticed(wrong: str) -> None:
    """The check itself can fail."""
    with pytest.raises(AssertionError):
        resolve(wrong)


def test_promtool_takes_the_rules() -> None:
    done = subprocess.run(
        ["promtool", "check", "rules", "--lint=all", "--lint-fatal", str(ALERTS / "kvwatch.rules.yml")],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert f"{len(RULES)} rules found" in done.stdout


def test_the_operators_object_has_the_same_rules() -> None:
    rule = yaml.safe_load((ALERTS / "prometheusrule.yml").read_text(encoding="utf-8"))
    assert (rule["apiVersion"], rule["kind"]) == ("monitoring.coreos.com/v1", "PrometheusRule")
    assert rule["spec"] == {"groups": GROUPS}


def test_names_of_recorded_series_follow_the_convention() -> None:
    """``level:metric:operations``; a rate takes off `_total`."""
    for name in RECORDED:
        assert re.fullmatch(rf"(engine|target|model|job):{PREFIX}[a-z0-9_]+:[a-z0-9_]+", name)
        assert "_total" not in name


def test_alerts_are_written_for_people() -> None:
    """One static sentence, a description, a link to a page that exists; no value in a label."""
    rules = [rule for rule in RULES if "alert" in rule]
    assert {rule["alert"] for rule in rules} == {one.name for one in every(Options())}
    assert len(rules) == len({(rule["alert"], rule["labels"]["severity"]) for rule in rules}) > len(SYMPTOMS)
    for rule in rules:
        assert rule["labels"].keys() == {"severity"}
        assert rule["labels"]["severity"] in {"critical", "warning", "info"}
        summary, description = rule["annotations"]["summary"], rule["annotations"]["description"]
        assert re.fullmatch(r"[^{}\n]+\.", summary)
        assert description.count("{{") == description.count("}}")
        page = rule["annotations"]["runbook_url"].rpartition("/")[2]
        assert page == f"{rule['alert'].lower()}.md"
        assert (ALERTS / "runbooks" / page).is_file()


def test_runbooks_have_their_parts_and_their_links_lead_somewhere() -> None:
    wanted = ["Meaning", "Mitigation", "How to check that it worked", "Diagnosis", "Background"]
    for page in RUNBOOKS:
        text = page.read_text(encoding="utf-8")
        assert re.findall(r"^## (.+)$", text, re.MULTILINE) == wanted
        assert all((page.parent / link).is_file() for link in re.findall(r"\]\(([^)]+)\)", text))


def test_no_two_symptoms_account_for_each_other() -> None:
    """They would silence each other, and nobody would be told."""

    def reached(start: str) -> set[str]:
        found, left = set[str](), [start]
        while left:
            for effect in BY_ID[left.pop()].explains:
                if effect not in found:
                    found.add(effect)
                    left.append(effect)
        return found

    assert [row.id for row in SYMPTOMS if row.id in reached(row.id)] == []


def test_bounds_of_the_objective_are_those_of_every_vllm() -> None:
    """v0 and v1 servers have all of them, as their pages show."""
    for page in ("v0", "saturated"):
        text = (ROOT / "tests" / "golden" / f"{page}.prom").read_text(encoding="utf-8")
        bounds = re.findall(r'time_to_first_token_seconds_bucket\{.*?le="([\d.]+)"', text)
        assert {f"{bound}" for bound in TTFT_BOUNDS} <= {*bounds}
