"""Names live in one place each: vLLM's in core/vllm.py, kvwatch's own in core/catalogue.py."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
MODULES = sorted((ROOT / "kvwatch").rglob("*.py"))

#: Words that look like an exported metric and are none.
NO_METRICS = {"kvwatch_fields"}  # an attribute of log records


@pytest.mark.parametrize("path", MODULES, ids=lambda path: str(path.relative_to(ROOT)))
def test_only_one_module_spells_vllms_names(path: Path) -> None:
    """A rename in vLLM is an edit of one file: no other module of the package has its prefix."""
    if path != ROOT / "kvwatch" / "core" / "dialect" / "vllm.py":
        assert re.findall(r"\w*vllm:\w*", path.read_text(encoding="utf-8")) == []


@pytest.mark.parametrize("path", MODULES, ids=lambda path: str(path.relative_to(ROOT)))
def test_only_the_catalogue_spells_exported_names(path: Path) -> None:
    """What kvwatch exports is one table: no other module names a metric of its own."""
    if path != ROOT / "kvwatch" / "core" / "export" / "catalogue.py":
        found = set(re.findall(r"\bkvwatch_[a-z]\w*", path.read_text(encoding="utf-8")))
        assert found <= NO_METRICS
