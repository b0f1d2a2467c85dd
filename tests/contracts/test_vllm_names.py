"""The list of what each vLLM release exposes, held against the pages of real servers."""

import gzip
import json
import re
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

TESTS = Path(__file__).resolve().parents[1]
LISTED: dict[str, Any] = json.loads((TESTS / "data" / "vllm_names.json").read_text(encoding="utf-8"))
RELEASES: list[str] = LISTED["releases"]
NAMES: dict[str, dict[str, Any]] = LISTED["names"]
FOLDERS = sorted(path.name for path in (TESTS / "captures").glob("vllm-*"))

TYPE = re.compile(r"^# TYPE (vllm:\S+) (\S+)$", re.MULTILINE)


def covered(runs: list[list[str]], release: str) -> bool:
    at = RELEASES.index(release)
    return any(RELEASES.index(first) <= at <= RELEASES.index(last) for first, last in runs)


def seen(folder: str) -> dict[str, str]:
    """Name and type of the families on the pages of a folder (in OpenMetrics they are called otherwise)."""
    found: dict[str, str] = {}
    recordings = set((TESTS / "captures" / folder).glob("*.jsonl.gz"))
    for path in recordings - {TESTS / "captures" / folder / "openmetrics.jsonl.gz"}:
        for line in gzip.decompress(path.read_bytes()).splitlines():
            found |= dict(TYPE.findall(json.loads(line).get("body", "")))
    return {name: kind for name, kind in found.items() if not name.endswith("_created")}


@pytest.mark.parametrize("folder", FOLDERS)
def test_every_family_of_a_real_page_is_listed_for_its_release(folder: str) -> None:
    release, _, engine = folder.removeprefix("vllm-").partition("-")
    group = "v0" if engine.startswith("v0") else "v1"
    families = seen(folder)
    assert "vllm:cache_config_info" in families
    for name, kind in families.items():
        assert name in NAMES, f"{name} of {release} is not listed"
        assert NAMES[name]["type"] == kind, name
        assert covered(NAMES[name].get(group, []), release), f"{name} is not listed for {release} {group}"
        if "hidden" not in engine:
            assert not covered(NAMES[name].get("hidden", {}).get(group, []), release), f"{name} is hidden"


def test_ranges_are_in_order_apart_and_hidden_within_exposed() -> None:
    for name, entry in NAMES.items():
        for group in ("v0", "v1", "server"):
            runs = [(RELEASES.index(first), RELEASES.index(last)) for first, last in entry.get(group, [])]
            assert all(first <= last for first, last in runs), name
            assert all(before[1] + 1 < after[0] for before, after in pairwise(runs)), name
        for group, hidden in entry.get("hidden", {}).items():
            assert all(covered(entry[group], release) for run in hidden for release in run), name
