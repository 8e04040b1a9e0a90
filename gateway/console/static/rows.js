// A table whose rows stay while what they tell changes, so that the focus stays where it is.

import { element, setText } from "./elements.js";

export class Rows {
  #body;
  #rows = new Map();

  /** keyOf, cellsOf, actionsOf, classOf: of an item; cells as {label: [text, small text, error]}, the first a header. */
  constructor(table, keyOf, cellsOf, actionsOf, classOf) {
    this.#body = table.tBodies[0];
    Object.assign(this, { keyOf, cellsOf, actionsOf, classOf });
  }

  show(items) {
    const left = new Map(this.#rows);
    for (const item of items) {
      const key = this.keyOf(item);
      left.delete(key);
      let row = this.#rows.get(key);
      if (!row) {
        row = this.#make(item);
        this.#rows.set(key, row);
      }
      this.#fill(row, item);
    }
    for (const [key, row] of left) {
      row.remove();
      this.#rows.delete(key);
    }
  }

  #make(item) {
    const row = element("tr");
    for (const [index, label] of Object.keys(this.cellsOf(item)).entries()) {
      const cell = element(index ? "td" : "th", index ? {} : { scope: "row", className: this.classOf(item) });
      cell.append(element("span", {}, element("span"), element("small"), element("small", { className: "error" })));
      cell.dataset.label = label;
      row.append(cell);
    }
    row.append(element("td"));
    this.#body.append(row);
    return row;
  }

  #fill(row, item) {
    for (const [index, texts] of Object.values(this.cellsOf(item)).entries()) {
      for (const [part, target] of [...row.cells[index].firstChild.children].entries()) setText(target, texts[part] ?? "");
    }
    const actions = this.actionsOf(item);
    const buttons = [...row.lastChild.children];
    if (buttons.map((button) => button.textContent).join() === actions.map(([label]) => label).join()) return;
    row.lastChild.replaceChildren(...actions.map(([label, run]) => {
      const button = element("button", { type: "button", textContent: label, onclick: run });
      button.setAttribute("aria-label", `${label} ${this.cellsOf(item)[Object.keys(this.cellsOf(item))[0]][0]}`);
      return button;
    }));
  }
}
