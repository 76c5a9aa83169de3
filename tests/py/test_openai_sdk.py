"""The openai Python SDK against a served model; answers are checked against the SDK's own (strict) types."""
import json

import openai
import pytest
from openai.types import Completion, Model
from openai.types.chat import ChatCompletion, ChatCompletionChunk

from conftest import Server

WEATHER = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": "Get the current weather in a city",
        "parameters": {
            "type": "object",
            "properties": {
                "city": {"type": "string", "description": "The city"},
                "unit": {"type": "string", "enum": ["celsius", "fahrenheit"]},
            },
            "required": ["city"],
        },
    },
}
ASK = [{"role": "user", "content": "What is the weather in Paris?"}]


@pytest.fixture(scope="module")
def client(demo):
    return openai.OpenAI(base_url=demo.http + "/v1", api_key="none", max_retries=0)


@pytest.fixture(scope="module")
def model(client):
    models = list(client.models.list())
    assert len(models) == 1
    Model.model_validate(models[0].model_dump(), strict=True)
    return models[0].id


def strict(kind, response):
    """Fields of the public API have its types. Rein's extensions are additional fields."""
    return kind.model_validate_json(response.model_dump_json(), strict=True)


def test_chat(client, model):
    answer = client.chat.completions.create(model=model, messages=[{"role": "user", "content": "hello"}], temperature=0, max_tokens=40)
    strict(ChatCompletion, answer)
    assert answer.choices[0].message.content
    assert answer.choices[0].finish_reason in ("stop", "length")
    assert answer.usage.total_tokens == answer.usage.prompt_tokens + answer.usage.completion_tokens


def test_a_tool_call_is_the_same_streamed_and_unstreamed(client, model):
    arguments = dict(model=model, messages=ASK, tools=[WEATHER], temperature=0, max_tokens=120)
    whole = client.chat.completions.create(**arguments)
    strict(ChatCompletion, whole)
    call = whole.choices[0].message.tool_calls[0]
    assert whole.choices[0].finish_reason == "tool_calls"
    assert call.function.name == "get_weather"
    assert json.loads(call.function.arguments)["city"] == "Paris"
    assert call.id == "functions.get_weather:0"

    name, text, ids, finish = "", "", [], None
    for chunk in client.chat.completions.create(stream=True, **arguments):
        strict(ChatCompletionChunk, chunk)
        for choice in chunk.choices:
            finish = choice.finish_reason or finish
            for delta in choice.delta.tool_calls or []:
                name += delta.function.name or ""
                text += delta.function.arguments or ""
                ids += [delta.id] if delta.id else []
    assert (name, text, ids, finish) == (call.function.name, call.function.arguments, [call.id], "tool_calls")


def test_a_conversation_continues_after_a_tool_result(client, model):
    first = client.chat.completions.create(model=model, messages=ASK, tools=[WEATHER], temperature=0, max_tokens=120)
    call = first.choices[0].message.tool_calls[0]
    history = ASK + [first.choices[0].message.model_dump(exclude_none=True),
                     {"role": "tool", "tool_call_id": call.id, "content": '{"temperature": 21, "condition": "sunny"}'}]
    second = client.chat.completions.create(model=model, messages=history, tools=[WEATHER], temperature=0, max_tokens=120)
    assert second.choices[0].message.content


def test_reasoning_has_its_own_field(client, model):
    answer = client.chat.completions.create(
        model=model, messages=ASK, tools=[WEATHER], temperature=0, max_tokens=200, extra_body={"thinking": True})
    message = answer.choices[0].message
    assert message.reasoning_content
    assert "<think>" not in (message.content or "") and "</think>" not in (message.content or "")
    assert answer.usage.completion_tokens_details.reasoning_tokens > 0


def test_usage_in_a_stream(client, model):
    chunks = list(client.chat.completions.create(
        model=model, messages=ASK, max_tokens=8, stream=True, stream_options={"include_usage": True}))
    for chunk in chunks:
        strict(ChatCompletionChunk, chunk)
    assert chunks[-1].choices == [] and chunks[-1].usage.completion_tokens > 0
    assert all(chunk.usage is None for chunk in chunks[:-1])


def test_logprobs_and_n(client, model):
    answer = client.chat.completions.create(
        model=model, messages=ASK, max_tokens=6, n=3, logprobs=True, top_logprobs=4, temperature=1.0, seed=7)
    assert [choice.index for choice in answer.choices] == [0, 1, 2]
    strict(ChatCompletion, answer)
    for choice in answer.choices:
        for token in choice.logprobs.content:
            assert len(token.top_logprobs) == 4 and token.logprob <= 0
            assert bytes(token.bytes).decode(errors="replace") == token.token or "\ufffd" in token.token
            best = [alternative.logprob for alternative in token.top_logprobs]
            assert best == sorted(best, reverse=True)


def test_the_same_seed_gives_the_same_answer(client, model):
    arguments = dict(model=model, messages=[{"role": "user", "content": "hello"}], max_tokens=24, temperature=1.0, seed=11)
    answers = {client.chat.completions.create(**arguments).choices[0].message.content for _ in range(3)}
    assert len(answers) == 1


def test_stop_strings_are_never_leaked(client, model):
    arguments = dict(model=model, messages=[{"role": "user", "content": "hello"}], temperature=0, max_tokens=40)
    text = client.chat.completions.create(**arguments).choices[0].message.content
    stop = text[3:6]
    cut = client.chat.completions.create(stop=[stop], **arguments).choices[0]
    assert cut.message.content == text[: text.index(stop)] and cut.finish_reason == "stop"
    streamed = "".join(
        choice.delta.content or "" for chunk in client.chat.completions.create(stop=[stop], stream=True, **arguments) for choice in chunk.choices)
    assert streamed == cut.message.content


def test_completions_with_text_ids_echo_and_logprobs(client, model):
    strict(Completion, client.completions.create(model=model, prompt="The weather", max_tokens=5, logprobs=2))
    # With echo the API returns null for the first token, which its published schema does not allow.
    answer = client.completions.create(model=model, prompt="The weather", max_tokens=5, temperature=0, echo=True, logprobs=2)
    choice = answer.choices[0]
    assert choice.text.startswith("The weather")
    assert choice.logprobs.token_logprobs[0] is None
    assert len(choice.logprobs.tokens) == answer.usage.total_tokens
    pieces = list(client.completions.create(model=model, prompt="The weather", max_tokens=5, temperature=0, stream=True))
    # Before the last chunk the API returns null as finish_reason, which its published schema does not allow.
    strict(Completion, pieces[-1])
    assert "The weather" + "".join(choice.text for piece in pieces for choice in piece.choices) == answer.choices[0].text
    by_ids = client.completions.create(model=model, prompt=[5, 6, 7], max_tokens=3, extra_body={"return_token_ids": True})
    assert len(by_ids.choices[0].token_ids) == by_ids.usage.completion_tokens


@pytest.mark.parametrize("change, kind, param", [
    ({"messages": []}, openai.BadRequestError, "messages"),
    ({"messages": [{"role": "wizard", "content": "x"}]}, openai.BadRequestError, "messages[0].role"),
    ({"temperature": -0.5}, openai.BadRequestError, "temperature"),
    ({"top_p": 1.5}, openai.BadRequestError, "top_p"),
    ({"n": 0}, openai.BadRequestError, "n"),
    ({"max_tokens": 10_000_000}, openai.BadRequestError, "messages"),
    ({"logit_bias": {"99999999": 1}}, openai.BadRequestError, "logit_bias"),
    ({"model": "another"}, openai.NotFoundError, "model"),
])
def test_errors_have_the_public_shape(client, model, change, kind, param):
    with pytest.raises(kind) as caught:
        client.chat.completions.create(**{"model": model, "messages": ASK, **change})
    body = caught.value.body
    assert set(body) >= {"message", "type", "param", "code"} and body["message"]
    assert body["param"].startswith(param)


def test_unknown_fields_are_named_in_a_header(client, model):
    raw = client.chat.completions.with_raw_response.create(
        model=model, messages=ASK, max_tokens=1, extra_body={"sparkles": 3})
    assert "sparkles" in raw.headers["x-rein-ignored-fields"]


def test_a_prompt_that_fills_the_context_is_scored_and_a_longer_one_is_rejected():
    server = Server("--max-context", "64")
    client = openai.OpenAI(base_url=f"{server.http}/v1", api_key="none", max_retries=0)
    score = lambda length: client.completions.create(model="demo", prompt=list(range(300, 300 + length)), echo=True, logprobs=0, max_tokens=0)
    shorter, full = (score(length).choices[0].logprobs.token_logprobs for length in (63, 64))
    assert len(full) == 64 and full[0] is None
    assert full[1:63] == pytest.approx(shorter[1:], abs=1e-4)
    with pytest.raises(openai.BadRequestError, match="context"):
        score(65)
    server.stop()
