// The conversation so far: its turns, and how the last one was asked.

let turns = [];
let last = null;

/** The messages that ask a question after the turns so far. */
export function messagesWith(question, system) {
  const beginning = system.trim() ? [{ role: "system", content: system }] : [];
  return [...beginning, ...turns, { role: "user", content: question }];
}

/** Keep a question and its answer. Returns the answer's message, or null where the model said nothing. */
export function keepTurn(request, result) {
  if (!result.text.trim()) return null;
  const message = { role: "assistant", content: result.text };
  turns = [...request.messages.filter((turn) => turn.role !== "system"), message];
  last = { request, result };
  return message;
}

export const hasTurns = () => turns.length > 0;

/** The request and the result of the last turn, or null. */
export const lastTurn = () => last;

export function forgetTurns() {
  turns = [];
  last = null;
}
