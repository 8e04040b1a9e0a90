"""Steps that tests perform on the console's page."""

from playwright.sync_api import Locator, Page, expect

from tests.harness.waiting import PATIENCE

PROMPT = "def read_config(path):\n"
REPEATING = "for index in range(10):\n    print(index)\n" * 6
"""A prompt for which lookup drafters have right and wrong guesses."""
SEED = 4
"""A seed whose output does not end before the end of the context."""
MARKUP = "<img src=x onerror='document.title=\"taken\"'><script>document.title='taken'</script>"

expect.set_options(timeout=PATIENCE * 1000)


def fill(page: Page, prompt: str = PROMPT, max_tokens: int = 150, seed: int = SEED) -> None:
    page.get_by_label("Prompt", exact=True).fill(prompt)
    page.get_by_label("Max tokens").fill(str(max_tokens))
    page.get_by_label("Seed").fill(str(seed))


def attach(page: Page, address: str, name: str) -> None:
    form = page.locator("#attach")
    form.get_by_label("Address").fill(address)
    form.get_by_label("Name").fill(name)
    form.get_by_role("button", name="Attach").click()
    expect(page.locator("#pool-status")).to_have_text(f"{name or address} is attached.")


def tokens_of(page: Page, source: str) -> Locator:
    return page.locator(f'#tokens span[title="{source}"]')
