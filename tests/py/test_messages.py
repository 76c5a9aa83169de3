"""Anthropic's SDKs for Python and Node against served models. Answers are checked against the SDK's own (strict) types."""
import json
import os
import subprocess

import anthropic
import pytest
from anthropic.types import Message, MessageTokensCount, RawMessageStreamEvent
from pydantic import TypeAdapter

from conftest import REPOSITORY
from script_proxy import call, script

NODE_MODULES = REPOSITORY / ".node/node_modules"
WEATHER = {
    "name": "get_weather",
    "description": "Get the current weather in a city",
    "input_schema": {
        "type": "object",
        "properties": {
            "city": {"type": "string", "description": "The city"},
            "unit": {"type": "string", "enum": ["celsius", "fahrenheit"]},
        },
        "required": ["city"],
    },
}
ASK = [{"role": "user", "content": "What is the weather in Paris?"}]
EVENT = TypeAdapter(RawMessageStreamEvent)
# The SDK has no argument for it.
GREEDY = {"temperature": 0}


@pytest.fixture(scope="module")
def client(demo):
    return anthropic.Anthropic(base_url=demo.http, api_key="none", max_retries=0)


@pytest.fixture(scope="module")
def scripted(sim):
    return anthropic.Anthropic(base_url=sim.http, api_key="none", max_retries=0)


def strict(message):
    """Fields of the public API have its types. Rein's extensions are additional fields."""
    return Message.model_validate_json(message.model_dump_json(exclude_unset=True), strict=True)


def ask(client, **more):
    arguments = {"model": "demo", "max_tokens": 120, "messages": ASK, "extra_body": GREEDY, **more}
    return client.messages.create(**arguments)


def blocks(message):
    """The content without what differs between two equal answers."""
    return [block.model_dump(exclude={"id", "signature"}) for block in message.content]


def test_an_answer(client):
    answer = strict(ask(client, messages=[{"role": "user", "content": "hello"}], max_tokens=40))
    assert answer.id.startswith("msg_") and answer.role == "assistant"
    assert answer.content[0].type == "text" and answer.content[0].text
    assert answer.stop_reason in ("end_turn", "max_tokens")


def test_a_call_is_the_same_streamed_and_unstreamed(client):
    whole = strict(ask(client, tools=[WEATHER]))
    (block,) = [block for block in whole.content if block.type == "tool_use"]
    assert whole.stop_reason == "tool_use" and block.id.startswith("toolu_")
    assert (block.name, block.input["city"]) == ("get_weather", "Paris")

    events = [EVENT.validate_json(event.model_dump_json(exclude_unset=True), strict=True) for event in ask(client, tools=[WEATHER], stream=True)]
    assert events[0].type == "message_start" and events[-1].type == "message_stop"
    starts = [event.index for event in events if event.type == "content_block_start"]
    assert starts == list(range(len(starts)))
    with client.messages.stream(model="demo", max_tokens=120, messages=ASK, tools=[WEATHER], extra_body=GREEDY) as stream:
        seen = list(stream)
        final = stream.get_final_message()
    assert seen[-1].type == "message_stop"
    assert (blocks(final), final.stop_reason) == (blocks(whole), whole.stop_reason)


def test_the_prompt_is_counted_before_and_reported_first(client):
    count = client.messages.count_tokens(model="demo", messages=ASK, tools=[WEATHER], system="Be brief.")
    MessageTokensCount.model_validate_json(count.model_dump_json(exclude_unset=True), strict=True)
    whole = ask(client, tools=[WEATHER], system="Be brief.")
    assert whole.usage.input_tokens + whole.usage.cache_read_input_tokens == count.input_tokens
    first = next(iter(ask(client, tools=[WEATHER], system="Be brief.", stream=True))).message.usage
    assert first.input_tokens + first.cache_read_input_tokens == count.input_tokens
    assert first.cache_read_input_tokens > 0, "the prompt is the same as before"


def test_a_conversation_continues_after_a_result(client):
    first = ask(client, tools=[WEATHER])
    call_block = next(block for block in first.content if block.type == "tool_use")
    result = {"type": "tool_result", "tool_use_id": call_block.id, "content": json.dumps({"temperature": 21, "condition": "sunny"})}
    history = [*ASK, first.to_param(), {"role": "user", "content": [result]}]
    second = strict(ask(client, tools=[WEATHER], messages=history))
    assert second.content[0].type == "text" and second.stop_reason == "end_turn"


def test_the_tool_runner_runs_the_tool(client):
    ran = []

    @anthropic.beta_tool
    def get_weather(city: str) -> str:
        """Get the current weather in a city

        Args:
            city: The city
        """
        ran.append(city)
        return json.dumps({"city": city, "temperature": 21, "condition": "sunny"})

    runner = client.beta.messages.tool_runner(model="demo", max_tokens=120, messages=ASK, tools=[get_weather], extra_body=GREEDY)
    final = runner.until_done()
    assert ran == ["Paris"] and final.stop_reason == "end_turn"


def test_a_choice_of_tools_is_kept(client):
    other = {**WEATHER, "name": "get_time", "description": "Get the time in a city"}
    named = ask(client, tools=[WEATHER, other], tool_choice={"type": "tool", "name": "get_time"})
    assert [block.name for block in named.content if block.type == "tool_use"] == ["get_time"]
    none = ask(client, tools=[WEATHER], tool_choice={"type": "none"})
    assert all(block.type == "text" for block in none.content)


def test_structured_output_follows_its_schema(client):
    schema = {"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"], "additionalProperties": False}
    answer = ask(client, output_config={"format": {"type": "json_schema", "schema": schema}}, max_tokens=100)
    assert list(json.loads(answer.content[0].text)) == ["n"]


@pytest.mark.parametrize("display", ["summarized", "omitted"])
def test_thinking_comes_back(scripted, display):
    emitted = script("I must call.</think>Let me look." + call("get_weather", {"city": "Paris"}))
    thinking = {"type": "enabled", "budget_tokens": 2000, "display": display}
    arguments = dict(tools=[WEATHER], thinking=thinking, max_tokens=3000)
    whole = strict(ask(scripted, extra_body={"script": emitted}, **arguments))
    assert [block.type for block in whole.content] == ["thinking", "text", "tool_use"]
    thought = whole.content[0]
    assert thought.thinking == ("" if display == "omitted" else "I must call.") and thought.signature
    stream = ask(scripted, extra_body={"script": emitted}, stream=True, **arguments)
    assert any(event.type == "content_block_delta" and event.delta.type == "signature_delta" for event in stream)

    def second(content):
        result = {"type": "tool_result", "tool_use_id": whole.content[2].id, "content": "sunny"}
        messages = [*ASK, {"role": "assistant", "content": content}, {"role": "user", "content": [result]}]
        more = {**arguments, "messages": messages, "extra_body": {"script": script("Yes.</think>It is sunny.")}}
        raw = scripted.messages.with_raw_response.create(model="demo", **more)
        return raw.headers.get("x-rein-ignored-fields", ""), raw.parse().usage

    ignored, usage = second([block.model_dump() for block in whole.content])
    assert "content" not in ignored
    # Thinking that the server did not sign is left out.
    changed = [{**whole.content[0].model_dump(), "signature": "AAAA"}, *[block.model_dump() for block in whole.content[1:]]]
    ignored, shorter = second(changed)
    assert "messages[1].content[0]" in ignored
    total = usage.input_tokens + usage.cache_read_input_tokens
    assert shorter.input_tokens + shorter.cache_read_input_tokens < total


def test_a_call_that_the_limit_cuts_is_no_call(scripted):
    emitted = script(call("get_weather", {"city": "Paris"}))
    answer = ask(scripted, tools=[WEATHER], max_tokens=len(emitted) - 4, extra_body={"script": emitted})
    assert answer.stop_reason == "max_tokens" and all(block.type == "text" for block in answer.content)
    (cut,) = answer.incomplete_tool_calls
    assert cut["name"] == "get_weather" and cut["partial_json"]


def test_errors_are_the_exceptions_of_the_sdk(client, demo):
    image = [{"role": "user", "content": [{"type": "image", "source": {"type": "url", "url": "http://127.0.0.1/"}}]}]
    with pytest.raises(anthropic.BadRequestError) as error:
        ask(client, messages=image)
    assert error.value.type == "invalid_request_error" and "messages[0].content[0].type" in str(error.value)
    assert error.value.request_id.startswith("msg_")
    with pytest.raises(anthropic.NotFoundError):
        ask(client, model="no-such-model")
    with pytest.raises(anthropic.BadRequestError, match="prompt is too long"):
        ask(client, messages=[{"role": "user", "content": "word " * 9000}])


def test_hosted_tools_are_left_out_and_named(client):
    search = {"type": "web_search_20250305", "name": "web_search"}
    raw = client.messages.with_raw_response.create(model="demo", max_tokens=60, messages=ASK, tools=[search, WEATHER], extra_body=GREEDY)
    assert raw.headers["x-rein-ignored-fields"] == "tools[0].web_search"
    with pytest.raises(anthropic.BadRequestError, match="web_search"):
        ask(client, tools=[search], tool_choice={"type": "tool", "name": "web_search"})


NODE = """
import assert from "node:assert/strict";
import Anthropic from "@anthropic-ai/sdk";
import { betaZodTool } from "@anthropic-ai/sdk/helpers/beta/zod";
import { z } from "zod";

const client = new Anthropic({ baseURL: process.env.BASE_URL, apiKey: "none", maxRetries: 0 });
const tool = { name: "get_weather", description: "Get the current weather in a city",
  input_schema: { type: "object", properties: { city: { type: "string" } }, required: ["city"] } };
const ask = { model: "demo", max_tokens: 120, temperature: 0, tools: [tool],
  messages: [{ role: "user", content: "What is the weather in Paris?" }] };

const whole = await client.messages.create(ask);
const call = whole.content.find((block) => block.type === "tool_use");
assert.deepEqual([whole.stop_reason, call.name, call.input], ["tool_use", "get_weather", { city: "Paris" }]);

const stream = client.messages.stream(ask);
let partial = "";
stream.on("inputJson", (delta) => { partial += delta; });
const final = await stream.finalMessage();
assert.deepEqual(final.content.map(({ id, ...block }) => block), whole.content.map(({ id, ...block }) => block));
assert.deepEqual(JSON.parse(partial), call.input);

const { max_tokens, temperature, ...prompt } = ask;
const { input_tokens } = await client.messages.countTokens(prompt);
assert.equal(input_tokens, final.usage.input_tokens + final.usage.cache_read_input_tokens);

const ran = [];
const runnable = betaZodTool({ name: "get_weather", description: tool.description, inputSchema: z.object({ city: z.string() }),
  run: ({ city }) => { ran.push(city); return JSON.stringify({ city, temperature: 21, condition: "sunny" }); } });
const last = await client.beta.messages.toolRunner({ ...ask, tools: [runnable] });
assert.deepEqual([ran, last.stop_reason], [["Paris"], "end_turn"]);

await assert.rejects(client.messages.create({ ...ask, max_tokens: 0 }), (error) =>
  error instanceof Anthropic.BadRequestError && error.error.error.type === "invalid_request_error" && error.requestID.startsWith("msg_"));
console.log("passed");
"""


def test_the_node_sdk(demo, tmp_path):
    assert NODE_MODULES.is_dir(), "no Node packages: scripts/setup.sh test installs them"
    (tmp_path / "node_modules").symlink_to(NODE_MODULES)
    (tmp_path / "client.mjs").write_text(NODE)
    done = subprocess.run(["node", "client.mjs"], cwd=tmp_path, env={"PATH": os.environ["PATH"], "BASE_URL": demo.http},
                          capture_output=True, text=True, timeout=120)
    assert (done.returncode, done.stdout.strip()) == (0, "passed"), done.stderr
