// The answer as it comes, below what was said before: each token in the look of its source, and rejected drafts for a moment.

import { byId, element } from "./elements.js";
import { paintedBy } from "./painter.js";
import { markSource } from "./sources.js";
import { Words } from "./words.js";

const SEEN_MS = 900;
const MOST_SEEN = 6;
const NEAR_END = 40;
const turns = byId("turns");
const asked = byId("asked");
const tokens = byId("tokens");
const rejected = byId("rejected");
const box = byId("answer");
const legend = byId("legend");
const markdown = byId("markdown");
const colours = byId("colours");
const earlier = new WeakMap(); // the words of each message of an assistant
let seen = [];

/** What has come of one request. */
export class Answer {
  #drafts = []; // rejected ones that are still to be shown
  #onPaint;
  #soon = paintedBy(() => this.#paint());

  /** Begin with what is asked; without a request there is nothing yet. onPaint is called when figures may have changed. */
  constructor(request = null, onPaint = () => {}) {
    this.#onPaint = onPaint;
    this.words = new Words(Boolean(request?.messages));
    this.tokens = 0;
    this.chunks = 0;
    this.accepted = new Map();
    this.rejected = new Map();
    this.began = null;
    this.early = 0; // tokens of the first chunk, which come with the prompt
    const messages = (request?.messages ?? []).filter((turn) => turn.role !== "system");
    seen = [...messages.map((turn) => earlier.get(turn)).filter(Boolean), this.words];
    turns.replaceChildren(...messages.slice(0, -1).map((turn) => (
      element("li", { className: turn.role }, earlier.get(turn)?.place ?? turn.content)
    )));
    box.classList.toggle("chat", messages.length > 0);
    asked.textContent = request?.prompt ?? messages.at(-1)?.content ?? "";
    asked.className = messages.length ? "question" : "";
    tokens.replaceChildren(this.words.place);
    byId("copy").hidden = true;
    showWords();
    this.#fade();
    this.#showLegend();
    box.scrollTop = box.scrollHeight;
  }

  /** Let the words stand for a message, which is a turn of the conversation now. */
  keepFor(message) { earlier.set(message, this.words); }

  take(chunk) {
    const now = performance.now();
    if (this.began === null) {
      this.began = now;
      this.early = chunk.sources.length;
    }
    this.last = now;
    this.tokens += chunk.sources.length;
    this.chunks += chunk.sources.length > 0;
    for (const source of chunk.sources) count(this.accepted, source);
    for (const draft of chunk.rejected) count(this.rejected, draft.drafter);
    if (chunk.rejected.length) this.#drafts = chunk.rejected;
    for (const { text, source } of chunk.pieces) this.words.add(text, source);
    this.#soon();
  }

  /** End with the text as it is; null where it was cut off. */
  finish(text) {
    if (text !== null) this.words.finish(text);
    this.#soon.now();
    clearTimeout(this.fading);
    this.#fade();
  }

  get draftTokens() { return sum(this.accepted, (source) => source !== null) + sum(this.rejected); }
  get acceptanceRate() { return this.draftTokens ? sum(this.accepted, (source) => source !== null) / this.draftTokens : null; }
  get acceptanceLength() { return this.chunks ? this.tokens / this.chunks : null; }
  get speed() {
    const seconds = (this.last - this.began) / 1000;
    return seconds > 0 ? (this.tokens - this.early) / seconds : null;
  }

  #paint() {
    if (!this.words.place.isConnected) return; // another conversation has begun
    const atEnd = box.scrollHeight - box.scrollTop - box.clientHeight < NEAR_END;
    this.words.show(markdown.checked);
    this.#showDrafts();
    this.#showLegend();
    this.#onPaint(this);
    byId("copy").hidden = !this.words.text;
    if (atEnd) box.scrollTop = box.scrollHeight;
  }

  #showDrafts() {
    if (!this.#drafts.length) return;
    rejected.replaceChildren(...this.#drafts.slice(0, MOST_SEEN).map((draft) => (
      markSource(element("span", { title: `${draft.drafter}, rejected`, textContent: draft.text }), draft.drafter)
    )));
    this.#drafts = [];
    clearTimeout(this.fading);
    this.fading = setTimeout(() => this.#fade(), SEEN_MS);
  }

  #fade() { rejected.replaceChildren(); }

  #showLegend() {
    const sources = new Set([...this.accepted.keys(), ...this.rejected.keys()]);
    const order = [null, ...[...sources].filter((source) => source !== null)].filter((source) => sources.has(source));
    legend.replaceChildren(...order.map((source) => {
      const accepted = this.accepted.get(source) ?? 0;
      const told = source === null ? `${accepted} tokens` : `${accepted} accepted, ${this.rejected.get(source) ?? 0} rejected`;
      const name = markSource(element("b", { textContent: source ?? "target" }), source);
      return element("li", {}, name, " ", element("small", { textContent: told }));
    }));
  }
}

/** Follow the switches that say how answers are shown. */
export function startLooks() {
  markdown.addEventListener("change", showWords);
  colours.addEventListener("change", () => box.classList.toggle("one-colour", !colours.checked));
}

function showWords() {
  for (const words of seen) words.show(markdown.checked);
}

function count(counts, key) { counts.set(key, (counts.get(key) ?? 0) + 1); }

function sum(counts, wanted = () => true) {
  let total = 0;
  for (const [key, value] of counts) if (wanted(key)) total += value;
  return total;
}
