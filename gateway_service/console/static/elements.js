// Makes elements. What they say is always text, never markup.

/** An element with properties and children, which are elements or text. */
export function element(name, properties = {}, ...children) {
  const made = Object.assign(document.createElement(name), properties);
  made.append(...children);
  return made;
}

export const byId = (id) => document.getElementById(id);

/** Set a text only where it changes, so that screen readers and selections are left alone. */
export function setText(target, text) {
  if (target.textContent !== text) target.textContent = text;
}

export const percent = (share) => `${(100 * share).toFixed(0)} %`;
export const milliseconds = (seconds) => {
  if (seconds === null) return "–";
  return seconds < 0.0001 ? "< 0.1 ms" : `${(1000 * seconds).toFixed(1)} ms`;
};
