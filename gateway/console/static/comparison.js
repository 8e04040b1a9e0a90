// The same request with and without speculation: whether the text is the same, and how much faster it came.

import { byId, element } from "./elements.js";
import { decodingSpeed } from "./figures.js";

const place = byId("comparison");

export function clearComparison() { place.replaceChildren(); }

/** Show what two runs of one request have given. */
export function showComparison(drafted, plain) {
  const first = firstDifference(drafted.token_ids, plain.token_ids);
  const same = first === null && drafted.text === plain.text;
  const verdict = same
    ? element("p", { className: "identical", textContent: `Identical: ${plain.token_ids.length} tokens, the same text.` })
    : element("p", { className: "different", textContent: `Different from token ${first ?? plain.token_ids.length} on.` });
  const [fast, slow] = [decodingSpeed(drafted), decodingSpeed(plain)];
  const speeds = fast === null || slow === null
    ? "Too short to tell speeds."
    : `${(fast / slow).toFixed(2)}× as fast: ${fast.toFixed(1)} tokens/s with speculation, ${slow.toFixed(1)} without (both measured now, after the prompt).`;
  place.replaceChildren(verdict, element("p", { textContent: speeds }));
}

function firstDifference(one, other) {
  for (let index = 0; index < Math.max(one.length, other.length); index += 1) if (one[index] !== other[index]) return index;
  return null;
}
