// A request as code, to repeat it elsewhere. The API key is not part of it.

/** For a POSIX shell. */
export function asCurl(base, body) {
  const quoted = JSON.stringify(body, null, 2).replaceAll("'", "'\\''");
  return `curl ${base}/chat/completions -H "Authorization: Bearer $REIN_API_KEY" -H 'Content-Type: application/json' -d '${quoted}'\n`;
}

/** With OpenAI's SDK. */
export function asPython(base, body) {
  const { thinking, ...known } = body;
  const given = Object.entries(known).map(([name, value]) => `    ${name}=${python(value, "    ")},\n`);
  if (thinking !== undefined) given.push(`    extra_body={"thinking": ${python(thinking)}},\n`);
  return `import os

from openai import OpenAI

client = OpenAI(base_url=${JSON.stringify(base)}, api_key=os.environ.get("REIN_API_KEY", "none"))
answer = client.chat.completions.create(
${given.join("")})
print(answer.choices[0].message)
`;
}

/** A JSON value as a literal of Python. */
function python(value, indent = "") {
  const inner = `${indent}    `;
  const lines = (items, [open, close]) => items.length ? `${open}\n${items.map(item => `${inner}${item},\n`).join("")}${indent}${close}` : `${open}${close}`;
  if (value === null) return "None";
  if (typeof value === "boolean") return value ? "True" : "False";
  if (Array.isArray(value)) return lines(value.map(item => python(item, inner)), "[]");
  if (typeof value === "object") return lines(Object.entries(value).map(([name, item]) => `${JSON.stringify(name)}: ${python(item, inner)}`), "{}");
  // Escapes of JSON's texts are Python's, too.
  return JSON.stringify(value);
}
