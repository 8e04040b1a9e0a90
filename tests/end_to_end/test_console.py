"""The console in a real browser, with real services behind it."""

import json
import re
import shutil
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from playwright.sync_api import Browser, Locator, Page, expect, sync_playwright

from draftwire import Client
from tests.end_to_end.conftest import RunningService
from tests.end_to_end.waiting import PATIENCE, eventually
from tests.support.console_server import serve_console

CHROMIUM = shutil.which("chromium")
PROMPT = "def read_config(path):\n"
REPEATING = "for index in range(10):\n    print(index)\n" * 6
"""What drafters that look up earlier text have guesses for, and wrong ones too."""
SEED = 4
"""Its output goes on to the end of the context."""
MARKUP = "<img src=x onerror='document.title=\"taken\"'><script>document.title='taken'</script>"

pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="chromium is not installed (apt-get install chromium)")

expect.set_options(timeout=PATIENCE * 1000)

CONTRASTS = """
selector => {
  const canvas = Object.assign(document.createElement("canvas"), {width: 1, height: 1});
  const context = canvas.getContext("2d", {willReadFrequently: true});
  const paint = colour => { context.fillStyle = colour; context.fillRect(0, 0, 1, 1); };
  const luminance = () => {
    const linear = [...context.getImageData(0, 0, 1, 1).data].slice(0, 3)
      .map(part => part / 255).map(part => part <= 0.04045 ? part / 12.92 : ((part + 0.055) / 1.055) ** 2.4);
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2];
  };
  const contrast = element => {
    const grounds = [];
    for (let at = element; at; at = at.parentElement) grounds.unshift(getComputedStyle(at).backgroundColor);
    grounds.forEach(paint);
    const ground = luminance();
    paint(getComputedStyle(element).color);
    const ink = luminance();
    return (Math.max(ink, ground) + 0.05) / (Math.min(ink, ground) + 0.05);
  };
  return [...document.querySelectorAll(selector)]
    .filter(element => element.checkVisibility() && element.textContent.trim())
    .map(element => [element.outerHTML, contrast(element)]);
}
"""
"""What each visible text's contrast to its ground is."""


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield browser
        browser.close()


@pytest.fixture(scope="module")
def console(verifier: RunningService) -> Iterator[str]:
    with serve_console(verifier.address) as address:
        yield address


@pytest.fixture
def open_page(browser: Browser) -> Iterator[Callable[..., Page]]:
    """Opens the page. What it complains about, apart from answers that are errors, fails the test."""
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
    page = open_page(console)
    expect(page.locator("#no-drafters")).to_be_visible()
    return page


def fill(page: Page, prompt: str = PROMPT, max_tokens: int = 150, seed: int = SEED) -> None:
    page.get_by_label("Prompt", exact=True).fill(prompt)
    page.get_by_label("Max tokens").fill(str(max_tokens))
    page.get_by_label("Seed").fill(str(seed))


def attach(page: Page, address: str, name: str) -> None:
    form = page.locator("#attach")
    form.get_by_label("Address").fill(address)
    form.get_by_label("Name").fill(name)
    form.get_by_role("button", name="Attach").click()
    expect(page.locator("#pool-status")).to_have_text(f"{name} is attached.")


def tokens_of(page: Page, source: str) -> Locator:
    return page.locator(f'#tokens span[title="{source}"]')


def test_tokens_show_where_they_come_from(page: Page, client: Client, good_drafter: str) -> None:
    attach(page, good_drafter, "good")
    fill(page, max_tokens=400)
    page.get_by_role("button", name="Generate").click()
    expect(page.locator("#status")).to_have_text(re.compile(r"^Done: \d+ tokens, seed 4, ended by length\.$"))
    expected = client.generate(PROMPT, max_tokens=400, temperature=0.8, seed=SEED)
    assert page.locator("#tokens").text_content() == expected.text
    drafted, own = tokens_of(page, "good"), tokens_of(page, "target")
    assert drafted.count() > 0 and own.count() > 0
    colours = {each.first.evaluate("element => getComputedStyle(element).color") for each in (drafted, own)}
    assert len(colours) == 2
    legend = page.locator("#legend").inner_text()
    assert f"target {own.count()} tokens" in legend
    assert re.search(rf"good {drafted.count()} accepted, \d+ rejected", legend)
    assert re.fullmatch(r"\d+ %", page.locator("#figure-rate").inner_text())
    assert float(page.locator("#figure-length").inner_text()) > 1
    assert float(page.locator("#figure-speed").inner_text()) > 0
    assert float(page.locator("#figure-plain").inner_text().split()[0]) > 0
    row = page.get_by_role("row").filter(has_text="good")
    expect(row).to_contain_text(re.compile(r"[\d.]+ ms"))  # its times, with the next state


def test_rejected_drafts_are_seen_for_a_moment(page: Page) -> None:
    page.evaluate("""() => {
        window.seen = [];
        new MutationObserver(changes => window.seen.push(...changes.flatMap(c => [...c.addedNodes].map(n => n.title))))
            .observe(document.getElementById("rejected"), {childList: true});
    }""")
    attach(page, "local:ngram", "lookup")
    fill(page, REPEATING)
    page.get_by_role("button", name="Generate").click()
    expect(page.locator("#status")).to_contain_text("Done")
    assert set(page.evaluate("window.seen")) == {"lookup, rejected"}
    expect(page.locator("#rejected span")).to_have_count(0)


def test_a_swap_in_the_middle(page: Page) -> None:
    attach(page, "local:ngram", "before")
    fill(page, REPEATING, max_tokens=1700)
    page.get_by_label("Temperature").fill("0")
    form = page.locator("#replace")
    form.get_by_label("Drafter").select_option("before")
    form.get_by_label("By").fill("local:suffix")
    # By the page itself, with the first token of the old one: the text may be over before anybody else has clicked.
    page.evaluate("""() => {
        const tokens = document.getElementById("tokens");
        const button = [...document.querySelectorAll("#replace button")].find(each => each.textContent === "Swap");
        new MutationObserver((_, observer) => {
            if (tokens.querySelector('span[title="before"]')) {
                observer.disconnect();
                button.click();
            }
        }).observe(tokens, {childList: true, subtree: true});
    }""")
    page.get_by_role("button", name="Generate").click()
    expect(page.locator("#pool-status")).to_have_text("local:suffix has taken the place of before.")
    tokens_of(page, "local:suffix").first.wait_for(state="attached")
    colours = [
        tokens_of(page, name).first.evaluate("element => getComputedStyle(element).color")
        for name in ("before", "local:suffix")
    ]
    assert len(set(colours)) == 2
    page.keyboard.press("Escape")
    expect(page.locator("#status")).to_have_text(re.compile("Stopped|Done"))


def test_a_rollout(page: Page, good_drafter: str, bad_drafter: str) -> None:
    attach(page, bad_drafter, "bad")
    form = page.locator("#replace")
    form.get_by_label("By").fill(good_drafter)
    form.get_by_label("Share").fill("0.5")
    form.get_by_role("button", name="Roll out").click()
    row = page.locator("#rollouts tbody tr").filter(has_text="running")
    expect(row).to_contain_text("50 %")
    row.get_by_role("button", name="Promote").click()
    expect(page.locator("#rollouts tbody tr").first).to_contain_text("promoted")
    expect(page.locator("#drafters tbody tr")).to_have_count(1)


def test_detach(page: Page) -> None:
    attach(page, "local:ngram", "lookup")
    page.get_by_role("button", name="Detach lookup").click()
    expect(page.locator("#no-drafters")).to_be_visible()


def test_errors_are_shown_at_their_field(page: Page) -> None:
    page.get_by_label("Temperature").fill("-1")
    page.get_by_role("button", name="Generate").click()
    expect(page.locator("#ask-error")).to_contain_text("temperature")
    expect(page.get_by_label("Temperature")).to_be_focused()
    expect(page.get_by_label("Temperature")).to_have_attribute("aria-invalid", "true")
    expect(page.locator("#status")).to_have_text("Failed.")
    page.locator("#attach").get_by_label("Address").fill("nonsense")
    page.locator("#attach").get_by_role("button", name="Attach").click()
    expect(page.locator("#pool-error")).to_contain_text("address")
    expect(page.locator("#attach").get_by_label("Address")).to_be_focused()


def test_speculation_off(page: Page, good_drafter: str) -> None:
    attach(page, good_drafter, "good")
    fill(page)
    page.get_by_label("Speculation").uncheck()
    page.get_by_role("button", name="Generate").click()
    expect(page.locator("#status")).to_contain_text("Done")
    assert tokens_of(page, "target").count() > 5
    assert tokens_of(page, "good").count() == 0
    assert page.locator("#figure-length").inner_text() == "1.00"


def test_comparing_shows_the_same_text(page: Page, good_drafter: str) -> None:
    attach(page, good_drafter, "good")
    fill(page)
    page.get_by_role("button", name="Compare").click()
    expect(page.locator("#comparison")).to_contain_text(re.compile(r"Identical: \d+ tokens"))
    expect(page.locator("#comparison")).to_contain_text(re.compile(r"[\d.]+× as fast"))
    assert page.locator("#tokens span").count() == 150


def test_a_conversation(page: Page) -> None:
    page.get_by_label("Chat").check()
    fill(page, MARKUP, max_tokens=8)
    page.get_by_role("button", name="Generate").click()
    turns = page.locator("#turns li")
    expect(turns).to_have_count(2)
    assert turns.first.text_content() == MARKUP
    assert page.locator("#turns img, #turns script").count() == 0
    fill(page, "And now?", max_tokens=8)
    page.keyboard.press("Control+Enter")
    expect(turns).to_have_count(4)
    page.get_by_role("button", name="New conversation").click()
    expect(turns).to_have_count(0)


def test_what_a_model_says_is_never_markup(page: Page) -> None:
    pieces = [{"text": MARKUP, "source": MARKUP}]
    rejected = [{"text": MARKUP, "drafter": MARKUP, "position": 3, "depth": 1}]
    result = {
        "text": MARKUP, "token_ids": [1], "finish_reason": "stop", "seed": "1", "drafters": [], "acceptance_rate": 0,
        "acceptance_length": 1, "first_token_seconds": 0.1, "total_seconds": 0.1, "steps": 1, "prompt_tokens": 1,
    }  # fmt: skip
    events = [("chunk", {"sources": [MARKUP], "pieces": pieces, "rejected": rejected}), ("finished", result)]
    body = "".join(f"event: {name}\ndata: {json.dumps(data)}\n\n" for name, data in events)
    page.route("**/console/api/generate", lambda route: route.fulfill(body=body, content_type="text/event-stream"))
    page.get_by_role("button", name="Generate").click()
    expect(page.locator("#status")).to_contain_text("Done")
    assert page.locator("#answer").text_content() == MARKUP
    assert MARKUP in page.locator("#legend").inner_text()
    assert page.locator("main img, main script").count() == 0
    assert page.title() == "draftwire console"


def test_leaving_the_page_frees_what_its_request_held(
    open_page: Callable[..., Page], console: str, client: Client
) -> None:
    page = open_page(console)
    fill(page, max_tokens=1800)
    page.get_by_role("button", name="Generate").click()
    tokens_of(page, "target").first.wait_for(state="attached")
    assert client.model_info().engine.running_sequences == 1
    page.goto("about:blank")
    eventually(lambda: client.model_info().engine.running_sequences == 0, "the request has ended")
    assert client.model_info().engine.used_slots == 0


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_both_themes_are_readable(
    open_page: Callable[..., Page], console: str, client: Client, good_drafter: str, scheme: str
) -> None:
    page = open_page(console, color_scheme=scheme)
    attach(page, good_drafter, "good")
    fill(page, max_tokens=20)
    page.get_by_role("button", name="Generate").click()
    expect(page.locator("#status")).to_contain_text("Done")
    page.evaluate("""() => {
        for (let colour = 0; colour < 6; colour += 1) {
            const span = Object.assign(document.createElement("span"), {
                className: `by-drafter drafter-${colour}`, textContent: "token"});
            document.getElementById("tokens").append(span);
        }
        document.getElementById("ask-error").textContent = "an error";
    }""")
    texts = "h1, h1 span, h2, p, label, dt, dd, li b, li small, #tokens span, th, td small, button:not(:disabled), kbd"
    found = page.evaluate(CONTRASTS, texts)
    assert len(found) > 40
    assert [(html, contrast) for html, contrast in found if contrast < 4.5] == []


def test_the_theme_can_be_chosen(page: Page) -> None:
    def ground() -> str:
        return str(page.evaluate("getComputedStyle(document.body).backgroundColor"))

    light = ground()
    toggle = page.locator("#theme")
    toggle.click()
    assert (toggle.inner_text(), ground()) == ("Theme: light", light)
    toggle.click()
    assert toggle.inner_text() == "Theme: dark"
    assert ground() != light
    page.reload()
    assert toggle.inner_text() == "Theme: dark"


def test_a_phone(open_page: Callable[..., Page], console: str, client: Client, good_drafter: str) -> None:
    page = open_page(console, viewport={"width": 375, "height": 700})
    attach(page, good_drafter, "a-drafter-with-a-name-that-is-much-longer-than-a-phone-is-wide")
    fill(page, prompt="x" * 300, max_tokens=40)
    page.get_by_role("button", name="Compare").click()
    expect(page.locator("#comparison")).to_contain_text("Identical")
    assert page.evaluate("document.documentElement.scrollWidth") == 375


def test_the_keyboard_is_enough(page: Page) -> None:
    order = []
    for _ in range(12):
        page.keyboard.press("Tab")
        order.append(page.evaluate("document.activeElement.name || document.activeElement.id"))
    assert order == [
        "theme", "kind", "prompt", "temperature", "top_p", "max_tokens", "seed", "speculation",
        "generate", "compare", "answer", "address",
    ]  # fmt: skip
    for field, value in (("Max tokens", "1800"), ("Seed", str(SEED)), ("Prompt", PROMPT)):
        page.get_by_label(field, exact=True).focus()
        page.keyboard.press("Control+a")
        page.keyboard.type(value)
    page.keyboard.press("Control+Enter")
    tokens_of(page, "target").first.wait_for(state="attached")
    page.keyboard.press("Escape")
    expect(page.locator("#status")).to_have_text("Stopped.")


def test_an_api_key_is_asked_for_and_kept_in_the_tab(
    open_page: Callable[..., Page], verifier: RunningService, client: Client
) -> None:
    with serve_console(verifier.address, key="secret") as console:
        page = open_page(console)
        dialog = page.get_by_role("dialog")
        dialog.get_by_role("button", name="Cancel").click()
        expect(page.locator("#verifier")).to_have_text("a valid API key is required")
        page.wait_for_timeout(2500)  # the page tries again, but does not ask
        expect(dialog).to_be_hidden()
        page.get_by_role("button", name="Generate").click()
        for key in ("guess", "secret"):
            expect(dialog).to_be_visible()
            dialog.get_by_label("Key").fill(key)
            dialog.get_by_role("button", name="Use key").click()
        expect(page.locator("#verifier")).to_contain_text("target")
        page.reload()
        expect(page.locator("#verifier")).to_contain_text("target")
        expect(dialog).to_be_hidden()
        assert page.evaluate("Object.keys(localStorage)") == []
        page.goto("about:blank")
