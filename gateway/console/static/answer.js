// The answer as it comes: each token in the colour of whoever it comes from, and rejected drafts for a moment.

import { byId, element } from "./elements.js";
import { classOf } from "./sources.js";

const SEEN_MS = 900;
const MOST_SEEN = 6;
const tokens = byId("tokens");
const rejected = byId("rejected");
const box = byId("answer");
const legend = byId("legend");

/** What has come of one request. */
export class Answer {
  constructor() {
    this.text = "";
    this.tokens = 0;
    this.chunks = 0;
    this.accepted = new Map();
    this.rejected = new Map();
    this.began = null;
    this.early = 0; // tokens of the first chunk, which come with the prompt
    tokens.replaceChildren();
    this.#fade();
    this.#showLegend();
  }

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
    const atEnd = box.scrollHeight - box.scrollTop - box.clientHeight < 40;
    for (const { text, source } of chunk.pieces) {
      this.text += text;
      tokens.append(element("span", { className: classOf(source), title: source ?? "target", textContent: text }));
    }
    this.#show(chunk.rejected);
    this.#showLegend();
    if (atEnd) box.scrollTop = box.scrollHeight;
  }

  /** End with the text as it is: a character that was split over tokens is whole in it. */
  finish(text) {
    if (text.startsWith(this.text)) {
      const rest = text.slice(this.text.length);
      if (rest) tokens.append(element("span", { className: "by-target", textContent: rest }));
    }
    this.text = text;
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

  #show(drafts) {
    if (!drafts.length) return;
    rejected.replaceChildren(...drafts.slice(0, MOST_SEEN).map((draft) => element("span", {
      className: classOf(draft.drafter), title: `${draft.drafter}, rejected`, textContent: draft.text,
    })));
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
      return element("li", {}, element("b", { className: classOf(source), textContent: source ?? "target" }), " ", element("small", { textContent: told }));
    }));
  }
}

function count(counts, key) { counts.set(key, (counts.get(key) ?? 0) + 1); }

function sum(counts, wanted = () => true) {
  let total = 0;
  for (const [key, value] of counts) if (wanted(key)) total += value;
  return total;
}
