// The page put together: asks, shows what comes, and stops.

import { Answer, startLooks } from "./answer.js";
import { ApiError, events } from "./api.js";
import {
  canAsk, canCompare, clearAskError, isChat, offerChat, readRequest, showAskError, showUsable, startAskForm, takeQuestion,
} from "./ask.js";
import { isAway } from "./away.js";
import { clearComparison, showComparison } from "./comparison.js";
import { keepTurn, lastTurn } from "./conversation.js";
import { startCopy } from "./copy.js";
import { byId, setText } from "./elements.js";
import { figuresOf, figuresOfResult, showFigures } from "./figures.js";
import { followPool } from "./pool.js";
import { startPoolForms } from "./replace.js";
import { startTheme } from "./theme.js";

const form = byId("ask");
const stop = byId("stop");
const starts = [byId("generate"), byId("compare")];
let running = null; // the AbortController of what runs
let answer = null;

const say = (text) => setText(byId("status"), text);

/** Run a request. take is called with each chunk. Resolves to the result. */
async function run(request, signal, take) {
  for await (const [name, data] of events("generate", { method: "POST", body: request, signal })) {
    if (name === "finished") return data;
    take(data);
  }
  throw new ApiError("The connection to the gateway broke.");
}

/** Run a request and show its answer. */
async function generate(request, signal) {
  const own = new Answer(request, (each) => showFigures(figuresOf(each))); // also once another conversation has begun
  answer = own;
  showFigures({ rate: null, length: null, speed: null });
  let text = null;
  try {
    const result = await run(request, signal, (chunk) => own.take(chunk));
    text = result.text;
    return result;
  } finally {
    own.finish(text);
  }
}

/** Ask what the form asks. Resolves to the request and its result. */
async function ask() {
  const request = readRequest();
  const putBack = request.messages ? takeQuestion() : () => {};
  const { signal } = running;
  say("Generating…");
  let kept = null;
  try {
    const result = await generate(request, signal);
    signal.throwIfAborted(); // another conversation has begun
    showFigures(figuresOfResult(result));
    if (request.messages) kept = keepTurn(request, result);
    if (kept) answer.keepFor(kept);
    const empty = request.messages && !kept ? " The model said nothing: the question is not kept." : "";
    say(`Done: ${result.token_ids.length} tokens, seed ${result.seed}, ended by ${result.finish_reason}.${empty}`);
    return { request, result };
  } finally {
    if (!kept) putBack();
  }
}

/** Run a request the other way, too: with speculation or without. Its answer and the conversation stay as they are. */
async function compare() {
  const { request, result } = (isChat() && lastTurn()) || (await ask());
  const how = request.speculation ? "without" : "with";
  let tokens = 0;
  say(`The same again ${how} speculation…`);
  const other = await run({ ...request, speculation: !request.speculation }, running.signal, (chunk) => {
    tokens += chunk.sources.length;
    say(`The same again ${how} speculation: ${tokens} of ${result.token_ids.length} tokens.`);
  });
  showComparison(...(request.speculation ? [result, other] : [other, result]));
  say(`Compared with seed ${request.seed}.`);
}

/** Run one thing at a time. */
async function start(what, possible) {
  if (running || isAway() || !possible()) return;
  running = new AbortController();
  clearAskError();
  clearComparison();
  show(true);
  try {
    await what();
  } catch (error) {
    if (error.name === "AbortError") {
      say("Stopped.");
    } else {
      say("Failed.");
      showAskError(error);
    }
  } finally {
    running = null;
    show(false);
  }
}

function show(runs) {
  if (!runs && document.activeElement === stop) form.elements.prompt.focus();
  stop.disabled = !runs;
  for (const button of starts) button.setAttribute("aria-disabled", runs);
  showUsable();
}

function showVerifier(verifier) {
  const size = verifier.parameters >= 1e9 ? `${(verifier.parameters / 1e9).toFixed(1)} B` : `${(verifier.parameters / 1e6).toFixed(1)} M`;
  setText(byId("verifier"), `${verifier.model}, ${size} parameters, ${verifier.dtype} on ${verifier.device}: `
    + `${verifier.running} running, ${verifier.waiting} waiting, ${verifier.used_slots} of ${verifier.total_slots} KV slots in use`);
  showFigures({ plain: verifier.plain_tokens_per_second });
  offerChat(verifier.chat);
}

form.addEventListener("submit", (event) => {
  event.preventDefault();
  start(ask, canAsk);
});
byId("compare").addEventListener("click", () => start(compare, canCompare));
stop.addEventListener("click", () => running?.abort());
document.addEventListener("keydown", (event) => {
  if (document.querySelector("dialog[open]")) return;
  if (event.key === "Enter" && (event.ctrlKey || event.metaKey || sendsByEnter(event))) {
    event.preventDefault();
    start(ask, canAsk);
  } else if (event.key === "Escape") {
    running?.abort();
  }
});

/** In a conversation Enter alone asks, where there is a keyboard with a shift key for new lines. */
function sendsByEnter(event) {
  return isChat() && event.target === form.elements.prompt && !event.shiftKey && !event.isComposing
    && !matchMedia("(pointer: coarse)").matches;
}

startTheme();
startLooks();
startAskForm(() => {
  running?.abort();
  answer = new Answer();
});
startCopy(() => answer.words.text);
startPoolForms();
followPool(showVerifier);
