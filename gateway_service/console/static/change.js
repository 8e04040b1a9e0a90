// Changes of the pool: one at a time, and how they went.

import { post } from "./api.js";
import { byId, setText } from "./elements.js";

const status = byId("pool-status");
const failure = byId("pool-error");
let busy = false;

/** Ask for a change and show how it went. Resolves to whether it is done. form: where its fields are, if anywhere. */
export async function change(path, body, done, form = null) {
  if (busy) return false;
  busy = true;
  forgetFailure(form);
  setText(status, "One moment…");
  try {
    await post(path, body);
    setText(status, done);
    return true;
  } catch (error) {
    showFailure(error.message, error.field, form);
    return false;
  } finally {
    busy = false;
  }
}

/** Show what is wrong, at its field where it has one. */
export function showFailure(message, name, form) {
  setText(status, "");
  setText(failure, message);
  const field = form?.elements.namedItem(name ?? "");
  field?.setAttribute("aria-invalid", "true");
  field?.focus();
}

/** Show nothing of an earlier failure any more. */
export function forgetFailure(form) {
  setText(failure, "");
  for (const field of form?.elements ?? []) field.removeAttribute("aria-invalid");
}
