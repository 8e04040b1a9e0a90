// Which colour and underline stand for which drafter. They follow from its name, so that each tab shows the same.

const ENTRIES = 6;
let assigned = new Map();

/**
 * Take the names of the pool. Each keeps the entry that follows from its name alone, but for names that share one: the
 * first of them by the alphabet keeps it, the others get the next free one, in whatever order they came.
 */
export function assignSources(names) {
  const sorted = [...new Set(names)].sort();
  const taken = new Set();
  const found = new Map();
  for (const moved of [false, true]) {
    for (const name of sorted) {
      if (found.has(name)) continue;
      let entry = home(name);
      if (taken.has(entry) && !moved) continue;
      for (let tries = 0; tries < ENTRIES && taken.has(entry); tries += 1) entry = (entry + 1) % ENTRIES;
      taken.add(entry);
      found.set(name, entry);
    }
  }
  assigned = found;
  for (const element of document.querySelectorAll("[data-source]")) element.className = classOf(element.dataset.source);
}

/** The class names for a source: null is the target. */
export function classOf(source) {
  return source === null ? "by-target" : `by-drafter drafter-${assigned.get(source) ?? home(source)}`;
}

/** Give an element the look of a source, also when that changes. Returns the element. */
export function markSource(element, source) {
  element.className = classOf(source);
  if (source !== null) element.dataset.source = source;
  return element;
}

/** FNV-1a of the name's code units. */
function home(name) {
  let hash = 0x811c9dc5;
  for (let index = 0; index < name.length; index += 1) hash = Math.imul(hash ^ name.charCodeAt(index), 0x01000193);
  return (hash >>> 0) % ENTRIES;
}
