// The inspection of an answer: the prompt as the model reads it, and the grammar's decisions.

import { call } from "./api.js";
import { asCurl, asPython } from "./code.js";
import { button, copyButton, count, el, toast } from "./dom.js";

const REPORT = [
  ["checked", "Checked", "Drawn tokens that the grammar checked"],
  ["refused", "Refused", "Checked tokens that were refused and drawn again"],
  ["forced", "Forced", "Tokens that the grammar forced, so they were not drawn"],
  ["masks", "Masks", "Masks computed"],
  ["held", "Held", "Steps that waited for a mask"],
];

/** Fills the panel for an answer, or for the next question if there is no answer. */
export function inspect(node, title, body, message, trace) {
  node.replaceChildren(el("h2", {}, title), copies(body), prompt(body), ...(message ? [grammar(message), tokens(message, trace)] : []));
}

/** The request, to repeat it elsewhere. */
function copies(body) {
  const text = make => () => {
    try {
      return make(new URL("v1", location.href).href, body());
    } catch (error) {
      toast(error.message);
      return null;
    }
  };
  return el("section", { "aria-label": "Request" }, el("h3", {}, "Request"),
    el("p", { class: "copies" }, copyButton(text(asCurl), {}, "Copy as curl"), copyButton(text(asPython), {}, "Copy as Python")));
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

function grammar({ grammar }) {
  const section = el("section", { "aria-label": "Grammar" }, el("h3", {}, "Grammar"));
  if (!grammar) {
    section.append(el("p", { class: "note" }, "No grammar was needed: no tools were declared, or the answer ended early."));
    return section;
  }
  section.append(el("dl", { class: "report" }, ...REPORT.map(([name, label, title]) =>
    el("div", { title }, el("dt", {}, label), el("dd", {}, String(grammar[name])))),
    el("div", { title: "Time in the grammar" }, el("dt", {}, "Time"), el("dd", {}, `${grammar.microseconds.toFixed(0)} µs`))));
  return section;
}

/** The tokens of an answer with the decision about each, or at least their ids. */
function tokens({ grammar }, trace) {
  const section = el("section", { "aria-label": "Tokens" }, el("h3", {}, "Tokens"));
  if (trace?.decisions.length) section.append(...decided(trace.decisions));
  else if (grammar && !trace) section.append(el("p", { class: "note" }, "The decisions about tokens are kept until the page is closed. Retry the answer to see them."));
  if (trace?.tokens.length) section.append(block("Token ids of the answer", trace.tokens.join(" ")));
  return section;
}

const KINDS = {
  drawn: ["Drawn", "drawn freely and accepted"],
  masked: ["Masked", "drawn under the grammar's mask"],
  forced: ["Forced", "not drawn: the grammar left no other token"],
};

/** All tokens, and a description of the one that is selected by slider, button or click. */
function decided(decisions) {
  const quoted = ({ token, id }) => `${JSON.stringify(token)} (${id})`;
  const nodes = decisions.map(({ token, kind }, i) => el("span", { class: `token ${kind}`, onclick: () => choose(i) }, visible(token)));
  const pieces = decisions.flatMap(({ refused }, i) => [...refused.map(draw => el("del", { class: "token" }, visible(draw.token))), nodes[i]]);
  const said = el("p", { class: "decision", role: "status" });
  const slider = el("input", { type: "range", min: "0", max: String(decisions.length - 1), value: "0", "aria-label": "Token", oninput: () => choose(slider.valueAsNumber) });
  const choose = i => {
    if (i < 0 || i >= decisions.length) return;
    slider.value = String(i);
    const { kind, refused } = decisions[i];
    nodes.forEach((node, at) => node.classList.toggle("chosen", at === i));
    const after = refused.length ? ` Refused here before: ${refused.map(quoted).join(", ")}.` : "";
    said.textContent = `Token ${i + 1} of ${decisions.length}, ${quoted(decisions[i])}: ${KINDS[kind][1]}.${after}`;
  };
  choose(Math.max(0, decisions.findIndex(decision => decision.refused.length)));
  const step = (label, by) => button(label, () => choose(slider.valueAsNumber + by));
  const legend = Object.entries(KINDS).map(([kind, [label, meaning]]) => el("span", { class: `token ${kind}`, title: meaning }, label));
  return [el("p", { class: "legend" }, ...legend, el("del", { class: "token" }, "Refused")),
    el("div", { class: "tokens", tabindex: "0", role: "group", "aria-label": "Tokens of the answer" }, ...pieces),
    el("div", { class: "row stepper" }, step("Previous", -1), slider, step("Next", 1)), said];
}

/** Shows invisible whitespace as symbols. */
const visible = token => token.replaceAll("\n", "⏎\n").replace(/^ | $/g, "␣").replaceAll("\t", "⇥") || "∅";
