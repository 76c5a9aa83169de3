// Functions that make the page's elements. Text is always set as text: nothing in this page parses markup.

export const $ = id => document.getElementById(id);

/**
 * Makes an element. `class` sets its class, `on...` adds a listener, `value` and `checked` set the property; everything
 * else is an attribute, left out when it is false, null or undefined. Children are nodes or text.
 */
export function el(tag, properties = {}, ...children) {
  const node = document.createElement(tag);
  for (const [name, value] of Object.entries(properties)) {
    if (value === false || value === null || value === undefined) continue;
    if (name === "class") node.className = value;
    else if (name.startsWith("on")) node.addEventListener(name.slice(2), value);
    else if (name === "value" || name === "checked") node[name] = value;
    else node.setAttribute(name, value === true ? "" : value);
  }
  node.append(...children.flat().filter(child => child !== null && child !== undefined && child !== false));
  return node;
}

/** A button with a text label. */
export const button = (label, onclick, properties = {}) => el("button", { type: "button", onclick, ...properties }, label);

/** A button that copies what `text` returns, unless that is null, and says so for a moment. */
export function copyButton(text, properties = {}, label = "Copy") {
  const node = button(label, async () => {
    const copied = text();
    if (copied === null) return;
    try {
      await navigator.clipboard.writeText(copied);
      node.textContent = "Copied";
    } catch {
      // Pages that are not served from localhost or over TLS have no clipboard.
      node.textContent = copyBySelection(copied) ? "Copied" : "Copy failed";
    }
    setTimeout(() => { node.textContent = label; }, 1500);
  }, properties);
  return node;
}

function copyBySelection(text) {
  const area = el("textarea", { value: text, class: "offscreen", "aria-hidden": "true" });
  const focused = document.activeElement;
  document.body.append(area);
  area.select();
  const copied = document.execCommand("copy");
  area.remove();
  focused?.focus();
  return copied;
}

/** Makes a text area as high as its text, within what the style sheet allows. */
export function grow(area) {
  area.style.height = "auto";
  area.style.height = `${area.scrollHeight + area.offsetHeight - area.clientHeight}px`;
}

/** Announces a text to assistive technology without showing it. */
export function announce(text) {
  $("status").textContent = text;
}

let hideToast = null;

/** Shows a message at the bottom of the page for some seconds, with an action if there is one. */
export function toast(text, label, action) {
  const box = $("toast");
  clearTimeout(hideToast);
  const close = () => { box.hidden = true; };
  box.replaceChildren(el("span", {}, text), label ? button(label, () => { close(); action(); }) : "", button("Close", close));
  box.hidden = false;
  hideToast = setTimeout(close, 8000);
}

/** Joins values into a line, without missing ones. */
export const joined = (...values) => values.filter(Boolean).join(" · ");

/** "1 token", "2 tokens". */
export const count = (number, noun) => `${number} ${noun}${number === 1 ? "" : "s"}`;

/** Milliseconds as people read them. */
export const duration = ms => ms < 1000 ? `${Math.round(ms)} ms` : `${(ms / 1000).toFixed(ms < 10000 ? 1 : 0)} s`;
