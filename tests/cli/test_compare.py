"""`kvwatch compare` as a person meets it: what it prints, what it writes, and what it says of bad input."""

from __future__ import annotations

import gzip
import html.parser
import json
import re
from collections.abc import Callable
from pathlib import Path
from subprocess import CompletedProcess

import pytest

from kvwatch.recording import Record, Writer, read

Kvwatch = Callable[..., CompletedProcess[str]]
SHARED, OFF = "0.32.0--e-shared-prefix.jsonl.gz", "0.32.0--g-prefix-caching-off.jsonl.gz"
WITHOUT_END = {"br", "hr", "img", "meta"}


class Page(html.parser.HTMLParser):
    """What is on a page: elements with their attributes, and whether all are closed."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.open: list[str] = []
        self.words = ""
        self.feed(text)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))
        if tag not in WITHOUT_END:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.words += data


def test_the_report_as_text_html_and_json_says_the_same(
    kvwatch: Kvwatch, recordings: Path, tmp_path: Path
) -> None:
    report = tmp_path / "report.html"
    words = ("compare", recordings / SHARED, recordings / OFF)
    done = kvwatch(*words, "--html", report, "--progress")
    assert (done.returncode, re.search(r"150 scrapes", done.stderr) is not None) == (0, True)
    lines = done.stdout.splitlines()
    assert lines[:2] == [
        "0.32.0--g-prefix-caching-off compared with 0.32.0--e-shared-prefix: NOT COMPARABLE (load differs 5.0 ×)",
        "  changed: --enable-prefix-caching: True → False",
    ]
    assert re.search(r"^  ITL p95\* .* worse$", done.stdout, re.MULTILINE)
    assert re.search(
        r"^  WARNING: the load differed: 5.3 and 1.07 requests/s arrived", done.stdout, re.MULTILINE
    )
    assert max(map(len, lines)) < 150
    data = json.loads(kvwatch(*words, "--json").stdout)
    assert data["candidates"][0]["verdict"] == "not comparable"
    assert data["runs"][0]["configuration"]["enable_prefix_caching"] == "True"
    page = Page(report.read_text(encoding="utf-8"))
    assert page.open == []
    for row in data["measures"]:
        if row["values"][0]["value"] and row["group"] != "time per regime":
            assert row["title"] in done.stdout
            assert row["title"] in page.words
    for line in data["method"]:
        assert line in page.words
    assert {"svg", "table"} <= {tag for tag, _ in page.elements}
    assert kvwatch(*words, "--json").stdout == kvwatch(*words, "--json").stdout


def test_the_html_file_needs_nothing_from_elsewhere_and_takes_no_text_for_markup(
    kvwatch: Kvwatch, recordings: Path, tmp_path: Path
) -> None:
    """With a label, and a model, of a person who tries."""
    evil = '<img src=x onerror="alert(1)">&amp;'
    path, report = tmp_path / "evil.jsonl.gz", tmp_path / "report.html"
    with Writer(path) as writer:
        for i, record in enumerate(one for one in read(recordings / SHARED) if isinstance(one, Record)):
            body = record.body.replace(b"tiny-llama", evil.replace('"', '\\"').encode())
            writer.write(Record(record.t, record.status, body, label="" if i else evil))
    done = kvwatch("compare", recordings / SHARED, path, "--html", report)
    assert done.returncode == 0
    text = report.read_text(encoding="utf-8")
    page = Page(text)
    tags = {tag for tag, _ in page.elements}
    assert not tags & {"img", "script", "link", "iframe", "object", "a"}
    assert evil in page.words
    for tag, attributes in page.elements:
        assert not any(name.startswith("on") or name in {"src", "href", "style"} for name in attributes), tag
    assert not re.search(r"https?://|url\(|@import", text)
    policy = next(a["content"] for tag, a in page.elements if tag == "meta" and "http-equiv" in a)
    assert (policy or "").startswith("default-src 'none'")


def test_markdown_is_a_table_that_takes_no_text_for_markup(
    kvwatch: Kvwatch, recordings: Path, tmp_path: Path
) -> None:
    path = tmp_path / "a|b_c.jsonl"
    path.write_bytes(gzip.decompress((recordings / OFF).read_bytes()))
    done = kvwatch("compare", recordings / SHARED, path, "--markdown")
    assert done.returncode == 0
    rows = [line for line in done.stdout.splitlines() if line.startswith("|")]
    assert len(rows) > 25
    assert {len(re.findall(r"(?<!\\)\|", row)) for row in rows} == {4}
    assert "a\\|b\\_c" in rows[0]
    assert re.search(r"^\| \*\*ITL p95\*\* \| 36 ms \| .* \*\*worse\*\* \|$", done.stdout, re.MULTILINE)


def test_three_recordings_are_one_table(kvwatch: Kvwatch, recordings: Path) -> None:
    files = [recordings / name for name in (SHARED, OFF, "0.8.5-v0--e-shared-prefix.jsonl.gz")]
    done = kvwatch("compare", *files)
    assert done.returncode == 0
    (head,) = [
        line for line in done.stdout.splitlines() if line.count("verdict") == 2 and "difference" in line
    ]
    assert head.split()[0] == "0.32.0--e-shared-pre"
    (row,) = [line for line in done.stdout.splitlines() if line.startswith("  prefix hit rate ")]
    assert row.count("not exposed") == 2
    assert "0 %" not in row


def test_two_runs_of_one_name_are_told_apart(kvwatch: Kvwatch, recordings: Path) -> None:
    data = json.loads(kvwatch("compare", recordings / SHARED, recordings / SHARED, "--json").stdout)
    assert {run["name"] for run in data["runs"]} == {
        "0.32.0--e-shared-prefix (A)",
        "0.32.0--e-shared-prefix (B)",
    }
    assert data["candidates"][0]["cautions"][0]["id"] == "same_run"


@pytest.mark.parametrize(
    ("words", "problem"),
    [
        ([], "the following arguments are required: BASELINE, CANDIDATE"),
        (["x"], "the following arguments are required: CANDIDATE"),
        (["no-such-file", "x"], "can't read no-such-file: No such file"),
        (
            ["--margin", "0", "a", "b"],
            "argument --margin: 0: must be above 0 and below 1, such as 0.1 or 10%",
        ),
        (["--margin", "many", "a", "b"], "argument --margin: many: must be above 0 and below 1"),
        (["--html", "/no/such/folder/x", "a", "b"], "there is no folder /no/such/folder to write x to"),
        (["--html", ".", "a", "b"], ". is a folder; name a file in it"),
        (["--json", "--markdown", "a", "b"], "argument --markdown: not allowed with argument --json"),
    ],
)
def test_bad_input_is_one_line(kvwatch: Kvwatch, words: list[str], problem: str) -> None:
    done = kvwatch("compare", *words)
    assert (done.returncode, done.stdout, len(done.stderr.splitlines())) == (2, "", 1)
    assert problem in done.stderr


def test_a_report_that_is_there_is_not_overwritten(
    kvwatch: Kvwatch, recordings: Path, tmp_path: Path
) -> None:
    report = tmp_path / "report.html"
    report.write_text("mine")
    words = ("compare", recordings / SHARED, recordings / OFF, "--html", report)
    done = kvwatch(*words)
    assert (done.returncode, "--force" in done.stderr) == (2, True)
    assert report.read_text() == "mine"
    assert kvwatch(*words, "--force").returncode == 0
    assert report.read_text(encoding="utf-8").startswith("<!doctype html>")
    mine = tmp_path / "mine.jsonl.gz"
    mine.write_bytes(before := (recordings / OFF).read_bytes())
    done = kvwatch("compare", recordings / SHARED, mine, "--html", mine, "--force")
    assert (done.returncode, "is one of the recordings" in done.stderr) == (2, True)
    assert mine.read_bytes() == before


def test_a_recording_without_a_page_says_so(kvwatch: Kvwatch, recordings: Path, tmp_path: Path) -> None:
    path = tmp_path / "down.jsonl"
    path.write_text('{"t": 1, "status": 0, "error": "refused"}\n')
    done = kvwatch("compare", recordings / SHARED, path)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == "kvwatch: down has no readable page of a vLLM server\n"


def test_without_the_extra_the_error_names_the_remedy(
    kvwatch: Kvwatch, recordings: Path, tmp_path: Path
) -> None:
    (tmp_path / "scipy.py").write_text("raise ImportError('absent')")
    words = ("compare", recordings / SHARED, recordings / OFF)
    done = kvwatch(*words, PYTHONPATH=str(tmp_path))
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == "kvwatch: compare requires scipy: pip install '.[compare]' (absent)\n"
    assert kvwatch("compare", "--help", PYTHONPATH=str(tmp_path)).returncode == 0
