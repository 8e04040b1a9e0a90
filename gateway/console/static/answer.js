// The answer as it comes: each token in the colour of whoever it comes from, and rejected drafts for a moment.

import { byId, element } from "./elements.js";
import { markSource } from "./sources.js";

const SEEN_MS = 900;
const MOST_SEEN = 6;
const NEAR_END = 40;
const turns = byId("turns");
const asked = byId("asked");
const tokens = byId("tokens");
const rejected = byId("rejected");
const box = byId("answer");
const legend = byId("legend");

/** What has come of one request. */
export class Answer {
  /** Begin with what is asked; without a request there is nothing yet. */
  constructor(request = null) {
    this.text = "";
    this.tokens = 0;
    this.chunks = 0;
    this.accepted = new Map();
    this.rejected = new Map();
    this.began = null;
    this.early = 0; // tokens of the first chunk, which come with the prompt
    const messages = request?.messages ?? [];
    turns.replaceChildren(...messages.slice(0, -1).map((turn) => element("li", { className: turn.role, textContent: turn.content })));
    asked.textContent = request?.prompt ?? messages.at(-1)?.content ?? "";
    asked.className = messages.length ? "question" : "";
    tokens.replaceChildren();
    byId("copy").hidden = true;
    this.#fade();
    this.#showLegend();
    box.scrollTop = box.scrollHeight;
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
    const atEnd = box.scrollHeight - box.scrollTop - box.clientHeight < NEAR_END;
    for (const { text, source } of chunk.pieces) this.#add(text, source);
    this.#show(chunk.rejected);
    this.#showLegend();
    if (atEnd) box.scrollTop = box.scrollHeight;
  }

  /** End with the text as it is: a character that was split over tokens is whole in it. */
  finish(text) {
    if (text.startsWith(this.text) && text.length > this.text.length) this.#add(text.slice(this.text.length), null);
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

  #add(text, source) {
    this.text += text;
    tokens.append(markSource(element("span", { title: source ?? "target", textContent: text }), source));
    byId("copy").hidden = false;
  }

  #show(drafts) {
    if (!drafts.length) return;
    rejected.replaceChildren(...drafts.slice(0, MOST_SEEN).map((draft) => (
      markSource(element("span", { title: `${draft.drafter}, rejected`, textContent: draft.text }), draft.drafter)
    )));
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

function count(counts, key) { counts.set(key, (counts.get(key) ?? 0) + 1); }

function sum(counts, wanted = () => true) {
  let total = 0;
  for (const [key, value] of counts) if (wanted(key)) total += value;
  return total;
}
