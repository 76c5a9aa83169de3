// The page of openapi.json: paths, parameters, fields of bodies and answers. It knows OpenAPI, not Rein.

import { $, el } from "./dom.js";

const MOST_DEEP = 6;

const resolve = (root, schema) => (schema?.$ref ? schema.$ref.slice(2).split("/").reduce((at, part) => at[part], root) : schema);

function typeOf(root, schema) {
  const given = resolve(root, schema) ?? {};
  const options = given.anyOf ?? given.oneOf;
  if (options) return options.map((option) => typeOf(root, option)).join(" or ");
  if (given.enum) return given.enum.map((value) => JSON.stringify(value)).join(" or ");
  if (given.const !== undefined) return JSON.stringify(given.const);
  const types = [given.type ?? "any"].flat();
  return types.map((type) => (type === "array" ? `list of ${typeOf(root, given.items)}` : type)).join(" or ");
}

function bounds(schema) {
  const named = { minimum: "at least", exclusiveMinimum: "above", maximum: "at most", exclusiveMaximum: "below", default: "default" };
  return Object.entries(named).filter(([key]) => schema[key] !== undefined).map(([key, words]) => `${words} ${JSON.stringify(schema[key])}`);
}

/** The schemas whose properties a value of this schema may have. */
function objects(root, schema, deep = 0) {
  const given = resolve(root, schema) ?? {};
  if (deep > MOST_DEEP) return [];
  const inner = [...(given.anyOf ?? []), ...(given.oneOf ?? []), ...(given.allOf ?? []), given.items].filter(Boolean);
  return [...(given.properties ? [given] : []), ...inner.flatMap((part) => objects(root, part, deep + 1))];
}

function fields(root, schema, deep) {
  return objects(root, schema).flatMap((object) =>
    Object.entries(object.properties).map(([name, property]) => {
      const given = resolve(root, property);
      const facts = [typeOf(root, property), (object.required ?? []).includes(name) ? "required" : undefined, ...bounds(given)];
      const row = el("div", { class: "field" }, el("code", {}, name), " ", el("span", { class: "type" }, facts.filter(Boolean).join(", ")));
      if (given.description) row.append(el("div", { class: "what" }, given.description));
      if (deep < MOST_DEEP && objects(root, property).length) row.append(folded(root, property, "fields", deep + 1));
      return row;
    }),
  );
}

/** Fields that are made when they are first shown: schemas may contain themselves. */
function folded(root, schema, title, deep) {
  const made = el("details", { class: "fields" }, el("summary", {}, title));
  made.addEventListener("toggle", () => made.childElementCount === 1 && made.append(...fields(root, schema, deep)), { once: true });
  return made;
}

function operation(root, path, method, given) {
  const made = el("details", { class: "path" });
  made.append(el("summary", {}, el("span", { class: "method" }, method.toUpperCase()), el("code", {}, path), " ", el("span", { class: "what" }, given.summary ?? "")));
  made.dataset.text = JSON.stringify([path, given.summary, names(root, given.requestBody)]).toLowerCase();
  const fill = () => {
    for (const parameter of given.parameters ?? []) {
      made.append(el("div", { class: "field" }, el("code", {}, parameter.name), " ", el("span", { class: "type" }, `${parameter.in}, ${typeOf(root, parameter.schema)}`)));
    }
    for (const [type, { schema }] of Object.entries(given.requestBody?.content ?? {})) {
      made.append(el("h2", {}, `Body (${type})`), ...fields(root, schema, 0));
      const refused = Object.entries(resolve(root, schema)?.["x-refused-fields"] ?? {});
      if (refused.length) {
        const rows = refused.map(([name, why]) => el("div", { class: "field" }, el("code", {}, name), " ", el("span", { class: "what" }, why)));
        made.append(el("details", { class: "fields" }, el("summary", {}, "refused fields, and why"), ...rows));
      }
    }
    made.append(el("h2", {}, "Answers"));
    for (const [status, answer] of Object.entries(given.responses ?? {})) {
      const row = el("div", { class: "field" }, el("code", {}, status), " ", el("span", { class: "what" }, answer.description ?? ""));
      for (const [type, { schema }] of Object.entries(answer.content ?? {})) {
        if (schema && objects(root, schema).length) row.append(folded(root, schema, type, 0));
      }
      made.append(row);
    }
  };
  made.addEventListener("toggle", fill, { once: true });
  return made;
}

/** The names of a body's fields, to filter by. */
function names(root, body) {
  return Object.values(body?.content ?? {}).flatMap(({ schema }) => objects(root, schema).flatMap((object) => Object.keys(object.properties)));
}

const shown = $("paths");
try {
  const root = await (await fetch("/openapi.json")).json();
  const all = Object.entries(root.paths).flatMap(([path, item]) => Object.entries(item).map(([method, given]) => operation(root, path, method, given)));
  shown.append(...all);
  $("filter").addEventListener("input", ({ target }) => {
    for (const one of all) one.hidden = !one.dataset.text.includes(target.value.trim().toLowerCase());
  });
} catch (error) {
  shown.append(el("p", {}, `openapi.json cannot be read: ${error.message}`));
}
