"""The documents as a site: it builds without warnings, leads to every page, and loads nothing from elsewhere."""

import inspect
import os
import re
import shutil
import subprocess
import sys
import threading
from collections.abc import Iterator
from functools import partial
from html.parser import HTMLParser
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from mkdocs.config import load_config
from playwright.sync_api import Page, sync_playwright

from draftwire import Client
from scripts.docs.site_hooks import MODULES, PAGES, link
from tests.harness.suite.skipped import needs

ROOT = Path(__file__).resolve().parent.parent
CHROMIUM = shutil.which("chromium")
BUILD_SECONDS = 200


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The built site."""
    place = tmp_path_factory.mktemp("site")
    built = subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(place)],
        cwd=ROOT,
        env=os.environ | {"NO_MKDOCS_2_WARNING": "1", "REPOSITORY_URL": ""},
        capture_output=True,
        text=True,
        timeout=BUILD_SECONDS,
        check=False,
    )
    assert built.returncode == 0, built.stdout + built.stderr
    return place


class Loaded(HTMLParser):
    """Collects what a page makes the browser load, and the targets of its links."""

    def __init__(self, page: Path) -> None:
        super().__init__()
        self.addresses: list[str] = []
        self.links: list[str] = []
        self.feed(page.read_text(encoding="utf-8"))

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        told = dict(attributes)
        if tag in ("script", "img", "iframe", "source") and told.get("src"):
            self.addresses.append(str(told["src"]))
        if tag == "link" and told.get("rel") != "canonical":
            self.addresses.append(str(told["href"]))
        if tag == "a" and told.get("href"):
            self.links.append(str(told["href"]))


def leaves(nav: Any) -> list[str]:
    """Returns the pages of a navigation."""
    if isinstance(nav, str):
        return [nav]
    return [page for part in (nav.values() if isinstance(nav, dict) else nav) for page in leaves(part)]


def test_every_document_is_in_the_navigation() -> None:
    named = leaves(load_config(str(ROOT / "mkdocs.yml")).nav)
    there = {path.name for path in (ROOT / "docs").glob("*.md")} | {*PAGES.values(), MODULES}
    assert sorted(there - set(named)) == [], "in no navigation (mkdocs.yml)"
    assert sorted(set(named) - there) == [], "in the navigation, but no page"
    assert len(named) == len(set(named))


@pytest.fixture
def served(site: Path) -> Iterator[str]:
    """Serves the site locally; yields its address."""
    handler = partial(SimpleHTTPRequestHandler, directory=str(site))
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}/"
        server.shutdown()
        thread.join()


@pytest.fixture
def page(served: str) -> Iterator[Page]:
    """A browser page that fails the test if anything is requested from elsewhere."""
    asked: list[str] = []
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        page = browser.new_page(base_url=served)
        page.on("request", lambda request: asked.append(request.url))
        yield page
        browser.close()
    assert asked
    assert [address for address in asked if not address.startswith((served, "data:", "blob:"))] == []


@pytest.mark.parametrize(
    ("text", "target", "source", "repository", "made"),
    [
        ("engine", "engine.md#drafting", "docs", "", "[engine](engine.md#drafting)"),
        ("x", "../models/README.md#another-tokenizer", "docs", "", "[x](bundled-models.md#another-tokenizer)"),
        ("bundled models", "../models", "docs", "", "[bundled models](bundled-models.md)"),
        ("start", "docs/getting-started.md", ".", "", "[start](getting-started.md)"),
        ("start", "../docs/benchmarks.md#soak", "models", "", "[start](benchmarks.md#soak)"),
        ("`Verdict`", "../protos/verdict.proto", "docs", "", "`Verdict` (`protos/verdict.proto`)"),
        ("LICENSE", "LICENSE", ".", "", "`LICENSE`"),
        ("x", "../models/inflate.py", "docs", "https://x.test/r/", "[x](https://x.test/r/blob/main/models/inflate.py)"),
        ("x", "../protos", "docs", "https://x.test/r", "[x](https://x.test/r/tree/main/protos)"),
    ],
)  # fmt: skip
def test_links(text: str, target: str, source: str, repository: str, made: str) -> None:
    assert link(text, target, source, repository) == made


@pytest.mark.slow
class TestBuilt:
    def test_pages_are_there(self, site: Path) -> None:
        assert '<a href="engine.html">Engine</a>' in (site / "concepts.html").read_text(encoding="utf-8")
        assert "make demo" in (site / "index.html").read_text(encoding="utf-8")
        api = (site / "python-api.html").read_text(encoding="utf-8")
        assert (inspect.getdoc(Client) or "").partition(".")[0] in api
        assert "ERROR_REASON_NOTHING_ALLOWED" in (site / "grpc-api.html").read_text(encoding="utf-8")

    def test_pages_load_nothing_from_elsewhere(self, site: Path) -> None:
        for page in site.rglob("*.html"):
            assert [address for address in Loaded(page).addresses if re.match(r"[a-z]+:|//", address)] == [], page.name

    def test_links_lead_to_files(self, site: Path) -> None:
        for page in site.rglob("*.html"):
            for target in Loaded(page).links:
                if not re.match(r"[a-z]+:|#", target):
                    path = target.partition("#")[0]
                    # 404.html is served anywhere, so that its links begin at the root.
                    place = site / path[1:] if path.startswith("/") else page.parent / path
                    assert place.exists(), (page.name, target)


@pytest.mark.slow
@needs("chromium")
class TestBrowser:
    def test_diagrams_are_drawn(self, page: Page) -> None:
        page.goto("protocol.html")
        there = (ROOT / "docs/protocol.md").read_text(encoding="utf-8").count("```mermaid")
        page.wait_for_function("count => document.querySelectorAll('div.mermaid').length == count", arg=there)
        heights = page.evaluate("[...document.querySelectorAll('div.mermaid')].map(drawn => drawn.offsetHeight)")
        assert min(heights) > 100

    def test_what_is_searched_is_found(self, page: Page) -> None:
        page.goto("index.html")
        page.get_by_role("textbox", name="Search").fill("philox")
        page.locator(".md-search-result__item a[href*='concepts.html']").first.wait_for(state="attached")
