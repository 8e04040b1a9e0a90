// The page put together: asks, shows what comes, and stops.

import { Answer } from "./answer.js";
import { ApiError, events } from "./api.js";
import { clearAskError, keepTurn, readRequest, showAskError, startAskForm } from "./ask.js";
import { isAway } from "./away.js";
import { clearComparison, showComparison } from "./comparison.js";
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

async function generate(request, signal) {
  const own = new Answer(request); // of this request, also once another conversation has begun
  answer = own;
  showFigures({ rate: null, length: null, speed: null });
  for await (const [name, data] of events("generate", { method: "POST", body: request, signal })) {
    if (name === "finished") {
      own.finish(data.text);
      showFigures(figuresOfResult(data));
      return data;
    }
    own.take(data);
    showFigures(figuresOf(own));
  }
  throw new ApiError("The connection to the gateway broke.");
}

async function ask() {
  const request = readRequest();
  say("Generating…");
  const result = await generate(request, running.signal);
  keepTurn(request, result.text);
  say(`Done: ${result.token_ids.length} tokens, seed ${result.seed}, ended by ${result.finish_reason}.`);
}

async function compare() {
  const request = readRequest();
  say("Generating without speculation…");
  const plain = await generate({ ...request, speculation: false }, running.signal);
  say("Generating the same with speculation…");
  const drafted = await generate({ ...request, speculation: true }, running.signal);
  showComparison(drafted, plain);
  say(`Compared with seed ${request.seed}.`);
}

/** Run one thing at a time. */
async function start(what) {
  if (running || isAway()) return;
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
  if (!runs && document.activeElement === stop) starts[0].focus();
  stop.disabled = !runs;
  for (const button of starts) button.setAttribute("aria-disabled", runs);
}

function showVerifier(verifier) {
  const size = verifier.parameters >= 1e9 ? `${(verifier.parameters / 1e9).toFixed(1)} B` : `${(verifier.parameters / 1e6).toFixed(1)} M`;
  setText(byId("verifier"), `${verifier.model}, ${size} parameters, ${verifier.dtype} on ${verifier.device}: `
    + `${verifier.running} running, ${verifier.waiting} waiting, ${verifier.used_slots} of ${verifier.total_slots} KV slots in use`);
  showFigures({ plain: verifier.plain_tokens_per_second });
}

form.addEventListener("submit", (event) => {
  event.preventDefault();
  start(ask);
});
byId("compare").addEventListener("click", () => start(compare));
stop.addEventListener("click", () => running?.abort());
document.addEventListener("keydown", (event) => {
  if (document.querySelector("dialog[open]")) return;
  if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) {
    event.preventDefault();
    start(ask);
  } else if (event.key === "Escape") {
    running?.abort();
  }
});

startTheme();
startAskForm(() => {
  running?.abort();
  answer = new Answer();
});
startCopy(() => answer.text);
startPoolForms();
followPool(showVerifier);
