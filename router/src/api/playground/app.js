// The page: connects its parts, and handles keyboard shortcuts, drawers and the API key.

import { call } from "./api.js";
import { $, announce, button, el, grow, toast } from "./dom.js";
import { inspect } from "./inspect.js";
import { Log } from "./log.js";
import { cut, question, request, SettingError, textOf } from "./messages.js";
import { Panel } from "./panel.js";
import { Session } from "./session.js";
import * as store from "./store.js";
import { EXAMPLES } from "./tools.js";

let current = null;

const session = new Session({
  structure: conversation => {
    if (conversation === current) show();
    else list();
  },
  progress: (conversation, message) => { if (conversation === current) log.update(message); },
  ended: (conversation, message) => {
    if (conversation === current) announce(message.error ?? "The answer is complete.");
  },
  failed,
});
const guarded = action => (...given) => {
  Promise.resolve().then(() => action(...given)).catch(failed);
  log.follow();
};
const log = new Log($("log"), $("latest"), {
  ask: text => { $("question").value = text; ask(); },
  retry: guarded((message, text) => session.retry(current, message, text)),
  rewrite: guarded((message, text) => session.rewrite(current, message, text)),
  give: guarded((message, part, text) => session.give(current, message, part, text)),
  inspect: message => {
    const title = message.error ? "Failed answer" : `Answer: ${textOf(message).slice(0, 40) || "tool call"}`;
    inspect($("inspect"), title, () => session.bodyOf(current, message), message, session.traces.get(message.id));
    panel.open("tab-inspect");
    drawer("panel", true);
  },
});
const panel = new Panel(() => {
  if (current.messages.length) store.save(current);
  else log.refresh();
});

/** Shows an error at the field that causes it, or as a toast. */
function failed(error) {
  if (error instanceof SettingError) {
    drawer("panel", true);
    panel.lead(error.field);
    toast(error.message);
  } else if (error.wantsKey) {
    keyNote(store.key.get() ? `The server refuses this key: ${error.message}` : "This server asks for an API key.", true);
    drawer("panel", true);
    panel.lead("key");
  } else toast(error.message);
}

// Conversations

function open(conversation) {
  current = session.live(conversation.id) ?? conversation;
  if (!session.isBusy(current)) {
    // The page was closed while this answer was streamed.
    for (const message of current.messages) {
      if (message.role === "assistant" && !message.finish) cut(message, "stopped", textOf(message) ? null : "Stopped before there was an answer.");
    }
  }
  store.opened.set(current.id);
  panel.show(current.settings);
  log.follow();
  show();
  preview();
}

function show() {
  const busy = session.isBusy(current);
  log.show(current, busy);
  // Only the buttons change. The focus stays, so that typing is not interrupted.
  $("send").hidden = busy;
  $("stop").hidden = !busy;
  document.title = current.name ? `${current.name} – Rein playground` : "Rein playground";
  list();
}

function list() {
  const kept = store.all();
  const shown = kept.some(one => one.id === current.id) ? kept : [current, ...kept];
  $("conversations").replaceChildren(...shown.map(conversation => {
    const here = conversation.id === current.id;
    const name = (here ? current.name : conversation.name) || "New conversation";
    const label = button(name, () => { open(conversation); drawer("list", false); }, { class: "open", "aria-current": here && "true" });
    const item = el("li", { class: here && "here" }, label);
    if (here && current.messages.length) {
      item.append(el("div", { class: "actions" }, button("Rename", () => rename(item, label), { "aria-label": `Rename ${name}` }),
        button("Delete", () => remove(), { "aria-label": `Delete ${name}` })));
    }
    return item;
  }));
}

function rename(item, label) {
  const input = el("input", { value: current.name, "aria-label": "Name of the conversation", maxlength: "100" });
  const form = el("form", {}, input);
  const end = () => { current.name = input.value.trim() || current.name; store.save(current); show(); };
  form.onsubmit = event => { event.preventDefault(); end(); };
  input.onblur = end;
  input.onkeydown = event => {
    if (event.key !== "Escape") return;
    event.stopPropagation();
    input.onblur = null;
    list();
  };
  item.replaceChildren(form);
  input.select();
}

function remove() {
  const gone = current;
  session.remove(gone);
  open(store.all()[0] ?? store.create(gone.settings));
  toast(`Deleted "${gone.name}"`, "Undo", () => { store.save(gone); open(gone); });
}

function start() {
  open(current?.messages.length === 0 ? current : store.create(current?.settings));
  drawer("list", false);
  $("question").focus();
}

store.onChange(() => {
  const changed = store.all().find(one => one.id === current.id);
  if (changed && !session.isBusy(current) && changed.updated > current.updated) open(changed);
  else list();
});

/** Shows the next prompt in the panel while no answer is selected. */
function preview() {
  inspect($("inspect"), "Next question", () => {
    const text = $("question").value.trim() || (current.messages.length ? "" : "Hello");
    return request({ ...current, messages: text ? [...current.messages, question(text)] : current.messages });
  });
}

// The composer

async function ask() {
  const text = $("question").value;
  // Enter while an answer is streamed neither stops it nor discards the typed text.
  if (!text.trim() || session.isBusy(current)) return;
  try {
    const answered = session.ask(current, text);
    $("question").value = "";
    grow($("question"));
    log.follow();
    await answered;
  } catch (error) {
    failed(error);
  }
}

$("composer").onsubmit = event => { event.preventDefault(); ask(); };
$("question").oninput = () => grow($("question"));
$("question").onkeydown = event => {
  // During the composition of a character, Enter belongs to the input method.
  if (event.key !== "Enter" || event.shiftKey || event.isComposing) return;
  event.preventDefault();
  ask();
};
$("stop").onclick = () => { session.stop(current); $("question").focus(); };
$("new").onclick = start;

// Drawers, on narrow pages

function drawer(name, shown) {
  const other = name === "list" ? "panel" : "list";
  document.body.classList.toggle(`${name}-open`, shown);
  if (shown) document.body.classList.remove(`${other}-open`);
  for (const one of ["list", "panel"]) $(`open-${one}`).setAttribute("aria-expanded", String(document.body.classList.contains(`${one}-open`)));
}

function closeDrawers() {
  for (const name of ["list", "panel"]) {
    if (!document.body.classList.contains(`${name}-open`)) continue;
    drawer(name, false);
    $(`open-${name}`).focus();
  }
}

for (const name of ["list", "panel"]) {
  $(`open-${name}`).onclick = () => {
    drawer(name, true);
    $(name).querySelector("button, [tabindex='0']").focus();
  };
}
$("close-panel").onclick = $("backdrop").onclick = closeDrawers;
document.addEventListener("keydown", event => {
  if (event.key !== "Escape" || event.isComposing) return;
  if (session.isBusy(current)) session.stop(current);
  else closeDrawers();
});

// The key and the models

function keyNote(text, wrong = false) {
  $("key-note").textContent = text;
  $("key-note").classList.toggle("error", wrong);
  $("key").setAttribute("aria-invalid", String(wrong));
}

$("key-form").onsubmit = async event => {
  event.preventDefault();
  const typed = $("key").value.trim();
  if (/[^\x21-\x7e]/.test(typed)) return keyNote("A key may contain only ASCII letters, digits and symbols, without spaces.", true);
  store.key.set(typed);
  if (await models()) keyNote(typed ? "The key is used until this tab closes." : "No key is sent.");
};

/** Lists the models. Returns whether the server answered. */
async function models() {
  try {
    const { data } = await (await call("v1/models")).json();
    $("model").replaceChildren(...data.map(model => el("option", {}, model.id)));
    if (!data.some(model => model.id === current.settings.model)) current.settings.model = data[0]?.id ?? "";
    $("model").value = current.settings.model;
    return true;
  } catch (error) {
    failed(error);
    return false;
  }
}

/** Reads settings and a question from the page's address, such as ?ask=Hello&temperature=0. */
function fromAddress(address) {
  const names = { model: "model", system: "system", tool_choice: "toolChoice", temperature: "temperature", top_p: "topP", seed: "seed", max_tokens: "maxTokens" };
  const given = [...address].filter(([name]) => name in names || ["ask", "example", "reasoning"].includes(name));
  if (!given.length) return null;
  const conversation = store.create();
  for (const [name, value] of given) {
    if (name in names) conversation.settings[names[name]] = value;
    if (name === "example") conversation.settings.tools = EXAMPLES.get(value) ?? conversation.settings.tools;
    if (name === "reasoning") conversation.settings.reasoning = value === "true";
  }
  return conversation;
}

$("key").value = store.key.get();
const address = new URLSearchParams(location.search);
const kept = store.all();
open(fromAddress(address) ?? kept.find(one => one.id === store.opened.get()) ?? kept[0] ?? store.create());
const ready = await models();
if (ready) $("question").focus({ preventScroll: true });
if (address.has("ask")) {
  $("question").value = address.get("ask");
  // A reload does not ask again.
  window.history.replaceState(null, "", location.pathname);
  if (ready) ask();
}
