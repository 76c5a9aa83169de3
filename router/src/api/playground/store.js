// Stored state: conversations with their settings in localStorage, one entry each, and the API key in sessionStorage,
// which ends with the tab. If the browser refuses storage, the state is kept in memory and the page says so.

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

/** A new conversation with the given settings. It is not stored before `save`. */
export function create(settings = DEFAULTS) {
  const now = Date.now();
  return { id: crypto.randomUUID?.() ?? `${now}-${Math.random().toString(36).slice(2)}`, name: "", updated: now, settings: structuredClone(settings), messages: [] };
}

/** All stored conversations, the latest first. Invalid entries are left out. */
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

/** Stores a conversation. Returns whether the storage had room for it. */
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
