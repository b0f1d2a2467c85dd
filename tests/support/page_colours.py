"""The colours of the page, as its style sheet declares them."""

from __future__ import annotations

import re
from collections.abc import Mapping

from kvwatch.sidecar.page import assets

CSS = assets.static("page.css")[0].decode()
LINES = ("one", "two", "three")
"""Names of the colours of chart lines."""


def _declared(block: str) -> Mapping[str, str]:
    return dict(re.findall(r"--(\w+): (#\w{6})", block))


LIGHT, DARK = (_declared(block) for block in re.findall(r":root {(.*?)}", CSS, re.DOTALL))
REGIMES: Mapping[str, str] = dict(re.findall(r"^\.(\w+) { --swatch: (.*?); }$", CSS, re.MULTILINE))
