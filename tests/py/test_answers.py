"""Structured answers as people expect them: the schema's order, bounded blanks and digits, errors in plain words. The sim engine draws
tokens at random, so what the grammar leaves open is written in every way."""
import json

import openai
import pydantic
import pytest
from openai.lib._pydantic import to_strict_json_schema

from conftest import Server

POINT = {"type": "object", "properties": {"y": {"type": "integer"}, "x": {"type": "integer"}}, "required": ["x", "y"], "additionalProperties": False}
SCHEMA = {"type": "object", "additionalProperties": False, "required": ["reasoning", "answer"],
          "properties": {"reasoning": {"type": "string", "maxLength": 5}, "points": {"type": "array", "items": {"$ref": "#/$defs/point"}, "minItems": 1, "maxItems": 2},
                         "answer": {"enum": ["yes", "no"]}}, "$defs": {"point": POINT}}


def ask(server, seed, schema=SCHEMA, strict=False, **extra):
    """A completion, because a random chat would reason without end."""
    form = {"type": "json_schema", "json_schema": {"name": "answer", "schema": schema, "strict": strict}}
    answer = openai.OpenAI(base_url=f"{server.http}/v1", api_key="none").completions.create(
        model="demo", prompt="Well?", seed=seed, max_tokens=1500, temperature=1, extra_body={"response_format": form, **extra})
    assert answer.choices[0].finish_reason == "stop", answer
    return answer.choices[0].text


def in_order(value, schema=SCHEMA):
    """Every object has its properties in the order of its schema."""
    if isinstance(value, list):
        return all(in_order(item, schema) for item in value)
    if not isinstance(value, dict):
        return True
    names = list(SCHEMA["properties"]) if "answer" in value else list(POINT["properties"])
    return [name for name in names if name in value] == list(value) and all(in_order(inner) for inner in value.values())


@pytest.fixture(scope="module")
def other():
    """The switches turned. Under masks, every order is drawn; what replaces a refused draw has the schema's."""
    server = Server("--engine", "sim", "--answer-order", "any", "--answer-blanks", "few", "--masks", "always")
    yield server
    server.stop()


def test_random_answers_keep_the_order_of_their_schema(sim, other):
    values = [json.loads(ask(sim, seed)) for seed in range(20)]
    assert all(map(in_order, values)) and any(value.get("points") for value in values)
    assert not all(in_order(json.loads(ask(other, seed))) for seed in range(20))


def test_the_order_is_that_of_an_sdks_model(sim):
    class Thought(pydantic.BaseModel):
        thinking: str = pydantic.Field(max_length=4)
        verdict: bool
        score: float

    schema = to_strict_json_schema(Thought)
    for seed in range(5):
        text = ask(sim, seed, schema, strict=True)
        assert list(json.loads(text)) == ["thinking", "verdict", "score"] and Thought.model_validate_json(text), text


def blanks(text):
    """The blanks between tokens of JSON, with the character before them."""
    text, found, at, quoted = text.strip(), [], "", False
    for i, c in enumerate(text):
        if quoted:
            quoted = not (c == '"' and (len(text[:i]) - len(text[:i].rstrip("\\"))) % 2 == 0)
        elif c == '"':
            quoted = True
        if not quoted and c in " \t\r\n":
            at += c
        elif at:
            found.append((text[i - len(at) - 1], at))
            at = ""
    return found


@pytest.mark.parametrize("extra", [{"guided_whitespace_pattern": ""}, {}])
def test_blanks_without_a_pattern_are_the_servers_choice(sim, other, extra):
    found = [pair for seed in range(10) for pair in blanks(ask(other, seed, **extra))]
    assert found and all(before in ",:" and run == " " for before, run in found), found
    assert any(run != " " for seed in range(10) for _, run in blanks(ask(sim, seed, **extra)))


def test_a_request_says_which_blanks_it_wants(sim, other):
    for server in (sim, other):
        for seed in range(5):
            text = ask(server, seed, guided_whitespace_pattern="")
            assert json.loads(text)
            compact = ask(server, seed, guided_whitespace_pattern="(?:)")
            assert not blanks(compact), compact
            wide = ask(server, seed, guided_whitespace_pattern="\n")
            assert set(run for _, run in blanks(wide)) == {"\n"}, wide
    few = {"structured_outputs": {"json": SCHEMA, "disable_any_whitespace": True}}
    client = openai.OpenAI(base_url=f"{sim.http}/v1", api_key="none")
    text = client.completions.create(model="demo", prompt="Well?", seed=1, max_tokens=1500, extra_body=few).choices[0].text
    assert all(before in ",:" and run == " " for before, run in blanks(text)), text
    with pytest.raises(openai.BadRequestError) as error:
        ask(sim, 0, guided_whitespace_pattern="[a ]")
    assert "must match spaces, tabs and line breaks alone" in str(error.value)


def test_numbers_end_where_a_double_does(sim):
    schema = {"type": "object", "properties": {"n": {"type": "number"}}, "required": ["n"], "additionalProperties": False}
    for seed in range(20):
        text = ask(sim, seed, schema).strip()
        mantissa = text.split(":")[1].strip("} \n\t").lower().split("e")[0].lstrip("-")
        significant = mantissa.replace(".", "").lstrip("0")
        assert len(significant) <= (17 if "." in mantissa else 20), text


@pytest.mark.parametrize("schema, says", [
    ({"type": "objekt"}, 'no valid JSON Schema at /type: "objekt" is no type; there are array, boolean, integer, null, number, object and string; do you mean "object"?'),
    ({"type": "object", "properties": {"n": {"type": "int"}}}, 'at /properties/n/type: "int" is no type; there are array, boolean, integer, null, number, object and string; do you mean "integer"?'),
    ({"type": "object", "properties": {"n": "string"}}, 'at /properties/n: must be a schema, an object such as {"type": "string"}, got "string"'),
    ({"type": "object", "required": "n"}, 'at /required: must be an array, got "n"'),
])
def test_errors_of_schemas_are_in_peoples_words(sim, schema, says):
    with pytest.raises(openai.BadRequestError) as error:
        ask(sim, 0, schema, strict=True)
    assert says in error.value.body["message"] and error.value.body["param"] == "response_format.json_schema.schema"
