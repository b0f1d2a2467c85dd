"""Adds to the site what lives beside the thing it describes: runbooks, the Kubernetes components, the changelog.

MkDocs calls the functions below (`hooks` in .mkdocs.yml). Links that leave docs/ work on GitHub as they are. On
the site, a link to a file that is also a page leads to that page, and any other leads to the repository on the web.
A link to a file that does not exist is a warning, and so fails the strict build.
"""

from __future__ import annotations

import logging
import posixpath
import re
from collections.abc import Iterator, Mapping
from pathlib import Path

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

ROOT = Path(__file__).resolve().parents[1]
RUNBOOKS = "alerts/runbooks"
INDEX = "runbooks/README.md"

#: Files outside docs/ by their place on the site.
BESIDE: Mapping[str, str] = {
    "CHANGELOG.md": "changelog.md",
    "CONTRIBUTING.md": "contributing.md",
    "deploy/kubernetes/README.md": "how-to/kubernetes.md",
    **{f"{RUNBOOKS}/{path.name}": f"runbooks/{path.name}" for path in sorted((ROOT / RUNBOOKS).glob("*.md"))},
    **{
        f"dashboards/preview/{path.name}": f"pictures/preview/{path.name}"
        for path in sorted((ROOT / "dashboards" / "preview").glob("*.png"))
    },
}
_SOURCE = {page: source for source, page in BESIDE.items()}

_FENCED = re.compile(r"^ *```.*?^ *```$", re.MULTILINE | re.DOTALL)
_LINK = re.compile(r'(?P<before>\]\(|\b(?:src|href)=")(?P<target>[^)"\s#:]+)(?=[)"#\s])')
_COMMENT = re.compile(r"\A<!--.*?-->\n+", re.DOTALL)
_SUMMARY = re.compile(r"^\*\*(\w+)\*\*: (.+)$", re.MULTILINE)

_log = logging.getLogger("mkdocs.hooks.kvwatch")


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Adds the files of `BESIDE` and the index of runbooks, and lists the runbooks in the navigation."""
    for source, page in BESIDE.items():
        files.append(File.generated(config, page, abs_src_path=str(ROOT / source)))
    files.append(File.generated(config, INDEX, content=_index()))
    runbooks = [page for page in BESIDE.values() if page.startswith("runbooks/")]
    for entry in config.nav or []:
        if "Runbooks" in entry:
            entry["Runbooks"] = [INDEX, *runbooks]
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Rewrites links that leave docs/, outside fenced blocks."""
    source = _SOURCE.get(page.file.src_uri, f"docs/{page.file.src_uri}")
    if page.file.src_uri == INDEX:
        return markdown
    return "".join(
        part if fenced else _LINK.sub(lambda link: _rewritten(link, source, page.file.src_uri, config), part)
        for fenced, part in _parts(_COMMENT.sub("", markdown))
    )


def _parts(markdown: str) -> Iterator[tuple[bool, str]]:
    at = 0
    for block in _FENCED.finditer(markdown):
        yield False, markdown[at : block.start()]
        yield True, block[0]
        at = block.end()
    yield False, markdown[at:]


def _rewritten(link: re.Match[str], source: str, page: str, config: MkDocsConfig) -> str:
    path = posixpath.normpath(posixpath.join(posixpath.dirname(source), link["target"]))
    if path == RUNBOOKS:
        target = _relative(INDEX, page)
    elif path in BESIDE:
        target = _relative(BESIDE[path], page)
    elif path.startswith("docs/"):
        target = _relative(path.removeprefix("docs/"), page)
    elif (ROOT / path).exists() and not path.startswith(".."):
        kind = "tree" if (ROOT / path).is_dir() else "blob"
        target = f"{config.extra['repository']}/{kind}/main/{path}"
    else:
        _log.warning("%s links to %s, which does not exist", source, link["target"])
        return link[0]
    return link["before"] + target


def _relative(target: str, page: str) -> str:
    return posixpath.relpath(target, posixpath.dirname(page) or ".")


def _index() -> str:
    rows = []
    for path in sorted((ROOT / RUNBOOKS).glob("*.md")):
        text = path.read_text(encoding="utf-8")
        title = text.partition("# ")[2].partition("\n")[0]
        summary = _SUMMARY.search(text)
        severity, meaning = (summary[1], summary[2]) if summary else ("", "")
        rows.append(f"| [{title}]({path.name}) | {severity} | {meaning} |")
    return "\n".join(
        [
            "# Runbooks",
            "",
            "One page per alert: what it means, the queries for its diagnosis, and the actions in order.",
            "kvwatch serves the same pages at `/runbooks/`.",
            "",
            "| alert | severity | meaning |",
            "| --- | --- | --- |",
            *rows,
            "",
        ]
    )
