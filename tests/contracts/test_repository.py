"""What is committed: where things lie, what no file may contain, and one version everywhere."""

import gzip
import importlib.metadata
import json
import re
import subprocess
import tomllib
from functools import cache
from pathlib import Path

import pytest

import kvwatch

ROOT = Path(__file__).resolve().parents[2]

# The top level is fixed; everything else that the project needs lives inside one of these.
TOP_LEVEL = {
    "CHANGELOG.md",
    "CONTRIBUTING.md",
    "Dockerfile",
    "LICENSE",
    "Makefile",
    "README.md",
    "alerts",
    "dashboards",
    "deploy",
    "docs",
    "kvwatch",
    "pyproject.toml",
    "tests",
    "uv.lock",
}

# What says where something was made or fetched. No pattern matches its own text.
FORBIDDEN = {
    "a registry's host": r"pyp[i]\.(?:org|python)|pythonhoste[d]\.org|registry\.npmj[s]|deb\.debia[n]\.",
    "an installer's index option": r"--(?:extra-)?index-url|--trusted-hos[t]",
    "a path of a developer's machine": r"(?<![\w.$}/-])/(?:home|root|Users|work)/[\w.-]+",
    "a folder beside the repository": r"\.\./shared\b",
}
PINNED = re.compile(r"[A-Za-z0-9._-]+==[A-Za-z0-9.+!_-]+")


@cache
def committed() -> tuple[Path, ...]:
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True, check=True)
    files = tuple(ROOT / name for name in listed.stdout.split("\0") if name)
    return tuple(file for file in files if file.is_file())


def content(file: Path) -> str:
    """A file's text, recordings unpacked, everything else byte by byte."""
    data = gzip.decompress(file.read_bytes()) if file.suffix == ".gz" else file.read_bytes()
    return data.decode("utf-8", errors="replace")


def test_the_top_level_holds_only_what_belongs_there() -> None:
    top = {file.relative_to(ROOT).parts[0] for file in committed()}
    assert {entry for entry in top if not entry.startswith(".")} <= TOP_LEVEL
    assert {"LICENSE", "Makefile", "kvwatch", "pyproject.toml", "tests"} <= top


@pytest.mark.parametrize("what", FORBIDDEN)
def test_no_file_says(what: str) -> None:
    pattern = re.compile(FORBIDDEN[what])
    found = {
        str(file.relative_to(ROOT)): match[0]
        for file in committed()
        if (match := pattern.search(content(file)))
    }
    assert not found


def test_no_file_is_large() -> None:
    large = {str(file.relative_to(ROOT)): file.stat().st_size for file in committed()}
    assert not {name: size for name, size in large.items() if size > 500_000}


def test_scripts_can_be_run() -> None:
    scripts = [file for file in committed() if file.read_bytes().startswith(b"#!")]
    assert ROOT / ".ci" / "run" in scripts
    assert not [file for file in scripts if not file.stat().st_mode & 0o100]


def test_pinned_versions_are_names_and_versions_and_nothing_else() -> None:
    lines = (ROOT / ".ci" / "constraints.txt").read_text(encoding="utf-8").splitlines()
    assert not [line for line in lines if not PINNED.fullmatch(line)]


def test_every_dependency_is_pinned() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    wanted = project["dependencies"] + [
        name for extra in project["optional-dependencies"].values() for name in extra
    ]

    def plain(requirement: str) -> str:
        return re.sub(r"[-_.]+", "-", re.split(r"[^\w.-]", requirement)[0]).lower()

    pins = (ROOT / ".ci" / "constraints.txt").read_text(encoding="utf-8").splitlines()
    assert {plain(requirement) for requirement in wanted} <= {plain(pin) for pin in pins}


def test_one_version_everywhere() -> None:
    assert importlib.metadata.version("kvwatch") == kvwatch.__version__


def test_the_changelog_knows_this_version_or_what_comes() -> None:
    headings = re.findall(r"^## \[(.+?)\]", (ROOT / "CHANGELOG.md").read_text(encoding="utf-8"), re.MULTILINE)
    assert headings
    assert headings[0] in {"Unreleased", kvwatch.__version__}


def test_recordings_are_there_and_each_has_its_facts() -> None:
    captures = ROOT / "tests" / "captures"
    facts = json.loads((captures / "scenarios.json").read_text(encoding="utf-8"))
    pages = {
        f"{file.parent.name.removeprefix('vllm-')}/{file.name.removesuffix('.jsonl.gz')}"
        for file in captures.glob("vllm-*/*.jsonl.gz")
    }
    timelines = {
        file.name.removesuffix(".jsonl.gz").replace("--", "/", 1)
        for file in (ROOT / "tests" / "replay" / "recordings").glob("*.jsonl.gz")
    }
    assert len(pages) > 30
    assert pages - {"0.32.0/openmetrics"} == set(facts)
    assert timelines
    assert timelines <= set(facts)


def test_a_trimmed_timeline_is_as_long_as_the_capture() -> None:
    facts = json.loads((ROOT / "tests" / "captures" / "scenarios.json").read_text(encoding="utf-8"))
    for file in (ROOT / "tests" / "replay" / "recordings").glob("*.jsonl.gz"):
        samples = [json.loads(line) for line in content(file).splitlines()]
        fact = facts[file.name.removesuffix(".jsonl.gz").replace("--", "/", 1)]
        assert len(samples) == fact["polls"], file.name
        assert sum(sample["status"] == 0 for sample in samples) == fact["unreachable"], file.name
