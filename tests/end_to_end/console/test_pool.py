"""The drafter pool on the page, and its display of failing services."""

import re
from collections.abc import Callable

import pytest
from playwright.sync_api import Page, expect

from draftwire import Client, Learning, RetryPolicy
from tests.end_to_end.console.console_page import REPEATING, attach, fill, tokens_of
from tests.harness.console_server import serve_console
from tests.harness.services.service_process import ServiceProcess
from tests.harness.services.services import Services
from tests.harness.stand_ins.fake_verifier import FakeVerifier

pytestmark = pytest.mark.slow


def test_a_swap_in_the_middle(page: Page) -> None:
    attach(page, "local:ngram", "before")
    fill(page, REPEATING, max_tokens=1700)
    page.get_by_label("Temperature").fill("0")
    form = page.locator("#replace")
    form.get_by_label("Drafter").select_option("before")
    form.get_by_label("By").fill("local:suffix")
    # The page itself clicks at the old drafter's first token: the request may end before the test could click.
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
    row = page.locator("#rollouts tbody tr:not(.message)")
    expect(row).to_contain_text("50 %")
    expect(row).to_contain_text("– → –")  # nothing was drafted yet
    share = page.locator("fieldset").filter(has=page.get_by_label("Share"))
    expect(share.get_by_role("button")).to_have_text(["Roll out"])
    row.get_by_role("button", name="Promote").click()
    ended = page.locator("#ended li")
    expect(ended).to_have_text(
        f"{good_drafter} was promoted and has taken the place of bad. Too little was drafted to compare the two."
    )
    expect(page.locator("#rollouts")).to_be_hidden()
    expect(page.locator("#drafters tbody tr:not(.message)")).to_have_count(1)
    page.reload()
    expect(page.locator("#verifier")).to_contain_text("target")
    expect(ended).to_have_count(0)  # it ended before the page was loaded


def test_detach(page: Page) -> None:
    attach(page, "local:ngram", "lookup")
    attach(page, "local:suffix", "other")
    page.get_by_role("button", name="Detach other").click()
    expect(page.locator("#pool-status")).to_have_text("other is detached.")
    rows = page.locator("#drafters tbody tr:not(.message)")
    expect(rows).to_have_count(1)
    dialog = page.get_by_role("dialog")
    for answer, left in (("Cancel", 1), ("Detach", 0)):  # detaching the last one asks for confirmation
        page.get_by_role("button", name="Detach lookup").click()
        expect(dialog).to_contain_text("lookup is the only drafter")
        expect(dialog.get_by_role("button", name="Cancel")).to_be_focused()
        dialog.get_by_role("button", name=answer).click()
        expect(dialog).to_be_hidden()
        expect(rows).to_have_count(left)
    expect(page.locator("#no-drafters")).to_be_visible()


def test_a_drafter_that_fails_says_so_in_a_row_of_its_own(page: Page, services: Services) -> None:
    page.set_viewport_size({"width": 1280, "height": 900})
    drafter = services.drafter("draft-untrained")
    attach(page, drafter.address, "")
    row = page.locator("#drafters tbody tr:not(.message)")
    expect(row.locator("th")).to_have_text(f"{drafter.address}draft-untrained")  # the model, and the address only once
    expect(page.locator("#drafters tr.message")).to_be_hidden()
    drafter.kill()
    expect(row).to_contain_text("unreachable")
    message = page.locator("#drafters tr.message td")
    expect(message).to_be_visible()
    assert message.inner_text()
    assert message.evaluate("cell => cell.colSpan") == 7
    broken = page.evaluate("""() => [...document.querySelectorAll("thead th, tbody td, button")]
        .filter(each => !each.closest(".message") && each.checkVisibility() && each.innerText.trim())
        .filter(each => getComputedStyle(each).overflowWrap === "anywhere"
            || (each.tagName === "BUTTON" && each.clientHeight > 48))
        .map(each => each.innerText)""")
    assert broken == []
    assert page.evaluate("document.documentElement.scrollWidth") <= 1280


def test_what_a_learner_reports_stands_by_its_drafter(page: Page, client: Client) -> None:
    attach(page, "local:ngram", "learns")
    row = page.locator("#drafters tbody tr:not(.message)")
    expect(row).not_to_contain_text("learner")
    client.drafters.report_learning("learns", Learning("training", 2, 9000, 3, 0.5, 0.75))
    expect(row).to_contain_text("learner training: version 2, agreement 50 % → 75 %")


def test_a_verifier_that_is_away(open_page: Callable[..., Page]) -> None:
    with FakeVerifier() as fake:
        address = fake.address
        with serve_console(address, retry=RetryPolicy(attempts_per_address=2, max_backoff=0.02)) as console:
            page = open_page(console)
            needed = page.locator("button[data-verifier]")
            expect(page.locator("#verifier")).to_contain_text("fake")
            names = ["Generate", "Compare with plain", "Detach good", "Detach bad", "Attach", "Swap", "Roll out"]
            assert [each.get_attribute("aria-label") or each.inner_text() for each in needed.all()] == names
            fake.stop()
            banner = page.get_by_role("alert").filter(has_text="The verifier does not answer.")
            expect(banner).to_be_visible()
            expect(banner).to_contain_text(address)
            expect(banner).to_contain_text("Trying again…")
            for each in needed.all():
                expect(each).to_be_disabled()
            assert float(page.locator("#drafters").evaluate("table => getComputedStyle(table).opacity")) < 0.6
            expect(page.locator("#verifier")).to_have_text("")
            page.get_by_label("Prompt", exact=True).press("Control+Enter")
            expect(page.locator("#status")).to_have_text("Nothing asked yet.")
            back = FakeVerifier().start(address)
            try:
                expect(banner).to_be_hidden()
                expect(page.locator("#verifier")).to_contain_text("fake")
                for each in needed.all():
                    expect(each).to_be_enabled()
                page.get_by_role("button", name="Generate").click()
                expect(page.locator("#status")).to_contain_text("Done")
            finally:
                page.goto("about:blank")
                back.stop()


def test_a_gateway_that_is_away(open_page: Callable[..., Page], verifier: ServiceProcess, client: Client) -> None:
    with serve_console(verifier.address) as console:
        page = open_page(console)
        expect(page.locator("#verifier")).to_contain_text("target")
    expect(page.get_by_role("alert").filter(has_text="The gateway does not answer.")).to_be_visible()
    expect(page.get_by_role("button", name="Generate")).to_be_disabled()


def test_errors_of_the_pool_go_when_they_are_old(page: Page) -> None:
    form, error = page.locator("#attach"), page.locator("#pool-error")
    form.get_by_role("button", name="Attach").click()
    expect(error).to_contain_text("HOST:PORT")
    form.get_by_label("Address").fill("nonsense")
    expect(error).to_have_text("")
    form.get_by_role("button", name="Attach").click()
    expect(error).to_contain_text("address")
    attach(page, "local:ngram", "lookup")
    expect(error).to_have_text("")
    expect(form.get_by_label("Address")).to_have_value("")
    replace = page.locator("#replace")
    replace.get_by_role("button", name="Swap").click()
    expect(error).to_contain_text("takes the place of lookup")
    replace.get_by_label("By").fill("local:suffix")
    expect(error).to_have_text("")
    replace.get_by_role("button", name="Swap").click()
    expect(page.locator("#pool-status")).to_have_text("local:suffix has taken the place of lookup.")
    expect(replace.get_by_label("By")).to_have_value("")
    expect(replace.get_by_label("Drafter")).to_have_value("local:suffix")


def test_a_drafters_colour_follows_from_its_name(open_page: Callable[..., Page], console: str, client: Client) -> None:
    def looks(page: Page, names: list[str]) -> dict[str, str]:
        heads = page.locator("#drafters tbody th")
        expect(heads).to_have_count(len(names))
        return {head.locator("span span").inner_text(): str(head.get_attribute("class")) for head in heads.all()}

    names = ["zebra", "apple", "mango"]
    first = open_page(console)
    attach(first, "local:ngram", "earlier")  # takes the first colour, if colours follow the order of arrival
    client.drafters.detach("earlier")
    for name, address in zip(names, ("local:ngram", "local:suffix", "local:lookahead"), strict=False):
        attach(first, address, name)
    before = looks(first, names)
    assert len(set(before.values())) == 3
    for name in names:
        client.drafters.detach(name)
    for name, address in zip(reversed(names), ("local:ngram", "local:suffix", "local:lookahead"), strict=False):
        client.drafters.attach(address, name)
    second = open_page(console)
    assert looks(second, names) == before


def test_names_that_would_have_one_colour(page: Page) -> None:
    """Six names get six different styles, in whatever order they come; further names share them."""
    page.evaluate("""async () => {
        window.sources = await import(new URL("console/static/sources.js", document.baseURI));
        window.looks = names => { sources.assignSources(names); return names.map(sources.classOf); };
    }""")
    names = ["bad", "draft", "early", "good", "lookup", "other"]
    alone = [page.evaluate("name => looks([name])[0]", name) for name in names]
    assert 1 < len(set(alone)) < 6, "some of them share one"
    looks = dict(zip(names, page.evaluate("names => looks(names)", names), strict=True))
    assert len(set(looks.values())) == 6
    turned = names[::-1]
    assert dict(zip(turned, page.evaluate("names => looks(names)", turned), strict=True)) == looks
    first_of_each = {look: name for name, look in reversed(list(zip(names, alone, strict=True)))}
    assert all(looks[name] == look for look, name in first_of_each.items()), "the first by the alphabet keeps its own"
    assert len(page.evaluate("names => looks(names)", [f"drafter {number}" for number in range(20)])) == 20
