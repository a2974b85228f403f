"""A browser page at which every complaint of the browser is written down."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

import pytest
from playwright.sync_api import ConsoleMessage, Page, ViewportSize, expect, sync_playwright

PATIENCE_MS = 180_000  # profiling on a busy machine
NETWORK_CHANGED = "net::ERR_NETWORK_CHANGED"  # somebody gave this machine another interface
DESK: ViewportSize = {"width": 1280, "height": 900}
# Chromium tells a page's script of a violation; a script of ours must not wait for it, so the test listens itself.
NOTE_VIOLATIONS = """
    document.addEventListener("securitypolicyviolation", (event) =>
        console.error(`blocked by ${event.effectiveDirective}: ${event.blockedURI} in ${event.sourceFile}`));
"""


@dataclass
class WatchedPage:
    """`complaints` holds errors of scripts, of the console and of the content security policy."""

    page: Page
    address: str
    complaints: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.page.set_default_timeout(PATIENCE_MS)
        self.page.add_init_script(NOTE_VIOLATIONS)
        self.page.on("console", self._hear)
        self.page.on("pageerror", lambda error: self._note(str(error)))

    def open(self, path: str) -> None:
        self.page.goto(self.address + path)

    def path(self) -> str:
        return self.page.url.removeprefix(self.address)

    def _hear(self, message: ConsoleMessage) -> None:
        if message.type == "error" and NETWORK_CHANGED not in message.text:
            self._note(message.text)

    def _note(self, text: str) -> None:
        self.complaints.append(f"{self.path()}: {text}")


@contextmanager
def watched_page(chromium: str, address: str) -> Iterator[WatchedPage]:
    """A page of a Chromium of its own, for a site that runs in other processes."""
    with pytest.MonkeyPatch.context() as patch, sync_playwright() as playwright:
        # Playwright's own event loop lives in this thread; Django would take calls of other tests for async ones.
        patch.setenv("DJANGO_ALLOW_ASYNC_UNSAFE", "1")
        expect.set_options(timeout=PATIENCE_MS)
        browser = playwright.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
        try:
            yield WatchedPage(browser.new_page(viewport=DESK), address)
        finally:
            browser.close()
            expect.set_options(timeout=None)
