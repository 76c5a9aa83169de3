"""Random models with every format: the sim engine, and stubs of other engines, sample random tokens, and all finished calls must
be valid.

REIN_CASES is the number of requests per format, with all kinds of tool_choice (few in `make test`, 1000 in a full run)."""
import json
import os
import pathlib
import random
import subprocess
from types import SimpleNamespace

import pytest
from jsonschema import Draft202012Validator
from jsonschema.validators import validator_for
from openai import BadRequestError, OpenAI

from conftest import BIN, REPOSITORY, Server
from engine_stub import PATHS, EngineStub

CASES = int(os.environ.get("REIN_CASES", "6"))
FORMATS = [f for f in json.loads(subprocess.run([BIN, "formats", "--json"], capture_output=True, text=True, check=True).stdout) if f["name"] != "plain"]
# Each format in front of one kind of engine in `make test`, of all in a full run.
KINDS = sorted(PATHS)
FRONTS = [(format, kind) for i, format in enumerate(FORMATS) for j, kind in enumerate(KINDS) if CASES > 6 or i % len(KINDS) == j]
SPELLED = {"hermes", "qwen3_coder", "glm45", "jamba", "llama_json", "llama_pythonic", "functools", "granite_20b_fc"}


def model_dir(folder, markers):
    """Copies the demo model, with these markers as added tokens. The sim engine needs no weights."""
    demo = REPOSITORY / "models/demo"
    for name in ("tokenizer_config.json", "chat_template.jinja", "generation_config.json"):
        (folder / name).write_text((demo / name).read_text())
    tokenizer, config = (json.loads((demo / name).read_text()) for name in ("tokenizer.json", "config.json"))
    known = {token["content"] for token in tokenizer["added_tokens"]}
    for marker in markers:
        if marker not in known:
            tokenizer["added_tokens"].append({"id": config["vocab_size"], "content": marker, "special": False, "single_word": False, "lstrip": False, "rstrip": False, "normalized": False})
            config["vocab_size"] += 1
    (folder / "tokenizer.json").write_text(json.dumps(tokenizer))
    (folder / "config.json").write_text(json.dumps(config))
    return folder


@pytest.fixture(scope="session")
def samples(tmp_path_factory):
    """Generated requests with difficult schemas and traps."""
    file = tmp_path_factory.mktemp("samples") / "samples.jsonl"
    subprocess.run([BIN, "verify", "--generate", str(max(240, CASES)), "--seed", "7", "--out", str(file)], check=True, capture_output=True)
    lines = [json.loads(line) for line in file.read_text().splitlines()]
    return [line.get("request", line) for line in lines]


def check(call, tools):
    """Asserts that a finished call has a declared tool, and arguments that Python's jsonschema accepts."""
    assert call.function.name in tools, f"{call.function.name} was never declared"
    arguments = json.loads(call.function.arguments)
    schema = tools[call.function.name]
    errors = list(validator_for(schema, default=Draft202012Validator)(schema).iter_errors(arguments))
    assert not errors, (call.function.name, call.function.arguments, errors[0].message)


def ask(client, request, stream):
    """(finish reason, finished calls, whether a schema is relaxed)"""
    answer = client.chat.completions.with_raw_response.create(**request, stream=stream)
    relaxed = "x-rein-relaxed" in answer.headers
    if not stream:
        choice = answer.parse().choices[0]
        return choice.finish_reason, choice.message.tool_calls or [], relaxed
    reason, calls, broken = None, {}, set()
    for chunk in answer.parse():
        choice = chunk.choices[0]
        reason = choice.finish_reason or reason
        for part in choice.delta.tool_calls or []:
            call = calls.setdefault(part.index, SimpleNamespace(id=part.id, function=SimpleNamespace(name=part.function.name, arguments="")))
            call.function.arguments += part.function.arguments or ""
        broken |= {call["id"] for call in (choice.delta.model_extra or {}).get("incomplete_tool_calls", [])}
    # A stream contains unfinished calls: those that the length cut, or an invalid value of a relaxed schema.
    assert relaxed or reason == "length" or not broken & {call.id for call in calls.values()}
    return reason, [] if reason == "length" else [call for call in calls.values() if call.id not in broken], relaxed


def attack(url, samples, seed, cases, max_tokens=700):
    """Returns the number of finished calls, and the refused requests."""
    client = OpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0)
    rng = random.Random(seed)
    finished, refused = 0, []
    for case in range(cases):
        request = dict(samples[(seed * 31 + case * 7) % len(samples)])
        tools = {t["function"]["name"]: t["function"].get("parameters") or {"type": "object", "maxProperties": 0} for t in request.get("tools", [])}
        if not tools:
            continue
        named = {"type": "function", "function": {"name": rng.choice(sorted(tools))}}
        kind = ("auto", "required", "named", "allowed", "none")[case % 5]
        request = {k: v for k, v in request.items() if k in ("messages", "tools", "parallel_tool_calls", "response_format")}
        request["tool_choice"] = {"named": named, "allowed": {"type": "allowed_tools", "allowed_tools": {"mode": rng.choice(["auto", "required"]), "tools": [named]}}}.get(kind, kind)
        callable = {} if kind == "none" else tools if kind in ("auto", "required") else {named["function"]["name"]: tools[named["function"]["name"]]}
        must = kind in ("required", "named") or kind == "allowed" and request["tool_choice"]["allowed_tools"]["mode"] == "required"
        request.update(model="m", temperature=1.5, seed=seed * 1000 + case, max_tokens=max_tokens)
        try:
            reason, calls, relaxed = ask(client, request, stream=case % 2 == 1)
        except BadRequestError as error:
            refused.append(error.message)
            continue
        for call in calls:
            check(call, callable)
        if request.get("parallel_tool_calls") is False:
            assert len(calls) <= 1
        finished += len(calls)
        # A call that violates a relaxed keyword is not delivered as a call.
        if must and reason != "length" and not relaxed:
            assert calls, f"{request['tool_choice']} was answered without a call: {reason}"
    return finished, refused


@pytest.mark.parametrize("format", FORMATS, ids=lambda f: f["name"])
def test_calls_of_a_random_model_are_valid(format, samples, tmp_path):
    model = model_dir(tmp_path, format["markers"])
    server = Server("--engine", "sim", "--format", format["name"], "--served-name", "m", model=model)
    try:
        finished, refused = attack(server.http, samples, seed=FORMATS.index(format), cases=CASES)
    finally:
        server.stop()
    print(f"{format['name']}: {finished} calls finished, {len(refused)} requests refused: {sorted(set(refused))[:3]}")
    assert len(refused) <= CASES // 3, refused


@pytest.mark.parametrize("format,kind", FRONTS, ids=lambda value: value if isinstance(value, str) else value["name"])
def test_calls_of_other_engines_are_valid(format, kind, samples, tmp_path):
    model = model_dir(tmp_path, format["markers"])
    engine = EngineStub(model, kind, step=0)
    try:
        server = Server("--engine", f"{kind}={engine.url}", "--format", format["name"], "--served-name", "m", model=model, command="router")
        try:
            finished, refused = attack(server.http, samples, seed=FORMATS.index(format), cases=CASES, max_tokens=400)
        finally:
            server.stop()
    finally:
        engine.close()
    print(f"{format['name']} in front of {kind}: {finished} calls finished, {len(refused)} requests refused: {sorted(set(refused))[:3]}")
    assert len(refused) <= CASES // 3, refused
    assert len(engine.asked) > CASES, "the engine was asked"


@pytest.mark.parametrize("format", [f for f in FORMATS if f["name"] in SPELLED], ids=lambda f: f["name"])
def test_calls_are_valid_if_markers_are_not_tokens(format, samples, tmp_path):
    model = model_dir(tmp_path, [])
    server = Server("--engine", "sim", "--format", format["name"], "--served-name", "m", model=model)
    try:
        attack(server.http, samples, seed=100 + FORMATS.index(format), cases=CASES)
    finally:
        server.stop()


WEATHER = {"type": "function", "function": {"name": "get_weather", "parameters": {"type": "object", "properties": {
    "city": {"type": "string"}, "unit": {"type": "string", "enum": ["celsius", "fahrenheit"]}}, "required": ["city"]}}}
MAIL = {"type": "function", "function": {"name": "send_email", "parameters": {"type": "object", "properties": {
    "to": {"type": "string"}, "subject": {"type": "string"}}, "required": ["to"]}}}


def client_of(server):
    return OpenAI(base_url=f"{server.http}/v1", api_key="none", max_retries=0)


def test_tool_choice_on_the_demo_model(demo):
    client = client_of(demo)
    ask = lambda **more: client.chat.completions.create(model="demo", messages=[{"role": "user", "content": "hello"}], temperature=0, max_tokens=200, **more).choices[0]
    required = ask(tools=[WEATHER, MAIL], tool_choice="required")
    assert required.finish_reason == "tool_calls" and required.message.tool_calls
    named = ask(tools=[WEATHER, MAIL], tool_choice={"type": "function", "function": {"name": "send_email"}})
    assert [c.function.name for c in named.message.tool_calls] and {c.function.name for c in named.message.tool_calls} == {"send_email"}
    allowed = ask(tools=[WEATHER, MAIL], tool_choice={"type": "allowed_tools", "allowed_tools": {"mode": "required", "tools": [{"type": "function", "function": {"name": "get_weather"}}]}})
    assert {c.function.name for c in allowed.message.tool_calls} == {"get_weather"}
    none = ask(tools=[WEATHER], tool_choice="none")
    assert not none.message.tool_calls and none.finish_reason == "stop"
    single = client.chat.completions.create(model="demo", messages=[{"role": "user", "content": "What is the weather in Paris and Tokyo?"}], temperature=0, max_tokens=200,
                                            tools=[WEATHER], tool_choice="required", parallel_tool_calls=False).choices[0]
    assert len(single.message.tool_calls) == 1


def test_response_formats_on_the_demo_model(demo):
    client = client_of(demo)
    schema = {"type": "object", "properties": {"n": {"type": "integer", "minimum": 3, "maximum": 9}, "ok": {"type": "boolean"}}, "required": ["n", "ok"], "additionalProperties": False}
    say = lambda **more: client.chat.completions.create(model="demo", messages=[{"role": "user", "content": "hello"}], temperature=1, seed=3, max_tokens=300, **more).choices[0]
    answer = say(response_format={"type": "json_schema", "json_schema": {"name": "x", "strict": True, "schema": schema}})
    assert answer.finish_reason == "length" or not list(Draft202012Validator(schema).iter_errors(json.loads(answer.message.content)))
    assert say(extra_body={"structured_outputs": {"choice": ["yes", "no"]}}).message.content.strip() in ("yes", "no")
    text = say(extra_body={"structured_outputs": {"regex": "[ab]{3}-[0-9]{2}"}}).message.content.strip()
    assert len(text) == 6 and text[3] == "-" and text[4:].isdigit()
    both = say(tools=[WEATHER], response_format={"type": "json_schema", "json_schema": {"name": "x", "schema": schema}})
    if both.message.tool_calls:
        for call in both.message.tool_calls:
            check(call, {"get_weather": WEATHER["function"]["parameters"]})
    elif both.finish_reason == "stop":
        assert not list(Draft202012Validator(schema).iter_errors(json.loads(both.message.content)))


def test_completions_are_enforced(demo):
    complete = lambda **more: client_of(demo).completions.create(model="demo", prompt="Pick one:", temperature=1, seed=5, max_tokens=300, **more).choices[0]
    assert complete(extra_body={"structured_outputs": {"choice": ["red", "blue"]}}).text in ("red", "blue")
    schema = {"type": "object", "properties": {"n": {"type": "number", "exclusiveMinimum": 0, "maximum": 4.995}}, "required": ["n"], "additionalProperties": False}
    answer = complete(extra_body={"response_format": {"type": "json_schema", "json_schema": {"name": "x", "schema": schema}}})
    assert answer.finish_reason == "length" or not list(Draft202012Validator(schema).iter_errors(json.loads(answer.text)))
    with pytest.raises(BadRequestError, match="structured_outputs.regex"):
        complete(extra_body={"structured_outputs": {"regex": "("}})


def test_a_truncated_call_is_not_finished(demo):
    for tokens in range(1, 13):
        answer = client_of(demo).chat.completions.create(model="demo", messages=[{"role": "user", "content": "What is the weather in Paris?"}], temperature=0, tools=[WEATHER], tool_choice="required", max_tokens=tokens).choices[0]
        assert answer.finish_reason == "length" and not answer.message.tool_calls
        assert not answer.message.content, "the beginning of a call is no text"


def test_lazy_and_constant_masks_give_the_same_greedy_tokens(demo, samples):
    masked = Server("--masks", "always")
    try:
        clients, compared = [client_of(demo), client_of(masked)], 0
        for i in range(max(CASES, 6)):
            request = {k: v for k, v in samples[i * 3 % len(samples)].items() if k in ("messages", "tools", "tool_choice", "parallel_tool_calls")}
            answers, refused = [], []
            for client in clients:
                try:
                    extra = {"return_token_ids": True, "return_grammar": True}
                    choice = client.chat.completions.create(model="demo", temperature=0, max_tokens=160, extra_body=extra, **request).choices[0]
                    answers.append(choice.token_ids)
                    refused.append(choice.grammar["refusals"] if getattr(choice, "grammar", None) else [])
                except BadRequestError as error:
                    answers.append(error.message)
            # What replaces a refused draw is canonical, and not the likeliest token of the whole mask.
            until = refused[0][0]["position"] if refused and refused[0] else None
            assert answers[0][:until] == answers[1][:until], request
            compared += until is None or until > 10
        assert compared > 2
    finally:
        masked.stop()
