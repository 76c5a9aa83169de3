// The panel beside the messages: settings and tools of the conversation, and the tab that inspects an answer.

import { $, el, grow } from "./dom.js";
import { EXAMPLES, EXAMPLE_RESULTS, parseTools } from "./tools.js";

const TEXTS = ["model", "system", "tools", "toolChoice", "temperature", "topP", "seed", "maxTokens"];
const CHECKS = ["parallel", "reasoning", "sendMocks"];
const CHOICES = [["auto", "auto: the model decides"], ["required", "required: at least one call"], ["none", "none: no call"]];
const CUSTOM = "Custom";

export class Panel {
  /** `changed(settings)` is called after the user changed a setting. */
  constructor(changed) {
    this.changed = changed;
    for (const name of [...EXAMPLES.keys(), CUSTOM]) $("examples").append(el("option", {}, name));
    for (const id of TEXTS) $(id).addEventListener("input", () => this.set(id, $(id).value));
    for (const id of CHECKS) $(id).addEventListener("change", () => this.set(id, $(id).checked));
    $("examples").onchange = () => {
      const text = EXAMPLES.get($("examples").value);
      if (text === undefined) return;
      $("tools").value = text;
      this.set("tools", text);
    };
    $("format").onclick = () => {
      $("tools").value = JSON.stringify(parseTools($("tools").value), null, 2);
      this.set("tools", $("tools").value);
    };
    this.tabs = [...document.querySelectorAll("[role=tab]")];
    this.tabs.forEach((tab, i) => {
      tab.onclick = () => this.open(tab.id);
      tab.onkeydown = event => {
        const step = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
        if (!step) return;
        event.preventDefault();
        const next = this.tabs.at((i + step) % this.tabs.length);
        this.open(next.id);
        next.focus();
      };
    });
  }

  set(name, value) {
    this.settings[name] = value;
    if (name === "tools") this.showTools();
    if (name === "system") grow($("system"));
    this.changed(this.settings);
  }

  show(settings) {
    this.settings = settings;
    for (const id of TEXTS) if (id !== "toolChoice") $(id).value = settings[id];
    for (const id of CHECKS) $(id).checked = settings[id];
    grow($("system"));
    this.showTools();
  }

  /** Updates what depends on the declared tools: the note under them, the choices, the mock results. */
  showTools() {
    const { settings } = this;
    const example = [...EXAMPLES].find(([, text]) => text === settings.tools.trim());
    $("examples").value = example ? example[0] : CUSTOM;
    let names = null, wrong = "";
    try { names = parseTools(settings.tools).map(tool => tool.function.name); } catch (error) { wrong = error.message; }
    $("tools-note").textContent = wrong || (names.length ? `Declared: ${names.join(", ")}` : "No tools are declared.");
    $("tools-note").classList.toggle("error", Boolean(wrong));
    $("tools").setAttribute("aria-invalid", String(Boolean(wrong)));
    $("format").disabled = Boolean(wrong) || !names.length;
    // While the declaration is invalid, choices and results stay.
    if (!names) names = this.names ?? [];
    this.names = names;
    const choices = [...CHOICES, ...names.map(name => [`tool:${name}`, `${name}: a call of this tool`])];
    if (!choices.some(([value]) => value === settings.toolChoice)) settings.toolChoice = "auto";
    $("toolChoice").replaceChildren(...choices.map(([value, label]) => el("option", { value }, label)));
    $("toolChoice").value = settings.toolChoice;
    this.showMocks(names);
  }

  showMocks(names) {
    const fields = [...$("mocks").querySelectorAll("textarea")];
    if (fields.length === names.length && fields.every((field, i) => field.dataset.tool === names[i] && field.value === (this.settings.mocks[names[i]] ?? ""))) return;
    $("mocks").replaceChildren(...names.map(name => {
      const area = el("textarea", {
        id: `mock-${name}`, class: "code-input", rows: "1", spellcheck: "false", "data-tool": name, value: this.settings.mocks[name] ?? "",
        placeholder: EXAMPLE_RESULTS[name] ?? '{"status": "ok"}',
        oninput: () => { grow(area); this.set("mocks", { ...this.settings.mocks, [name]: area.value }); },
      });
      return el("div", {}, el("label", { for: `mock-${name}` }, name), area);
    }));
  }

  open(tab) {
    for (const one of this.tabs) {
      const selected = one.id === tab;
      one.setAttribute("aria-selected", String(selected));
      one.tabIndex = selected ? 0 : -1;
      $(one.getAttribute("aria-controls")).hidden = !selected;
    }
    $("panel").scrollTop = 0;
    grow($("system"));
  }

  /** Moves the focus to the field that prevents a request. */
  lead(field) {
    const pane = $(field).closest("[role=tabpanel]");
    this.open(pane.getAttribute("aria-labelledby"));
    $(field).focus();
  }
}
