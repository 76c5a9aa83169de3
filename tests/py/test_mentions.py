"""A marker that is only mentioned, or shown in code, opens no call: the text arrives whole in every API, streamed and whole,
enforced and not. The tokenizer is Qwen3's, which has the markers as tokens that are not special."""
import json
import shutil
import urllib.error
import urllib.request

import pytest
from tokenizers import Tokenizer

from conftest import REPOSITORY, Server

MODEL = REPOSITORY / "tests/fixtures/models/qwen3"
FORMATS = ["qwen3_coder", "hermes", "glm45", "minimax_m2", "deepseek_v3_2"]
SCHEMA = {"type": "object", "properties": {"command": {"type": "string"}}, "required": ["command"]}
CALLS = {
    "qwen3_coder": "<tool_call>\n<function=Bash>\n<parameter=command>\nls\n</parameter>\n</function>\n</tool_call>",
    "hermes": '<tool_call>\n{"name": "Bash", "arguments": {"command": "ls"}}\n</tool_call>',
    "glm45": "<tool_call>Bash\n<arg_key>command</arg_key>\n<arg_value>ls</arg_value>\n</tool_call>",
    "minimax_m2": '<minimax:tool_call>\n<invoke name="Bash">\n<parameter name="command">ls</parameter>\n</invoke>\n'
                  "</minimax:tool_call>",
    "deepseek_v3_2": '<｜DSML｜function_calls>\n<｜DSML｜invoke name="Bash">\n<｜DSML｜parameter name="command" string="true">'
                     "ls</｜DSML｜parameter>\n</｜DSML｜invoke>\n</｜DSML｜function_calls>",
}


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    """The fixture with a longer context."""
    directory = tmp_path_factory.mktemp("models") / "qwen3"
    directory.mkdir()
    for file in ["chat_template.jinja", "tokenizer.json", "tokenizer_config.json"]:
        shutil.copy(MODEL / file, directory)
    config = json.loads((MODEL / "config.json").read_text()) | {"max_position_embeddings": 4096}
    (directory / "config.json").write_text(json.dumps(config))
    return directory


def texts(name):
    marker = CALLS[name].split("\n")[0].removesuffix("Bash")
    yield f"The model opens a call with {marker} and closes it."
    yield f"A call:\n\n```xml\n{CALLS[name]}\n```\n\nThat is all."
    yield f"Write `{marker}`, then the name."


def post(server, path, body):
    request = urllib.request.Request(server + path, json.dumps(body).encode(), {"content-type": "application/json"})
    try:
        with urllib.request.urlopen(request, timeout=60) as response:
            return response.read().decode()
    except urllib.error.HTTPError as error:
        raise AssertionError(error.read().decode()) from error


def events(stream):
    return [json.loads(line[6:]) for line in stream.splitlines() if line.startswith("data: {")]


def answers(server, ids, choice):
    """What each API delivers: its text, and its calls."""
    tool = {"name": "Bash", "parameters": SCHEMA}
    common = {"model": "qwen3", "script": ids, "temperature": 0}
    chat = {**common, "messages": [{"role": "user", "content": "q"}], "max_tokens": len(ids),
            "tools": [{"type": "function", "function": tool}], "tool_choice": choice}
    message = json.loads(post(server, "/v1/chat/completions", chat))["choices"][0]["message"]
    yield "chat", message["content"], message.get("tool_calls") or []
    deltas = [choice["delta"] for event in events(post(server, "/v1/chat/completions", {**chat, "stream": True}))
              for choice in event["choices"]]
    yield ("chat, streamed", "".join(delta.get("content") or "" for delta in deltas),
           [call for delta in deltas for call in delta.get("tool_calls") or []])
    responses = {**common, "input": "q", "max_output_tokens": len(ids), "tools": [{"type": "function", **tool}],
                 "tool_choice": choice, "store": False}
    items = json.loads(post(server, "/v1/responses", responses))["output"]
    yield ("responses", "".join(part["text"] for item in items for part in item.get("content", [])),
           [item for item in items if item["type"] == "function_call"])
    stream = events(post(server, "/v1/responses", {**responses, "stream": True}))
    yield ("responses, streamed", "".join(event["delta"] for event in stream if event["type"] == "response.output_text.delta"),
           [event for event in stream if "function_call" in event["type"]])
    messages = {**common, "messages": [{"role": "user", "content": "q"}], "max_tokens": len(ids),
                "tools": [{"name": "Bash", "input_schema": SCHEMA}], "tool_choice": {"type": choice}}
    blocks = json.loads(post(server, "/v1/messages", messages))["content"]
    yield ("messages", "".join(block.get("text", "") for block in blocks),
           [block for block in blocks if block["type"] == "tool_use"])
    stream = events(post(server, "/v1/messages", {**messages, "stream": True}))
    yield ("messages, streamed", "".join(event["delta"].get("text", "") for event in stream if "delta" in event),
           [event for event in stream if event.get("content_block", {}).get("type") == "tool_use"])


@pytest.mark.parametrize("enforcement", ["names+arguments", "names", "off"])
@pytest.mark.parametrize("name", FORMATS)
def test_a_mentioned_call_is_text_in_every_api(name, enforcement, model):
    tokenizer = Tokenizer.from_file(str(MODEL / "tokenizer.json"))
    end = tokenizer.token_to_id("<|im_end|>")
    server = Server("--engine", "sim", "--sim-step-us", "50", "--format", name, "--allow-dropped-tools", "--enforcement",
                    enforcement, model=model)
    url = server.http
    for text in texts(name):
        ids = [*tokenizer.encode(text, add_special_tokens=False).ids, end]
        for choice in ["auto", "none"]:
            for api, read, calls in answers(url, ids, choice):
                assert (read, calls) == (text, []), (api, choice, enforcement)
    # A call that is made is one.
    ids = [*tokenizer.encode("I list them.\n\n" + CALLS[name], add_special_tokens=False).ids, end]
    for api, read, calls in answers(url, ids, "auto"):
        assert read.strip() == "I list them." and calls, api
    server.stop()
