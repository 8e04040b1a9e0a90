// A button that copies the answer.

import { byId, setText } from "./elements.js";

const SEEN_MS = 1500;
const button = byId("copy");
let told = null;

/** textOf: gives the text to copy. */
export function startCopy(textOf) {
  button.addEventListener("click", async () => {
    const done = await copy(textOf());
    setText(button, done ? "Copied" : "Selected: press Ctrl+C");
    clearTimeout(told);
    told = setTimeout(() => setText(button, "Copy"), SEEN_MS);
  });
}

async function copy(text) {
  try {
    await navigator.clipboard.writeText(text);
    return true;
  } catch { // no permission, or a page that came without TLS, where there is no clipboard
    getSelection().selectAllChildren(byId("tokens"));
    return false;
  }
}
