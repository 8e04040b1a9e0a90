// Prompts of this tab, to be asked again. They are forgotten with the tab.

import { byId, element } from "./elements.js";

const STORED = "draftwire-prompts";
const MOST = 20;
const LONGEST = 20_000;
const place = byId("history");
let prompts = [];

/** Show the prompts of this tab; choose(text) is called with the one that is pressed. */
export function startHistory(choose) {
  prompts = stored();
  place.addEventListener("click", (event) => {
    const index = event.target.closest("button")?.dataset.index;
    if (index === undefined) return;
    place.open = false;
    choose(prompts[index]);
  });
  show();
}

/** Keep a prompt, as the newest. One that is very long is not kept. */
export function rememberPrompt(text) {
  if (!text.trim() || text.length > LONGEST) return;
  prompts = [text, ...prompts.filter((each) => each !== text)].slice(0, MOST);
  sessionStorage.setItem(STORED, JSON.stringify(prompts));
  show();
}

function stored() {
  const text = sessionStorage.getItem(STORED);
  return text === null ? [] : JSON.parse(text);
}

function show() {
  place.hidden = prompts.length === 0;
  place.querySelector("ul").replaceChildren(...prompts.map((text, index) => {
    const button = element("button", { type: "button", textContent: text });
    button.dataset.index = index;
    return element("li", {}, button);
  }));
}
