"""Takes the picture of the console for docs/monitoring.md.

    python scripts/docs/console_picture.py http://localhost:8000

Needs a gateway whose verifier has drafters attached, Playwright, and Debian's chromium.
"""

import argparse
import shutil
import sys
from pathlib import Path

from playwright.sync_api import Browser, expect, sync_playwright

IMAGE = Path(__file__).resolve().parents[2] / "docs" / "images" / "console.png"
PROMPT = """class Point:
    def get_x(self):
        return self.x

    def get_y(self):
        return self.y

    def get_z(self):"""
SECONDS = 120


def take_picture(browser: Browser, page_address: str) -> None:
    """Compares a request with plain decoding, and saves a screenshot of the page."""
    page = browser.new_page(color_scheme="light", viewport={"width": 1280, "height": 800})
    page.goto(page_address)
    expect(page.locator("#drafters tbody tr").first).to_be_visible(timeout=SECONDS * 1000)
    page.get_by_label("Text", exact=True).check()
    page.get_by_label("Prompt", exact=True).fill(PROMPT)
    page.get_by_label("Temperature").fill("0.7")
    page.get_by_label("Seed").fill("4")
    page.get_by_role("button", name="Compare").click()
    expect(page.locator("#comparison")).to_contain_text("Identical", timeout=SECONDS * 1000)
    page.wait_for_timeout(2500)  # the pool's figures are still to come
    page.screenshot(path=IMAGE, full_page=True)
    page.context.close()


def main() -> None:
    """Takes the picture."""
    parser = argparse.ArgumentParser(description="Take the picture of the console.")
    parser.add_argument("page", help="address of the console")
    address = parser.parse_args().page
    chromium = shutil.which("chromium")
    if chromium is None:
        sys.exit("chromium is not installed: apt-get install chromium")
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
        take_picture(browser, address)
        browser.close()


if __name__ == "__main__":
    main()
