// Markdown as elements, built node by node: what a model writes never becomes markup.

import { codeBlock } from "./code.js";
import { element } from "./elements.js";
import { Ink } from "./ink.js";
import { lexer } from "./vendor/marked.js";

const OPTIONS = { gfm: true, breaks: true };
const OPEN_BLOCKS = 2; // the last ones, which what follows may change: a list goes on behind a paragraph's first letters
const DEEPEST = 24;
const SCHEMES = new Set(["http:", "https:", "mailto:"]);
const CHARACTERS = { amp: "&", lt: "<", gt: ">", quot: '"', apos: "'", nbsp: "\u00a0", copy: "©", hellip: "…", mdash: "—",
  ndash: "–", times: "×", divide: "÷", rarr: "→", larr: "←", le: "≤", ge: "≥", ne: "≠", deg: "°", middot: "·" };
const INLINE = { strong: "strong", em: "em", del: "del" };

/** Shows a growing text. Blocks that cannot change any more are left alone. */
export class MarkdownView {
  #place;
  #settled = 0; // offset of the first block that may change
  #open = []; // its nodes, and those of what follows
  #defines = false; // whether addresses of links stand apart from them, perhaps behind blocks that are settled

  constructor(place) {
    this.#place = place;
    place.replaceChildren();
  }

  /** Show what the text has become. whole: it is complete. */
  update(words, whole) {
    let blocks = blocksOf(words.text.slice(this.#settled));
    this.#defines ||= blocks.some((block) => block.type === "def");
    for (const node of this.#open) node.remove();
    this.#open = [];
    if (whole && this.#defines && this.#settled) {
      this.#settled = 0;
      this.#place.replaceChildren();
      blocks = blocksOf(words.text);
    }
    const seen = blocks.map((block, index) => (block.type === "space" ? -1 : index)).filter((index) => index >= 0);
    const firstOpen = whole ? blocks.length : seen.at(-OPEN_BLOCKS) ?? 0;
    let offset = this.#settled;
    for (const [index, block] of blocks.entries()) {
      const made = element("div");
      addBlock(made, block, new Ink(words, offset), 0);
      const nodes = [...made.childNodes];
      this.#place.append(...nodes);
      offset += block.raw.length;
      if (index < firstOpen) this.#settled = offset;
      else this.#open.push(...nodes);
    }
  }
}

function blocksOf(text) {
  try {
    return lexer(text, OPTIONS);
  } catch { // nested deeper than its recursion goes: shown as it is
    return [{ type: "html", raw: text }];
  }
}

function addBlock(parent, token, ink, depth) {
  const add = (name, properties, tokens, make = addInline) => {
    const made = element(name, properties);
    make(made, tokens ?? [], ink, depth + 1);
    parent.append(made);
  };
  if (depth > DEEPEST) ink.write(parent, token.raw);
  else if (token.type === "heading") add(`h${Math.min(token.depth + 2, 6)}`, {}, token.tokens);
  else if (token.type === "paragraph") add("p", {}, token.tokens);
  else if (token.type === "blockquote") add("blockquote", {}, token.tokens, addBlocks);
  else if (token.type === "hr") parent.append(element("hr"));
  else if (token.type === "list") addList(parent, token, ink, depth);
  else if (token.type === "table") addTable(parent, token, ink, depth);
  else if (token.type === "code") addCode(parent, token, ink);
  else if (token.type === "html") ink.write(parent.appendChild(element("p", { className: "verbatim" })), token.raw.replace(/\n+$/, ""));
  else if (token.type !== "space" && token.type !== "def") addInline(parent, [token], ink, depth);
}

function addBlocks(parent, tokens, ink, depth) {
  for (const token of tokens) addBlock(parent, token, ink, depth);
}

function addList(parent, token, ink, depth) {
  const list = element(token.ordered ? "ol" : "ul", token.ordered ? { start: token.start } : {});
  list.classList.toggle("loose", token.loose);
  for (const each of token.items) {
    const item = element("li", { className: each.task ? "task" : "" });
    addBlocks(item, each.tokens, ink, depth + 1);
    list.append(item);
  }
  parent.append(list);
}

function addTable(parent, token, ink, depth) {
  const row = (cells, name) => element("tr", {}, ...cells.map((cell) => {
    const made = element(name, { className: cell.align ? `align-${cell.align}` : "" });
    addInline(made, cell.tokens, ink, depth + 1);
    return made;
  }));
  const table = element("table", {}, element("thead", {}, row(token.header, "th")));
  table.append(element("tbody", {}, ...token.rows.map((cells) => row(cells, "td"))));
  parent.append(element("div", { className: "table" }, table));
}

function addCode(parent, token, ink) {
  ink.seek(token.text);
  parent.append(codeBlock(token.text, token.lang?.match(/^\S+/)?.[0].toLowerCase(), ink.write));
}

function addInline(parent, tokens, ink, depth) {
  for (const token of tokens) {
    if (depth > DEEPEST) {
      ink.write(parent, token.raw);
    } else if (token.type === "link" || token.type === "image") {
      addLink(parent, token, ink, depth);
    } else if (token.type === "codespan") {
      ink.write(parent.appendChild(element("code")), token.text);
    } else if (token.type === "br") {
      parent.append(element("br"));
    } else if (token.type === "checkbox") {
      parent.append(element("input", { type: "checkbox", checked: token.checked, disabled: true }), " ");
      ink.seek(token.raw, true);
    } else if (token.type in INLINE) {
      addInline(parent.appendChild(element(INLINE[token.type])), token.tokens, ink, depth + 1);
    } else if (token.tokens) {
      addInline(parent, token.tokens, ink, depth + 1);
    } else {
      ink.write(parent, token.type === "text" ? decoded(token.text) : token.text ?? token.raw);
    }
  }
}

/** A link, for which the page is opened in another tab. An image is a link, too: the page loads nothing from elsewhere. */
function addLink(parent, token, ink, depth) {
  const address = URL.canParse(token.href) ? new URL(token.href) : null;
  const allowed = address !== null && SCHEMES.has(address.protocol);
  const place = element(allowed ? "a" : "span");
  if (allowed) Object.assign(place, { href: address.href, target: "_blank", rel: "noopener noreferrer" });
  if (token.tokens?.length) addInline(place, token.tokens, ink, depth + 1);
  else ink.write(place, token.text || token.href);
  const behind = token.raw.lastIndexOf("](");
  if (behind >= 0) ink.seek(token.raw.slice(behind), true);
  parent.append(place);
}

function decoded(text) {
  return text.replace(/&(?:#(\d{1,7})|#[xX]([\da-fA-F]{1,6})|(\w{2,8}));/g, (entity, decimal, hexadecimal, name) => {
    if (name !== undefined) return Object.hasOwn(CHARACTERS, name) ? CHARACTERS[name] : entity;
    const code = decimal === undefined ? parseInt(hexadecimal, 16) : Number(decimal);
    return code > 0 && code <= 0x10ffff && (code < 0xd800 || code > 0xdfff) ? String.fromCodePoint(code) : entity;
  });
}
