"""Steps that tests perform on the console's page."""

from playwright.sync_api import Locator, Page, expect

from tests.harness.waiting import PATIENCE

PROMPT = "def read_config(path):\n"
REPEATING = "for index in range(10):\n    print(index)\n" * 6
"""A prompt for which lookup drafters have right and wrong guesses."""
SEED = 4
"""A seed whose output does not end before the end of the context."""
MARKUP = "<img src=x onerror='document.title=\"taken\"'><script>document.title='taken'</script>"
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
"""Returns the contrast of each visible text with its background."""

expect.set_options(timeout=PATIENCE * 1000)


def fill(page: Page, prompt: str = PROMPT, max_tokens: int = 150, seed: int = SEED, *, kind: str = "Text") -> None:
    page.get_by_label(kind, exact=True).check()
    page.get_by_label("Prompt", exact=True).fill(prompt)
    page.get_by_label("Max tokens").fill(str(max_tokens))
    page.get_by_label("Seed").fill(str(seed))


def attach(page: Page, address: str, name: str) -> None:
    form = page.locator("#attach")
    form.get_by_label("Address").fill(address)
    form.get_by_label("Name").fill(name)
    form.get_by_role("button", name="Attach").click()
    expect(page.locator("#pool-status")).to_have_text(f"{name or address} is attached.")


def ask(page: Page, question: str) -> None:
    """Asks a question in a conversation and waits for the end of its answer."""
    page.get_by_label("Prompt", exact=True).fill(question)
    page.get_by_role("button", name="Generate").click()
    expect(page.locator("#asked")).to_have_text(question)
    expect(page.locator("#status")).to_contain_text("Done")


def tokens_of(page: Page, source: str) -> Locator:
    return page.locator(f'#tokens span[title="{source}"]')
