"""The house: no two modules share a name, no two public classes share a name, and test packages stand alone."""

from __future__ import annotations

import ast
from collections import defaultdict
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PACKAGE, TESTS = ROOT / "kvwatch", ROOT / "tests"
MODULES = sorted(path for path in PACKAGE.rglob("*.py") if path.name not in {"__init__.py", "__main__.py"})
SHARED = {"support", "tools"}
"""Test packages that others may import: what tests share, and the tools that they run."""


def test_no_two_modules_share_a_base_name() -> None:
    """Except for a command and the page of its report, a name in a traceback names one module."""
    by_name: dict[str, list[str]] = defaultdict(list)
    for path in MODULES:
        by_name[path.stem].append(str(path.relative_to(ROOT)))
    twice = [", ".join(paths) for paths in by_name.values() if len(paths) > 1]
    assert not twice, f"rename one of each: {'; '.join(twice)}"


def test_no_two_public_classes_share_a_name() -> None:
    by_name: dict[str, list[str]] = defaultdict(list)
    for path in MODULES:
        for node in ast.parse(path.read_text(encoding="utf-8")).body:
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                by_name[node.name].append(str(path.relative_to(ROOT)))
    twice = [f"{name} in {' and '.join(paths)}" for name, paths in by_name.items() if len(paths) > 1]
    assert not twice, f"rename one of each: {'; '.join(twice)}"


@pytest.mark.parametrize("path", sorted(TESTS.rglob("*.py")), ids=lambda path: str(path.relative_to(TESTS)))
def test_no_test_package_imports_another(path: Path) -> None:
    """What several need is in tests/support."""
    own = path.relative_to(TESTS).parts[0]
    found = [
        node.module
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.ImportFrom) and node.module and node.module.startswith("tests.")
        if node.module.split(".")[1] not in {own, *SHARED}
    ]
    assert not found, (
        f"{path.relative_to(ROOT)} imports {', '.join(found)}: move what both need to tests/support"
    )
