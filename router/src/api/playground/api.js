// Access to the server: requests with the API key, errors with readable messages, and the events of a stream.

import { key } from "./store.js";

/** A failed request. `message` is shown to the user. */
export class ApiError extends Error {
  constructor(message, { status = 0, param = null } = {}) {
    super(message);
    this.status = status;
    this.param = param;
  }

  get wantsKey() { return this.status === 401; }
}

/** Sends a request. Throws an ApiError, or an AbortError if `signal` aborts it. */
export async function call(path, { body, signal } = {}) {
  const headers = {};
  if (key.get()) headers.authorization = `Bearer ${key.get()}`;
  if (body !== undefined) headers["content-type"] = "application/json";
  let response;
  try {
    response = await fetch(path, { method: body === undefined ? "GET" : "POST", headers, body: body && JSON.stringify(body), signal });
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new ApiError("The server does not answer. Check that it is running and that this page can reach it.");
  }
  if (response.ok) return response;
  throw await failure(response);
}

async function failure(response) {
  const answer = await response.json().catch(() => null);
  const { message, param } = answer?.error ?? {};
  const after = response.headers.get("retry-after");
  const wait = after ? ` Try again in ${after} s.` : "";
  return new ApiError((message ?? `The server answered ${response.status} ${response.statusText}`) + wait, { status: response.status, param });
}

/** Yields the data of a stream's events. Throws if the stream ends before its end mark. */
export async function* events(response) {
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  let held = "";
  for (;;) {
    const { value, done } = await reader.read().catch(error => {
      if (error.name === "AbortError") throw error;
      return { done: true };
    });
    if (done) throw new ApiError("The connection ended before the answer did.");
    held += value;
    for (let end; (end = held.indexOf("\n\n")) >= 0; held = held.slice(end + 2)) {
      const data = held.slice(0, end).split("\n").filter(line => line.startsWith("data:")).map(line => line.slice(5).trim()).join("\n");
      if (data === "[DONE]") return;
      if (!data) continue;
      const event = JSON.parse(data);
      if (event.error) throw new ApiError(event.error.message, { param: event.error.param });
      yield event;
    }
  }
}
