// Renders a model's Markdown as elements. The text is untrusted: elements are created one by one and text is set as
// text, HTML stays text, links lead to http, https and mailto only, and images become links. Nested blocks and spans
// are limited in depth, and no input takes more than about linear time.

import { copyButton, el } from "./dom.js";

const MAX_DEPTH = 12;
const MAX_LABEL = 1000; // characters between the brackets of a link
const MAX_COLUMNS = 100;

const FENCE = /^ {0,3}(`{3,}|~{3,})[ \t]*([^`]*)$/;
const HEADING = /^ {0,3}(#{1,6})(?:[ \t]+(.*))?$/;
const RULE = /^ {0,3}([-*_])(?:[ \t]*\1){2,}[ \t]*$/;
const QUOTE = /^ {0,3}> ?/;
const ITEM = /^( *)([-*+]|\d{1,9}[.)])(?:( {1,4})(?! )| +(?= )|$)/;
const BLANK = /^[ \t]*$/;
const WORD = /[\p{L}\p{N}]/u;

/** Shows a growing text: blocks that did not change keep their elements, so that a selection in them survives. */
export class Markdown {
  constructor() {
    this.node = el("div", { class: "markdown" });
    this.shown = [];
  }

  update(source) {
    const blocks = split(source.replaceAll("\r\n", "\n").split("\n"));
    let same = 0;
    while (same < blocks.length && same < this.shown.length && blocks[same].join("\n") === this.shown[same]) same++;
    while (this.node.childNodes.length > same) this.node.lastChild.remove();
    for (const block of blocks.slice(same)) this.node.append(render(block, 0));
    this.shown = blocks.map(block => block.join("\n"));
  }
}

/** The lines of each block. */
function split(lines) {
  const blocks = [];
  for (let at = 0; at < lines.length;) {
    if (BLANK.test(lines[at])) { at++; continue; }
    const end = blockEnd(lines, at);
    blocks.push(lines.slice(at, end));
    at = end;
  }
  return blocks;
}

function blockEnd(lines, at) {
  const fence = FENCE.exec(lines[at]);
  if (fence) {
    for (let end = at + 1; end < lines.length; end++) if (closes(lines[end], fence[1])) return end + 1;
    return lines.length;
  }
  if (HEADING.test(lines[at]) || RULE.test(lines[at])) return at + 1;
  let end = at + 1;
  if (QUOTE.test(lines[at])) {
    while (end < lines.length && QUOTE.test(lines[end])) end++;
  } else if (ITEM.test(lines[at])) {
    end = listEnd(lines, at);
  } else if (isTable(lines, at)) {
    while (end < lines.length && !BLANK.test(lines[end]) && lines[end].includes("|")) end++;
  } else {
    while (end < lines.length && !BLANK.test(lines[end]) && !interrupts(lines, end)) end++;
  }
  return end;
}

function closes(line, fence) {
  const text = line.trim();
  return text.length >= fence.length && [...text].every(letter => letter === fence[0]);
}

/** Whether a block begins here that ends a paragraph without a blank line between them. */
function interrupts(lines, at) {
  const item = ITEM.exec(lines[at]);
  return FENCE.test(lines[at]) || HEADING.test(lines[at]) || RULE.test(lines[at]) || QUOTE.test(lines[at])
    || (item && !BLANK.test(lines[at].slice(item[0].length))) || isTable(lines, at);
}

const ordered = item => item[2].length > 1;
const indentOf = line => line.length - line.trimStart().length;
const contentIndent = item => item[1].length + item[2].length + (item[3]?.length ?? 1);

function listEnd(lines, at) {
  let item = ITEM.exec(lines[at]);
  const first = item;
  let end = at + 1, fence = null;
  for (; end < lines.length; end++) {
    const line = lines[end];
    if (BLANK.test(line)) continue;
    const inside = indentOf(line) >= contentIndent(item);
    const afterBlank = BLANK.test(lines[end - 1]);
    if (inside) {
      const mark = FENCE.exec(line.trimStart());
      if (fence) { if (closes(line, fence)) fence = null; } else if (mark) fence = mark[1];
      continue;
    }
    fence = null;
    const next = RULE.test(line) ? null : ITEM.exec(line);
    if (next && next[1].length <= first[1].length + 3 && ordered(next) === ordered(first)) item = next;
    else if (next || afterBlank || interrupts(lines, end)) break;
  }
  while (BLANK.test(lines[end - 1])) end--;
  return end;
}

/** The lines of a list's items, without their markers and indentation. */
function items(lines) {
  const items = [];
  let width = 0;
  for (const line of lines) {
    const item = RULE.test(line) ? null : ITEM.exec(line);
    if (item && (items.length === 0 || item[1].length < width)) {
      width = contentIndent(item);
      items.push([line.slice(Math.min(width, line.length))]);
    } else {
      items.at(-1).push(line.slice(Math.min(width, indentOf(line))));
    }
  }
  return items;
}

function render(lines, depth) {
  if (depth >= MAX_DEPTH) return el("p", {}, lines.join("\n"));
  const fence = FENCE.exec(lines[0]);
  if (fence) return code(lines, fence);
  const heading = HEADING.exec(lines[0]);
  // The page uses h1 for its title and h2 for a turn, so every heading of an answer is an h3.
  if (heading) return el("h3", { class: `level${heading[1].length}` }, ...spans((heading[2] ?? "").trim().replace(/(^|[ \t])#+$/, "")));
  if (RULE.test(lines[0])) return el("hr");
  if (QUOTE.test(lines[0])) {
    return el("blockquote", {}, ...split(lines.map(line => line.replace(QUOTE, ""))).map(block => render(block, depth + 1)));
  }
  const item = ITEM.exec(lines[0]);
  if (item) return list(lines, item, depth);
  if (isTable(lines, 0)) return table(lines);
  return el("p", {}, ...spans(lines.map(line => line.trim()).join("\n")));
}

function code(lines, fence) {
  const closed = lines.length > 1 && closes(lines.at(-1), fence[1]);
  const text = lines.slice(1, closed ? -1 : undefined).join("\n");
  const language = fence[2].trim().split(/\s/)[0].slice(0, 40);
  const bar = el("div", { class: "code-bar" }, el("span", {}, language || "text"), copyButton(() => text, { class: "quiet" }));
  return el("div", { class: "code" }, bar, el("pre", { tabindex: "0" }, el("code", {}, text)));
}

function list(lines, first, depth) {
  const all = items(lines).map(split);
  // A list is loose if it has a blank line inside.
  const loose = lines.some((line, i) => BLANK.test(line) && i + 1 < lines.length);
  const tag = ordered(first) ? "ol" : "ul";
  const start = ordered(first) ? parseInt(first[2], 10) : 1;
  return el(tag, { start: start !== 1 && String(start) }, ...all.map(blocks => {
    const node = el("li");
    for (const block of blocks) {
      const child = render(block.map((line, i) => i === 0 && block === blocks[0] ? line.replace(/^\[([ xX])\] /, tick) : line), depth + 1);
      if (child.tagName === "P" && !loose) node.append(...child.childNodes);
      else node.append(child);
    }
    return node;
  }));
}

const tick = (_, mark) => mark === " " ? "☐ " : "☑ ";

function cells(line) {
  const cells = [""];
  let text = line.trim();
  if (text.startsWith("|")) text = text.slice(1);
  for (let at = 0; at < text.length && cells.length <= MAX_COLUMNS; at++) {
    if (text[at] === "\\" && text[at + 1] === "|") cells[cells.length - 1] += text[++at];
    else if (text[at] !== "|") cells[cells.length - 1] += text[at];
    else if (at + 1 < text.length) cells.push("");
  }
  return cells.map(cell => cell.trim());
}

function isTable(lines, at) {
  if (!lines[at].includes("|") || at + 1 >= lines.length || !lines[at + 1].includes("-")) return false;
  const marks = cells(lines[at + 1]);
  return marks.every(mark => /^:?-+:?$/.test(mark)) && marks.length === cells(lines[at]).length;
}

function table(lines) {
  const align = cells(lines[1]).map(mark => mark.endsWith(":") ? (mark.startsWith(":") ? "center" : "right") : null);
  const row = (line, tag) => {
    const values = cells(line);
    return el("tr", {}, ...align.map((to, i) => el(tag, { class: to }, ...spans(values[i] ?? ""))));
  };
  const body = lines.slice(2).map(line => row(line, "td"));
  const shown = el("table", {}, el("thead", {}, row(lines[0], "th")), el("tbody", {}, ...body));
  return el("div", { class: "table", tabindex: "0", role: "region", "aria-label": "Table" }, shown);
}

/** Elements and text of a run of spans. */
function spans(text, depth = 0) {
  if (depth >= MAX_DEPTH) return [text];
  const out = [], absent = new Set();
  let plain = "";
  const push = node => {
    if (plain) out.push(plain);
    plain = "";
    out.push(node);
  };
  for (let at = 0; at < text.length;) {
    const found = span(text, at, depth, absent);
    if (found) { push(found.node); at = found.end; } else if (text[at] === "\\" && /[!-/:-@[-`{-~]/.test(text[at + 1] ?? "")) {
      plain += text[at + 1];
      at += 2;
    } else {
      // A word, and a run of marks that opens no span, is text as a whole.
      const run = /[\p{L}\p{N} ,.;]+|([`*_~])\1*|[^]/yu;
      run.lastIndex = at;
      let [taken] = run.exec(text);
      const url = taken.search(/https?$/);
      if (url > 0 && text.startsWith("://", at + taken.length)) taken = taken.slice(0, url);
      plain += taken;
      at += taken.length;
    }
  }
  if (plain) out.push(plain);
  return out;
}

/** The span that begins here, and where it ends. `absent` has the marks that have no closing mark in the rest of the text. */
function span(text, at, depth, absent) {
  switch (text[at]) {
    case "\n": return { node: el("br"), end: at + 1 };
    case "`": {
      const end = codeEnd(text, at, absent);
      if (!end) return null;
      const ticks = runOf(text, at);
      const inner = text.slice(at + ticks, end - ticks).replaceAll("\n", " ");
      const trimmed = inner.length > 2 && inner.startsWith(" ") && inner.endsWith(" ") ? inner.slice(1, -1) : inner;
      return { node: el("code", {}, trimmed), end };
    }
    case "*": case "_": case "~": return emphasis(text, at, depth, absent);
    case "!": return text[at + 1] === "[" ? link(text, at + 1, depth, "image: ") : null;
    case "[": return link(text, at, depth, "");
    case "<": {
      const target = text.slice(at + 1, at + MAX_LABEL);
      const length = target.indexOf(">");
      return length > 0 ? anchor(target.slice(0, length), [target.slice(0, length)], at + length + 2) : null;
    }
    case "h": return bare(text, at);
    default: return null;
  }
}

function runOf(text, at) {
  let end = at;
  while (text[end] === text[at]) end++;
  return end - at;
}

/** Where the code span ends that begins with these backticks. */
function codeEnd(text, at, absent) {
  const ticks = runOf(text, at);
  if (absent.has(ticks)) return 0;
  for (let end = text.indexOf("`", at + ticks); end >= 0; end = text.indexOf("`", end)) {
    const run = runOf(text, end);
    if (run === ticks) return end + run;
    end += run;
  }
  absent.add(ticks);
  return 0;
}

function emphasis(text, at, depth, absent) {
  const letter = text[at], run = runOf(text, at);
  const width = Math.min(run, letter === "~" ? 2 : 3);
  const before = text[at - 1] ?? " ", after = text[at + run] ?? " ";
  if (/\s/.test(after) || (letter === "~" && run !== 2) || (letter === "_" && WORD.test(before)) || run > 3) return null;
  const mark = letter.repeat(width);
  if (absent.has(mark)) return null;
  for (let end = at + width; end < text.length; end++) {
    if (text[end] === "\\") { end++; continue; }
    if (text[end] === "`") { end = Math.max(end + runOf(text, end), codeEnd(text, end, absent)) - 1; continue; }
    if (text[end] !== letter) continue;
    const closing = runOf(text, end), next = text[end + closing] ?? " ";
    const fits = closing === width || (closing > width && closing >= 3);
    if (fits && !/\s/.test(text[end - 1]) && !(letter === "_" && WORD.test(next))) {
      // In a longer run, the last marks close this span, and those before them close inner spans.
      const inner = spans(text.slice(at + width, end + closing - width), depth + 1);
      return { node: wrapped(letter, width, inner), end: end + closing };
    }
    end += closing - 1;
  }
  absent.add(mark);
  return null;
}

function wrapped(letter, width, inner) {
  if (letter === "~") return el("del", {}, ...inner);
  const outer = el(width === 1 ? "em" : "strong", {}, ...(width === 3 ? [el("em", {}, ...inner)] : inner));
  return outer;
}

function link(text, at, depth, prefix) {
  let open = 0, close = at;
  for (const limit = Math.min(text.length, at + MAX_LABEL); close < limit; close++) {
    if (text[close] === "\\") close++;
    else if (text[close] === "[") open++;
    else if (text[close] === "]" && --open === 0) break;
  }
  if (text[close] !== "]" || text[close + 1] !== "(") return null;
  const target = /\(\s*<?([^\s<>()]*(?:\([^\s<>()]*\)[^\s<>()]*)*)>?(?:\s+"[^"]*"|\s+'[^']*')?\s*\)/y;
  target.lastIndex = close + 1;
  const found = target.exec(text.slice(0, close + 1 + 4 * MAX_LABEL));
  if (!found) return null;
  const label = text.slice(at + 1, close);
  return anchor(found[1], [prefix, ...(label ? withoutLinks(label, depth) : [found[1]])], target.lastIndex);
}

/** The spans of a link's label: links in it are text. */
function withoutLinks(label, depth) {
  return spans(label, depth + 1).map(node => node.tagName === "A" ? node.textContent : node);
}

function bare(text, at) {
  if (WORD.test(text[at - 1] ?? " ")) return null;
  const url = /https?:\/\/[^\s<>"'`*[\]{}|\\^]+/y;
  url.lastIndex = at;
  const found = url.exec(text)?.[0];
  if (!found) return null;
  let length = found.length;
  while (/[.,;:!?)]/.test(found[length - 1]) && !(found[length - 1] === ")" && found.slice(0, length).includes("("))) length--;
  return anchor(found.slice(0, length), [found.slice(0, length)], at + length);
}

/** A link, if its target is allowed. */
function anchor(target, children, end) {
  let url;
  try { url = new URL(target); } catch { return null; }
  if (!["http:", "https:", "mailto:"].includes(url.protocol)) return null;
  return { node: el("a", { href: url.href, target: "_blank", rel: "noopener noreferrer" }, ...children), end };
}
