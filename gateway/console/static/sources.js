// Which colour stands for which drafter: the same all over the page, as long as it is open.

const COLOURS = 6;
const numbers = new Map();

/** The class names for a source: null is the target. */
export function classOf(source) {
  if (source === null) return "by-target";
  if (!numbers.has(source)) numbers.set(source, numbers.size);
  return `by-drafter drafter-${numbers.get(source) % COLOURS}`;
}
