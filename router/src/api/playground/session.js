// Requests answers and updates the conversations: one answer at a time in each conversation.

import { call, events } from "./api.js";
import { answer, callsOf, cut, history, question, request, result, resultsOf, rounds, take, textOf, waiting } from "./messages.js";
import * as store from "./store.js";

/** Maximum number of answers after one question when mock results are sent at once. */
export const MOCK_ROUNDS = 8;

export class Session {
  /**
   * `structure(conversation)`: messages were added or removed. `progress(conversation, message)`: an answer grew.
   * `ended(conversation, message)`: an answer ended. `failed(error)`: an error that concerns the whole page.
   */
  constructor(hooks) {
    this.hooks = hooks;
    /** By conversation: the answer that is streamed, and the controller that stops it. */
    this.runs = new Map();
    /** By answer: its request and its tokens. They are too large for storage, so they are lost when the page closes. */
    this.traces = new Map();
  }

  isBusy(conversation) {
    return this.runs.has(conversation.id);
  }

  /** The live object of a conversation that is being answered. */
  live(id) {
    return this.runs.get(id)?.conversation;
  }

  stop(conversation) {
    this.runs.get(conversation.id)?.controller.abort();
  }

  /** Asks a question. Throws a SettingError before anything has changed. */
  ask(conversation, text) {
    const asked = question(text);
    const body = request({ ...conversation, messages: [...conversation.messages, asked] });
    conversation.name ||= store.nameFrom(text);
    conversation.messages.push(asked);
    return this.run(conversation, body);
  }

  /** Requests an answer again, or asks a question again with another text. Later messages are dropped. */
  retry(conversation, message, text) {
    const before = conversation.messages.slice(0, conversation.messages.indexOf(message));
    if (message.role === "user") before.push(question(text));
    const body = request({ ...conversation, messages: before });
    conversation.messages = before;
    return this.run(conversation, body);
  }

  /** Changes the text of an answer; what follows it stays. */
  rewrite(conversation, message, text) {
    const last = message.parts.findLastIndex(part => part.type === "text");
    message.parts = message.parts.flatMap((part, i) => part.type !== "text" ? [part] : i === last ? [{ type: "text", text }] : []);
    this.traces.delete(message.id);
    this.changed(conversation);
  }

  /** Sets or replaces the result of a call. After the last missing result, the next answer is requested. */
  give(conversation, message, part, text) {
    const { messages } = conversation;
    const given = resultsOf(messages, message);
    const results = callsOf(message).flatMap(call => {
      if (call.id === part.id) return [result(part, text)];
      return given.has(call.id) ? [given.get(call.id)] : [];
    });
    const now = [...messages.slice(0, messages.indexOf(message) + 1), ...results];
    if (waiting(now).length) {
      conversation.messages = now;
      this.changed(conversation);
      return null;
    }
    const body = request({ ...conversation, messages: now });
    conversation.messages = now;
    return this.run(conversation, body);
  }

  changed(conversation) {
    if (!store.save(conversation)) this.hooks.failed(new Error("The browser's storage is full, so this conversation is lost when the page closes. Delete other conversations."));
    this.hooks.structure(conversation);
  }

  async run(conversation, body) {
    const message = answer();
    const run = { conversation, controller: new AbortController(), kept: true };
    this.runs.set(conversation.id, run);
    conversation.messages.push(message);
    const trace = { body, tokens: [], decisions: [] };
    this.traces.set(message.id, trace);
    this.changed(conversation);
    try {
      await this.stream(conversation, message, trace, run.controller.signal);
    } catch (error) {
      if (error.name !== "AbortError") cut(message, "error", error.message);
      else if (textOf(message)) cut(message, "stopped", null);
      else cut(message, "stopped", "Stopped before there was an answer.");
      run.error = error;
    }
    this.runs.delete(conversation.id);
    if (!run.kept) return;
    this.changed(conversation);
    this.hooks.ended(conversation, message);
    if (run.error?.wantsKey) this.hooks.failed(run.error);
    await this.mock(conversation, message);
  }

  async stream(conversation, message, trace, signal) {
    const began = performance.now();
    const body = { ...trace.body, stream: true, stream_options: { include_usage: true }, return_token_ids: true, return_decisions: true };
    const response = await call("v1/chat/completions", { body, signal });
    message.relaxed = response.headers.get("x-rein-relaxed") ?? "";
    // The page always sends `thinking`. If it is false, a template without reasoning may ignore it.
    const ignored = (response.headers.get("x-rein-ignored-fields") ?? "").split(",");
    message.ignored = ignored.filter(name => body.thinking || name !== "thinking").join(",");
    for await (const chunk of events(response)) {
      if (chunk.choices?.length) message.times.first ??= performance.now() - began;
      for (const choice of chunk.choices ?? []) trace.tokens.push(...(choice.token_ids ?? []));
      take(message, chunk);
      this.hooks.progress(conversation, message);
    }
    message.times.total = performance.now() - began;
    if (message.grammar) {
      trace.decisions = message.grammar.decisions ?? [];
      delete message.grammar.decisions;
    }
  }

  /** Sends the mock results of an answer's calls, if the settings request it. */
  async mock(conversation, message) {
    const { mocks, sendMocks } = conversation.settings;
    const calls = waiting(conversation.messages);
    if (!sendMocks || !calls.length || !calls.every(call => mocks[call.name]?.trim())) return;
    if (rounds(conversation.messages) >= MOCK_ROUNDS) {
      this.hooks.failed(new Error(`Mock results were sent for ${MOCK_ROUNDS} answers in a row: send the next one by hand.`));
      return;
    }
    for (const call of calls) await this.give(conversation, message, call, mocks[call.name]);
  }

  /** The request of an answer: as it was sent, or as the current settings give it. */
  bodyOf(conversation, message) {
    const sent = this.traces.get(message.id)?.body;
    return sent ?? request({ ...conversation, messages: history(conversation.messages.slice(0, conversation.messages.indexOf(message))) });
  }

  remove(conversation) {
    const run = this.runs.get(conversation.id);
    if (run) {
      run.kept = false;
      run.controller.abort();
    }
    store.remove(conversation);
  }
}
