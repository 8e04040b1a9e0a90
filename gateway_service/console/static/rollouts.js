// Rollouts: those that run in a table, those that ended while the page was open in a sentence each.

import { change } from "./change.js";
import { byId, element, percent } from "./elements.js";
import { Rows } from "./rows.js";

const MOST_ENDED = 3;
const seen = new Set();
let told = "";

const keyOf = (rollout) => `${rollout.old.name} ${rollout.new.name} ${rollout.started_at}`;
const rate = (side) => (side.acceptance_rate === null ? "–" : percent(side.acceptance_rate));

const rows = new Rows(byId("rollouts"), {
  keyOf: (rollout) => rollout.new.name,
  cellsOf: (rollout) => ({
    From: [rollout.old.name],
    To: [rollout.new.name],
    Share: [percent(rollout.share)],
    Acceptance: [`${rate(rollout.old)} → ${rate(rollout.new)}`],
  }),
  actionsOf: (rollout) => [["Promote", () => finish(rollout, true)], ["Withdraw", () => finish(rollout, false)]],
});

export function showRollouts(rollouts) {
  const running = rollouts.filter((rollout) => rollout.state === "running");
  for (const rollout of running) seen.add(keyOf(rollout));
  rows.show(running);
  byId("rollouts").hidden = running.length === 0;
  showEnded(rollouts.filter((rollout) => rollout.state !== "running" && seen.has(keyOf(rollout))).slice(0, MOST_ENDED));
}

function showEnded(rollouts) {
  const sentences = rollouts.map(sentenceOf);
  if (sentences.join("\n") === told) return;
  told = sentences.join("\n");
  byId("ended").hidden = sentences.length === 0;
  byId("ended").replaceChildren(...sentences.map((text) => element("li", { textContent: text })));
}

function sentenceOf(rollout) {
  const { old, new: fresh } = rollout;
  const outcome = rollout.state === "promoted"
    ? `${fresh.name} was promoted and has taken the place of ${old.name}`
    : `${fresh.name} was withdrawn, and ${old.name} has its sequences back`;
  const why = rollout.reason && rollout.reason !== rollout.state ? ` (${rollout.reason})` : "";
  const compared = old.acceptance_rate === null || fresh.acceptance_rate === null
    ? "Too little was drafted to compare the two."
    : `The target accepted ${rate(fresh)} of its tokens, and ${rate(old)} of ${old.name}'s.`;
  return `${outcome}${why}. ${compared}`;
}

function finish(rollout, promote) {
  const { name } = rollout.new;
  return change("rollouts/finish", { new: name, promote }, `${name} is ${promote ? "promoted" : "withdrawn"}.`);
}
