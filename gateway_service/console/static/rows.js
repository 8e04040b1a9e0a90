// A table whose rows stay while what they show changes, so that the focus stays where it is.

import { element, setText } from "./elements.js";
import { markSource } from "./sources.js";

export class Rows {
  #table;
  #kind;
  #rows = new Map();

  /**
   * kind: functions of an item. keyOf: what it is recognized by. cellsOf: {label: [text, small text]}, the first a
   * header. actionsOf: [label, run]. sourceOf: the drafter whose look the header has, if any. messageOf: what is told in
   * a row of its own below, if anything.
   */
  constructor(table, kind) {
    this.#table = table;
    this.#kind = { sourceOf: () => null, messageOf: () => null, ...kind };
  }

  show(items) {
    const left = new Map(this.#rows);
    for (const item of items) {
      const key = this.#kind.keyOf(item);
      left.delete(key);
      if (!this.#rows.has(key)) this.#rows.set(key, this.#make(item));
      this.#fill(this.#rows.get(key), item);
    }
    for (const [key, { row, below }] of left) {
      row.remove();
      below.remove();
      this.#rows.delete(key);
    }
  }

  #make(item) {
    const row = element("tr");
    for (const [index, label] of Object.keys(this.#kind.cellsOf(item)).entries()) {
      const cell = element(index ? "td" : "th", index ? {} : { scope: "row" });
      const source = this.#kind.sourceOf(item);
      if (!index && source !== null) markSource(cell, source);
      cell.append(element("span", {}, element("span"), element("small")));
      cell.dataset.label = label;
      row.append(cell);
    }
    row.append(element("td", { className: "actions" }));
    const told = element("td", { colSpan: row.cells.length });
    const below = element("tr", { className: "message", hidden: true }, told);
    this.#table.tBodies[0].append(row, below);
    return { row, below };
  }

  #fill({ row, below }, item) {
    for (const [index, texts] of Object.values(this.#kind.cellsOf(item)).entries()) {
      for (const [part, target] of [...row.cells[index].firstChild.children].entries()) setText(target, texts[part] ?? "");
    }
    const message = this.#kind.messageOf(item);
    below.hidden = !message;
    row.classList.toggle("told", Boolean(message));
    setText(below.cells[0], message ?? "");
    this.#fillActions(row.lastChild, item);
  }

  #fillActions(cell, item) {
    const actions = this.#kind.actionsOf(item);
    if ([...cell.children].map((button) => button.textContent).join() === actions.map(([label]) => label).join()) return;
    cell.replaceChildren(...actions.map(([label, run]) => {
      const button = element("button", { type: "button", textContent: label, onclick: run });
      button.dataset.verifier = "";
      button.setAttribute("aria-label", `${label} ${this.#kind.keyOf(item)}`);
      return button;
    }));
  }
}
