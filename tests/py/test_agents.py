"""Codex and Claude Code with the demo model: every call that they get satisfies the schemas that they send.

The model was trained on short prompts, so what it writes for an agent has no sense; it takes the grammar for its calls
to be valid. Nothing is executed: Claude Code has no permission, and Codex may not write."""
import json
import os
import shutil

import jsonschema
import pytest

from conftest import REPOSITORY, Server
from script_proxy import ScriptProxy
from test_claude_code import Agent, results
from test_codex import CODEX, Codex, outputs

CONTEXT = 32768
# More calls, as in a full run of test_enforcement.py.
CASES = os.environ.get("REIN_CASES")
# Answers of an agent's turn that must call a tool. The next one ends the turn.
CALLING = 4 if CASES else 2
# A text of this model may never end.
MOST_TOKENS = 250
# Of Codex's tools, those with short descriptions: a CPU computes the prompt.
CODEX_TOOLS = ("exec_command", "write_stdin", "view_image", "mcp__notes")
# Calls to wait for, and turns in which they must have come.
CALLS, TURNS = 3 if CASES else 2, 6


@pytest.fixture(scope="module")
def served(tmp_path_factory):
    """The demo model with a context that holds an agent's tools."""
    model = tmp_path_factory.mktemp("model") / "demo"
    shutil.copytree(REPOSITORY / "models/demo", model, ignore=shutil.ignore_patterns("*.py"))
    config = json.loads((model / "config.json").read_text())
    (model / "config.json").write_text(json.dumps({**config, "max_position_embeddings": CONTEXT}))
    server = Server("--kv-memory", "1000", model=model)
    yield server
    server.stop()


def events(reply):
    return [json.loads(line.removeprefix("data: ")) for line in reply.splitlines() if line.startswith("data: {")]


def message_calls(reply):
    """The calls of a streamed message that are whole: id, name and arguments."""
    blocks, incomplete = {}, []
    for event in events(reply):
        if event["type"] == "content_block_start" and event["content_block"]["type"] == "tool_use":
            blocks[event["index"]] = [event["content_block"]["id"], event["content_block"]["name"], ""]
        elif event["type"] == "content_block_delta" and event["delta"]["type"] == "input_json_delta":
            blocks[event["index"]][2] += event["delta"]["partial_json"]
        elif event["type"] == "message_delta":
            incomplete = [call["id"] for call in event["delta"].get("incomplete_tool_calls", [])]
    return [(id, name, json.loads(text)) for id, name, text in blocks.values() if id not in incomplete]


def response_calls(reply):
    """The same of a streamed response; a name has its namespace."""
    done = [event["item"] for event in events(reply) if event["type"] == "response.output_item.done"]
    whole = [item for item in done if item["type"] == "function_call" and item["status"] == "completed"]
    return [(item["call_id"], (item.get("namespace"), item["name"]), json.loads(item["arguments"])) for item in whole]


def valid(calls, schemas):
    for _, name, arguments in calls:
        jsonschema.validate(arguments, schemas[name])
    return len(calls)


def test_every_call_that_claude_code_gets_is_valid(served, tmp_path):
    def fields(body):
        choice = "any" if body.get("tools") and len(results(body)) < CALLING else "none"
        return {"thinking": {"type": "disabled"}, "max_tokens": MOST_TOKENS, "temperature": 1, "seed": len(proxy.bodies),
                "tool_choice": {"type": choice, **({"disable_parallel_tool_use": True} if choice == "any" else {})}}

    found = 0
    with ScriptProxy(served, fields) as proxy:
        for turn in range(TURNS):
            agent = Agent(tmp_path / str(turn), proxy.http)
            agent.start("Count the lines of a.txt.", "--tools", "Bash,Read,Glob,Write", "--system-prompt", "You use tools.")
            agent.process.communicate(timeout=240)
            found = 0
            for body, reply in zip(proxy.bodies, proxy.replies):
                schemas = {tool["name"]: tool["input_schema"] for tool in body.get("tools", []) if not tool.get("defer_loading")}
                found += valid(message_calls(reply), schemas)
            if found >= CALLS:
                break
    assert found >= CALLS and proxy.failures == [], (found, proxy.failures)
    # The agent validates them, too. It also takes a call that the limit has cut, as with Anthropic's servers.
    whole = {id for reply in proxy.replies for id, *_ in message_calls(reply)}
    got = [result for body in proxy.bodies for result in results(body) if result["tool_use_id"] in whole]
    assert got and not any("InputValidationError" in json.dumps(result) for result in got), got


@pytest.mark.skipif(not CODEX.exists(), reason="no Codex: scripts/setup.sh test installs it")
def test_every_call_that_codex_gets_is_valid(served, tmp_path):
    def fields(body):
        choice = "required" if len(outputs(body)) < CALLING else "none"
        tools = [tool for tool in body["tools"] if tool.get("name") in CODEX_TOOLS]
        return {"instructions": "You use tools.", "tools": tools, "reasoning": {"effort": "none"}, "max_output_tokens": MOST_TOKENS, "temperature": 1,
                "seed": len(proxy.bodies), "tool_choice": choice, "parallel_tool_calls": False}

    found = 0
    with ScriptProxy(served, fields) as proxy:
        for turn in range(TURNS):
            (tmp_path / str(turn)).mkdir()
            codex = Codex(tmp_path / str(turn), proxy.http)
            agent = codex.start("count the lines of a.txt", sandbox=("--sandbox", "read-only"))
            agent.communicate(timeout=240)
            found = 0
            for body, reply in zip(proxy.bodies, proxy.replies):
                schemas = {}
                for tool in body["tools"]:
                    for function in tool["tools"] if tool["type"] == "namespace" else [tool]:
                        if function["type"] == "function":
                            schemas[tool["name"] if tool["type"] == "namespace" else None, function["name"]] = function["parameters"]
                found += valid(response_calls(reply), schemas)
            if found >= CALLS:
                break
    assert found >= CALLS and proxy.failures == [], (found, proxy.failures)
    whole = {id for reply in proxy.replies for id, *_ in response_calls(reply)}
    got = [item for body in proxy.bodies for item in outputs(body) if item["call_id"] in whole]
    # Codex declares numbers where it takes integers, or those that are not negative, only.
    narrower = ("invalid type: floating point", "invalid value: integer")
    refused = [item for item in map(json.dumps, got) if "failed to parse function arguments" in item and not any(why in item for why in narrower)]
    assert got and not refused, got
