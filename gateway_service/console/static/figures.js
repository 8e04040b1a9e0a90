// The figures of the running request, or of the last one.

import { byId, percent, setText } from "./elements.js";

const shown = { rate: null, length: null, speed: null, plain: null };

/** Show what is given and keep the rest; null is unknown. */
export function showFigures(figures) {
  Object.assign(shown, figures);
  const { rate, length, speed, plain } = shown;
  setText(byId("figure-rate"), rate === null ? "–" : percent(rate));
  setText(byId("figure-length"), length === null ? "–" : length.toFixed(2));
  setText(byId("figure-speed"), speed === null ? "–" : speed.toFixed(1));
  setText(byId("figure-plain"), plain === null ? "–" : plain.toFixed(1));
  setText(byId("figure-gain"), speed === null || plain === null ? "–" : `${(speed / plain).toFixed(2)}×`);
}

/** The figures of a request that runs. Chunks stand for steps, until the verifier reports how many there were. */
export function figuresOf(answer) {
  return { rate: answer.acceptanceRate, length: answer.acceptanceLength, speed: answer.speed };
}

/** The figures of a result. */
export function figuresOfResult(result) {
  const drafted = result.drafters.some((drafter) => drafter.draft_tokens > 0);
  return { rate: drafted ? result.acceptance_rate : null, length: result.acceptance_length, speed: decodingSpeed(result) };
}

/** Tokens per second after the prompt, with which the first one comes. By the verifier's clock. */
export function decodingSpeed(result) {
  const seconds = result.total_seconds - result.first_token_seconds;
  const tokens = result.token_ids.length - 1;
  return tokens > 0 && seconds > 0 ? tokens / seconds : null;
}
