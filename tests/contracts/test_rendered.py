"""Rendered files are what the code renders."""

from __future__ import annotations

from pathlib import Path

import pytest

from kvwatch.mixin.rendered_files import files, main

ROOT = Path(__file__).parents[2]


def test_rendered_files_are_current() -> None:
    """`make render` would change nothing."""
    rendered = files(ROOT)
    stale = [path.name for path, text in rendered.items() if path.read_text(encoding="utf-8") != text]
    assert not stale, f"run `make render` and commit {stale}"
    alerts = {path for path in (ROOT / "alerts").rglob("*") if path.is_file()}
    assert alerts <= rendered.keys(), "alerts/ holds only what is rendered"
    dashboards = {path for path in (ROOT / "dashboards").iterdir() if path.is_file()}
    assert dashboards <= rendered.keys(), "dashboards/ holds only what is rendered, and pictures of it"


def test_render_outside_a_checkout_says_so(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Elsewhere it writes nothing and names the remedy."""
    assert main(root=tmp_path) == 2
    assert "run this where README.md and kvwatch/ are" in capsys.readouterr().err
    assert not list(tmp_path.iterdir())


def test_a_stale_file_fails_the_check(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """`render --check` exits 1 and names the file; `render` mends it."""
    (tmp_path / "kvwatch" / "mixin").mkdir(parents=True)
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    (tmp_path / "README.md").write_text(text.replace("`kv_limited`", "`kv_limted`", 1), encoding="utf-8")
    assert main(check=True, root=tmp_path) == 1
    assert "stale: README.md" in capsys.readouterr().out
    assert main(root=tmp_path) == 0
    assert main(check=True, root=tmp_path) == 0
