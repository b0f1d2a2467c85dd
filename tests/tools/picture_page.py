"""Make the pictures of the page that the documentation shows, from a recording of a real server in saturation.

python -m tests.tools.picture_page
"""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Literal

from playwright.sync_api import sync_playwright

from tests.support.served_page import Served, saturated

PICTURES = Path(__file__).resolve().parents[2] / "docs" / "pictures"
SIZES = {"wide": (1200, 858), "narrow": (360, 780)}
SCHEMES: tuple[Literal["light", "dark"], ...] = ("light", "dark")
_SECONDS = 98
"""Of the recording: its saturation has lasted a while."""


def main() -> None:
    """Make them all: what one sees first, and the engine below it."""
    served = Served()
    saturated(served, _SECONDS)
    PICTURES.mkdir(exist_ok=True)
    with served.serving(), sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=shutil.which("chromium"))
        for name, (width, height) in SIZES.items():
            for scheme in SCHEMES:
                page = browser.new_page(viewport={"width": width, "height": height}, color_scheme=scheme)
                page.goto(served.url)
                page.locator("#live", has_text="Live").wait_for()
                page.locator(".u-value", has_text="%").first.wait_for()
                page.screenshot(path=PICTURES / f"page-{name}-{scheme}.png")
                page.locator("details.engine").screenshot(path=PICTURES / f"engine-{name}-{scheme}.png")
                page.close()
        browser.close()
    for picture in sorted(PICTURES.glob("*.png")):
        print(f"{picture.stat().st_size / 1000:.0f} kB  {picture.name}")


if __name__ == "__main__":
    main()
