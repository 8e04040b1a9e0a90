// A question before something that is not easily undone.

import { byId, setText } from "./elements.js";

const dialog = byId("confirm");

/** Ask; verb: what is done, on the button. Resolves to whether it is to be done. */
export function confirmed(title, message, verb) {
  setText(byId("confirm-title"), title);
  setText(byId("confirm-message"), message);
  setText(byId("confirm-yes"), verb);
  dialog.returnValue = "no";
  dialog.showModal();
  return new Promise((resolve) => {
    dialog.addEventListener("close", () => resolve(dialog.returnValue === "yes"), { once: true });
  });
}
