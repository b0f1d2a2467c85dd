"""One vocabulary: words and phrases that kvwatch does not use, in code, docs and rendered files.

The glossary in CONTRIBUTING.md has the word to write instead. Identifiers count as words: ``told_at`` is one.
"""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]

#: What is not written -> what is written instead.
BANNED = {
    r"told|tells?|telling|untold": "report, show, export, record, notify, log, say",
    r"reckon(s|ed|ing)?": "estimate, compute",
    r"mend(s|ed|ing)?": "fix",
    r"held against": "compared with, threshold",
    r"account(s|ed|ing)? for": "caused by, covers, explains",
    r"ask(s|ed|ing)? for": "scrape, request",
    r"whoever": "anyone who",
    r"what is over|(is|are|was|were) over(?! \d)": "resolved, above, ended",
    r"nothing to tell|(?-i:is none)(?! of)": "no finding",
    r"not surely|surely": "inconclusive, certainly",
    r"of itself": "by itself, its own",
}
_PATTERNS = {
    re.compile(rf"(?i)(?<![a-z])(?:{words})(?![a-z])".replace(" ", r"\s+")): instead
    for words, instead in BANNED.items()
}
_TEXT = {".css", ".html", ".j2", ".js", ".json", ".md", ".py", ".tmpl", ".toml", ".yaml", ".yml"}
_FOLDERS = ("kvwatch", "alerts", "dashboards", "deploy", "docs", ".github")
_OTHERS = ("CHANGELOG.md", "CONTRIBUTING.md", "Dockerfile", "Makefile", "README.md", "pyproject.toml")

FILES = sorted(
    path
    for name in subprocess.run(
        ["git", "ls-files", "-co", "--exclude-standard"], cwd=ROOT, capture_output=True, text=True, check=True
    ).stdout.splitlines()
    if name.partition("/")[0] in _FOLDERS or name in _OTHERS
    if (path := ROOT / name).is_file() and (path.suffix in _TEXT or name in _OTHERS)
    if ".min." not in path.name and path.stem != "uPlot"
)


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(ROOT)))
def test_no_word_that_the_glossary_replaces(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    found = [
        f"{path.relative_to(ROOT)}:{text.count(chr(10), 0, hit.start()) + 1}: {hit[0]!r}; write: {instead}"
        for pattern, instead in _PATTERNS.items()
        for hit in pattern.finditer(text)
    ]
    assert not found, "\n".join(found)
