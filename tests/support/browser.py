"""Chromium, driven by Playwright, and pages that must not complain."""

from __future__ import annotations

import contextlib
import shutil
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from tests.support.eventually import SECONDS_MAX

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

__all__ = ["HEADLESS", "chromium", "opened_page", "running_browser"]

FLAGS = (
    *("--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run"),
    *("--disable-background-networking", "--disable-component-update", "--disable-sync"),
)
"""It looks for nothing on any network but what pages ask for; root can't have its sandbox."""

HEADLESS = "chromium-headless-shell"
"""The program, and Debian's package of it."""

WAIT_MS = int(SECONDS_MAX * 1000)
PHONE = {"width": 390, "height": 844}
DESK = {"width": 1200, "height": 800}


def chromium() -> str | None:
    """The path of the browser; None: it is not on this machine.

    One without windows comes first: the other draws its own tabs and bars as pages, too, at twice
    the cost.
    """
    names = (HEADLESS, "chromium", "chromium-browser", "google-chrome")
    return next(filter(None, map(shutil.which, names)), None)


@contextlib.contextmanager
def running_browser() -> Iterator[Browser]:
    """One that is closed at the end. No event loop may run in the thread."""
    # Only here: the tests of other folders need no Playwright.
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=chromium(), args=list(FLAGS))
        try:
            yield browser
        finally:
            browser.close()


@contextlib.contextmanager
def opened_page(browser: Browser, *, expected: str = "", **options: Any) -> Iterator[Page]:
    """A page of a context of its own. At the end nothing may stand in the browser's log, but for
    lines with an ``expected`` text, and no address outside may have been asked for."""
    options = {"viewport": DESK, "locale": "en-GB", **options}
    context = browser.new_context(**options)
    try:
        page = context.new_page()
        page.set_default_timeout(WAIT_MS)
        complaints: list[str] = []
        asked: set[str] = set()
        page.on("console", lambda message: complaints.append(f"{message.type}: {message.text}"))
        page.on("pageerror", lambda error: complaints.append(str(error)))
        page.on("request", lambda request: asked.add(request.url))
        yield page
        assert [each for each in complaints if not expected or expected not in each] == []
        elsewhere = {url for url in asked if not url.startswith(("http://127.0.0.1:", "data:"))}
        assert elsewhere == set()
    finally:
        context.close()
