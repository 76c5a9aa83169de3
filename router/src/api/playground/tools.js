// The tools that a conversation declares: examples, and errors in a declaration, reported before a request.

const tool = (name, description, properties, required) =>
  ({ type: "function", function: { name, description, parameters: { type: "object", properties, required } } });
const weather = tool("get_weather", "Get the current weather for a city",
  { city: { type: "string", description: "City name" }, unit: { type: "string", enum: ["celsius", "fahrenheit"] } }, ["city"]);
const email = tool("send_email", "Send an email",
  { to: { type: "string" }, subject: { type: "string" }, body: { type: "string" } }, ["to", "subject"]);
const order = tool("order_items", "Order items for a customer",
  { items: { type: "array", items: { type: "object", properties: { name: { type: "string" }, quantity: { type: "integer" } },
    required: ["name", "quantity"] } }, urgent: { type: "boolean" } }, ["items"]);

const text = tools => tools.length ? JSON.stringify(tools, null, 2) : "";

/** Examples by name. */
export const EXAMPLES = new Map([
  ["Weather and email", text([weather, email])],
  ["Weather", text([weather])],
  ["Order", text([order])],
  ["Weather, email and order", text([weather, email, order])],
  ["No tools", ""],
]);

/** Questions to begin with, each with the tool that it is for. */
const QUESTIONS = [
  ["What is the weather in Paris?", "get_weather"],
  ["Write to ada@example.com that the meeting moves to 3 pm.", "send_email"],
  ["Order two lamps and a desk. It is urgent.", "order_items"],
  ["What is a mixture-of-experts model?", null],
];

/** The questions that the declared tools can answer. */
export function questions(source) {
  let names;
  try { names = parseTools(source).map(tool => tool.function.name); } catch { names = []; }
  return QUESTIONS.filter(([, name]) => !name || names.includes(name)).map(([text]) => text);
}

export const DEFAULT_TOOLS = text([weather, email]);

/** Initial mock results for the tools of the examples. */
export const EXAMPLE_RESULTS = {
  get_weather: '{"temperature": 21, "condition": "sunny"}',
  send_email: '{"status": "sent"}',
  order_items: '{"order_id": 1042, "status": "accepted"}',
};

/** Parses the declared tools. Throws an Error whose message names the place and the problem. */
export function parseTools(source) {
  if (!source.trim()) return [];
  const tools = parseJson(source);
  if (!Array.isArray(tools)) throw new Error("Tools must be a JSON array: [{\"type\": \"function\", ...}]");
  const names = new Set();
  tools.forEach((tool, i) => {
    const wrong = text => { throw new Error(`Tool ${i + 1}: ${text}`); };
    if (!isObject(tool)) wrong("must be an object");
    if (tool.type !== "function") wrong('"type" must be "function"');
    if (!isObject(tool.function)) wrong('"function" must be an object');
    const { name, parameters } = tool.function;
    if (typeof name !== "string" || !name) wrong('"function.name" must be a text');
    if (names.has(name)) wrong(`"function.name" ${JSON.stringify(name)} is declared twice`);
    if (parameters !== undefined && !isObject(parameters)) wrong('"function.parameters" must be a JSON schema, such as {"type": "object", "properties": {}}');
    names.add(name);
  });
  return tools;
}

const isObject = value => typeof value === "object" && value !== null && !Array.isArray(value);

/** Parses JSON. Throws an Error with the line and column of the first mistake, and what is expected there. */
export function parseJson(source) {
  try {
    return JSON.parse(source);
  } catch (error) {
    const { at, expected } = mistake(source) ?? { at: source.length, expected: error.message };
    const before = source.slice(0, at).split("\n");
    const found = at < source.length ? JSON.stringify(source.slice(at, at + 12).split("\n")[0]) : "the end";
    throw new Error(`Line ${before.length}, column ${before.at(-1).length + 1}: expected ${expected}, found ${found}`);
  }
}

const TOKEN = /\s*([{}[\],:]|"(?:[^"\\\u0000-\u001f]|\\(?:["\\/bfnrt]|u[0-9a-fA-F]{4}))*"|-?(?:0|[1-9]\d*)(?:\.\d+)?(?:[eE][+-]?\d+)?|true|false|null|$)/y;

/** Finds the first mistake: browsers' own errors do not always have its place. */
function mistake(source) {
  let at = 0;
  const next = (expected, fits) => {
    TOKEN.lastIndex = at;
    const found = TOKEN.exec(source)?.[1];
    if (found === undefined || !fits(found)) throw { at: at + /^\s*/.exec(source.slice(at))[0].length, expected };
    at = TOKEN.lastIndex;
    return found;
  };
  const peek = () => { TOKEN.lastIndex = at; return TOKEN.exec(source)?.[1]; };
  const list = (close, what, element) => {
    if (peek() === close) return next(what, () => true);
    for (;;) {
      element();
      if (next(`"," or "${close}"`, token => token === "," || token === close) === close) return close;
    }
  };
  const value = () => {
    const token = next("a value", token => token && !"}],:".includes(token));
    if (token === "[") list("]", "a value", value);
    if (token === "{") {
      list("}", "a name", () => {
        next("a name in double quotes", token => token.startsWith('"'));
        next('":"', token => token === ":");
        value();
      });
    }
  };
  try {
    value();
    next("the end", token => token === "");
    return null;
  } catch (found) {
    return found.expected ? found : null;
  }
}

/** Indents a text if it is JSON. */
export function pretty(source) {
  try { return JSON.stringify(JSON.parse(source), null, 2); } catch { return source; }
}
