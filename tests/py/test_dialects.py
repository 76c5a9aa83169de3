"""`rein verify` and `rein bench` over gRPC and over the Messages API give the results that they give over chats, and the
same conversation gives the same tokens through all APIs."""
import contextlib
import json
import os
import re
import socket
import subprocess
import threading
import urllib.request

import pytest
from anthropic import Anthropic
from jsonschema import Draft202012Validator
from openai import BadRequestError, OpenAI

from conftest import BIN, REPOSITORY, Server
from test_cuda import ask
from test_security import new_key

TLS = REPOSITORY / "tests/fixtures/tls"


def rein(*arguments, code=0):
    done = subprocess.run([BIN, *map(str, arguments)], capture_output=True, text=True, timeout=600)
    assert done.returncode == code, done.stderr
    return done.stdout if code == 0 else done.stderr


def results(directory):
    """The result of each sample, without times and generated ids."""
    records = [json.loads(line) for line in (directory / "results.jsonl").read_text().splitlines()]
    kept = ("sample", "status", "finish_reason", "content", "reasoning", "usage", "problems")
    calls = lambda record: [(call["name"], call["arguments"]) for call in record.get("calls", [])]
    return sorted((({name: record.get(name) for name in kept}, calls(record)) for record in records), key=lambda seen: seen[0]["sample"])


@pytest.fixture(scope="module")
def samples(tmp_path_factory):
    file = tmp_path_factory.mktemp("samples") / "samples.jsonl"
    rein("verify", "--generate", 24, "--seed", 3, "--out", file)
    return file


def test_verify_gives_the_same_results_over_grpc(demo, samples, tmp_path):
    common = ["verify", "--model", "demo", "--samples", samples, "--temperature", 0, "--max-tokens", 60, "--stream", "only"]
    rein(*common, "--base-url", f"{demo.http}/v1", "--out", tmp_path / "http")
    rein(*common, "--base-url", f"http://{demo.grpc}", "--dialect", "grpc", "--out", tmp_path / "grpc")
    seen = results(tmp_path / "http")
    assert len(seen) == 24 and any(calls for _, calls in seen) and any(not calls for _, calls in seen)
    assert results(tmp_path / "grpc") == seen


def repeats_a_member(call):
    """Readers of JSON differ about `{"a": 1, "a": 2}`."""
    repeated = []
    json.loads(call[1], object_pairs_hook=lambda pairs: repeated.append(len(pairs) > len(dict(pairs))) or dict(pairs))
    return any(repeated)


def test_enforcement_leaves_valid_answers_alone(demo, tmp_path):
    """What is text and valid calls without enforcement is the same with it. REIN_CASES samples in a full run."""
    samples = tmp_path / "samples.jsonl"
    rein("verify", "--generate", int(os.environ.get("REIN_CASES", "60")), "--seed", 11, "--out", samples)
    common = ["verify", "--model", "demo", "--samples", samples, "--temperature", 0, "--max-tokens", 120, "--stream", "only", "--concurrency", 8]
    off = Server("--enforcement", "off")
    rein(*common, "--base-url", f"{off.http}/v1", "--out", tmp_path / "off")
    off.stop()
    rein(*common, "--base-url", f"{demo.http}/v1", "--out", tmp_path / "on")
    free, enforced = results(tmp_path / "off"), results(tmp_path / "on")
    valid = lambda record, calls: not record["problems"] and record["finish_reason"] != "length" and not any(map(repeats_a_member, calls))
    pairs = [(before, after) for before, after in zip(free, enforced, strict=True) if valid(*before)]
    assert len(pairs) > len(free) / 10 and any(calls for (_, calls), _ in pairs), len(pairs)
    for before, after in pairs:
        assert before == after


def test_verify_gives_the_same_results_over_the_messages_api(demo, samples, tmp_path):
    common = ["verify", "--model", "demo", "--samples", samples, "--temperature", 0, "--max-tokens", 60, "--base-url", f"{demo.http}/v1"]
    rein(*common, "--out", tmp_path / "chat")
    rein(*common, "--dialect", "messages", "--out", tmp_path / "messages")

    def value(arguments):
        """Inputs are objects in this API. A stream may end in a call that the limit cuts."""
        try:
            return json.loads(arguments)
        except json.JSONDecodeError:
            return arguments

    def answers(directory):
        return [(record["sample"], record["finish_reason"], record["content"] or None, record["usage"]["prompt_tokens"], record["problems"],
                 [(name, value(arguments)) for name, arguments in calls]) for record, calls in results(directory)]

    seen = answers(tmp_path / "chat")
    assert len(seen) == 48 and any(calls for *_, calls in seen) and any(not calls for *_, calls in seen)
    assert answers(tmp_path / "messages") == seen


def test_calls_of_random_drafts_are_valid_over_the_messages_api(sim, samples, tmp_path):
    """The sim engine drafts random tokens; the grammar must turn each draft into a valid call."""
    rein("verify", "--dialect", "messages", "--base-url", f"{sim.http}/v1", "--model", "demo", "--samples", samples, "--temperature", 1,
         "--max-tokens", 700, "--extra-body", '{"tool_choice": "required", "parallel_tool_calls": false}', "--min-schema-accuracy", 1, "--out", tmp_path)
    summary = json.loads((tmp_path / "summary.json").read_text())
    assert summary["schema_accuracy"] == 1 and summary["successful_tool_call_count"] > 10


def test_bench_measures_over_the_messages_api(sim):
    common = ["bench", "--dialect", "messages", "--base-url", f"{sim.http}/v1", "--requests", 8, "--output-tokens", 16]
    [level] = json.loads(rein(*common, "--tools", 2, "--concurrency", 2, "--json", "-"))["levels"]
    assert (level["answered"], level["errors"], level["output_tokens"]) == (8, {}, 128)
    assert "--endpoint chat" in rein("bench", "--dialect", "messages", "--endpoint", "completions", code=1)


def test_bench_measures_over_grpc(sim):
    common = ["bench", "--dialect", "grpc", "--base-url", f"http://{sim.grpc}", "--requests", 8, "--output-tokens", 16]
    [level] = json.loads(rein(*common, "--tools", 2, "--concurrency", 2, "--json", "-"))["levels"]
    assert (level["answered"], level["errors"], level["output_tokens"]) == (8, {}, 128)
    # A step takes 2 ms, and 15 steps follow the first token.
    assert level["ttft_ms"]["p50"] < level["e2e_ms"]["p50"] - 15


def test_extra_fields_are_sent_and_errors_name_wrong_ones(sim):
    common = ["bench", "--dialect", "grpc", "--base-url", f"grpc://{sim.grpc}", "--requests", 4, "--warmup", 0, "--output-tokens", 8, "--json", "-"]
    extra = {"n": 2, "logit_bias": {"400": -1}, "logprobs": True, "top_logprobs": 2, "structured_outputs": {"regex": "[a-z]{400}"}}
    [level] = json.loads(rein(*common, "--extra", json.dumps(extra)))["levels"]
    # Two choices of eight tokens each.
    assert (level["answered"], level["errors"], level["output_tokens"]) == (4, {}, 4 * 2 * 8)
    for wrong, said in [
        ({"no_such_field": 1}, "`no_such_field`: unknown field"),
        ({"temperature": "hot"}, "`temperature`: invalid type"),
        ({"structured_outputs": {"choice": "a"}}, "`structured_outputs.choice`: invalid type"),
    ]:
        assert f"cannot be sent over gRPC: {said}" in rein(*common, "--extra", json.dumps(wrong), code=1)
    assert "HTTP 400" in rein(*common, "--extra", '{"structured_outputs": {"regex": "("}}', code=1)


def test_options_without_a_grpc_counterpart_are_rejected(sim, samples, tmp_path):
    grpc = ["--dialect", "grpc", "--base-url", f"http://{sim.grpc}"]
    assert "--endpoint chat" in rein("bench", *grpc, "--endpoint", "completions", code=1)
    assert "--stream: must be `only`" in rein("verify", *grpc, "--stream", "both", "--samples", samples, "--out", tmp_path, code=1)
    assert "has no path" in rein("bench", "--dialect", "grpc", "--base-url", f"{sim.http}/v1", code=1)
    assert "need --dialect grpc" in rein("bench", "--base-url", f"grpc://{sim.grpc}", code=1)


def test_failures_are_counted_by_their_status(sim):
    common = ["bench", "--dialect", "grpc", "--requests", 2, "--warmup", 0, "--timeout", 20]
    said = rein(*common, "--base-url", f"http://{sim.grpc}", "--model", "other", code=1)
    assert "HTTP 404" in said and "other" in said
    assert "cannot connect" in rein(*common, "--base-url", "http://127.0.0.1:1", "--model", "demo", code=1)


def test_a_broken_connection_is_a_failure(sim):
    """Uses a relay that closes the connection after a number of bytes of the answer."""
    host, port = sim.grpc.rsplit(":", 1)

    def relayed(limit):
        listener = socket.create_server(("127.0.0.1", 0))

        def pump(source, sink, left):
            with contextlib.suppress(OSError):
                while left > 0 and (data := source.recv(min(left, 4096))):
                    sink.sendall(data)
                    left -= len(data)
            for end in (source, sink):
                with contextlib.suppress(OSError):
                    end.shutdown(socket.SHUT_RDWR)

        def serve():
            while True:
                client = listener.accept()[0]
                server = socket.create_connection((host, int(port)))
                threading.Thread(target=pump, args=(client, server, 1 << 30), daemon=True).start()
                threading.Thread(target=pump, args=(server, client, limit), daemon=True).start()

        threading.Thread(target=serve, daemon=True).start()
        return f"http://127.0.0.1:{listener.getsockname()[1]}"

    common = ["bench", "--dialect", "grpc", "--model", "demo", "--requests", 2, "--warmup", 0, "--output-tokens", 200, "--timeout", 20]
    assert "the stream ended early" in rein(*common, "--base-url", relayed(1500), code=1)
    assert "before a response arrived" in rein(*common, "--base-url", relayed(1), code=1)


def test_tls_and_api_keys(tmp_path):
    key, entry = new_key("bench")
    (tmp_path / "keys.toml").write_text(entry)
    server = Server("--engine", "sim", "--api-keys", str(tmp_path / "keys.toml"),
                    "--tls-cert", str(TLS / "server.pem"), "--tls-key", str(TLS / "server.key"))
    try:
        port = server.grpc.rsplit(":", 1)[1]
        for scheme in ("https", "grpcs"):
            common = ["bench", "--dialect", "grpc", "--base-url", f"{scheme}://localhost:{port}", "--requests", 2, "--output-tokens", 4]
            trusting = [*common, "--ca-file", TLS / "ca.pem"]
            # Listing the models also sends the key.
            assert "answered" in rein(*trusting, "--api-key", key)
            assert "HTTP 401" in rein(*trusting, "--api-key", "sk-wrong", code=1)
            assert "HTTP 401" in rein(*trusting, "--model", "demo", code=1)
            assert "certificate" in rein(*common, "--ca-file", TLS / "server.pem", "--api-key", key, code=1)
        plain = f"grpc://localhost:{port}"
        assert "cannot list the models" in rein("bench", "--dialect", "grpc", "--base-url", plain, "--api-key", key, code=1)
    finally:
        server.stop()


QUESTION, PLACE = "What is the weather in Paris?", {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}


def doors(system, turns, choice):
    """The bodies of the same conversation: `turns` are pairs of a call and its result."""
    chat, items, messages = ([{"role": "user", "content": QUESTION}] for _ in range(3))
    for i, (arguments, result) in enumerate(turns):
        # As the model writes it: messages have no text of arguments, only their value.
        id, text = f"functions.get_weather:{i}", json.dumps(arguments, separators=(",", ":"))
        function = {"name": "get_weather", "arguments": text}
        chat += [{"role": "assistant", "content": "I look.", "tool_calls": [{"id": id, "type": "function", "function": function}]},
                 {"role": "tool", "tool_call_id": id, "content": result}]
        items += [{"role": "assistant", "type": "message", "content": [{"type": "output_text", "text": "I look."}]},
                  {"type": "function_call", "call_id": id, **function}, {"type": "function_call_output", "call_id": id, "output": result}]
        use = {"type": "tool_use", "id": id, "name": "get_weather", "input": arguments}
        messages += [{"role": "assistant", "content": [{"type": "text", "text": "I look."}, use]},
                     {"role": "user", "content": [{"type": "tool_result", "tool_use_id": id, "content": result}]}]
    about = {"name": "get_weather", "description": "Get the weather"}
    return {
        "chat/completions": {
            "messages": [{"role": "system", "content": system}, *chat], "max_tokens": 60, "return_token_ids": True, "tool_choice": choice,
            "tools": [{"type": "function", "function": {**about, "parameters": PLACE}}]},
        "responses": {
            "input": items, "instructions": system, "max_output_tokens": 60, "return_token_ids": True, "tool_choice": choice,
            "tools": [{"type": "function", **about, "parameters": PLACE}]},
        "messages": {
            "messages": messages, "system": system, "max_tokens": 60, "tool_choice": {"type": {"required": "any"}.get(choice, choice)},
            "tools": [{**about, "input_schema": PLACE}]},
    }


def answered(path, body):
    """Tokens of the prompt, the answer's text and calls, and its tokens, which messages do not have."""
    if path == "messages":
        texts = "".join(block["text"] for block in body["content"] if block["type"] == "text")
        calls = [(block["name"], block["input"]) for block in body["content"] if block["type"] == "tool_use"]
        usage = body["usage"]
        return usage["input_tokens"] + usage["cache_read_input_tokens"], texts, calls, usage["output_tokens"], None
    if path == "responses":
        texts = "".join(part["text"] for item in body["output"] if item["type"] == "message" for part in item["content"])
        calls = [(item["name"], json.loads(item["arguments"])) for item in body["output"] if item["type"] == "function_call" and item["status"] == "completed"]
        return body["usage"]["input_tokens"], texts, calls, body["usage"]["output_tokens"], body["token_ids"]
    [choice] = body["choices"]
    calls = [(call["function"]["name"], json.loads(call["function"]["arguments"])) for call in choice["message"].get("tool_calls") or []]
    return body["usage"]["prompt_tokens"], choice["message"]["content"] or "", calls, body["usage"]["completion_tokens"], choice["token_ids"]


@pytest.mark.parametrize("choice", ["auto", "none", "required"])
def test_the_same_conversation_and_seed_give_the_same_tokens_through_three_doors(demo, choice):
    called = 0
    for seed in range(6):
        turns = [({"city": f"Paris {i}"}, f"{i} degrees, \u00e9 \"fine\"") for i in range(seed % 3)]
        seen = {}
        for path, body in doors("Be brief.", turns, choice).items():
            request = urllib.request.Request(f"{demo.http}/v1/{path}", json.dumps({"model": "demo", "temperature": 1, "seed": seed, **body}).encode(),
                                             {"content-type": "application/json"})
            with urllib.request.urlopen(request, timeout=60) as answer:
                seen[path] = answered(path, json.load(answer))
        chat, responses, messages = seen.values()
        assert responses == chat and messages == (*chat[:-1], None), seen
        called += len(chat[2])
    assert (called > 0) == (choice != "none")


ENDPOINTS = {
    "ChatRequest": ("chat/completions", {"messages": [{"role": "user", "content": "Hi"}], "max_tokens": 1}),
    "CompletionRequest": ("completions", {"prompt": "Hi", "max_tokens": 1}),
    "MessagesRequest": ("messages", {"messages": [{"role": "user", "content": "Hi"}], "max_tokens": 1}),
    "ResponsesRequest": ("responses", {"input": "Hi", "max_output_tokens": 1}),
}


@pytest.mark.parametrize("schema", ENDPOINTS)
def test_every_field_that_would_change_the_answer_is_refused_by_name(sim, schema):
    path, body = ENDPOINTS[schema]
    fields = json.loads((REPOSITORY / "router/src/api/openapi.json").read_text())["components"]["schemas"][schema]["x-refused-fields"]
    assert len(fields) > 20
    accepted = []
    for field in fields:
        # A value may be the one that changes nothing.
        refusals = []
        for value in (True, 3, "x", ["x"], {"a": 1}):
            answer = ask(sim, path, model="demo", **body, **{field: value})
            assert answer[0] in (200, 400), (field, value, answer)
            if answer[0] == 400:
                assert field in answer[1]["error"]["message"], (field, value, answer)
                refusals.append(value)
        if len(refusals) < 4:
            accepted.append((field, refusals))
    assert accepted == []


ENDLESS = {"type": "object", "properties": {"names": {"type": "array", "items": {"type": "string"}}, "count": {"type": "integer"}},
           "required": ["names", "count"], "additionalProperties": False}


def test_json_is_led_to_its_end_in_every_dialect(sim):
    """Random draws do not end a list: the length would cut the answer."""
    sdk, claude = OpenAI(base_url=f"{sim.http}/v1", api_key="none"), Anthropic(base_url=sim.http, api_key="none")
    schema = {"name": "answer", "schema": ENDLESS}
    form = {"type": "json_schema", "json_schema": schema}
    messages, extra = [{"role": "user", "content": "hi"}], {"finish_structured": True}
    early = []
    for seed in range(6):
        cut = sdk.chat.completions.create(model="demo", messages=messages, response_format=form, max_tokens=160, seed=seed)
        chat = sdk.chat.completions.create(model="demo", messages=messages, response_format=form, max_tokens=160, seed=seed, extra_body=extra)
        stream = sdk.chat.completions.create(
            model="demo", messages=messages, response_format=form, max_tokens=160, seed=seed, extra_body=extra, stream=True)
        chunks = [chunk.choices[0] for chunk in stream if chunk.choices]
        text = "".join(chunk.delta.content or "" for chunk in chunks)
        assert (text, chunks[-1].finish_reason) == (chat.choices[0].message.content, "stop")
        response = sdk.responses.create(
            model="demo", input="hi", text={"format": {"type": "json_schema", **schema}}, max_output_tokens=160, extra_body={**extra, "seed": seed})
        message = claude.messages.create(
            model="demo", messages=messages, max_tokens=160, extra_body={**extra, "seed": seed, "output_config": {"format": {"type": "json_schema", "schema": ENDLESS}}})
        assert (response.status, message.stop_reason) == ("completed", "end_turn")
        for text in (chat.choices[0].message.content, response.output_text, message.content[-1].text):
            Draft202012Validator(ENDLESS).validate(json.loads(text))
        ended = [getattr(answer, "ended_early", None) for answer in (chat.choices[0], chunks[-1], response, message)]
        # An answer that ends by itself is the same with it.
        if cut.choices[0].finish_reason == "stop" and not ended[0]:
            assert chat.choices[0].message.content == cut.choices[0].message.content
        else:
            assert cut.choices[0].finish_reason == "length" or ended[0]
        assert len(set(ended)) == 1, ended
        early.append(ended[0])
    assert "finish_structured" in early, early


def test_only_json_is_led_to_its_end(sim):
    sdk = OpenAI(base_url=f"{sim.http}/v1", api_key="none")
    with pytest.raises(BadRequestError) as refused:
        sdk.chat.completions.create(model="demo", messages=[{"role": "user", "content": "hi"}], extra_body={"finish_structured": True})
    assert refused.value.param == "finish_structured" and "json_object or json_schema" in str(refused.value)


def test_a_loaded_model_is_asked_live(demo):
    """The demo model speaks its format: its calls are read, and enforcement leaves them alone."""
    report = json.loads(rein("check", "--live", demo.http, "--json"))
    assert report["format"] == "kimi_k2"
    found = {finding["check"]: finding for finding in report["findings"]}
    assert found["live lost"]["verdict"] == found["live required"]["verdict"] == "fine", found
    valid, invalid = re.match(r"(\d+) valid and (\d+) invalid calls in 12 answers", found["live calls"]["message"]).groups()
    assert int(valid) > 8 and invalid == "0", found
    assert found["live changed"]["message"] == "enforcement changed no answer that was valid without it"
    assert "live changed" in rein("check", "--live", f"{demo.http}/v1")
    assert "--live: http://127.0.0.1:1: /v1/models" in rein("check", "--live", "http://127.0.0.1:1", code=1)
