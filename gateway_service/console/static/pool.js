// The state of the verifier and its pool, followed while the page is seen.

import { events } from "./api.js";
import { meansAway, showAway, showBack } from "./away.js";
import { showDrafters } from "./drafters.js";
import { byId, setText } from "./elements.js";
import { offerDrafters } from "./replace.js";
import { showRollouts } from "./rollouts.js";

const AGAIN_MS = 2000;

/** Follow the pool. onVerifier gets what is told of the verifier. */
export async function followPool(onVerifier) {
  for (;;) {
    const ended = new AbortController();
    const hidden = () => document.hidden && ended.abort();
    document.addEventListener("visibilitychange", hidden);
    try {
      for await (const [, state] of events("state", { signal: ended.signal })) show(state, onVerifier);
    } catch (error) {
      if (error.name !== "AbortError") fail(error);
    }
    document.removeEventListener("visibilitychange", hidden);
    await (document.hidden ? becomesVisible() : new Promise((resolve) => setTimeout(resolve, AGAIN_MS)));
  }
}

function becomesVisible() {
  return new Promise((resolve) => document.addEventListener("visibilitychange", resolve, { once: true }));
}

function fail(error) {
  if (meansAway(error)) {
    showAway(error);
  } else {
    showBack();
    setText(byId("verifier"), error.message);
  }
}

function show(state, onVerifier) {
  showBack();
  onVerifier(state.verifier);
  showDrafters(state.drafters);
  showRollouts(state.rollouts);
  offerDrafters(state.drafters);
}
