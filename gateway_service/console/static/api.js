// Calls of the console's API.

import { askForKey, storedKey } from "./key.js";

/** What the API, or the way to it, refused. */
export class ApiError extends Error {
  constructor(message, field = null, status = 0) {
    super(message);
    this.field = field;
    this.status = status; // 0 where the gateway did not answer
  }
}

/** Post a body and return the answer. */
export async function post(path, body) {
  return (await call(path, { method: "POST", body })).json();
}

/** The server-sent events of a call, as [name, data]. Leaving the loop ends the call. */
export async function* events(path, options) {
  const response = await call(path, options);
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  try {
    for (;;) {
      const { done, value } = await reader.read();
      if (done) return;
      const blocks = (rest + value).split("\n\n");
      rest = blocks.pop();
      for (const block of blocks) {
        const [name, data] = parse(block);
        if (name === "error") throw new ApiError(data.error.message, data.error.field, data.error.status);
        yield [name, data];
      }
    }
  } catch (error) {
    if (error instanceof TypeError) throw new ApiError("The connection to the gateway broke.");
    throw error;
  } finally {
    reader.cancel().catch(() => {}); // it has ended already
  }
}

async function call(path, { method = "GET", body, signal }) {
  for (;;) {
    const key = storedKey();
    const response = await send(path, method, body, signal, key);
    if (response.ok) return response;
    const error = await errorOf(response);
    const message = key ? "The gateway does not accept the key." : "The gateway asks for an API key.";
    if (response.status !== 401 || !(await askForKey(key, message, method === "POST"))) throw error;
  }
}

async function send(path, method, body, signal, key) {
  const headers = {};
  if (key) headers.Authorization = `Bearer ${key}`;
  if (body !== undefined) headers["Content-Type"] = "application/json";
  try {
    return await fetch(`console/api/${path}`, { method, headers, signal, body: JSON.stringify(body) });
  } catch (error) {
    if (error instanceof TypeError) throw new ApiError("The gateway cannot be reached.");
    throw error;
  }
}

async function errorOf(response) {
  const told = await response.json().catch(() => null); // a proxy's error page is no JSON
  return new ApiError(told?.error?.message ?? `The gateway answered ${response.status}.`, told?.error?.field ?? null, response.status);
}

function parse(block) {
  const fields = new Map(block.split("\n").map((line) => [line.slice(0, line.indexOf(":")), line.slice(line.indexOf(":") + 2)]));
  return [fields.get("event"), JSON.parse(fields.get("data"))];
}
