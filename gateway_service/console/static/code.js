// A block of code: highlighted by its language, with a button that copies it.

import { copyText } from "./copy.js";
import { element, setText } from "./elements.js";
import highlighter from "./vendor/highlight.js";

const MOST_HIGHLIGHTED = 50_000; // characters; more would make the page halt for a moment
const SEEN_MS = 1500;
const PARTS = /<span class="([^"]*)">|<\/span>|([^<]+)/g;
const ENTITIES = { "&amp;": "&", "&lt;": "<", "&gt;": ">", "&quot;": '"', "&#x27;": "'" };

/** The element of a block of code. write(parent, text) adds a part of its text. */
export function codeBlock(text, language, write) {
  const code = element("code");
  const known = highlighter.getLanguage(language ?? "");
  if (known && text.length <= MOST_HIGHLIGHTED) {
    build(code, highlighter.highlight(text, { language, ignoreIllegals: true }).value, write);
  } else {
    write(code, text);
  }
  const button = element("button", { type: "button", className: "quiet", textContent: "Copy" });
  button.setAttribute("aria-label", "Copy code");
  button.addEventListener("click", async () => {
    setText(button, (await copyText(text, code)) ? "Copied" : "Selected");
    setTimeout(() => setText(button, "Copy"), SEEN_MS);
  });
  const head = element("figcaption", {}, element("span", { textContent: known?.name ?? language ?? "" }), button);
  return element("figure", { className: "code" }, head, element("pre", { tabIndex: 0 }, code));
}

/** Build the elements that the highlighter describes: it escapes text and writes nothing but spans with a class. */
function build(root, markup, write) {
  const open = [root];
  for (const [part, className, text] of markup.matchAll(PARTS)) {
    if (className !== undefined) {
      const span = element("span", { className });
      open.at(-1).append(span);
      open.push(span);
    } else if (text !== undefined) {
      write(open.at(-1), text.replace(/&(?:amp|lt|gt|quot|#x27);/g, (entity) => ENTITIES[entity]));
    } else if (part === "</span>") {
      open.pop();
    }
  }
}
