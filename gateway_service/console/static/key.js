// The API key: asked for when the gateway wants one, kept in this tab.

const STORED = "draftwire-api-key";
const dialog = document.getElementById("key");
const input = dialog.querySelector("input");
let asking = null;
let declined = false;

export const storedKey = () => sessionStorage.getItem(STORED);

/**
 * Ask for a key in place of the one that was refused. All calls that wait ask once; who has declined is asked again by
 * calls of their own alone. Resolves to whether to try again.
 */
export function askForKey(refused, message, insist) {
  if (storedKey() !== refused) return Promise.resolve(true); // another call has asked meanwhile
  if (declined && !insist) return Promise.resolve(false);
  asking ??= ask(message).finally(() => { asking = null; });
  return asking;
}

function ask(message) {
  document.getElementById("key-message").textContent = message;
  input.value = "";
  dialog.returnValue = "cancel";
  dialog.showModal();
  return new Promise((resolve) => {
    dialog.addEventListener("close", () => {
      const key = input.value.trim();
      const given = dialog.returnValue === "use" && /^[\x21-\x7e]+$/.test(key);
      if (given) sessionStorage.setItem(STORED, key);
      declined = !given;
      input.value = "";
      resolve(given);
    }, { once: true });
  });
}
