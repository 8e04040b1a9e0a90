"""The page itself: its texts, its themes, its keys."""

from collections.abc import Callable

import pytest
from playwright.sync_api import Page, expect

from draftwire import Client
from tests.end_to_end.console.console_page import CONTRASTS, PROMPT, SEED, attach, fill, tokens_of
from tests.harness.console_server import serve_console
from tests.harness.services.service_process import ServiceProcess

pytestmark = pytest.mark.slow

FOCUSED = """() => {
  const {name, id, parentElement} = document.activeElement;
  return name || id || parentElement.className;
}
"""


def test_words_are_explained_before_the_first_request(page: Page) -> None:
    assert page.locator("[title]:not(#tokens *), abbr").count() == 0
    for word in ("Coloured, underlined text", "Acceptance length", "Against the estimate", "Round trip", "Draft step"):
        words = page.locator("details.words").filter(has=page.locator("dt", has_text=word))
        meaning = words.locator("dt", has_text=word)
        expect(meaning).to_be_hidden()
        words.locator("summary").focus()
        page.keyboard.press("Enter")
        expect(meaning).to_be_visible()
        page.keyboard.press("Enter")


def test_errors_are_shown_at_their_field(page: Page) -> None:
    fill(page)
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
    page.locator(".words summary").first.click()
    page.locator(".words summary").last.click()
    texts = (
        "h1, h1 span, h2, p, label, legend, summary, #asked, dt, dd, li b, li small, #tokens span, th, td small, "
        "button:not(:disabled), kbd"
    )
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
    small = page.evaluate("""() => [...document.querySelectorAll("button, input, select, summary")]
        .map(each => each.closest("label:has(input[type=radio], input[type=checkbox])") ?? each)
        .filter(each => each.checkVisibility())
        .filter(each => each.getBoundingClientRect().height < 44 || each.getBoundingClientRect().width < 44)
        .map(each => each.outerHTML)""")
    assert small == []
    cut = page.evaluate("""() => [...document.querySelectorAll("input[placeholder]")].filter(each => {
        const context = document.createElement("canvas").getContext("2d");
        context.font = getComputedStyle(each).font;
        return context.measureText(each.placeholder).width > each.clientWidth - 20;
    }).map(each => each.placeholder)""")
    assert cut == []
    expect(page.get_by_text("generates,")).to_be_hidden()  # a phone has no keys


def test_the_keyboard_is_enough(page: Page) -> None:
    order = []
    for _ in range(13):
        page.keyboard.press("Tab")
        order.append(page.evaluate(FOCUSED))
    assert order == [
        "theme", "kind", "answer", "prompt", "system", "temperature", "top_p", "max_tokens", "seed", "speculation",
        "markdown", "colours", "words",
    ]  # fmt: skip
    page.get_by_label("Text", exact=True).focus()
    page.keyboard.press("Space")
    for field, value in (("Max tokens", "1800"), ("Seed", str(SEED)), ("Prompt", PROMPT)):
        page.get_by_label(field, exact=True).focus()
        page.keyboard.press("Control+a")
        page.keyboard.type(value)
    page.keyboard.press("Control+Enter")
    tokens_of(page, "target").first.wait_for(state="attached")
    page.keyboard.press("Escape")
    expect(page.locator("#status")).to_have_text("Stopped.")


def test_an_api_key_is_asked_for_and_kept_in_the_tab(
    open_page: Callable[..., Page], verifier: ServiceProcess, client: Client
) -> None:
    with serve_console(verifier.address, key="secret") as console:
        page = open_page(console)
        dialog = page.get_by_role("dialog")
        dialog.get_by_role("button", name="Cancel").click()
        expect(page.locator("#verifier")).to_have_text("a valid API key is required")
        page.wait_for_timeout(2500)  # the page retries without asking
        expect(dialog).to_be_hidden()
        fill(page)
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
