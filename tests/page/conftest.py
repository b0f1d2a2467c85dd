"""A real Chromium, and pages in it that fail a test on any error in the page.

Playwright drives Debian's Chromium. It waits for changes of the page, types keys, and emulates a phone, dark mode and
reduced motion.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import Any

import pytest
from playwright.sync_api import Browser, Page, sync_playwright

from tests.support.served_page import Served

WIDE, NARROW = (1200, 900), (360, 780)


@pytest.fixture(scope="module")
def chromium() -> Iterator[Browser]:
    """The browser. While it is open, this thread has a running event loop, so it must be closed before other tests
    start theirs."""
    found = shutil.which("chromium")
    assert found, "no chromium on PATH: run `make tools`"
    with sync_playwright() as playwright, playwright.chromium.launch(executable_path=found) as browser:
        yield browser


@dataclass
class PageLog:
    """Errors and requests of a page."""

    errors: list[str] = field(default_factory=list)
    requests: list[str] = field(default_factory=list)

    def watch(self, page: Page) -> None:
        page.on(
            "console", lambda one: self.errors.append(one.text) if one.type in {"error", "warning"} else None
        )
        page.on("pageerror", lambda error: self.errors.append(str(error)))
        page.on("request", lambda request: self.requests.append(request.url))


Opens = Callable[..., Page]


@pytest.fixture
def served() -> Iterator[Served]:
    """A kvwatch without targets."""
    one = Served()
    with one.serving():
        yield one


@pytest.fixture
def opened(chromium: Browser, served: Served) -> Iterator[Opens]:
    """Opens the live page of `served`. Fails on any error in it and on any request to another host."""
    log = PageLog()
    with ExitStack() as stack:

        def opens(size: tuple[int, int] = WIDE, **how: Any) -> Page:
            viewport = {"width": size[0], "height": size[1]}
            page = stack.enter_context(chromium.new_context(viewport=viewport, **how)).new_page()  # type: ignore[arg-type]
            page.set_default_timeout(10_000)
            log.watch(page)
            page.goto(served.url)
            if how.get("java_script_enabled", True):
                page.locator("#live", has_text="Live").wait_for()
            return page

        yield opens
    assert log.errors == []
    assert log.requests
    assert [url for url in log.requests if not url.startswith(served.url)] == []
