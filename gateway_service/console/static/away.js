// Whether the verifier answers. While it does not, a banner says so and what needs it cannot be pressed.

import { byId, setText } from "./elements.js";

const UNREACHED = 0; // the status of a call that got no answer of the gateway
const AWAY = new Set([UNREACHED, 502, 503, 504]);
let away = false;

export const isAway = () => away;

/** Whether an error of the page's own call for the state means that nobody answers. */
export const meansAway = (error) => AWAY.has(error.status);

/** Show that nobody answers, and why. */
export function showAway(error) {
  setText(byId("away-who"), error.status === UNREACHED ? "The gateway does not answer." : "The verifier does not answer.");
  const why = error.status === UNREACHED ? "" : `${sentence(error.message)} `;
  setText(byId("away-why"), `${why}Trying again…`);
  setText(byId("verifier"), "");
  set(true);
}

/** Show that the verifier answers. */
export function showBack() {
  if (away) set(false);
}

/** Say whether there is something for a button to do. It can be pressed while there is and the verifier answers. */
export function setUsable(button, usable) {
  button.toggleAttribute("data-idle", !usable);
  button.disabled = away || !usable;
}

function set(value) {
  away = value;
  byId("away").hidden = !value;
  document.body.classList.toggle("away", value);
  for (const button of document.querySelectorAll("[data-verifier]")) button.disabled = value || "idle" in button.dataset;
}

function sentence(text) {
  const begun = text.charAt(0).toUpperCase() + text.slice(1);
  return /[.!?…]$/.test(begun) ? begun : `${begun}.`;
}
