"""Rendered files are what the code renders."""

from __future__ import annotations

from pathlib import Path

import pytest

from kvwatch.logs.causes import BY_VERDICT
from kvwatch.mixin.markdown_tables import TABLES
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
    """`render --check` exits 1 and names the file; `render` fixes it."""
    (tmp_path / "kvwatch" / "mixin").mkdir(parents=True)
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    (tmp_path / "README.md").write_text(text.replace("`kv_thrashing`", "`kv_trashing`", 1), encoding="utf-8")
    assert main(check=True, root=tmp_path) == 1
    assert "stale: README.md" in capsys.readouterr().out
    assert main(root=tmp_path) == 0
    assert main(check=True, root=tmp_path) == 0


def checkout(folder: Path, **texts: str) -> Path:
    """The least that counts as a checkout, with these Markdown files."""
    (folder / "kvwatch" / "mixin").mkdir(parents=True)
    for name, text in {"README": "", **texts}.items():
        path = folder / f"{name.replace('__', '/')}.md"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    return folder


def test_tables_are_rendered_wherever_their_markers_are(tmp_path: Path) -> None:
    """In README.md, CONTRIBUTING.md and every Markdown file under docs/, and the text around them stays."""
    marked = "before\n<!-- rendered: regimes -->\nold\n<!-- end -->\nafter\n"
    root = checkout(tmp_path, README=marked, CONTRIBUTING=marked, docs__reference__two=marked + marked)
    assert main(check=True, root=root) == 1
    assert main(root=root) == 0
    assert main(check=True, root=root) == 0
    table = f"before\n<!-- rendered: regimes -->\n\n{TABLES['regimes']()}\n\n<!-- end -->\nafter\n"
    for name, times in (("README", 1), ("CONTRIBUTING", 1), ("docs/reference/two", 2)):
        assert (root / f"{name}.md").read_text(encoding="utf-8") == table * times


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("\n<!-- rendered: regime -->\n<!-- end -->\n", "docs/a.md:2: unknown table 'regime'; known: alert options,"),
        ("<!-- rendered: regimes -->\ntext\n", "docs/a.md:1: no <!-- end --> after this marker"),
        ("<!-- rendered: regimes -->\n" * 2 + "<!-- end -->", "docs/a.md:1: no <!-- end --> after this marker"),
    ],
)  # fmt: skip
def test_a_wrong_marker_is_one_clear_line(
    text: str, message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """It names file, line and remedy, and nothing is written."""
    root = checkout(tmp_path, docs__a=text)
    assert main(root=root) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert message in line
    assert not (root / "alerts").exists()


@pytest.mark.parametrize("name", TABLES)
def test_every_table_has_a_head_and_rows(name: str) -> None:
    """All lines of a table have as many cells as its head."""
    lines = [line.replace("\\|", "") for line in TABLES[name]().splitlines() if line.startswith("|")]
    assert len(lines) > 3
    assert all(line.count("|") >= 3 for line in lines)


def test_the_table_of_verdicts_has_all() -> None:
    assert all(f"| `{verdict}` | " in TABLES["startup verdicts"]() for verdict in BY_VERDICT)
