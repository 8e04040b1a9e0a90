// The forms that attach a drafter and have one take another's place.

import { change, forgetFailure, showFailure } from "./change.js";
import { byId, element } from "./elements.js";

const attachForm = byId("attach");
const replaceForm = byId("replace");
let names = null;

export function startPoolForms() {
  for (const form of [attachForm, replaceForm]) form.addEventListener("input", () => forgetFailure(form));
  attachForm.addEventListener("submit", (event) => {
    event.preventDefault();
    attach();
  });
  replaceForm.addEventListener("submit", (event) => {
    event.preventDefault();
    replace("drafters/swap", {}, (body) => `${body.new} has taken the place of ${body.old}.`);
  });
  byId("roll-out").addEventListener("click", () => {
    const share = replaceForm.elements.share.valueAsNumber;
    replace("rollouts/start", { share }, (body) => `${body.new} has a share of ${body.old}.`);
  });
}

/** Offer the drafters of the pool. */
export function offerDrafters(drafters) {
  const now = drafters.map((drafter) => drafter.name);
  if (names?.join("\n") === now.join("\n")) return;
  const { old } = replaceForm.elements;
  const chosen = old.value;
  if (chosen && !now.includes(chosen)) replaceForm.reset(); // what was chosen for it is not meant for another
  names = now;
  old.replaceChildren(...names.map((name) => element("option", { value: name, textContent: name })));
  if (names.includes(chosen)) old.value = chosen;
  byId("names").replaceChildren(...names.map((name) => element("option", { value: name })));
}

async function attach() {
  const address = attachForm.elements.address.value.trim();
  const name = attachForm.elements.name.value.trim() || null;
  if (!address) {
    showFailure("Give the address of a drafter: HOST:PORT, or local:ngram and its like.", "address", attachForm);
    return;
  }
  if (await change("drafters/attach", { address, name }, `${name ?? address} is attached.`, attachForm)) attachForm.reset();
}

async function replace(path, more, done) {
  const body = { old: replaceForm.elements.old.value, new: replaceForm.elements.new.value.trim(), ...more };
  if (!body.old) {
    showFailure("There is no drafter to replace: attach one.", null, null);
  } else if (!body.new) {
    showFailure(`Say which drafter takes the place of ${body.old}: its name, or an address.`, "new", replaceForm);
  } else if (await change(path, body, done(body), replaceForm)) {
    replaceForm.elements.new.value = "";
  }
}
