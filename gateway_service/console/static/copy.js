// A button that copies the answer.

import { byId, setText } from "./elements.js";

const SEEN_MS = 1500;
const button = byId("copy");
let told = null;

/** textOf: gives the text to copy. */
export function startCopy(textOf) {
  button.addEventListener("click", async () => {
    const done = await copyText(textOf(), byId("tokens"));
    setText(button, done ? "Copied" : "Selected: press Ctrl+C");
    clearTimeout(told);
    told = setTimeout(() => setText(button, "Copy"), SEEN_MS);
  });
}

/** Copy a text. Where the browser does not let the page, select the element that shows it. Resolves to whether it is copied. */
export async function copyText(text, shown) {
  try {
    await navigator.clipboard.writeText(text);
    return true;
  } catch { // no permission, or a page that came without TLS, where there is no clipboard
    getSelection().selectAllChildren(shown);
    return false;
  }
}
