"""Check the built documentation: a page loads nothing from another host, and every file that it loads is there.

python tests/tools/check_site.py build/site
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urldefrag

#: What a browser loads without a click: attributes by element. Of `link` only some relations are loaded.
LOADED = {
    "audio": "src",
    "embed": "src",
    "iframe": "src",
    "img": "src",
    "link": "href",
    "object": "data",
    "script": "src",
    "source": "src",
    "video": "src",
}
_RELATIONS = {"stylesheet", "icon", "preload", "modulepreload", "manifest", "preconnect", "dns-prefetch"}
_IN_CSS = re.compile(r"url\(\s*['\"]?((?:https?:)?//[^)'\"]+)")


class _Loads(HTMLParser):
    """Collects the addresses that a page loads."""

    def __init__(self) -> None:
        super().__init__()
        self.found: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = dict(attrs)
        address = given.get(LOADED.get(tag, ""))
        if tag == "link" and not _RELATIONS & set((given.get("rel") or "").split()):
            return
        if address:
            self.found.append(address)


def problems(site: Path) -> Iterator[str]:
    """Every address that leads to another host, or to a file that does not exist."""
    pages = sorted(
        set(site.rglob("*.html")) - {site / "404.html"}
    )  # its addresses are those of the published site
    if not pages:
        yield f"{site} holds no pages: run `make docs`"
    for page in pages:
        loads = _Loads()
        loads.feed(page.read_text(encoding="utf-8"))
        for address in loads.found:
            where = f"{page.relative_to(site)} loads {address}"
            if re.match(r"(?:[a-z]+:)?//", address):
                yield f"{where} from another host"
            elif not address.startswith("data:"):
                path = unquote(urldefrag(address).url.partition("?")[0])
                if not (page.parent / path).is_file():
                    yield f"{where}, which does not exist"
    for sheet in sorted(site.rglob("*.css")):
        for address in _IN_CSS.findall(sheet.read_text(encoding="utf-8")):
            yield f"{sheet.relative_to(site)} loads {address} from another host"


def main() -> int:
    """Print the problems; 1 if there are any."""
    found = list(problems(Path(sys.argv[1])))
    for problem in found:
        print(problem, file=sys.stderr)
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
