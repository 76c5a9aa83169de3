// The messages of a conversation on the page.

import { button, copyButton, count, duration, el, grow, joined } from "./dom.js";
import { Markdown } from "./markdown.js";
import { callsOf, hasFailed, resultsOf, textOf, waiting } from "./messages.js";
import { pretty, questions } from "./tools.js";

/** Answers of fewer tokens say nothing about speed. */
const RATE_TOKENS = 20;
const FINISH = { stop: "", length: "Cut at max tokens", tool_calls: "", stopped: "Stopped", error: "", content_filter: "Filtered" };
/** The log follows new content while it is scrolled to within this many pixels of its end. */
const NEAR_END = 40;

export class Log {
  /** `actions` has a function for each button: ask, retry, rewrite, give, inspect. */
  constructor(node, latest, actions) {
    this.node = node;
    this.latest = latest;
    this.actions = actions;
    this.following = true;
    this.top = 0;
    /** Results that are being typed, by answer and call. */
    this.drafts = new Map();
    this.views = new Map();
    node.addEventListener("scroll", () => this.scrolled());
    latest.onclick = () => this.follow();
  }

  /** Only the user's scrolling up stops the log from following, not an answer that outgrows the scroll events. */
  scrolled() {
    const { scrollTop, scrollHeight, clientHeight } = this.node;
    if (scrollHeight - scrollTop - clientHeight < NEAR_END) this.following = true;
    else if (scrollTop < this.top) this.following = false;
    this.top = scrollTop;
    this.latest.hidden = this.following;
  }

  follow() {
    this.following = true;
    this.latest.hidden = true;
    this.stick();
  }

  stick() {
    if (!this.following) return;
    this.node.scrollTop = this.node.scrollHeight;
    // The user may scroll up before the event of this scroll arrives.
    this.top = this.node.scrollTop;
  }

  /** Shows a conversation from the beginning. */
  show(conversation, busy) {
    const { messages } = conversation;
    this.conversation = conversation;
    this.busy = busy;
    this.views.clear();
    const turns = messages.filter(message => message.role !== "tool").map(message => this.turn(message));
    this.node.replaceChildren(...(turns.length ? turns : [this.empty()]));
    this.node.setAttribute("aria-busy", String(busy));
    this.stick();
  }

  /** Updates a growing answer, at most once per frame. */
  update(message) {
    this.grown = message;
    this.frame ??= requestAnimationFrame(() => {
      this.frame = null;
      this.views.get(this.grown.id)?.update();
      this.stick();
    });
  }

  empty() {
    const asked = questions(this.conversation.settings.tools).map(text => button(text, () => this.actions.ask(text)));
    return el("div", { class: "empty" }, el("p", {}, "Ask the model something, or declare tools that it can call."),
      el("div", { class: "questions" }, ...asked), el("p", { class: "facts" }, "Conversations stay in this browser."));
  }

  /** Shows the questions for the tools that are declared now. */
  refresh() {
    if (!this.conversation.messages.length) this.node.replaceChildren(this.empty());
  }

  turn(message) {
    if (message.role === "assistant") {
      const view = new AnswerView(this, message);
      this.views.set(message.id, view);
      return view.node;
    }
    const failed = hasFailed(this.conversation.messages, message);
    const text = el("div", { class: "bubble" }, message.content);
    const node = el("article", { class: `turn user${failed ? " failed" : ""}`, "data-id": message.id },
      el("h2", { class: "who" }, "You"), text, failed && el("p", { class: "facts" }, "Not part of the conversation: there was no answer."));
    const edit = () => this.editor(node, text, message.content, "Ask again", changed => this.actions.retry(message, changed));
    node.append(this.toolbar(copyButton(() => message.content), button("Edit", edit)));
    return node;
  }

  /** The buttons under a message. While an answer is streamed, the conversation cannot be changed. */
  toolbar(copy, ...others) {
    for (const other of others) if (other) other.disabled = this.busy;
    return el("div", { class: "actions" }, copy, ...others);
  }

  /** Replaces a text by a text area until the edit is saved or cancelled. */
  editor(turn, shown, text, label, save) {
    if (turn.querySelector(".editor")) return;
    const area = el("textarea", { value: text, "aria-label": "Edit the message", rows: "2", oninput: () => grow(area) });
    const form = el("form", { class: "editor" }, area, el("div", { class: "row" }, el("button", { class: "primary" }, label), button("Cancel", () => close())));
    const close = () => { form.remove(); shown.hidden = false; };
    form.onsubmit = event => {
      event.preventDefault();
      if (area.value.trim()) save(area.value);
    };
    form.onkeydown = event => {
      if (event.key === "Escape") { event.stopPropagation(); close(); }
      if (event.key === "Enter" && !event.shiftKey && !event.isComposing) { event.preventDefault(); form.requestSubmit(); }
    };
    shown.hidden = true;
    shown.after(form);
    grow(area);
    area.focus();
  }
}

/** An answer, complete or still streamed. */
class AnswerView {
  constructor(log, message) {
    this.log = log;
    this.message = message;
    this.shown = [];
    this.parts = el("div", { class: "parts" });
    this.node = el("article", { class: "turn assistant", "data-id": message.id }, this.who = el("h2", { class: "who" }), this.parts);
    this.update();
    if (message.finish) this.end();
    else this.parts.append(this.cursor = el("p", { class: "cursor" }, "Waiting for the first token"));
  }

  update() {
    const { parts, model } = this.message;
    this.who.textContent = model || "Assistant";
    if (parts.length && this.cursor) {
      this.cursor.remove();
      this.cursor = null;
    }
    parts.forEach((part, i) => {
      const view = this.shown[i] ??= this.part(part);
      view.update(i === parts.length - 1 && !this.message.finish);
    });
  }

  part(part) {
    const view = { text: textPart, reasoning: reasoningPart, malformed: malformedPart, call: callPart }[part.type](part, this);
    this.parts.append(view.node);
    return view;
  }

  end() {
    const { message, log } = this;
    const { actions } = log;
    if (message.error) this.node.append(el("p", { class: "error", role: "alert" }, message.error));
    if (message.invalid) this.node.append(el("p", { class: "error" }, `The answer violates the response format: ${message.invalid}`));
    const waits = waiting(log.conversation.messages).some(call => callsOf(message).includes(call));
    this.node.append(...facts(message, waits).map(line => el("p", { class: "facts" }, line)));
    const text = textOf(message);
    const edit = () => {
      const last = [...this.parts.querySelectorAll(".markdown")].at(-1);
      log.editor(this.node, last, text, "Save", changed => actions.rewrite(message, changed));
    };
    const copied = () => text || callsOf(message).map(call => `${call.name}(${call.arguments})`).join("\n");
    this.node.append(log.toolbar(copyButton(copied), text && !message.error && button("Edit", edit),
      button("Retry", () => actions.retry(message)), button("Inspect", () => actions.inspect(message))));
  }
}

function textPart(part) {
  const markdown = new Markdown();
  return { node: markdown.node, update: () => markdown.update(part.text) };
}

function reasoningPart(part) {
  const summary = el("summary"), text = el("div", { class: "thoughts" });
  const update = growing => {
    summary.textContent = growing ? "Thinking …" : "Reasoning";
    text.textContent = part.text;
  };
  return { node: el("details", { class: "reasoning" }, summary, text), update };
}

function malformedPart(part) {
  const node = el("div", { class: "call bad", role: "group", "aria-label": "Malformed call" },
    el("div", { class: "call-head" }, el("span", { class: "badge" }, "Malformed call"), "The model wrote a call that cannot be parsed."),
    el("pre", { tabindex: "0", role: "group", "aria-label": "Malformed call" }, part.text));
  return { node, update: () => {} };
}

function callPart(part, view) {
  const name = el("strong"), id = el("code", { class: "id" }), badge = el("span", { class: "badge", hidden: true }, "Incomplete: not executed");
  const text = el("pre", { class: "arguments", tabindex: "0", role: "group", "aria-label": "Arguments" });
  const node = el("div", { class: "call", role: "group" }, el("div", { class: "call-head" }, el("span", { class: "kind" }, "Tool call"), name, id, badge), text);
  const update = () => {
    name.textContent = part.name;
    id.textContent = part.id;
    badge.hidden = part.state !== "incomplete";
    node.classList.toggle("bad", part.state === "incomplete");
    node.setAttribute("aria-label", `Call of ${part.name || "a tool"}`);
    text.textContent = part.state === "complete" ? pretty(part.arguments) : part.arguments;
  };
  if (part.state === "complete" && !view.message.error) node.append(outcome(part, view));
  return { node, update };
}

/** A call's result, or the form for it. */
function outcome(part, { log, message }) {
  const { messages, settings } = log.conversation;
  const results = resultsOf(messages, message);
  const given = results.get(part.id);
  if (given) {
    const shown = el("pre", { tabindex: "0", role: "group", "aria-label": `Result of ${part.name}` }, pretty(given.content));
    const node = el("div", { class: "result" }, el("span", { class: "kind" }, "Result"), shown);
    const edit = () => log.editor(node, shown, given.content, "Send result", changed => log.actions.give(message, part, changed));
    node.append(log.toolbar(copyButton(() => given.content), button("Edit", edit)));
    return node;
  }
  const missing = callsOf(message).filter(call => !results.has(call.id)).length;
  const draft = `${message.id} ${part.id}`;
  const area = el("textarea", {
    class: "code-input", rows: "2", spellcheck: "false", "aria-label": `Result of ${part.name}`, placeholder: `Result of ${part.name}`,
    value: log.drafts.get(draft) ?? settings.mocks[part.name] ?? "", oninput: () => { log.drafts.set(draft, area.value); grow(area); },
  });
  const form = el("form", { class: "result" }, area, el("button", { class: "primary" }, missing > 1 ? "Add result" : "Send result"));
  form.onsubmit = event => {
    event.preventDefault();
    if (!log.busy) log.actions.give(message, part, area.value);
  };
  form.onkeydown = event => {
    if (event.key === "Enter" && !event.shiftKey && !event.isComposing) { event.preventDefault(); form.requestSubmit(); }
  };
  return form;
}

/** The facts under an answer. `waits`: its calls have no results yet. */
function facts({ finish, usage, times, grammar, relaxed, ignored }, waits) {
  const lines = [];
  if (usage) {
    const { prompt_tokens: prompt, completion_tokens: written, prompt_tokens_details: details, completion_tokens_details: kinds } = usage;
    const rate = times.total > times.first && written >= RATE_TOKENS && `${((written - 1) * 1000 / (times.total - times.first)).toFixed(0)} tokens/s`;
    lines.push(joined(FINISH[finish] ?? finish, waits && finish === "tool_calls" && "Waits for tool results", `${prompt} prompt tokens${details?.cached_tokens ? ` (${details.cached_tokens} cached)` : ""}`,
      count(written, "token") + (kinds?.reasoning_tokens ? ` (${kinds.reasoning_tokens} reasoning)` : ""),
      times.first !== undefined && `first token after ${duration(times.first)}`, rate));
  } else if (finish === "stopped") lines.push(joined("Stopped", times.first !== undefined && `first token after ${duration(times.first)}`));
  if (grammar) lines.push(`Grammar: ${grammar.checked} checked, ${grammar.refused} refused, ${grammar.forced} forced`);
  if (relaxed) lines.push(`Not enforced by the grammar: ${relaxed.replaceAll(",", ", ")}`);
  if (ignored) lines.push(`Ignored by the server or the model's template: ${ignored.replaceAll(",", ", ")}`);
  return lines;
}
