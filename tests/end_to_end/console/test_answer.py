"""The page's view of a request."""

import re
from collections.abc import Callable

import pytest
from playwright.sync_api import Page, expect

from draftwire import Client
from tests.end_to_end.console.console_page import MARKUP, PROMPT, REPEATING, SEED, attach, fill, tokens_of
from tests.harness.waiting import eventually

pytestmark = pytest.mark.slow


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
    expect(row).to_contain_text(re.compile(r"[\d.]+ ms"))  # its times arrive with the next state


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


def test_the_prompt_stands_above_its_continuation(page: Page) -> None:
    page.get_by_label("Text", exact=True).check()
    assert page.get_by_label("Prompt", exact=True).input_value() == "def fibonacci(n):"
    fill(page, "def one():", max_tokens=5)
    expect(page.get_by_role("button", name="Copy")).to_be_hidden()
    page.get_by_role("button", name="Generate").click()
    expect(page.locator("#status")).to_contain_text("Done")
    answer = page.locator("#tokens").text_content()
    assert page.locator("#answer").text_content() == f"def one():{answer}"
    page.context.grant_permissions(["clipboard-read", "clipboard-write"])
    page.locator("#copy").click()
    expect(page.locator("#copy")).to_have_text("Copied")
    assert page.evaluate("navigator.clipboard.readText()") == answer


def test_earlier_prompts(page: Page) -> None:
    history = page.locator("#history")
    expect(history).to_be_hidden()
    for prompt in ("first\nof all", MARKUP, *(f"number {index}" for index in range(19)), "number 3"):
        fill(page, prompt, max_tokens=1)
        page.get_by_role("button", name="Generate").click()
        expect(page.locator("#asked")).to_have_text(prompt)
        expect(page.locator("#status")).to_contain_text("Done")
    history.locator("summary").click()
    prompts = history.get_by_role("button")
    expect(prompts).to_have_count(20)
    assert [prompts.nth(0).text_content(), prompts.nth(19).text_content()] == ["number 3", MARKUP]
    prompts.nth(19).click()
    expect(page.get_by_label("Prompt", exact=True)).to_have_value(MARKUP)
    page.reload()
    history.locator("summary").click()
    expect(prompts).to_have_count(20)
    assert page.evaluate("Object.keys(localStorage)") == []


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
    fill(page, MARKUP, max_tokens=8, kind="Chat")
    page.get_by_role("button", name="Generate").click()
    turns, asked, status = page.locator("#turns li"), page.locator("#asked"), page.locator("#status")
    expect(status).to_contain_text("Done")
    assert (asked.text_content(), turns.count()) == (MARKUP, 0)
    answers = [page.locator("#tokens").text_content()]
    for question, earlier in (("And now?", 2), ("What else?\n" * 40, 4)):
        fill(page, question, max_tokens=8, kind="Chat")
        page.keyboard.press("Control+Enter")
        expect(turns).to_have_count(earlier)
        expect(asked).to_have_text(question)
        expect(status).to_contain_text("Done")
        assert turns.nth(earlier - 1).text_content() == answers[-1]
        answers.append(page.locator("#tokens").text_content())
    assert turns.first.text_content() == MARKUP
    assert page.locator("#answer img, #answer script").count() == 0
    box = page.locator("#answer").evaluate("box => [box.scrollTop + box.clientHeight, box.scrollHeight]")
    assert box[1] - box[0] < 40, "the newest question and its answer are in view"
    page.get_by_role("button", name="New conversation").click()
    expect(turns).to_have_count(0)
    expect(asked).to_have_text("")
    expect(page.get_by_role("button", name="New conversation")).to_be_hidden()


def test_a_new_conversation_ends_the_answer_that_is_being_written(page: Page) -> None:
    fill(page, "One", max_tokens=8, kind="Chat")
    page.get_by_role("button", name="Generate").click()
    expect(page.locator("#status")).to_contain_text("Done")
    fill(page, "Two", max_tokens=1800, kind="Chat")
    page.get_by_role("button", name="Generate").click()
    tokens_of(page, "target").first.wait_for(state="attached")
    page.get_by_role("button", name="New conversation").click()
    expect(page.locator("#status")).to_have_text("Stopped.")
    expect(page.locator("#turns li")).to_have_count(0)
    expect(page.locator("#asked")).to_have_text("")
    expect(page.locator("#tokens")).to_have_text("")


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
