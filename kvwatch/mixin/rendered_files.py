"""Writes, or checks, everything in a checkout that is rendered from code."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from pathlib import Path

from kvwatch.mixin import (
    alertmanager_config,
    alerts_table,
    dashboards,
    dashboards_table,
    kustomizations,
    markdown_tables,
    rules,
    runbooks,
    settings_table,
)
from kvwatch.mixin.render_options import Options, OptionsError, read

#: Parts of the README, each between `<!-- rendered: NAME -->` and `<!-- end -->`.
README_PARTS: Mapping[str, Callable[[], str]] = {
    "regimes": markdown_tables.regimes,
    "symptoms": markdown_tables.symptoms,
    "settings": settings_table.settings,
    "thresholds": markdown_tables.thresholds,
    "alerts": alerts_table.alerts,
    "alert options": alerts_table.options,
    "dashboards": dashboards_table.dashboards,
    "metrics": markdown_tables.metrics,
}

#: Folders in which a page of no alert, or a dashboard that is none of ours, is removed.
RUNBOOKS, DASHBOARDS = Path("alerts") / "runbooks", Path("dashboards")


class RenderError(Exception):
    """The checkout can't be rendered into; the text says why and what to do."""


def main(*, check: bool = False, config: Path | None = None, root: Path | None = None) -> int:
    """Renders into the checkout at `root` (default: the current folder), alerts as the file `config` says.

    With `check` nothing is written. Returns 0 when all is current or was written, 1 when `check` found a file
    that is not, 2 when this is no checkout of kvwatch or `config` can't be used.
    """
    root = root or Path.cwd()
    try:
        rendered = files(root, read(config))
    except RenderError as error:
        print(f"kvwatch render: {error}", file=sys.stderr)
        return 2
    except OptionsError as error:
        for problem in error.problems:
            print(f"kvwatch render: {problem}", file=sys.stderr)
        return 2
    stale = [path for path, text in rendered.items() if _read(path) != text]
    found = {*(root / RUNBOOKS).glob("*.md"), *(root / DASHBOARDS).glob("*.json")}
    surplus = sorted(found - rendered.keys())
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
    return 1 if check and (stale or surplus) else 0


def files(root: Path, options: Options | None = None) -> dict[Path, str]:
    """Every rendered file of a checkout with the text it should have."""
    readme = root / "README.md"
    if not (root / "kvwatch" / "mixin").is_dir() or not readme.is_file():
        raise RenderError(f"{root} is no checkout of kvwatch; run this where README.md and kvwatch/ are")
    options = options or Options()
    alerts = root / "alerts"
    boards = dashboards.rendered(options)
    return {
        readme: _readme(readme.read_text(encoding="utf-8")),
        **{root / RUNBOOKS / name: text for name, text in runbooks.runbooks(options).items()},
        alerts / "kvwatch.rules.yml": rules.prometheus(options),
        alerts / "prometheusrule.yml": rules.operator(options),
        alerts / "alertmanager.yml": alertmanager_config.config(options),
        alerts / "templates" / "kvwatch.tmpl": alertmanager_config.TEMPLATE,
        root / "deploy" / "compose" / "alertmanager.yml": alertmanager_config.config(
            options, shown_only=True
        ),
        alerts / "kustomization.yaml": kustomizations.rule(),
        **{root / DASHBOARDS / name: text for name, text in boards.items()},
        root / DASHBOARDS / "kustomization.yaml": kustomizations.dashboards(boards),
    }


def _readme(text: str) -> str:
    for name, part in README_PARTS.items():
        begin, end = f"<!-- rendered: {name} -->\n", "<!-- end -->"
        head, found, rest = text.partition(begin)
        _, closed, tail = rest.partition(end)
        if not found or not closed or begin in tail:
            raise RenderError(f"README.md needs one part {begin.strip()} ... {end}")
        text = f"{head}{begin}\n{part()}\n\n{end}{tail}"
    return text


def _read(path: Path) -> str:
    return path.read_text(encoding="utf-8") if path.is_file() else ""
