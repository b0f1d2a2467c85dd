"""Writes, or checks, every file of a checkout that is rendered from code.

Whole files: `alerts/`, `dashboards/`, Alertmanager's file for compose. In README.md, CONTRIBUTING.md and every
Markdown file under docs/, the tables between `<!-- rendered: NAME -->` and `<!-- end -->`.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterable
from pathlib import Path

from kvwatch.mixin import alertmanager_config, dashboards, rules, runbooks
from kvwatch.mixin.markdown_tables import TABLES
from kvwatch.mixin.render_options import Options, OptionsError, read

RUNBOOKS, DASHBOARDS = Path("alerts") / "runbooks", Path("dashboards")
"""Folders from which runbooks without an alert and unknown dashboards are removed."""

_BEGIN, _END = re.compile("<!-- rendered: (.*) -->"), "<!-- end -->"


class RenderError(Exception):
    """The checkout can't be rendered. The text says where, why, and what to do."""


def main(*, check: bool = False, config: Path | None = None, root: Path | None = None) -> int:
    """Renders into the checkout at `root` (default: the current folder), with the options of the file `config`.

    With `check` nothing is written. Returns 0 if all files are current or were written, 1 if `check` found a stale
    file, 2 if `root` is no checkout of kvwatch, a marker is wrong, or `config` can't be used.
    """
    root = root or Path.cwd()
    try:
        rendered = files(root, read(config))
    except (RenderError, OptionsError) as error:
        for problem in str(error).splitlines():
            print(f"kvwatch render: {problem}", file=sys.stderr)
        return 2
    stale = [path for path, text in rendered.items() if _read(path) != text]
    present = {*(root / RUNBOOKS).glob("*.md"), *(root / DASHBOARDS).glob("*.json")}
    surplus = sorted(present - rendered.keys())
    for path in stale:
        print(f"{'stale' if check else 'written'}: {path.relative_to(root)}")
        if not check:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(rendered[path], encoding="utf-8")
    for path in surplus:
        print(f"{'surplus' if check else 'removed'}: {path.relative_to(root)}")
        if not check:
            path.unlink()
    if check and (stale or surplus):
        print("run `make render` and commit the result", file=sys.stderr)
        return 1
    return 0


def files(root: Path, options: Options | None = None) -> dict[Path, str]:
    """Every rendered file of a checkout with the text it should have."""
    if not (root / "kvwatch" / "mixin").is_dir() or not (root / "README.md").is_file():
        raise RenderError(f"{root} is no checkout of kvwatch; run this where README.md and kvwatch/ are")
    options = options or Options()
    alerts, compose = root / "alerts", root / "deploy" / "compose"
    boards = dashboards.rendered(options)
    return {
        **{path: fill_tables(_read(path), path.relative_to(root)) for path in _marked(root)},
        **{root / RUNBOOKS / name: text for name, text in runbooks.runbooks(options).items()},
        alerts / "kvwatch.rules.yml": rules.prometheus(options),
        alerts / "prometheusrule.yml": rules.operator(options),
        alerts / "kustomization.yaml": rules.kustomization(),
        alerts / "alertmanager.yml": alertmanager_config.config(options),
        alerts / "templates" / "kvwatch.tmpl": alertmanager_config.TEMPLATE,
        compose / "alertmanager.yml": alertmanager_config.config(options, notify=False),
        **{root / DASHBOARDS / name: text for name, text in boards.items()},
        root / DASHBOARDS / "kustomization.yaml": rules.dashboard_kustomization(boards),
    }


def _marked(root: Path) -> Iterable[Path]:
    """The Markdown files that may have markers."""
    found = [root / "README.md", root / "CONTRIBUTING.md", *sorted((root / "docs").rglob("*.md"))]
    return (path for path in found if path.is_file())


def fill_tables(text: str, where: Path) -> str:
    """`text` with each marked table rendered anew. `where` is its file, for errors."""
    lines: list[str] = []
    opened = 0
    for number, line in enumerate(text.split("\n"), 1):
        marker = _BEGIN.fullmatch(line)
        if marker and opened:
            break
        if marker:
            if marker[1] not in TABLES:
                raise RenderError(
                    f"{where}:{number}: unknown table {marker[1]!r}; known: {', '.join(TABLES)}"
                )
            lines += [line, "", TABLES[marker[1]](), ""]
            opened = number
        elif line == _END:
            lines.append(line)
            opened = 0
        elif not opened:
            lines.append(line)
    if opened:
        raise RenderError(f"{where}:{opened}: no {_END} after this marker; add it on a line of its own")
    return "\n".join(lines)


def _read(path: Path) -> str:
    return path.read_text(encoding="utf-8") if path.is_file() else ""
