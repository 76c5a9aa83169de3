"""The requests of docs/understand/valid-but-wrong.md, asked of a server that is running. Prints what became of each, in Markdown.

    python3 tests/real/gallery.py http://127.0.0.1:8000 MODEL"""
import json
import sys
import urllib.error
import urllib.request

MAX_TOKENS = 384
SHOWN = 70


def tool(name, description, required, **properties):
    parameters = {"type": "object", "properties": properties, "required": required}
    return {"type": "function", "function": {"name": name, "description": description, "parameters": parameters}}


def answer_with(schema):
    return {"response_format": {"type": "json_schema", "json_schema": {"name": "answer", "schema": schema}}}


def user(text):
    return [{"role": "user", "content": text}]


STRING, INTEGER = {"type": "string"}, {"type": "integer"}
WEATHER = tool("get_weather", "The current weather of a city", ["city"], city=STRING)
ORDER = tool("create_order", "Orders products", ["items"], items={"type": "array", "items": {
    "type": "object", "properties": {"product": STRING, "quantity": INTEGER}, "required": ["product", "quantity"]}})
LANDMARKS = {"type": "object", "properties": {
    "name": STRING, "landmarks": {"type": "array", "items": {
        "type": "object", "properties": {"name": STRING, "year": {"type": ["integer", "null"]}}, "required": ["name", "year"]}}},
    "required": ["name", "landmarks"], "additionalProperties": False}
NODE = {"type": "object", "properties": {"label": STRING, "children": {"type": "array", "items": {"$ref": "#/$defs/node"}, "maxItems": 3}},
        "required": ["label", "children"], "additionalProperties": False}
MAP = {"type": "object", "properties": {"unit": STRING}, "required": ["unit"], "additionalProperties": {"type": "number"}}
NOTE = {"type": "object", "properties": {"version": {"const": 2}, "kind": {"const": "note"}, "body": STRING},
        "required": ["version", "kind", "body"], "additionalProperties": False}
REQUIRED = {"tool_choice": "required"}
CASES = {
    "landmarks": {"messages": user("List three landmarks of Rome with the year they were built"), **answer_with(LANDMARKS)},
    "tree": {"messages": user("Write a small family as a tree."), **answer_with({"$defs": {"node": NODE}, "$ref": "#/$defs/node"})},
    "map": {"messages": user("Give a table of temperatures of a week with the unit."), **answer_with(MAP)},
    "note": {"messages": user("Write a note about rain."), **answer_with(NOTE)},
    "one call": {"messages": user("What is the weather in Paris?"), "tools": [WEATHER], **REQUIRED},
    "two calls": {"messages": user("What is the weather in Rome and in Oslo?"), "tools": [WEATHER], **REQUIRED},
    "no call": {"messages": user("Say hello."), "tools": [WEATHER], **REQUIRED},
    "order": {"messages": user("Order two pens and one lamp, as a gift."), "tools": [ORDER], **REQUIRED},
    "as text": {"messages": user("What is the weather in Paris?"), "tools": [WEATHER]},
    "in a code block": {"messages": user("What is the weather in Rome and in Oslo?"), "tools": [WEATHER]},
    "next turn": {"messages": [
        *user("What is the weather in Paris?"),
        {"role": "assistant", "content": None, "tool_calls": [{"id": "c1", "type": "function", "function": {"name": "get_weather", "arguments": '{"city": "Paris"}'}}]},
        {"role": "tool", "tool_call_id": "c1", "content": "18 degrees, sunny"}, *user("And in Oslo?")], "tools": [WEATHER]},
}


def asked(url, model, body):
    body = {"model": model, "temperature": 0, "max_tokens": MAX_TOKENS, **body}
    request = urllib.request.Request(f"{url}/v1/chat/completions", json.dumps(body).encode(), {"content-type": "application/json"})
    try:
        answer = json.load(urllib.request.urlopen(request))
    except urllib.error.HTTPError as error:
        return {"ends": str(error.code), "tokens": "", "calls": "", "reasoning": "", "text": json.load(error)["error"]["message"]}
    choice, message = answer["choices"][0], answer["choices"][0]["message"]
    calls = [f"{call['function']['name']}({call['function']['arguments']})" for call in message.get("tool_calls") or []]
    ends = ", ".join(filter(None, [choice["finish_reason"], choice.get("ended_early")]))
    return {"ends": ends, "tokens": answer["usage"]["completion_tokens"], "calls": f"{len(calls)}: {calls[0]}" if calls else "0",
            "reasoning": message.get("reasoning_content") or "", "text": message.get("content") or ""}


def cell(value):
    text = json.dumps(value, ensure_ascii=False)[1:-1] if isinstance(value, str) else str(value)
    text = text if len(text) <= 2 * SHOWN else f"{text[:SHOWN]} ... {text[-SHOWN:]}"
    return text.replace("|", "\\|")


def main(url, model):
    print("| case | ends | tokens | calls | reasoning | text |\n|---|---|---|---|---|---|")
    for name, body in CASES.items():
        print(f"| {name} | " + " | ".join(cell(value) for value in asked(url.rstrip("/"), model, body).values()) + " |", flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
