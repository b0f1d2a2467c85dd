"""What the documentation shows works: its queries, settings files and commands; its links lead somewhere."""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import promql_parser
import pytest
import yaml

from kvwatch.cli import COMMANDS, _parsers
from kvwatch.core.export.catalogue import METRICS, PREFIX
from kvwatch.core.judgement.symptoms import BY_ID, THRESHOLDS
from kvwatch.logs.causes import CAUSES
from kvwatch.mixin.alerts import every
from kvwatch.mixin.render_options import read
from kvwatch.settings import Settings, load
from kvwatch.settings.sources import PREFIX as ENVIRONMENT
from kvwatch.settings.sources import key
from tests.tools.check_site import problems

ROOT = Path(__file__).parents[2]
README = ROOT / "README.md"
KUBERNETES = ROOT / "deploy" / "kubernetes" / "README.md"
#: `make docs` checks links on the site. Here they are checked as GitHub shows them.
PAGES = [
    README,
    ROOT / "CONTRIBUTING.md",
    ROOT / "CHANGELOG.md",
    KUBERNETES,
    ROOT / "tests" / "README.md",
    *sorted((ROOT / "docs").rglob("*.md")),
]
FOR_ALERTS = "# alerts.toml"
NAMES = {row.full_name for row in METRICS}
_LINK = re.compile(r'(?:\]\(|\b(?:src|href)=")([^)"\s]+)[)"\s]')
_FENCED = re.compile(r"^ *```(\w*)\n(.*?)^ *```$", re.MULTILINE | re.DOTALL)
_COMMAND = re.compile(r"\bkvwatch ([a-z]+)\b([^`#|;]*)")


def name_of(page: Path) -> str:
    return str(page.relative_to(ROOT))


@cache
def text_of(page: Path) -> str:
    return page.read_text(encoding="utf-8")


def blocks(language: str) -> list[str]:
    """The fenced blocks of a language, of all pages."""
    return [code for page in PAGES for kind, code in _FENCED.findall(text_of(page)) if kind == language]


def prose(page: Path) -> str:
    """A page without its fenced blocks."""
    return _FENCED.sub("", text_of(page))


def anchors(page: Path) -> set[str]:
    """What a link can point to on a page: its headings, as GitHub and the site spell them."""
    headings = re.findall(r"^#+ (.+)$", prose(page), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).strip().replace(" ", "-") for heading in headings}


def commands(page: Path) -> Iterator[tuple[str, str]]:
    """Every command in code on a page, as its name and the rest of the line."""
    fenced = [code for language, code in _FENCED.findall(text_of(page)) if language in {"sh", "text", ""}]
    for code in (*fenced, *re.findall(r"`([^`\n]+)`", prose(page))):
        for line in re.sub(r"\\\n\s*", "", code).splitlines():
            yield from _COMMAND.findall(line)


def test_the_readme_is_short_and_names_the_two_commands() -> None:
    """It is for deciding and starting; the reference is in docs/."""
    text = text_of(README)
    assert len(text.encode()) <= 15_000
    assert "make demo" in text
    assert "make test" in text


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_links_lead_to_files_and_headings(page: Path) -> None:
    """Every relative link of a page leads to a file of the repository, and every anchor to a heading."""
    for link in _LINK.findall(prose(page)):
        target, _, anchor = link.partition("#")
        if ":" in target or not (target or anchor):
            continue
        path = (page.parent / target).resolve() if target else page
        assert path.is_relative_to(ROOT), link
        assert path.exists(), link
        assert not anchor or anchor in anchors(path), link


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_commands_exist_with_their_flags(page: Path) -> None:
    """Every command in code is one of kvwatch, with flags that it has."""
    known = {name: {*command._option_string_actions} for name, command in _parsers(None)[1].items()}
    for command, rest in commands(page):
        assert command in known, f"kvwatch {command}"
        flags = set(re.findall(r"(?<=\s)--[a-z][a-z-]*", rest))
        assert flags <= known[command], f"kvwatch {command}{rest}"


def test_every_command_is_on_the_pages_of_commands_and_of_exit_codes() -> None:
    reference = ROOT / "docs" / "reference"
    for page in (reference / "commands.md", reference / "exit-codes.md"):
        listed = set(re.findall(r"^\| `kvwatch (\w+)", text_of(page), re.MULTILINE))
        assert listed == set(COMMANDS), name_of(page)
    sections = re.findall(r"^## kvwatch (\w+)$", text_of(reference / "commands.md"), re.MULTILINE)
    assert set(sections) == set(COMMANDS)


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_variables_are_settings(page: Path) -> None:
    """Every environment variable of kvwatch is a setting."""
    settings = {ENVIRONMENT + key(name).upper() for name in Settings.model_fields}
    named = set(re.findall(rf"\b{ENVIRONMENT}[A-Z0-9_]+\b", text_of(page)))
    assert named - {"KVWATCH_REGENERATE"} <= settings


def test_queries_name_exported_metrics() -> None:
    """Every PromQL expression parses, and names only metrics of the catalogue."""
    expressions = blocks("promql")
    assert len(expressions) > 3
    for expression in expressions:
        promql_parser.parse(expression)
        assert set(re.findall(rf"\b{PREFIX}\w+", expression)) <= NAMES


def test_examples_in_yaml_are_yaml() -> None:
    """Every YAML example can be read, and the rules that it names exist."""
    documents = [yaml.safe_load(block) for block in blocks("yaml")]
    named = [name for one in documents for name in one.get("rule_files", ())]
    assert named
    assert all((ROOT / "alerts" / name).is_file() for name in named)


def test_the_file_for_alerts_is_accepted(tmp_path: Path) -> None:
    """The example for `kvwatch render --config` is one, and names alerts that exist."""
    (block,) = [block for block in blocks("toml") if block.startswith(FOR_ALERTS)]
    path = tmp_path / "alerts.toml"
    path.write_text(block, encoding="utf-8")
    assert every(read(path))


def test_settings_files_are_accepted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every other TOML example is a settings file that loads as it stands, if the files that it names exist."""
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
    assert [settings for settings in loaded if settings.alertmanagers and settings.external_url]


def test_thresholds_in_examples_exist() -> None:
    """Every threshold that a page gives to `--threshold` or sets in a file is one."""
    known = {one.name for one in THRESHOLDS}
    for page in PAGES:
        named = re.findall(r"(?:--threshold |\"|[,=])([a-z_]+\.[a-z_]+)(?:\"? ?=)", text_of(page))
        assert set(named) <= known, name_of(page)


def test_every_symptom_is_in_the_readme() -> None:
    """In the order of the table of the code."""
    _, _, table = text_of(README).partition("<!-- rendered: symptoms -->")
    assert re.findall(r"^\| `(\w+)`", table.partition("<!-- end -->")[0], re.MULTILINE) == list(BY_ID)


def test_every_startup_verdict_is_listed() -> None:
    page = ROOT / "docs" / "reference" / "startup-verdicts.md"
    listed = re.findall(r"^\| `(\w+)`", text_of(page), re.MULTILINE)
    assert set(listed) == {cause.verdict for cause in CAUSES}


def test_a_page_that_loads_from_another_host_is_noticed(tmp_path: Path) -> None:
    """What `make docs` checks of the built site."""
    (tmp_path / "assets").mkdir()
    (tmp_path / "assets" / "here.js").write_text("", encoding="utf-8")
    page = tmp_path / "index.html"
    page.write_text(
        '<a href="https://example.com"></a><script src="assets/here.js"></script>', encoding="utf-8"
    )
    assert list(problems(tmp_path)) == []
    page.write_text(
        '<script src="https://cdn.example.com/x.js"></script><img src="gone.png">', encoding="utf-8"
    )
    assert [problem.rsplit(" ", 1)[1] for problem in problems(tmp_path)] == ["host", "exist"]
