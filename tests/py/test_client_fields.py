"""Request fields and behaviour that clients of other servers expect: stream starts, restricted tokens, budgets, CORS, addresses."""
import json
import shutil
import socket
import time
import urllib.error
import urllib.request

import openai
import pytest
from openai.types.chat import ChatCompletion, ChatCompletionChunk

from conftest import REPOSITORY, Server

HELLO = [{"role": "user", "content": "hello"}]
OPEN, CLOSE = 5118, 5119


def client_of(server):
    return openai.OpenAI(base_url=server.http + "/v1", api_key="none", max_retries=0)


@pytest.fixture(scope="module")
def client(demo):
    return client_of(demo)


def ask(client, **more):
    body = more.pop("body", {})
    return client.chat.completions.create(
        model="demo", messages=more.pop("messages", HELLO), temperature=0, max_tokens=more.pop("max_tokens", 12),
        extra_body={"return_token_ids": True, **body}, **more)


def test_the_first_chunk_has_the_role_and_content(client):
    for n in (1, 2):
        seen = {}
        for chunk in client.chat.completions.create(model="demo", messages=HELLO, temperature=0, max_tokens=6, n=n, stream=True):
            ChatCompletionChunk.model_validate_json(chunk.model_dump_json(), strict=True)
            for choice in chunk.choices:
                if choice.index not in seen:
                    seen[choice.index] = choice.delta
                    assert choice.delta.role == "assistant" and choice.delta.content
                else:
                    assert choice.delta.role is None
        assert len(seen) == n


def test_a_stream_starts_before_its_prompt_is_computed():
    # A prompt of some 20 tokens takes 2 s.
    server = Server("--engine", "sim", "--sim-prefill-us", "100000")
    try:
        body = {"model": "demo", "messages": HELLO, "max_tokens": 2, "stream": True, "n": 2}
        request = urllib.request.Request(server.http + "/v1/chat/completions", data=json.dumps(body).encode(), headers={"content-type": "application/json"})
        began = time.monotonic()
        with urllib.request.urlopen(request) as response:
            assert response.readline() == b": admitted\n" and response.readline() == b"\n"
            admitted = time.monotonic() - began
            first = json.loads(response.readline().removeprefix(b"data: "))["choices"][0]["delta"]
            content = time.monotonic() - began
        assert first["role"] == "assistant" and "content" in first
        assert admitted < content / 2, (admitted, content)
    finally:
        server.stop()


def test_usage_with_every_chunk(client):
    chunks = list(client.chat.completions.create(
        model="demo", messages=HELLO, temperature=0, max_tokens=6, stream=True,
        stream_options={"include_usage": True, "continuous_usage_stats": True}))
    counts = [chunk.usage.completion_tokens for chunk in chunks]
    assert counts == sorted(counts) and counts[0] >= 1 and counts[-1] == 6 and chunks[-1].choices == []
    assert len({chunk.usage.prompt_tokens for chunk in chunks}) == 1


def test_only_allowed_tokens_are_sampled(client):
    whole = ask(client)
    allowed = whole.choices[0].token_ids[2:4]
    for temperature in (0, 1.5):
        answer = client.chat.completions.create(
            model="demo", messages=HELLO, temperature=temperature, max_tokens=12, seed=1,
            extra_body={"return_token_ids": True, "allowed_token_ids": allowed})
        ids = answer.choices[0].token_ids
        assert set(ids) <= set(allowed) and len(ids) == 12 and answer.choices[0].finish_reason == "length"
    # The grammar requires a token that is not allowed.
    with pytest.raises(openai.BadRequestError, match="no token is left"):
        ask(client, body={"allowed_token_ids": allowed, "guided_choice": ["~~~~"]})


def test_bad_words_are_not_written(client):
    whole = ask(client)
    words = whole.choices[0].message.content.split()
    word = max(words, key=len).strip(".,!?")
    answer = ask(client, body={"bad_words": [word]})
    assert word in whole.choices[0].message.content
    assert word not in answer.choices[0].message.content
    assert ask(client, body={"bad_words": ["a word that nobody writes"]}).choices[0].token_ids == whole.choices[0].token_ids


def test_fields_of_older_servers_constrain_the_text(client):
    assert ask(client, body={"guided_choice": ["blue", "red"]}).choices[0].message.content in ("blue", "red")
    schema = {"type": "object", "properties": {"a": {"enum": [1, 2]}}, "required": ["a"], "additionalProperties": False}
    assert json.loads(ask(client, max_tokens=40, body={"guided_json": schema}).choices[0].message.content)["a"] in (1, 2)
    with pytest.raises(openai.BadRequestError, match="use 'max_tokens'") as caught:
        ask(client, body={"n_predict": 4})
    assert caught.value.body["param"] == "n_predict"
    ask(client, body={"n_predict": -1, "typical_p": 1, "mirostat": 0, "use_beam_search": False, "grammar": ""})


def test_the_fingerprint_matches_the_public_schema(client):
    answer = client.chat.completions.create(model="demo", messages=HELLO, max_tokens=1)
    ChatCompletion.model_validate_json(answer.model_dump_json(), strict=True)
    assert answer.system_fingerprint.startswith("fp_")
    assert answer.system_fingerprint == client.completions.create(model="demo", prompt="a", max_tokens=1).system_fingerprint


def test_the_fingerprint_changes_with_the_weights_and_their_types(tmp_path):
    model = tmp_path / "demo"
    shutil.copytree(REPOSITORY / "models/demo", model)

    def fingerprint(*options):
        server = Server(*options, model=model)
        try:
            return ask(client_of(server), max_tokens=1).system_fingerprint
        finally:
            server.stop()

    first = fingerprint()
    assert fingerprint() == first
    assert fingerprint("--quantize", "int8") != first
    weights = model / "model.safetensors"
    before = weights.read_bytes()
    weights.write_bytes(before[:-1] + bytes([before[-1] ^ 1]))
    assert fingerprint() != first
    weights.write_bytes(before)
    assert fingerprint() == first


@pytest.mark.parametrize("budget, more", [(5, {}), (0, {}), (3, {"guided_choice": ["yes"]})])
def test_reasoning_ends_when_its_budget_is_spent(sim, budget, more):
    client = client_of(sim)
    words = [400, 401, 402, 403, 404, 405, 406, 407, 408, 409]
    answer = ask(client, max_tokens=40, body={"thinking_token_budget": budget, "script": [OPEN, *words], **more})
    choice = answer.choices[0]
    assert choice.token_ids[: budget + 2] == [OPEN, *words[:budget], CLOSE]
    assert choice.token_ids.count(CLOSE) == 1
    assert answer.usage.completion_tokens_details.reasoning_tokens == budget
    if more:
        assert choice.message.content == "yes"
    streamed = [
        id for chunk in ask(client, max_tokens=40, stream=True, body={"reasoning": {"max_tokens": budget}, "script": [OPEN, *words], **more})
        for choice in chunk.choices for id in choice.token_ids]
    assert streamed == choice.token_ids


def test_cors_origins_and_host_names():
    server = Server("--engine", "sim", "--cors-origin", "https://chat.example,http://localhost:3000", grpc="0")
    try:
        def answer(method, path, **headers):
            request = urllib.request.Request(server.http + path, method=method, headers=headers)
            try:
                with urllib.request.urlopen(request) as response:
                    return response.status, response.headers
            except urllib.error.HTTPError as error:
                return error.code, error.headers
        asked = {"Access-Control-Request-Method": "POST", "Access-Control-Request-Headers": "authorization"}
        status, headers = answer("OPTIONS", "/v1/chat/completions", Origin="http://localhost:3000", **asked)
        assert (status, headers["access-control-allow-origin"]) == (204, "http://localhost:3000")
        assert "authorization" in headers["access-control-allow-headers"]
        status, headers = answer("GET", "/nowhere", Origin="https://chat.example")
        assert (status, headers["access-control-allow-origin"]) == (404, "https://chat.example")
        assert "x-request-id" in headers["access-control-expose-headers"]
        assert answer("GET", "/v1/models", Origin="https://evil.example")[1]["access-control-allow-origin"] is None
        assert server.grpc.startswith("127.0.0.1:")
    finally:
        server.stop()


@pytest.mark.parametrize("host, shown", [("localhost:", "http://127.0.0.1:"), (":", "http://0.0.0.0:"), ("", "http://127.0.0.1:")])
def test_all_forms_of_listen_addresses_work(host, shown):
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    server = Server("--engine", "sim", http=f"{host}{port}")
    try:
        assert server.http == f"{shown}{port}"
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/health") as response:
            assert response.status == 200
    finally:
        server.stop()
