"""The console in a real browser, with real services behind it."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import pytest

from draftwire import Client
from tests.harness.console_server import serve_console
from tests.harness.services.service_process import ServiceProcess
from tests.harness.suite.skipped import skip_without
from tests.harness.waiting import PATIENCE

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

CHROMIUM = shutil.which("chromium")


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    from playwright.sync_api import sync_playwright  # every run imports this file, and only slow tests need a browser

    skip_without("chromium")
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield browser
        browser.close()


@pytest.fixture(scope="module")
def console(verifier: ServiceProcess) -> Iterator[str]:
    with serve_console(verifier.address) as address:
        yield address


@pytest.fixture
def open_page(browser: Browser) -> Iterator[Callable[..., Page]]:
    """Opens the page. Page errors and console warnings fail the test, except for failed requests."""
    complaints: list[str] = []
    pages: list[Page] = []

    def open_one(address: str, **options: Any) -> Page:
        page = browser.new_page(**options)
        page.set_default_timeout(PATIENCE * 1000)
        page.on("pageerror", lambda error: complaints.append(str(error)))
        page.on(
            "console",
            lambda message: (
                complaints.append(message.text)
                if message.type in {"error", "warning"} and "Failed to load resource" not in message.text
                else None
            ),
        )
        page.goto(address)
        pages.append(page)
        return page

    yield open_one
    for page in pages:
        page.context.close()
    assert complaints == []


@pytest.fixture
def page(open_page: Callable[..., Page], console: str, client: Client) -> Page:
    """The page, in front of a verifier without drafters."""
    from playwright.sync_api import expect

    page = open_page(console)
    expect(page.locator("#no-drafters")).to_be_visible()
    return page
