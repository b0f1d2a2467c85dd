"""The static files of the page, the runbooks, and the policy that keeps a browser from loading anything else."""

from __future__ import annotations

from functools import cache
from importlib.resources import files
from importlib.resources.abc import Traversable

from kvwatch.core.export.alert_names import alert_name
from kvwatch.core.judgement.symptoms import SYMPTOMS

POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self';"
    " base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
"""Content-Security-Policy: only files of this server, no script or style inside the page."""
_TEXT = "text/plain; charset=utf-8"
_TYPES = {
    "js": "text/javascript; charset=utf-8",
    "css": "text/css; charset=utf-8",
    "svg": "image/svg+xml",
}


def static(name: str) -> tuple[bytes, str]:
    """A file of the page and its type, by its name; KeyError if there is no such file."""
    return _read(_static_files()[name])


def runbook(name: str) -> tuple[bytes, str]:
    """The runbook of a symptom's alert and its type, by its file name; KeyError if there is no such file."""
    return _read(_runbooks()[name])


@cache
def _static_files() -> dict[str, Traversable]:
    folder = files("kvwatch.sidecar.page") / "static"
    return {file.name: file for one in (folder, folder / "uplot") for file in one.iterdir() if file.is_file()}


@cache
def _runbooks() -> dict[str, Traversable]:
    folder = files("kvwatch") / "data" / "runbooks"
    names = [f"{alert_name(row.id).lower()}.md" for row in SYMPTOMS]
    return {name: folder / name for name in names}


def _read(file: Traversable) -> tuple[bytes, str]:
    return file.read_bytes(), _TYPES.get(file.name.rpartition(".")[2], _TEXT)
