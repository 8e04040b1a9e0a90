// What the form asks for.

import { ApiError } from "./api.js";
import { setUsable } from "./away.js";
import { forgetTurns, hasTurns, lastTurn, messagesWith } from "./conversation.js";
import { byId } from "./elements.js";
import { rememberPrompt, startHistory } from "./history.js";

const EXAMPLE = "def fibonacci(n):"; // a text to be continued, for models that only do that
const form = byId("ask");
const prompt = form.elements.prompt;
const [chat, text] = form.elements.kind;
let chosen = false; // whether the user has said which kind it is to be

export const isChat = () => chat.checked;

/** Whether there is something to generate. */
export const canAsk = () => prompt.value.trim() !== "";

/** Whether there is something to compare: in a conversation its last question, else the prompt. */
export const canCompare = () => (isChat() && lastTurn() !== null) || canAsk();

/** The request that the form describes, as the API takes it; its seed is set. Throws ApiError. */
export function readRequest() {
  const asked = prompt.value;
  const request = {
    ...(isChat() ? { messages: messagesWith(asked, form.elements.system.value) } : { prompt: asked }),
    temperature: numberOf("temperature"),
    top_p: numberOf("top_p"),
    max_tokens: numberOf("max_tokens"),
    seed: numberOf("seed") ?? crypto.getRandomValues(new Uint32Array(1))[0],
    speculation: form.elements.speculation.checked,
  };
  rememberPrompt(asked);
  return request;
}

/** Take the question out of its field while it is answered. Returns a function that puts it back. */
export function takeQuestion() {
  const question = prompt.value;
  if (document.activeElement === byId("generate")) prompt.focus(); // which is about to be disabled
  prompt.value = "";
  showUsable();
  return () => {
    if (!canAsk()) prompt.value = question;
    showUsable();
  };
}

/** onNew is called when a new conversation begins. */
export function startAskForm(onNew) {
  for (const radio of form.elements.kind) {
    radio.addEventListener("change", () => {
      chosen = true;
      showKind();
    });
  }
  byId("new-chat").addEventListener("click", () => {
    forgetTurns();
    onNew();
    showUsable();
    prompt.focus();
  });
  startHistory((earlier) => {
    prompt.value = earlier;
    showUsable();
    prompt.focus();
  });
  form.addEventListener("input", () => {
    clearAskError();
    showUsable();
  });
  showKind();
}

/** Offer a conversation if the model has a chat template, and begin with it. */
export function offerChat(possible) {
  if (chat.disabled === !possible && (chosen || chat.checked === possible)) return;
  chat.disabled = !possible;
  byId("no-chat").hidden = possible;
  if (possible ? !chosen : chat.checked) (possible ? chat : text).checked = true;
  showKind();
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

/** Show which buttons have something to do. */
export function showUsable() {
  setUsable(byId("generate"), canAsk());
  setUsable(byId("compare"), canCompare());
  byId("new-chat").hidden = !isChat() || !hasTurns();
}

function showKind() {
  if (isChat() && prompt.value === EXAMPLE) prompt.value = "";
  if (!isChat() && !prompt.value) prompt.value = EXAMPLE;
  prompt.placeholder = isChat() ? "Ask something" : "Text to continue";
  document.body.classList.toggle("chats", isChat());
  showUsable();
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
