"""A person who uses the dashboard in headless Chromium."""

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from tests.patience import PATIENCE_S

CHROMIUM = os.environ.get("APP_TOOLKIT_TEST_CHROMIUM") or shutil.which("chromium") or shutil.which("google-chrome")
DESKTOP, PHONE = {"width": 1280, "height": 900}, {"width": 390, "height": 844}

playwright: Any = pytest.importorskip(
    "playwright.sync_api", reason="the browser tests need `pip install playwright axe-playwright-python`"
)
expect = playwright.expect
Page = Any
Browser = Any

needs_chromium = pytest.mark.skipif(
    CHROMIUM is None, reason="Chromium is not installed; APP_TOOLKIT_TEST_CHROMIUM may name its executable"
)


@contextmanager
def chromium() -> Iterator[Browser]:
    with playwright.sync_playwright() as started:
        browser = started.chromium.launch(
            executable_path=CHROMIUM,
            args=["--no-sandbox", "--disable-gpu", "--no-first-run", "--disable-background-networking"],
        )
        expect.set_options(timeout=PATIENCE_S * 1_000)
        yield browser
        browser.close()


class Operator:
    """A person with a browser of their own, in which nothing may fail, and which may ask no other host."""

    def __init__(self, browser: Browser, url: str, **options: Any) -> None:
        self.context = browser.new_context(**{"viewport": DESKTOP, "reduced_motion": "reduce", **options})
        self.context.set_default_timeout(PATIENCE_S * 1_000)
        self.errors: list[str] = []
        self.url = url
        self.page = self.context.new_page()
        self.page.on("pageerror", lambda error: self.errors.append(str(error)))
        self.page.on("console", self._read)
        self.page.on("request", self._check)
        self.page.goto(url)

    def _read(self, message: Any) -> None:
        if "Content Security Policy" in message.text:
            self.errors.append(message.text)

    def _check(self, request: Any) -> None:
        if not request.url.startswith((f"{self.url}/", "data:")):
            self.errors.append(f"the page asked {request.url}")

    def open(self, path: str) -> Page:
        self.page.goto(f"{self.url}/#/{path}")
        expect(self.page.locator("#live")).to_have_text("Live")
        return self.page

    def updates(self) -> int:
        return int(self.page.evaluate("document.documentElement.dataset.updates || 0"))

    def leave(self) -> None:
        """Close the browser. Raise `AssertionError` if something has failed."""
        self.context.close()
        assert not self.errors
