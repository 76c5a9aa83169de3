// What outlives the page: conversations with their settings in localStorage, one entry each, and the key in sessionStorage,
// which ends with the tab. Where the browser refuses storage, memory takes its place and the page says so.

import { DEFAULT_TOOLS } from "./tools.js";

const PREFIX = "rein.playground.conversation.";
const OPEN = "rein.playground.open";
const KEY = "rein.playground.key";
const NAME_LENGTH = 60;

export const DEFAULTS = {
  model: "", system: "", tools: DEFAULT_TOOLS, toolChoice: "auto", parallel: true, temperature: "", topP: "", seed: "",
  maxTokens: "512", reasoning: false, mocks: {}, sendMocks: false,
};

/** The API key of this tab. */
export const key = {
  value: attempt(() => sessionStorage.getItem(KEY)) ?? "",
  get() { return this.value; },
  set(value) {
    this.value = value;
    attempt(() => value ? sessionStorage.setItem(KEY, value) : sessionStorage.removeItem(KEY));
  },
};

/** A new conversation, with the settings of another. It is not kept before `save`. */
export function create(settings = DEFAULTS) {
  const now = Date.now();
  return { id: crypto.randomUUID?.() ?? `${now}-${Math.random().toString(36).slice(2)}`, name: "", updated: now, settings: structuredClone(settings), messages: [] };
}

/** All conversations that are kept, the latest first. Entries that cannot be read are left out. */
export function all() {
  const keys = attempt(() => Object.keys(localStorage).filter(name => name.startsWith(PREFIX))) ?? [];
  return keys.map(name => read(name)).filter(Boolean).sort((a, b) => b.updated - a.updated);
}

function read(name) {
  const kept = attempt(() => JSON.parse(localStorage.getItem(name)));
  const right = typeof kept?.id === "string" && typeof kept.name === "string" && Array.isArray(kept.messages)
    && kept.messages.every(message => typeof message?.id === "string" && ["user", "assistant", "tool"].includes(message.role)
      && (message.role === "assistant" ? Array.isArray(message.parts) : typeof message.content === "string"));
  return right ? { ...kept, settings: { ...DEFAULTS, ...kept.settings } } : null;
}

/** Keeps a conversation. Whether there was room for it. */
export function save(conversation) {
  conversation.updated = Date.now();
  return attempt(() => { localStorage.setItem(PREFIX + conversation.id, JSON.stringify(conversation)); return true; }) ?? false;
}

export function remove(conversation) {
  attempt(() => localStorage.removeItem(PREFIX + conversation.id));
}

/** The conversation that this tab showed last. */
export const opened = {
  get: () => attempt(() => sessionStorage.getItem(OPEN)),
  set: id => attempt(() => sessionStorage.setItem(OPEN, id)),
};

/** Calls back when another tab changed the conversations. */
export function onChange(callback) {
  addEventListener("storage", event => { if (event.key === null || event.key.startsWith(PREFIX)) callback(); });
}

/** A name from a question. */
export function nameFrom(text) {
  const line = text.trim().split("\n")[0];
  return line.length > NAME_LENGTH ? line.slice(0, NAME_LENGTH - 1) + "…" : line;
}

function attempt(work) {
  try { return work(); } catch { return undefined; }
}
