// A conversation's messages: their stored form, the request made from them, and answers built from a stream's chunks.
//
// A message is {id, role: "user", content}, {id, role: "tool", call, name, content} or an answer:
// {id, role: "assistant", model, parts, finish, usage, times, grammar, relaxed, ignored, invalid, error}. Its parts
// are, in the order of the stream, {type: "reasoning" | "text" | "malformed", text} and {type: "call", id, name,
// arguments, state} with the state "open", "complete" or "incomplete".

import { parseTools } from "./tools.js";

const id = () => crypto.randomUUID?.() ?? `${Date.now()}-${Math.random().toString(36).slice(2)}`;

export const question = content => ({ id: id(), role: "user", content });
export const result = (call, content) => ({ id: id(), role: "tool", call: call.id, name: call.name, content });
export const answer = () =>
  ({ id: id(), role: "assistant", model: "", parts: [], finish: null, usage: null, times: {}, grammar: null, relaxed: "", ignored: "", invalid: "", error: null });

export const textOf = message => message.role === "assistant" ? ofType(message, "text").map(part => part.text).join("") : message.content;
export const callsOf = message => ofType(message, "call").filter(part => part.state === "complete");
const ofType = (message, type) => message.parts?.filter(part => part.type === type) ?? [];

/** An invalid setting that prevents a request; `field` is the id of its input. */
export class SettingError extends Error {
  constructor(field, message) {
    super(message);
    this.field = field;
  }
}

/** The messages that are sent. A failed answer is left out together with its question. */
export function history(messages) {
  const kept = [];
  for (const message of messages) {
    if (!message.error) kept.push(message);
    else if (kept.at(-1)?.role === "user") kept.pop();
  }
  return kept;
}

/** Whether this question is left out of requests. */
export const hasFailed = (messages, message) => message.role === "user" && Boolean(messages[messages.indexOf(message) + 1]?.error);

/** The body of a request for the next answer. Throws a SettingError. */
export function request({ settings, messages }) {
  const body = { model: settings.model, messages: history(messages).map(wire), thinking: settings.reasoning };
  if (settings.system.trim()) body.messages.unshift({ role: "system", content: settings.system });
  number(body, "max_tokens", settings.maxTokens, "maxTokens", "Max tokens");
  number(body, "temperature", settings.temperature, "temperature", "Temperature");
  number(body, "top_p", settings.topP, "topP", "Top p");
  number(body, "seed", settings.seed, "seed", "Seed");
  const tools = declared(settings);
  if (tools.length) Object.assign(body, { tools, tool_choice: toolChoice(settings.toolChoice, tools), parallel_tool_calls: settings.parallel });
  return body;
}

function declared(settings) {
  try { return parseTools(settings.tools); } catch (error) { throw new SettingError("tools", error.message); }
}

/** `auto`, `none`, `required`, or the name of a tool after "tool:". */
function toolChoice(choice, tools) {
  if (!choice.startsWith("tool:")) return choice;
  const name = choice.slice(5);
  if (!tools.some(tool => tool.function.name === name)) throw new SettingError("toolChoice", `Tool choice: no tool "${name}" is declared`);
  return { type: "function", function: { name } };
}

function number(body, name, text, field, label) {
  if (text === "") return;
  if (!Number.isFinite(Number(text))) throw new SettingError(field, `${label} must be a number`);
  body[name] = Number(text);
}

function wire(message) {
  if (message.role === "user") return { role: "user", content: message.content };
  if (message.role === "tool") return { role: "tool", tool_call_id: message.call, content: message.content };
  const sent = { role: "assistant", content: textOf(message) };
  const reasoning = ofType(message, "reasoning").map(part => part.text).join("");
  if (reasoning) sent.reasoning_content = reasoning;
  const calls = callsOf(message).map(call => ({ id: call.id, type: "function", function: { name: call.name, arguments: call.arguments } }));
  if (calls.length) sent.tool_calls = calls;
  return sent;
}

/** The results that follow an answer, by call. */
export function resultsOf(messages, message) {
  const results = new Map();
  for (const next of messages.slice(messages.indexOf(message) + 1)) {
    if (next.role !== "tool") break;
    results.set(next.call, next);
  }
  return results;
}

/** Calls at the conversation's end that wait for a result. */
export function waiting(messages) {
  const last = messages.findLast(message => message.role !== "tool");
  if (last?.role !== "assistant" || last.error) return [];
  const results = resultsOf(messages, last);
  return callsOf(last).filter(call => !results.has(call.id));
}

/** Number of answers since the last question. */
export function rounds(messages) {
  return messages.slice(messages.findLastIndex(message => message.role === "user") + 1).filter(message => message.role === "assistant").length;
}

/** Adds a chunk of a stream to an answer. */
export function take(message, chunk) {
  if (chunk.usage) message.usage = chunk.usage;
  if (chunk.model) message.model = chunk.model;
  for (const { delta = {}, finish_reason: finish, grammar, invalid_response: invalid } of chunk.choices ?? []) {
    if (delta.reasoning_content) extend(message, "reasoning", delta.reasoning_content);
    if (delta.content) extend(message, "text", delta.content);
    for (const piece of delta.tool_calls ?? []) takeCall(message, piece);
    for (const text of delta.malformed ?? []) message.parts.push({ type: "malformed", text });
    if (grammar) message.grammar = grammar;
    if (invalid) message.invalid = invalid;
    if (finish) close(message, finish, delta.incomplete_tool_calls ?? []);
  }
}

function extend(message, type, text) {
  const last = message.parts.at(-1);
  if (last?.type === type) last.text += text;
  else message.parts.push({ type, text });
}

function takeCall(message, { index, id, function: { name, arguments: text } = {} }) {
  let call = ofType(message, "call").find(part => part.index === index);
  if (!call) message.parts.push(call = { type: "call", index, id: "", name: "", arguments: "", state: "open" });
  if (id) call.id = id;
  if (name) call.name = name;
  if (text) call.arguments += text;
}

function close(message, finish, incomplete) {
  message.finish = finish;
  for (const call of incomplete) {
    const part = ofType(message, "call").find(part => part.id === call.id);
    if (part) part.state = "incomplete";
    else message.parts.push({ type: "call", id: call.id, name: call.function.name, arguments: call.function.arguments, state: "incomplete" });
  }
  for (const part of ofType(message, "call")) if (part.state === "open") part.state = "complete";
}

/** Ends an answer early. An open call may lack arguments, so it becomes incomplete. */
export function cut(message, finish, error) {
  message.finish = finish;
  message.error = error;
  for (const part of ofType(message, "call")) if (part.state === "open") part.state = "incomplete";
}
