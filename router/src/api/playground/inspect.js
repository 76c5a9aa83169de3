// What happened behind an answer: the prompt as the model reads it, and what the grammar did.

import { call } from "./api.js";
import { button, copyButton, count, el } from "./dom.js";

const REPORT = [
  ["checked", "Checked", "Drawn tokens that the grammar judged"],
  ["refused", "Refused", "Of these, drawn again under a mask"],
  ["forced", "Forced", "Tokens that had no alternative and were not drawn"],
  ["masks", "Masks", "Computed"],
  ["held", "Held", "Steps that waited for a mask"],
];

/** Fills the panel for an answer, or for the next question where there is no answer. */
export function inspect(node, title, body, message, tokens) {
  node.replaceChildren(el("h2", {}, title), prompt(body), ...(message ? [grammar(message, tokens)] : []));
}

/** The prompt, on demand. */
function prompt(body) {
  const shown = el("div");
  const load = async () => {
    shown.replaceChildren(el("p", { class: "note" }, "Loading …"));
    try {
      const rendered = await (await call("v1/chat/completions/render", { body: body() })).json();
      const ids = rendered.token_ids.join(" ");
      shown.replaceChildren(
        el("p", { class: "note" }, count(rendered.count, "token")),
        block("Text", rendered.prompt), block("Token ids", ids));
    } catch (error) {
      shown.replaceChildren(el("p", { class: "error", role: "alert" }, error.message));
    }
  };
  return el("section", { "aria-label": "Prompt" }, el("h3", {}, "Prompt"), shown, button("Show the prompt", event => { event.target.remove(); load(); }));
}

function block(label, text) {
  return el("div", { class: "block" }, el("div", { class: "code-bar" }, el("span", {}, label), copyButton(() => text, { class: "quiet" })),
    el("pre", { tabindex: "0", role: "group", "aria-label": label }, text));
}

function grammar({ grammar }, tokens) {
  const section = el("section", { "aria-label": "Grammar" }, el("h3", {}, "Grammar"));
  if (grammar) {
    section.append(el("dl", { class: "report" }, ...REPORT.map(([name, label, title]) =>
      el("div", { title }, el("dt", {}, label), el("dd", {}, String(grammar[name])))),
      el("div", { title: "Time in the grammar" }, el("dt", {}, "Time"), el("dd", {}, `${grammar.microseconds.toFixed(0)} µs`))));
    for (const { position, token, id } of grammar.refusals) {
      section.append(el("p", { class: "refused" }, `At token ${position}, ${JSON.stringify(token)} (${id}) was refused.`));
    }
  } else {
    section.append(el("p", { class: "note" }, "No grammar was needed: no tools were declared, or the answer ended early."));
  }
  if (tokens) section.append(block("Token ids of the answer", tokens.map(token => token.id).join(" ")));
  return section;
}
