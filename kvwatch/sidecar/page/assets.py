"""The files of the page: a closed set, read once, and the policy that lets a browser load nothing else."""

from __future__ import annotations

from functools import cache
from importlib.resources import files
from importlib.resources.abc import Traversable

from kvwatch.core.export.alert_names import alert_name
from kvwatch.core.judgement.symptoms import SYMPTOMS
from kvwatch.sidecar.page.style import variables

POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self';"
    " base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
"""Content-Security-Policy: nothing from elsewhere, and no script or style that stands in the page itself."""
_TYPES = {
    "js": "text/javascript; charset=utf-8",
    "css": "text/css; charset=utf-8",
    "svg": "image/svg+xml",
    "md": "text/plain; charset=utf-8",
}
_STATIC = (
    "live.js",
    "morph.js",
    "charts.js",
    "page.css",
    "icon.svg",
    "uplot/uPlot.iife.min.js",
    "uplot/uPlot.min.css",
    "uplot/LICENSE",
)


def static(name: str) -> tuple[bytes, str]:
    """A file of the page and its type; KeyError if there is none of that name."""
    return _read(_static_files()[name])


def runbook(name: str) -> tuple[bytes, str]:
    """The runbook of a symptom's alert, by its file name; KeyError if there is none."""
    return _read(_runbooks()[name])


@cache
def _static_files() -> dict[str, Traversable]:
    folder = files("kvwatch.sidecar.page") / "static"
    return {path.rpartition("/")[2]: folder.joinpath(*path.split("/")) for path in _STATIC}


@cache
def _runbooks() -> dict[str, Traversable]:
    folder = files("kvwatch") / "data" / "runbooks"
    names = [f"{alert_name(row.id).lower()}.md" for row in SYMPTOMS]
    return {name: folder / name for name in names}


def _read(file: Traversable) -> tuple[bytes, str]:
    content = file.read_bytes()
    if file.name == "page.css":
        content = variables().encode() + content
    return content, _TYPES.get(file.name.rpartition(".")[2], "text/plain; charset=utf-8")
