"""A conversation on the page, with answers written in advance."""

import re
from collections.abc import Callable, Iterator

import pytest
from playwright.sync_api import Page, expect

from draftwire.v1 import verifier_service_pb2 as pb
from tests.end_to_end.console.canned_answers import CannedAnswers
from tests.end_to_end.console.console_page import CONTRASTS, MARKUP, ask
from tests.harness.console_server import serve_console
from tests.harness.stand_ins.scripted_verifier import ScriptedVerifier

pytestmark = pytest.mark.slow

MARKDOWN = """Use **bisect**, as `sorted` lists allow:

```python
def found(items, wanted):
    return "a < b"  # a comment
```

1. one
2. two
   - inner &amp; *last*

| n | steps |
|---|---:|
| 8 | 3 |

- [x] done

See [the docs](https://docs.python.org/3/), [not this](javascript:alert(1)), ![a picture](https://example.com/a.png).
"""
PLACES = {
    "alone": MARKUP,
    "in a line": f"a {MARKUP} b",
    "in a list": f"- {MARKUP}",
    "in a heading": f"# {MARKUP}",
    "in code": f"```html\n{MARKUP}\n```",
    "as a language": f"```{MARKUP}\nx\n```",
    "in a table": f"| {MARKUP} |\n|---|\n| {MARKUP} |",
    "in a link": f'[{MARKUP}](https://a.example/ "x")',
    "deep in quotations": ">" * 5000 + MARKUP,
    "deep in brackets": "[" * 3000 + MARKUP,
}


@pytest.fixture
def verifier() -> ScriptedVerifier:
    return ScriptedVerifier()


@pytest.fixture(params=[True])
def page(open_page: Callable[..., Page], verifier: ScriptedVerifier, request: pytest.FixtureRequest) -> Iterator[Page]:
    """The page, in front of a verifier whose model has a chat template, or none."""
    verifier.chat_format = pb.ChatFormat() if request.param else None
    with verifier, serve_console(verifier.address) as address:
        page = open_page(address)
        expect(page.locator("#verifier")).to_contain_text("fake")
        yield page
        page.goto("about:blank")


def text_like(page: Page) -> str:
    return str(page.locator("#tokens").text_content())


def test_a_model_with_a_template_opens_in_chat(page: Page) -> None:
    expect(page.get_by_label("Chat", exact=True)).to_be_checked()
    prompt = page.get_by_label("Prompt", exact=True)
    expect(prompt).to_have_value("")
    for name in ("Generate", "Compare with plain"):
        expect(page.get_by_role("button", name=name)).to_be_disabled()
    answers = CannedAnswers(page, lambda _: "yes")
    prompt.fill(" \n")
    expect(page.get_by_role("button", name="Generate")).to_be_disabled()
    prompt.press("Control+Enter")
    prompt.press("Enter")
    expect(page.locator("#status")).to_have_text("Nothing asked yet.")
    assert answers.requests == []
    prompt.fill("one")
    prompt.press("Shift+Enter")
    expect(prompt).to_have_value("one\n")
    prompt.press("Enter")
    expect(page.locator("#status")).to_contain_text("Done")
    assert answers.requests[0]["messages"] == [{"role": "user", "content": "one\n"}]
    expect(prompt).to_have_value("")


@pytest.mark.parametrize("page", [False], indirect=True)
def test_a_model_without_one_opens_in_text(page: Page) -> None:
    expect(page.get_by_label("Text", exact=True)).to_be_checked()
    expect(page.get_by_label("Chat", exact=True)).to_be_disabled()
    expect(page.get_by_text("This model has no chat template.")).to_be_visible()
    expect(page.get_by_label("Prompt", exact=True)).to_have_value("def fibonacci(n):")
    expect(page.get_by_label("System prompt")).to_be_hidden()
    expect(page.get_by_role("button", name="Generate")).to_be_enabled()
    page.get_by_label("Prompt", exact=True).fill("")
    expect(page.get_by_role("button", name="Generate")).to_be_disabled()


def test_the_kind_that_was_chosen_stays(page: Page, verifier: ScriptedVerifier) -> None:
    page.get_by_label("Text", exact=True).check()
    verifier.waiting = 7
    expect(page.locator("#verifier")).to_contain_text("7 waiting")  # another state has come
    expect(page.get_by_label("Text", exact=True)).to_be_checked()


def test_a_system_prompt(page: Page) -> None:
    answers = CannedAnswers(page, lambda _: "yes")
    page.get_by_label("System prompt").fill("Be brief.")
    ask(page, "One?")
    ask(page, "Two?")
    page.get_by_label("System prompt").fill(" ")
    ask(page, "Three?")
    system = {"role": "system", "content": "Be brief."}
    turns = [
        {"role": role, "content": text}
        for text in ("One?", "Two?")
        for role, text in (("user", text), ("assistant", "yes"))
    ]
    assert [each["messages"] for each in answers.requests] == [
        [system, {"role": "user", "content": "One?"}],
        [system, *turns[:2], {"role": "user", "content": "Two?"}],
        [*turns, {"role": "user", "content": "Three?"}],
    ]
    expect(page.locator("#turns li")).to_have_text(["One?", "yes", "Two?", "yes"])


def test_comparing_answers_the_last_question_again(page: Page) -> None:
    answers = CannedAnswers(page, lambda request: request["messages"][-1]["content"][::-1])
    ask(page, "abcdef")
    ask(page, "ghijkl")
    shown = page.locator("#answer").inner_html()
    page.get_by_label("Prompt", exact=True).fill("not this")
    for _ in range(2):
        page.get_by_role("button", name="Compare with plain").click()
        comparison = page.locator("#comparison")
        expect(comparison).to_contain_text("Identical: 2 tokens, the same text.")
        expect(comparison).to_contain_text("2.00× as fast")
        expect(comparison).to_contain_text(re.compile(r"With speculation\s*2\.0 tokens/s\s*Without\s*1\.0 tokens/s"))
    assert page.locator("#answer").inner_html() == shown
    expect(page.get_by_label("Prompt", exact=True)).to_have_value("not this")
    asked, *again = answers.requests[1:]
    assert again == [{**asked, "speculation": False}] * 2
    ask(page, "last")
    assert [each["content"] for each in answers.requests[-1]["messages"]] == [
        "abcdef",
        "fedcba",
        "ghijkl",
        "lkjihg",
        "last",
    ]
    page.get_by_role("button", name="New conversation").click()
    expect(page.get_by_role("button", name="Compare with plain")).to_be_disabled()


def test_comparing_shows_a_difference(page: Page) -> None:
    CannedAnswers(page, lambda request: "abcdef" if request["speculation"] else "abcxef")
    ask(page, "One?")
    page.get_by_role("button", name="Compare with plain").click()
    expect(page.locator("#comparison")).to_contain_text("Different from token 1 on.")
    assert text_like(page) == "abcdef"


def test_an_empty_answer_is_no_turn(page: Page) -> None:
    answers = CannedAnswers(page, lambda _: "")
    prompt = page.get_by_label("Prompt", exact=True)
    for _ in range(2):
        ask(page, "One?")
        expect(page.locator("#status")).to_contain_text("The model said nothing")
        expect(prompt).to_have_value("One?")
    assert answers.requests[1]["messages"] == [{"role": "user", "content": "One?"}]


def test_an_answer_is_markdown(page: Page) -> None:
    CannedAnswers(page, lambda _: MARKDOWN)
    ask(page, "How?")
    tokens = page.locator("#tokens")
    expect(tokens.locator("p strong")).to_have_text("bisect")
    expect(tokens.locator("p > code")).to_have_text("sorted")
    code = tokens.locator("figure.code")
    expect(code.locator("figcaption span")).to_have_text("Python")
    expect(code.locator("pre")).to_have_text('def found(items, wanted):\n    return "a < b"  # a comment')
    for kind, text in (("keyword", "def"), ("string", '"a < b"'), ("comment", "# a comment")):
        expect(code.locator(f".hljs-{kind}").first).to_have_text(text)
    expect(tokens.locator("ol > li")).to_have_count(2)
    expect(tokens.locator("ol ul li")).to_have_text("inner & last")
    expect(tokens.locator("table td")).to_have_text(["8", "3"])
    expect(tokens.locator("input[type=checkbox]")).to_be_checked()
    links = tokens.locator("a").evaluate_all("links => links.map(each => [each.textContent, each.href, each.rel])")
    rel = "noopener noreferrer"
    assert links == [
        ["the docs", "https://docs.python.org/3/", rel],
        ["a picture", "https://example.com/a.png", rel],
    ]
    assert tokens.locator(".by-drafter").count() > 10
    page.context.grant_permissions(["clipboard-read", "clipboard-write"])
    code.get_by_role("button", name="Copy code").click()
    expect(code.get_by_role("button")).to_have_text("Copied")
    assert page.evaluate("navigator.clipboard.readText()").startswith("def found(items")
    formatted = tokens.inner_html()
    page.get_by_label("Markdown").uncheck()
    assert text_like(page) == MARKDOWN
    page.get_by_label("Markdown").check()
    assert tokens.inner_html().replace("Copied", "Copy") == formatted.replace("Copied", "Copy")
    page.get_by_label("Colour by source").uncheck()
    looks = tokens.locator(".by-drafter").first.evaluate("each => getComputedStyle(each).textDecorationLine")
    assert looks == "none"


def test_the_underline_stands_below_what_a_drafter_wrote(page: Page) -> None:
    CannedAnswers(page, lambda _: "abc**def**ghi`jkl` [mno](https://e.org/ghi) pqr")
    ask(page, "How?")
    # Tokens of three characters: abc **d ef* *gh i`j kl` ...; every second one is the drafter's.
    drafted = page.locator("#tokens .by-drafter").all_text_contents()
    assert drafted[:3] == ["d", "gh", "kl"]


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_markdown_and_code_are_readable(page: Page, theme: str) -> None:
    page.evaluate("theme => { document.documentElement.dataset.theme = theme; }", theme)
    python = '```python\nclass A:\n    x = f"{1}" # y\n    def b(self): return None\n```\n'
    others = "```css\n.a[b] { color: #fff }\n```\n```diff\n- a\n+ b\n```\n"
    CannedAnswers(page, lambda _: f"{MARKDOWN}\n> quoted `code`\n\n{python}{others}")
    ask(page, "How?")
    found = page.evaluate(CONTRASTS, "#asked, #answer :is(p, li, td, th, a, code, span, blockquote, button)")
    assert len(found) > 60
    assert [(html, contrast) for html, contrast in found if contrast < 4.5] == []


@pytest.mark.parametrize("kind", ["Chat", "Text"])
@pytest.mark.parametrize("place", PLACES)
def test_what_a_model_says_is_never_markup(page: Page, kind: str, place: str) -> None:
    text = PLACES[place]
    answers = CannedAnswers(page, lambda _: text)
    answers.drafter = MARKUP
    page.get_by_label(kind, exact=True).check()
    ask(page, "How?")
    if kind == "Text":
        assert text_like(page) == text
    assert "<img" in text_like(page)
    assert MARKUP in page.locator("#legend").inner_text()
    assert page.locator("main img, main script").count() == 0
    assert page.title() == "draftwire console"


def test_a_long_answer_is_not_rendered_again_and_again(page: Page) -> None:
    """Blocks that are complete stay the elements that they are, so a paragraph costs the same early and late."""
    kept, blocks, most = page.evaluate("""async () => {
        const { Words } = await import(new URL("console/static/words.js", document.baseURI));
        const words = new Words(true);
        const { children } = words.place;
        let [first, most] = [null, 0];
        for (let index = 0; index < 400; index += 1) {
            const before = new Set(children);
            words.add(`Paragraph **${index}** of a long answer.\\n\\n`, index % 2 ? "good" : null);
            words.show(true);
            most = Math.max(most, [...children].filter(each => !before.has(each)).length);
            if (index === 3) first = children[0];
        }
        return [first === children[0], children.length, most];
    }""")
    assert (kept, blocks) == (True, 400)
    assert most <= 3


def test_painting_takes_a_bounded_share_of_the_time(page: Page) -> None:
    """Text comes in each frame. Painting it takes 20 ms here: it is painted once in 100 ms, not in every frame."""
    painted = page.evaluate("""async () => {
        const { paintedBy } = await import(new URL("console/static/painter.js", document.baseURI));
        let [now, frames, painted] = [0, [], 0];
        window.requestAnimationFrame = frame => frames.push(frame);
        performance.now = () => now;
        const soon = paintedBy(() => { painted += 1; now += 20; });
        while (now < 10000) {
            soon();
            soon();
            now += 10;
            const due = frames;
            frames = [];
            for (const frame of due) frame(now);
        }
        return painted;
    }""")
    assert 90 <= painted <= 100
