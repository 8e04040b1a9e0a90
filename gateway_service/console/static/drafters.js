// The drafters of the pool.

import { change } from "./change.js";
import { confirmed } from "./confirm.js";
import { byId, milliseconds, percent } from "./elements.js";
import { Rows } from "./rows.js";
import { assignSources } from "./sources.js";

let count = 0;

const rows = new Rows(byId("drafters"), {
  keyOf: (drafter) => drafter.name,
  sourceOf: (drafter) => drafter.name,
  cellsOf: (drafter) => ({
    Name: [drafter.name, [drafter.address === drafter.name ? null : drafter.address, drafter.model].filter(Boolean).join(", ")],
    State: [drafter.state, learned(drafter.learning)],
    Acceptance: [drafter.draft_tokens ? percent(drafter.acceptance_rate) : "–", `${drafter.accepted_tokens} of ${drafter.draft_tokens}`],
    "Round trip": [milliseconds(drafter.response_seconds)],
    "Draft step": [milliseconds(drafter.step_seconds)],
    Sequences: [`${drafter.sequences}`],
  }),
  messageOf: (drafter) => (drafter.state === "ready" ? null : drafter.last_error),
  actionsOf: (drafter) => [["Detach", () => detach(drafter.name)]],
});

/** What a learner reports about the drafter's model, if one does. */
function learned(learning) {
  if (learning === null) return null;
  const { activity, version, first_agreement: first, agreement } = learning;
  const agrees = agreement === null ? "" : `, agreement ${percent(first)} → ${percent(agreement)}`;
  return `learner ${activity}: version ${version}${agrees}`;
}

export function showDrafters(drafters) {
  count = drafters.length;
  assignSources(drafters.map((drafter) => drafter.name));
  rows.show(drafters);
  byId("drafters").hidden = count === 0;
  byId("no-drafters").hidden = count > 0;
}

async function detach(name) {
  const last = `${name} is the only drafter. Without it the target decodes plainly: the same answers, usually at a lower speed.`;
  if (count === 1 && !(await confirmed("Detach the last drafter?", last, "Detach"))) return;
  await change("drafters/detach", { name }, `${name} is detached.`);
}
