#!/usr/bin/env python3
"""CPU time of a server per turn of a coding agent's conversation: a body of about 76 KB with 24 tools.

    benches/turns.py URL PID [--api chat|messages|responses] [--tools N] [--conversations N]

Each conversation has its own tools, so its first turn is new to the server. The second turn adds a call and its
result. Prints the milliseconds of CPU time of the process per turn, with and without the engine's threads.
"""
import argparse
import http.client
import json
import pathlib
import statistics
import urllib.parse

WORDS = ("the file path must be absolute and a command runs in shell `grep` never use this tool when results are needed, "
         "first\n - read it. Returns output of each match, sorted by time; see \"examples\" below").split(" ")


def words(seed, count):
    return " ".join(WORDS[(seed * 7 + i * i + i // 3) % len(WORDS)] for i in range(count))


def tool(conversation, index, description):
    text = lambda more, count: {"type": "string", "description": words(index + more, count)}
    edit = {"type": "object", "properties": {"old": {"type": "string"}, "new": {"type": "string"}},
            "required": ["old", "new"], "additionalProperties": False}
    properties = {"file_path": text(1, 12), "pattern": text(2, 20), "limit": {"type": "number", "description": words(index, 10)},
                  "mode": {"type": "string", "enum": ["content", "files_with_matches", "count"]},
                  "edits": {"type": "array", "items": edit}}
    return {"type": "function", "function": {
        "name": f"Tool{index}", "description": f"{conversation} {words(index, description)}",
        "parameters": {"type": "object", "properties": properties, "required": ["file_path"], "additionalProperties": False}}}


def body(model, conversation, turns, tools):
    messages = [{"role": "system", "content": words(5, 1800)}, {"role": "user", "content": words(6, 40)}]
    for turn in range(turns - 1):
        call = {"id": f"call_{turn}", "type": "function",
                "function": {"name": "Tool1", "arguments": json.dumps({"file_path": f"/src/{turn}.rs"})}}
        messages += [{"role": "assistant", "content": words(turn, 12), "tool_calls": [call]},
                     {"role": "tool", "tool_call_id": f"call_{turn}", "content": words(turn + 9, 300)}]
    declared = [tool(conversation, index, 330) for index in range(tools)]
    return {"model": model, "messages": messages, "tools": declared, "max_tokens": 1, "temperature": 0}


def as_messages(chat):
    """The same conversation for the Messages API."""
    system, *rest = chat["messages"]
    messages = []
    for message in rest:
        blocks = [{"type": "text", "text": message["content"]}]
        for call in message.get("tool_calls", []):
            blocks.append({"type": "tool_use", "id": call["id"], "name": call["function"]["name"],
                           "input": json.loads(call["function"]["arguments"])})
        if message["role"] == "tool":
            blocks = [{"type": "tool_result", "tool_use_id": message["tool_call_id"], "content": message["content"]}]
        messages.append({"role": "assistant" if message["role"] == "assistant" else "user", "content": blocks})
    functions = [tool["function"] for tool in chat["tools"]]
    tools = [{"name": f["name"], "description": f["description"], "input_schema": f["parameters"]} for f in functions]
    return chat | {"system": system["content"], "messages": messages, "tools": tools}


def as_responses(chat):
    """The same conversation for the Responses API."""
    system, *rest = chat["messages"]
    items = []
    for message in rest:
        if message["role"] == "tool":
            items.append({"type": "function_call_output", "call_id": message["tool_call_id"], "output": message["content"]})
            continue
        items.append({"role": message["role"], "content": message["content"]})
        items += [{"type": "function_call", "call_id": call["id"], **call["function"]} for call in message.get("tool_calls", [])]
    tools = [{"type": "function", "strict": False, **tool["function"]} for tool in chat["tools"]]
    return {"model": chat["model"], "instructions": system["content"], "input": items, "tools": tools,
            "max_output_tokens": 1, "temperature": 0, "store": False}


APIS = {"chat": ("/v1/chat/completions", dict), "messages": ("/v1/messages", as_messages),
        "responses": ("/v1/responses", as_responses)}


def prompt_tokens(usage):
    """All tokens of the prompt. The Messages API counts cached ones apart."""
    return usage.get("prompt_tokens") or usage["input_tokens"] + usage.get("cache_read_input_tokens", 0)


def cpu(pid):
    """Milliseconds of the process's threads, and of those that are no engine's."""
    every, others = 0.0, 0.0
    for task in pathlib.Path(f"/proc/{pid}/task").iterdir():
        used = int((task / "schedstat").read_text().split()[0]) / 1e6
        every += used
        others += 0 if "engine" in (task / "comm").read_text() else used
    return every, others


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("url")
    parser.add_argument("pid", type=int)
    parser.add_argument("--api", choices=APIS, default="chat")
    parser.add_argument("--tools", type=int, default=24)
    parser.add_argument("--conversations", type=int, default=30)
    args = parser.parse_args()
    connection = http.client.HTTPConnection(urllib.parse.urlsplit(args.url).netloc)

    def send(method, path, text=None):
        connection.request(method, path, text, {"content-type": "application/json"})
        response = connection.getresponse()
        answer = json.loads(response.read())
        assert response.status == 200, answer
        return answer

    model = send("GET", "/v1/models")["data"][0]["id"]
    path, shape = APIS[args.api]
    turns = {turn: [] for turn in (1, 2, 3)}
    for conversation in range(args.conversations):
        for turn, times in turns.items():
            text = json.dumps(shape(body(model, conversation, turn, args.tools)))
            before = cpu(args.pid)
            usage = send("POST", path, text)["usage"]
            times.append([after - start for after, start in zip(cpu(args.pid), before)])
    print(f"{args.tools} tools, a body of {len(text)} bytes, {prompt_tokens(usage)} tokens")
    for turn, times in turns.items():
        every, others = (statistics.median(column) for column in zip(*times))
        print(f"turn {turn}: {every:6.2f} ms, without the engine's threads {others:6.2f} ms")


if __name__ == "__main__":
    main()
