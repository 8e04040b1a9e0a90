// One request with and without speculation: whether the text is the same, and how much faster it came.

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
  if (fast === null || slow === null) {
    place.replaceChildren(verdict, element("p", { textContent: "Too short to measure speeds." }));
    return;
  }
  const told = element("p", { textContent: `${(fast / slow).toFixed(2)}× as fast, both measured after the prompt.` });
  place.replaceChildren(verdict, told, bars([["With speculation", fast, "with"], ["Without", slow, "without"]]));
}

function bars(speeds) {
  const most = Math.max(...speeds.map(([, speed]) => speed));
  return element("dl", { className: "bars" }, ...speeds.flatMap(([name, speed, className]) => {
    const bar = element("span", { className: `bar ${className}` });
    bar.style.width = `${(100 * speed) / most}%`;
    bar.setAttribute("aria-hidden", "true");
    const told = element("span", { className: "told", textContent: `${speed.toFixed(1)} tokens/s` });
    return [element("dt", { textContent: name }), element("dd", {}, element("span", { className: "track" }, bar), told)];
  }));
}

function firstDifference(one, other) {
  for (let index = 0; index < Math.max(one.length, other.length); index += 1) if (one[index] !== other[index]) return index;
  return null;
}
