"""The Responses API: the openai Python SDK, checked against its own (strict) types, and the OpenAI Agents SDK."""
import asyncio
import json
import re
import subprocess

import lark
import openai
import pydantic
import pytest
from openai.types.responses import Response, ResponseItem, ResponseStreamEvent

from conftest import REPOSITORY, Server
from script_proxy import ScriptProxy, calls, tokens
from test_dialects import rein, results, samples  # `samples` is a fixture
from test_openai_sdk import strict

NODE_MODULES = REPOSITORY / ".node/node_modules"
ASK = "What is the weather in Paris?"
PARAMETERS = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"], "additionalProperties": False}
WEATHER = {"type": "function", "name": "get_weather", "description": "Get the current weather in a city", "parameters": PARAMETERS, "strict": False}
PATCH = {"type": "custom", "name": "apply_patch", "description": "Changes files"}
NOTES = {"type": "namespace", "name": "mcp__notes", "description": "Notes of the team", "tools": [
    {"type": "function", "name": "lookup", "description": "Looks it up", "strict": False, "parameters": {
        "type": "object", "properties": {"key": {"type": "string"}}, "required": ["key"], "additionalProperties": False}}]}
TOOLS = [WEATHER, PATCH, NOTES]
EVENT = pydantic.TypeAdapter(ResponseStreamEvent)
ITEM = pydantic.TypeAdapter(ResponseItem)


@pytest.fixture(scope="module")
def client(demo):
    return openai.OpenAI(base_url=demo.http + "/v1", api_key="none", max_retries=0)


@pytest.fixture(scope="module")
def scripted(sim):
    """Creates a response whose answer is this text."""
    client = openai.OpenAI(base_url=sim.http + "/v1", api_key="none", max_retries=0)

    def create(text, extra_body=None, **more):
        script = {"script": tokens(text)} if text else {}
        return client.responses.create(**{"model": "demo", "input": ASK, "extra_body": {**script, **(extra_body or {})}, **more})

    create.client = client
    return create


def check_stream(stream):
    """Checks every event, and that their sum is the final object. Returns that object."""
    events, items, texts = [], {}, {}
    for number, event in enumerate(stream):
        EVENT.validate_json(event.model_dump_json(exclude_unset=True), strict=True)
        assert event.sequence_number == number
        events.append(event)
        if event.type == "response.output_item.added":
            assert event.output_index == len(items) and event.item.status == "in_progress"
            items[event.output_index] = event.item.id
        elif event.type == "response.output_item.done":
            assert items[event.output_index] == event.item.id
            items[event.output_index] = event.item
        elif event.type.endswith(".delta"):
            assert items[event.output_index] == event.item_id, "a delta comes within its item"
            texts[event.item_id] = texts.get(event.item_id, "") + event.delta
    kinds = [event.type for event in events]
    assert kinds[:2] == ["response.created", "response.in_progress"]
    assert kinds[-1] in ("response.completed", "response.incomplete") and sum("response.completed" in kind for kind in kinds) <= 1
    final = events[-1].response
    strict(Response, final)
    assert final.id == events[0].response.id
    assert [item.model_dump() for item in final.output] == [items[index].model_dump() for index in range(len(items))]
    for item in final.output:
        text = {"message": lambda: item.content[0].text, "reasoning": lambda: item.content[0].text,
                "function_call": lambda: item.arguments, "custom_tool_call": lambda: item.input}[item.type]()
        assert texts.get(item.id, "") == text
    return final


def test_a_response_and_its_stream_have_the_same_output(client):
    arguments = dict(model="demo", input=ASK, tools=[WEATHER], temperature=0, max_output_tokens=120)
    whole = client.responses.create(**arguments)
    strict(Response, whole)
    call = whole.output[-1]
    assert (call.type, call.name, json.loads(call.arguments)["city"], call.status) == ("function_call", "get_weather", "Paris", "completed")
    assert whole.status == "completed" and whole.usage.total_tokens == whole.usage.input_tokens + whole.usage.output_tokens
    streamed = check_stream(client.responses.create(stream=True, **arguments))
    shape = lambda response: [{**item.model_dump(), "id": None} for item in response.output]
    assert shape(streamed) == shape(whole)


def test_a_conversation_continues_after_a_tool_result_in_items_and_by_id(client):
    arguments = dict(model="demo", tools=[WEATHER], temperature=0, max_output_tokens=60)
    first = client.responses.create(input=ASK, **arguments)
    call = first.output[-1]
    result = {"type": "function_call_output", "call_id": call.call_id, "output": '{"temperature": 21, "condition": "sunny"}'}
    sent = client.responses.create(input=[{"role": "user", "content": ASK}, *[item.model_dump(exclude_none=True) for item in first.output], result], **arguments)
    kept = client.responses.create(input=[result], previous_response_id=first.id, **arguments)
    assert sent.output_text and sent.output_text == kept.output_text
    assert sent.usage.input_tokens == kept.usage.input_tokens
    chat = client.chat.completions.create(
        model="demo", temperature=0, max_tokens=60, tools=[{"type": "function", "function": {k: v for k, v in WEATHER.items() if k not in ("type", "strict")}}],
        messages=[{"role": "user", "content": ASK},
                  {"role": "assistant", "content": None, "tool_calls": [{"id": call.call_id, "type": "function", "function": {"name": call.name, "arguments": call.arguments}}]},
                  {"role": "tool", "tool_call_id": call.call_id, "content": result["output"]}])
    assert (chat.choices[0].message.content, chat.usage.prompt_tokens) == (sent.output_text, sent.usage.input_tokens)


def test_every_kind_of_item_is_the_same_in_the_stream_and_when_fetched(scripted):
    patch = '*** Begin Patch\n+é "quoted" \\ \U0001f642\n*** End Patch'
    text = "<think>I must look.</think>Let me see." + calls(
        ("get_weather", {"city": "Paris"}, 0), ("apply_patch", {"input": patch}, 1), ("mcp__notes__lookup", {"key": "a"}, 2))
    options = {"tools": TOOLS, "include": ["reasoning.encrypted_content"]}
    final = check_stream(scripted(text, stream=True, **options))
    kinds = [item.type for item in final.output]
    assert kinds == ["reasoning", "message", "function_call", "custom_tool_call", "function_call"]
    reasoning, message, weather, custom, lookup = final.output
    assert (reasoning.content[0].text, message.content[0].text) == ("I must look.", "Let me see.")
    assert custom.input == patch and (lookup.namespace, lookup.name) == ("mcp__notes", "lookup")
    fetched = scripted.client.responses.retrieve(final.id)
    assert fetched.model_dump() == final.model_dump()
    # What the model wrote comes back in the prompt of the next turn, sealed reasoning included.
    outputs = [{"type": "function_call_output" if item.type == "function_call" else "custom_tool_call_output", "call_id": item.call_id, "output": "ok"}
               for item in final.output[2:]]
    history = [{"role": "user", "content": ASK}, *[item.model_dump(exclude_none=True) for item in final.output], *outputs]
    sealed = {**history[1], "content": []}
    assert "look" not in sealed["encrypted_content"]
    count = lambda items, **more: scripted.client.responses.input_tokens.count(model="demo", input=items, tools=TOOLS, **more).input_tokens
    assert count([history[0], sealed, *history[2:]]) == count(history) == count(outputs, previous_response_id=final.id)
    answered = scripted("Done.", input=[history[0], sealed, *history[2:]], tools=TOOLS)
    assert answered.output_text == "Done." and answered.usage.input_tokens == count(history)
    sealed["encrypted_content"] = sealed["encrypted_content"][:-2] + "AA"
    # What does not open is left out.
    assert count([history[0], sealed, *history[2:]]) < count(history)


def test_a_cut_answer_is_incomplete(scripted):
    whole = "<think>Hm.</think>Let me see." + calls(("get_weather", {"city": "Paris"}, 0), ("apply_patch", {"input": "some text"}, 1))
    for limit in range(1, 60):
        final = check_stream(scripted(whole, stream=True, tools=TOOLS, max_output_tokens=limit))
        other = scripted(whole, tools=TOOLS, max_output_tokens=limit)
        shape = lambda response: [{**item.model_dump(), "id": None} for item in response.output]
        assert shape(final) == shape(other) and final.status == other.status
        if final.status == "completed":
            break
        assert final.incomplete_details.reason == "max_output_tokens"
        assert all(item.status == "completed" for item in final.output[:-1])
    assert limit > 20 and final.status == "completed"


def test_the_stream_helper_and_parse(client, scripted):
    class City(pydantic.BaseModel):
        city: str

    with client.responses.stream(model="demo", input="hello", temperature=0) as stream:
        kinds = [event.type for event in stream]
        assert stream.get_final_response().output_text and kinds[-1] == "response.completed"
    parsed = scripted.client.responses.parse(
        model="demo", input=ASK, text_format=City, extra_body={"script": tokens('{"city": "Paris"}')})
    assert parsed.output_parsed == City(city="Paris")


def test_kept_responses_are_listed_deleted_and_unknown_afterwards(client):
    first = client.responses.create(model="demo", input=ASK, max_output_tokens=4, temperature=0)
    second = client.responses.create(model="demo", previous_response_id=first.id, max_output_tokens=4, input=[
        {"role": "user", "content": [{"type": "input_text", "text": "And tomorrow?"}]}])
    pages = client.responses.input_items.list(second.id, order="asc", limit=2)
    items = list(pages)
    assert [(item.type, item.role) for item in items] == [("message", "user"), ("message", "assistant"), ("message", "user")]
    for item in items:
        ITEM.validate_json(item.model_dump_json(exclude_unset=True), strict=True)
    assert items[1].id == first.output[0].id
    assert [item.id for item in client.responses.input_items.list(second.id)] == [item.id for item in reversed(items)]
    referenced = client.responses.input_tokens.count(model="demo", input=[
        {"role": "user", "content": ASK}, {"type": "item_reference", "id": first.output[0].id}, {"role": "user", "content": "And tomorrow?"}])
    assert referenced.input_tokens == second.usage.input_tokens
    with pytest.raises(openai.BadRequestError, match="background"):
        client.responses.cancel(first.id)
    client.responses.delete(first.id)
    for gone in (client.responses.retrieve, client.responses.delete, client.responses.input_items.list, client.responses.cancel):
        with pytest.raises(openai.NotFoundError):
            gone(first.id)
    with pytest.raises(openai.NotFoundError):
        client.responses.create(model="demo", input="x", previous_response_id=first.id)
    # A response does not need the one that it continues.
    assert client.responses.create(model="demo", input="Thanks", previous_response_id=second.id, max_output_tokens=2).id
    unkept = client.responses.create(model="demo", input=ASK, max_output_tokens=2, store=False)
    with pytest.raises(openai.NotFoundError):
        client.responses.retrieve(unkept.id)


def test_files_outlive_the_server_and_off_keeps_nothing(tmp_path):
    ask = dict(model="demo", input="hi", max_output_tokens=4)
    for number in range(2):
        server = Server("--engine", "sim", "--responses-store", str(tmp_path / "kept"))
        client = openai.OpenAI(base_url=server.http + "/v1", api_key="none", max_retries=0)
        if number == 0:
            first = client.responses.create(**ask)
        assert client.responses.retrieve(first.id).model_dump() == first.model_dump()
        server.stop()
    server = Server("--engine", "sim", "--responses-store", "off")
    client = openai.OpenAI(base_url=server.http + "/v1", api_key="none", max_retries=0)
    assert client.responses.create(**ask).model_dump()["store"] is False
    with pytest.raises(openai.BadRequestError, match="--responses-store") as caught:
        client.responses.create(previous_response_id="resp_1", **ask)
    assert caught.value.param == "previous_response_id"
    with pytest.raises(openai.NotFoundError, match="--responses-store"):
        client.responses.retrieve("resp_1")
    server.stop()


@pytest.mark.parametrize("change, param", [
    ({"input": []}, "input"),
    ({"input": [{"role": "wizard", "content": "x"}]}, "input[0].role"),
    ({"input": [{"role": "user", "content": [{"type": "input_image", "image_url": "x"}]}]}, "input[0].content[0].type"),
    ({"input": [{"role": "user", "content": "x"}, {"type": "computer", "call_id": "c"}]}, "input[1].type"),
    ({"tools": [{"type": "web_search"}, {"type": "function", "name": "a b", "parameters": {}}]}, "tools[1].name"),
    ({"tools": [{"type": "namespace", "name": "n", "description": "", "tools": [{"type": "function", "name": "f", "parameters": 3}]}]}, "tools[0].tools[0].parameters"),
    ({"tools": [{"type": "web_search"}], "tool_choice": {"type": "web_search"}}, "tool_choice.type"),
    ({"tool_choice": {"type": "function", "name": "f"}}, "tool_choice.name"),
    ({"background": True}, "background"),
    ({"conversation": "conv_1"}, "conversation"),
    ({"truncation": "auto"}, "truncation"),
    ({"reasoning": {"effort": "enormous"}}, "reasoning.effort"),
    ({"temperature": -1}, "temperature"),
    ({"max_output_tokens": 0}, "max_output_tokens"),
    ({"text": {"format": {"type": "json_schema", "name": "x"}}}, "text.format.schema"),
])
def test_errors_name_the_clients_own_field(client, change, param):
    with pytest.raises(openai.BadRequestError) as caught:
        client.responses.create(**{"model": "demo", "input": ASK, **change})
    assert caught.value.param == param and param in caught.value.message and "messages" not in caught.value.message


def test_hosted_tools_and_unknown_fields_are_named_in_a_header(client):
    raw = client.responses.with_raw_response.create(
        model="demo", input=[{"role": "user", "content": "hi", "sparkle": 1}], max_output_tokens=1, extra_body={"sparkles": 3},
        tools=[{"type": "web_search"}, WEATHER], reasoning={"summary": "auto"})
    assert set(raw.headers["x-rein-ignored-fields"].split(",")) >= {"tools[0]:web_search", "sparkles", "reasoning.summary", "input[0].sparkle"}


def test_the_agents_sdk_runs_a_tool(sim):
    agents = pytest.importorskip("agents")
    agents.set_tracing_disabled(True)
    seen = []

    @agents.function_tool
    def get_weather(city: str) -> str:
        """Get the current weather in a city"""
        seen.append(city)
        return "21 degrees"

    def answer(body):
        done = isinstance(body["input"], list) and any(item.get("type") == "function_call_output" for item in body["input"])
        return "It is 21 degrees." if done else calls(("get_weather", {"city": "Paris"}, 0))

    with ScriptProxy(sim, answer) as proxy:
        model = agents.OpenAIResponsesModel("demo", openai.AsyncOpenAI(base_url=proxy.http + "/v1", api_key="none"))
        agent = agents.Agent("weather", instructions="Be brief.", model=model, tools=[get_weather])
        assert agents.Runner.run_sync(agent, ASK).final_output == "It is 21 degrees."

        async def streamed():
            run = agents.Runner.run_streamed(agent, ASK)
            return run, [event.type async for event in run.stream_events()]

        run, kinds = asyncio.run(streamed())
        assert run.final_output == "It is 21 degrees." and "run_item_stream_event" in kinds
    assert seen == ["Paris", "Paris"]


CODE = {"type": "custom", "name": "code", "description": "Takes a code", "format": {"type": "grammar", "syntax": "regex", "definition": "[A-F]{2}-[0-9]{3}|none"}}


@pytest.mark.parametrize("stream", [False, True])
def test_calls_of_an_engine_that_drafts_nonsense_are_valid(scripted, stream):
    # Without a script, the sim engine's drafts are random tokens.
    finished = {"function_call": 0, "custom_tool_call": 0}
    for seed in range(24):
        name = {"type": "custom", "name": "code"} if seed % 2 else {"type": "function", "name": "lookup", "namespace": "mcp__notes"}
        options = dict(tools=[*TOOLS, CODE], tool_choice=name, max_output_tokens=200, extra_body={"seed": seed})
        response = check_stream(scripted("", stream=True, **options)) if stream else scripted("", **options)
        for item in response.output:
            if item.type not in finished or item.status != "completed":
                continue
            finished[item.type] += 1
            if item.type == "custom_tool_call":
                assert item.name == "code" and re.fullmatch("[A-F]{2}-[0-9]{3}|none", item.input)
            else:
                assert (item.namespace, item.name) == ("mcp__notes", "lookup")
                arguments = json.loads(item.arguments)
                assert set(arguments) == {"key"} and isinstance(arguments["key"], str)
    assert finished["custom_tool_call"] == 12, finished


def test_a_custom_tools_regex_replaces_what_does_not_match(scripted):
    wrong = calls(("code", {"input": "xyz"}, 0))
    response = scripted(wrong, tools=[CODE], max_output_tokens=100)
    assert [item.type for item in response.output] == ["custom_tool_call"]
    assert re.fullmatch("[A-F]{2}-[0-9]{3}|none", response.output[0].input)
    with pytest.raises(openai.BadRequestError) as caught:
        scripted(wrong, tools=[{**CODE, "format": {**CODE["format"], "definition": "(a"}}])
    assert caught.value.param == "tools[0].format.definition" and caught.value.param in caught.value.message


def grammar_tool(name, definition):
    return {"type": "custom", "name": name, "description": "Takes a text of its language", "format": {"type": "grammar", "syntax": "lark", "definition": definition}}


SUMS = """start: term (("+" | "-") term)*
term: NUMBER | "(" start ")" | NAME "\\\\" NAME
NUMBER: /[0-9]{1,3}/
NAME: "\\"" /[a-c]/ "\\""
%ignore " "
"""
# The grammar with which Codex declares its tool.
PATCHES = """start: begin_patch hunk+ end_patch
begin_patch: "*** Begin Patch" LF
end_patch: "*** End Patch" LF?

hunk: add_hunk | delete_hunk | update_hunk
add_hunk: "*** Add File: " filename LF add_line+
delete_hunk: "*** Delete File: " filename LF
update_hunk: "*** Update File: " filename LF change_move? change?

filename: /(.+)/
add_line: "+" /(.*)/ LF -> line

change_move: "*** Move to: " filename LF
change: (change_context | change_line)+ eof_line?
change_context: ("@@" | "@@ " /(.+)/) LF
change_line: ("+" | "-" | " ") /(.*)/ LF
eof_line: "*** End of File" LF

%import common.LF
"""


def test_a_custom_tools_lark_grammar_is_the_language_of_its_input(scripted):
    # Python's lark decides.
    parser = lark.Lark(SUMS)
    inputs = []
    for seed in range(24):
        options = dict(tools=[grammar_tool("add", SUMS)], tool_choice={"type": "custom", "name": "add"}, max_output_tokens=300, temperature=1, extra_body={"seed": seed})
        for item in scripted("", **options).output:
            if item.type == "custom_tool_call" and item.status == "completed":
                parser.parse(item.input)
                inputs.append(item.input)
    assert len(inputs) >= 20 and len(set(inputs)) >= 12, inputs
    assert any('"' in text for text in inputs) and any(" " in text for text in inputs), inputs


@pytest.mark.parametrize("patch, valid", [
    ("*** Begin Patch\n*** Add File: a \"b\".py\n+print('hi\\n')\n+\n*** End Patch", True),
    ("*** Begin Patch\n*** Update File: src/a.rs\n*** Move to: b.rs\n@@ fn f\n-\told\n+\tnew \u00e9\u4f60\U0001f600\n*** End Patch\n", True),
    ("*** Begin Patch\n*** Add File: a.py\nprint('no plus')\n*** End Patch", False),
    ("*** Begin Patch\n*** Delete File: a\n", False),
    ("diff --git a/x b/x\n", False),
])
def test_codexs_patches_are_enforced(scripted, patch, valid):
    # Python's lark has no terminals that match nothing.
    parser = lark.Lark(PATCHES.replace("/(.*)/", "/(.+)/?"))
    if valid:
        parser.parse(patch)
    tool = grammar_tool("apply_patch", PATCHES)
    final = check_stream(scripted(calls(("apply_patch", {"input": patch}, 0)), stream=True, tools=[tool], max_output_tokens=400))
    [call] = [item for item in final.output if item.type == "custom_tool_call"]
    assert (call.status == "completed" and call.input == patch) == valid, call
    if call.status == "completed":
        parser.parse(call.input)


def test_a_lark_grammar_that_cannot_be_used_names_its_field(scripted):
    for definition in ["start: <|im_end|>", "start: other", "start: %json {}", "start: T\nT: ~/a/"]:
        with pytest.raises(openai.BadRequestError) as caught:
            scripted("", tools=[grammar_tool("t", definition)])
        assert caught.value.param == "tools[0].format.definition", (definition, caught.value.body)


def test_verify_gives_the_same_results_as_over_chats(demo, samples, tmp_path):
    common = ["verify", "--model", "demo", "--samples", samples, "--temperature", 0, "--max-tokens", 60, "--base-url", f"{demo.http}/v1"]
    rein(*common, "--out", tmp_path / "chat")
    rein(*common, "--dialect", "responses", "--out", tmp_path / "responses")
    answers = lambda directory: [
        (record["sample"], record["finish_reason"], record["content"] or None, record["usage"]["prompt_tokens"], record["problems"], made)
        for record, made in results(directory) if record["finish_reason"] != "length"]
    seen = answers(tmp_path / "chat")
    assert len(seen) > 20 and any(made for *_, made in seen) and any(not made for *_, made in seen)
    assert answers(tmp_path / "responses") == seen


def test_verify_finds_only_valid_calls_of_random_drafts(sim, samples, tmp_path):
    rein("verify", "--dialect", "responses", "--base-url", f"{sim.http}/v1", "--model", "demo", "--samples", samples, "--temperature", 1,
         "--max-tokens", 700, "--extra-body", '{"tool_choice": "required"}', "--min-schema-accuracy", 1, "--out", tmp_path)
    summary = json.loads((tmp_path / "summary.json").read_text())
    # Random drafts end by themselves in a third of the answers.
    assert summary["schema_accuracy"] == 1 and summary["successful_tool_call_count"] > 2


NODE = """
import OpenAI from "openai";
const client = new OpenAI({ baseURL: process.argv[2] + "/v1", apiKey: "none", maxRetries: 0 });
const tools = [{ type: "function", name: "get_weather", strict: false, parameters: { type: "object", properties: { city: { type: "string" } }, required: ["city"] } }];
const ask = { model: "demo", input: "What is the weather in Paris?", tools, temperature: 0, max_output_tokens: 120 };
const whole = await client.responses.create(ask);
const stream = client.responses.stream(ask);
let deltas = "";
stream.on("response.function_call_arguments.delta", (event) => { deltas += event.delta; });
const final = await stream.finalResponse();
const fetched = await client.responses.retrieve(final.id);
const items = [];
for await (const item of client.responses.inputItems.list(final.id)) items.push(item.type);
const parsed = await client.responses.parse({ ...ask, tools: [], text: { format: { type: "json_schema", name: "c", strict: true,
  schema: { type: "object", properties: { city: { type: "string", maxLength: 9 } }, required: ["city"], additionalProperties: false } } } });
console.log(JSON.stringify({ whole: whole.output[0].arguments, deltas, final: final.output[0], fetched: fetched.output[0], items, parsed: parsed.output_parsed }));
"""


def test_the_node_sdk_creates_streams_parses_and_fetches(demo, tmp_path):
    if not NODE_MODULES.is_dir():
        pytest.skip("no Node packages: scripts/setup.sh test installs them")
    (tmp_path / "node_modules").symlink_to(NODE_MODULES)
    (tmp_path / "client.mjs").write_text(NODE)
    done = subprocess.run(["node", "client.mjs", demo.http], cwd=tmp_path, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert json.loads(found["whole"])["city"] == "Paris" and found["whole"] == found["deltas"] == found["final"]["arguments"]
    # The SDK adds `parsed_arguments`, and leaves it out of what it fetches.
    assert {**found["final"], "parsed_arguments": None} == {**found["fetched"], "parsed_arguments": None}
    assert found["items"] == ["message"] and isinstance(found["parsed"]["city"], str)
