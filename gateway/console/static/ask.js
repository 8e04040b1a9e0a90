// What the form asks for.

import { ApiError } from "./api.js";
import { byId } from "./elements.js";
import { rememberPrompt, startHistory } from "./history.js";

const form = byId("ask");
const prompt = form.elements.prompt;
let turns = [];

const isChat = () => form.elements.kind.value === "chat";

/** The request that the form describes, as the API takes it; its seed is set. Throws ApiError. */
export function readRequest() {
  const text = prompt.value;
  rememberPrompt(text);
  return {
    ...(isChat() ? { messages: [...turns, { role: "user", content: text }] } : { prompt: text }),
    temperature: numberOf("temperature"),
    top_p: numberOf("top_p"),
    max_tokens: numberOf("max_tokens"),
    seed: numberOf("seed") ?? crypto.getRandomValues(new Uint32Array(1))[0],
    speculation: form.elements.speculation.checked,
  };
}

/** Keep an answer of a conversation, to be asked on. */
export function keepTurn(request, text) {
  if (!request.messages) return;
  turns = [...request.messages, { role: "assistant", content: text }];
  prompt.value = "";
  showKind();
}

/** onNew is called when a new conversation begins. */
export function startAskForm(onNew) {
  for (const radio of form.elements.kind) radio.addEventListener("change", showKind);
  byId("new-chat").addEventListener("click", () => {
    turns = [];
    showKind();
    onNew();
    prompt.focus();
  });
  startHistory((text) => {
    prompt.value = text;
    prompt.focus();
  });
  form.addEventListener("input", clearAskError);
}

/** Show what is wrong with the form, at its field. */
export function showAskError(error) {
  byId("ask-error").textContent = error.message;
  const name = error.field?.startsWith("messages") ? "prompt" : error.field;
  const field = name ? form.elements.namedItem(name) : null;
  field?.setAttribute("aria-invalid", "true");
  field?.focus();
}

export function clearAskError() {
  byId("ask-error").textContent = "";
  for (const field of form.elements) field.removeAttribute("aria-invalid");
}

function showKind() {
  byId("new-chat").hidden = !isChat() || !turns.length;
}

function numberOf(name) {
  const field = form.elements[name];
  if (field.validity.badInput) throw new ApiError(`${name}: expected a number`, name);
  const value = field.value === "" ? null : field.valueAsNumber;
  if (name === "seed" && value !== null && !(Number.isSafeInteger(value) && value >= 0)) {
    throw new ApiError(`seed: expected a whole number from 0 to ${Number.MAX_SAFE_INTEGER}`, name);
  }
  return value;
}
