// The text of an answer, with the source of each part of it.

import { element } from "./elements.js";
import { markSource } from "./sources.js";

const NEAR = 200; // characters of Markdown that may lie between two that are seen
const FAR = 4096; // and before a part that is looked for: a link with its address, a block of code

/** A growing text and where its parts come from. */
export class SourcedText {
  constructor() {
    this.text = "";
    this.ends = []; // the offset at which each part ends
    this.sources = [];
  }

  add(text, source) {
    this.text += text;
    this.ends.push(this.text.length);
    this.sources.push(source);
  }

  /** The first part that ends behind an offset. */
  partAt(offset) {
    let [low, high] = [0, this.ends.length];
    while (low < high) {
      const middle = (low + high) >> 1;
      if (this.ends[middle] > offset) high = middle; else low = middle + 1;
    }
    return low;
  }
}

/** Writes what is seen of a text, from an offset on, each run in the look of its source. */
export class Ink {
  #words;
  #at;
  #part;

  constructor(words, offset) {
    this.#words = words;
    this.#at = offset;
    this.#part = words.partAt(offset);
  }

  /** Go on behind, or at the beginning of, a part of the text that is written as it stands there. */
  seek(raw, behind = false) {
    const found = this.#words.text.slice(this.#at, this.#at + raw.length + FAR).indexOf(raw);
    if (found >= 0) this.#at += found + (behind ? raw.length : 0);
  }

  write = (parent, text) => {
    let [run, source, indents] = ["", undefined, true]; // no lines below indentation
    const flush = () => {
      if (run) parent.append(source === undefined ? run : markSource(element("span", { title: source ?? "target", textContent: run }), source));
      run = "";
    };
    for (const character of text) {
      const found = this.#sourceOf(character);
      indents = character === "\n" || (indents && /\s/.test(character));
      const next = indents ? undefined : found;
      if (next !== source) flush();
      source = next;
      run += character;
    }
    flush();
  };

  #sourceOf(character) {
    const { text, ends, sources } = this.#words;
    const last = Math.min(text.length, this.#at + NEAR);
    let offset = this.#at;
    while (offset < last && !text.startsWith(character, offset)) offset += 1;
    if (offset < last) this.#at = offset + character.length;
    else offset = this.#at; // the text has it in another form: an entity
    while (this.#part < ends.length && ends[this.#part] <= offset) this.#part += 1;
    return sources[this.#part] ?? null;
  }
}
