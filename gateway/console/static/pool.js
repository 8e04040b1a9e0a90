// The pool of drafters: what it is, kept up to date, and what can be done with it.

import { events, post } from "./api.js";
import { byId, element, milliseconds, percent, setText } from "./elements.js";
import { classOf } from "./sources.js";
import { Rows } from "./rows.js";

const AGAIN_MS = 2000;
const attachForm = byId("attach");
const replaceForm = byId("replace");
let names = null;
let busy = false;

const drafters = new Rows(byId("drafters"), (drafter) => drafter.name, (drafter) => ({
  Name: [drafter.name, drafter.model && drafter.address !== drafter.name ? `${drafter.address}, ${drafter.model}` : drafter.address],
  State: [drafter.state, null, drafter.state === "ready" ? null : drafter.last_error],
  Acceptance: [drafter.draft_tokens ? percent(drafter.acceptance_rate) : "–", `${drafter.accepted_tokens} of ${drafter.draft_tokens}`],
  "Round trip": [milliseconds(drafter.response_seconds)],
  "Draft step": [milliseconds(drafter.step_seconds)],
  Sequences: [`${drafter.sequences}`],
}), (drafter) => [["Detach", () => act(byId("pool-error"), "drafters/detach", { name: drafter.name }, `${drafter.name} is detached.`)]], (drafter) => classOf(drafter.name));

const rollouts = new Rows(byId("rollouts"), (rollout) => `${rollout.old.name} ${rollout.new.name}`, (rollout) => ({
  From: [rollout.old.name],
  To: [rollout.new.name],
  Share: [percent(rollout.share)],
  Acceptance: [`${percent(rollout.old.acceptance_rate)} → ${percent(rollout.new.acceptance_rate)}`],
  State: [rollout.state, rollout.reason],
}), (rollout) => rollout.state !== "running" ? [] : [
  ["Promote", () => finish(rollout, true)],
  ["Withdraw", () => finish(rollout, false)],
], () => "");

function finish(rollout, promote) {
  const { name } = rollout.new;
  return act(byId("pool-error"), "rollouts/finish", { new: name, promote }, `${name} is ${promote ? "promoted" : "withdrawn"}.`);
}

/** Follow the pool while the page is seen. onVerifier gets what is told of the verifier. */
export async function followPool(onVerifier) {
  for (;;) {
    const ended = new AbortController();
    const hidden = () => document.hidden && ended.abort();
    document.addEventListener("visibilitychange", hidden);
    try {
      for await (const [, state] of events("state", { signal: ended.signal })) show(state, onVerifier);
    } catch (error) {
      if (error.name !== "AbortError") setText(byId("verifier"), error.message);
    }
    document.removeEventListener("visibilitychange", hidden);
    await (document.hidden ? becomesVisible() : new Promise((resolve) => setTimeout(resolve, AGAIN_MS)));
  }
}

function becomesVisible() {
  return new Promise((resolve) => document.addEventListener("visibilitychange", resolve, { once: true }));
}

function show(state, onVerifier) {
  onVerifier(state.verifier);
  drafters.show(state.drafters);
  byId("no-drafters").hidden = state.drafters.length > 0;
  rollouts.show(state.rollouts);
  byId("rollouts").hidden = state.rollouts.length === 0;
  const now = state.drafters.map((drafter) => drafter.name);
  if (names !== null && names.join("\n") === now.join("\n")) return;
  names = now;
  const chosen = replaceForm.elements.old.value;
  replaceForm.elements.old.replaceChildren(...names.map((name) => element("option", { value: name, textContent: name })));
  if (names.includes(chosen)) replaceForm.elements.old.value = chosen;
  byId("names").replaceChildren(...names.map((name) => element("option", { value: name })));
}

export function startPoolForms() {
  const error = byId("pool-error");
  attachForm.addEventListener("submit", async (event) => {
    event.preventDefault();
    const { address, name } = attachForm.elements;
    const body = { address: address.value.trim(), name: name.value.trim() || null };
    if (await act(error, "drafters/attach", body, `${body.name ?? body.address} is attached.`, attachForm)) attachForm.reset();
  });
  replaceForm.addEventListener("submit", (event) => {
    event.preventDefault();
    const body = { old: replaceForm.elements.old.value, new: replaceForm.elements.new.value.trim() };
    act(error, "drafters/swap", body, `${body.new} has taken the place of ${body.old}.`, replaceForm);
  });
  byId("roll-out").addEventListener("click", () => {
    const share = replaceForm.elements.share.valueAsNumber;
    const body = { old: replaceForm.elements.old.value, new: replaceForm.elements.new.value.trim(), share };
    act(error, "rollouts/start", body, `${body.new} has a share of ${body.old}.`, replaceForm);
  });
}

/** Ask for one change at a time and tell how it went. Resolves to whether it is done. */
async function act(errorPlace, path, body, done, form = null) {
  if (busy) return false;
  busy = true;
  for (const field of form?.elements ?? []) field.removeAttribute("aria-invalid");
  setText(errorPlace, "");
  setText(byId("pool-status"), "One moment…");
  try {
    await post(path, body);
    setText(byId("pool-status"), done);
    return true;
  } catch (error) {
    setText(byId("pool-status"), "");
    setText(errorPlace, error.message);
    const field = form?.elements.namedItem(error.field ?? "");
    field?.setAttribute("aria-invalid", "true");
    field?.focus();
    return false;
  } finally {
    busy = false;
  }
}
