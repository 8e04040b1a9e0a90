// The words of one answer, as they are shown: token by token, or as Markdown.

import { element } from "./elements.js";
import { SourcedText } from "./ink.js";
import { MarkdownView } from "./markdown.js";
import { markSource } from "./sources.js";

/** Text that grows in an element of its own, `place`, and is shown when `show` is called. */
export class Words {
  #words = new SourcedText();
  #view = null; // of Markdown
  #shown = 0; // pieces shown so far, of an answer that is shown token by token
  #whole = false;

  /** chat: whether it may be Markdown. */
  constructor(chat) {
    this.chat = chat;
    this.place = element("div", { className: "words-of" });
    this.text = "";
  }

  add(text, source) {
    this.text += text;
    this.#words.add(this.chat ? text.replaceAll("\r", "") : text, source); // the parser takes CRLF for one character
  }

  /** End with the text as it is: a character that was split over tokens is whole in it. */
  finish(text) {
    if (text.startsWith(this.text)) {
      if (text.length > this.text.length) this.add(text.slice(this.text.length), null);
    } else {
      this.text = text;
    }
    this.#whole = true;
  }

  /** Show what has come. markdown: as Markdown, if it may be. */
  show(markdown) {
    const formatted = this.chat && markdown;
    if (formatted !== this.place.classList.contains("formatted") || (formatted && !this.#view)) this.#restart(formatted);
    if (formatted) this.#view.update(this.#words, this.#whole);
    else this.#showTokens();
  }

  #restart(formatted) {
    this.place.classList.toggle("formatted", formatted);
    this.place.replaceChildren();
    this.#view = formatted ? new MarkdownView(this.place) : null;
    this.#shown = 0;
  }

  #showTokens() {
    const { text, ends, sources } = this.#words;
    const made = document.createDocumentFragment();
    for (; this.#shown < ends.length; this.#shown += 1) {
      const source = sources[this.#shown];
      const textContent = text.slice(this.#shown ? ends[this.#shown - 1] : 0, ends[this.#shown]);
      made.append(markSource(element("span", { title: source ?? "target", textContent }), source));
    }
    this.place.append(made);
  }
}
