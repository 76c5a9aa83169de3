"""gpt-oss from end to end: its fixture has MXFP4 weights, the template of the published checkpoint and its special tokens."""
import json
import subprocess

import jsonschema
import pytest
from openai import OpenAI

from conftest import BIN, REPOSITORY, Server

MODEL = REPOSITORY / "tests/fixtures/models/gpt_oss_mxfp4"
SCHEMA = {
    "type": "object", "additionalProperties": False, "required": ["city", "days"],
    "properties": {"city": {"type": "string", "maxLength": 20}, "days": {"type": "integer", "minimum": 1, "maximum": 7},
                   "unit": {"enum": ["celsius", "fahrenheit"]}},
}
TOOLS = [{"type": "function", "function": {"name": "get_weather", "description": "The weather of a city", "parameters": SCHEMA}}]
ASKED = [{"role": "user", "content": "What is the weather in Paris?"}]


@pytest.fixture(scope="module", params=[1, 2], ids=["one rank", "two ranks"])
def client(request):
    server = Server("--tp", str(request.param), model=MODEL)
    yield OpenAI(base_url=f"{server.http}/v1", api_key="none", max_retries=0)
    server.stop()


def test_its_template_and_its_format_fit():
    done = subprocess.run([BIN, "check", "--model", MODEL, "--json"], capture_output=True, text=True, check=True)
    report = json.loads(done.stdout)
    assert report["format"] == "gpt_oss"
    assert {finding["check"]: finding["verdict"] for finding in report["findings"]}["read back"] == "fine"
    assert not [finding for finding in report["findings"] if finding["verdict"] == "broken"]


@pytest.mark.parametrize("seed", range(6))
def test_a_demanded_call_is_valid(client, seed):
    asked = dict(model="gpt_oss_mxfp4", messages=ASKED, tools=TOOLS, tool_choice="required", max_tokens=400, seed=seed, temperature=1)
    call = client.chat.completions.create(**asked).choices[0].message.tool_calls[0]
    assert call.function.name == "get_weather"
    jsonschema.validate(json.loads(call.function.arguments), SCHEMA)
    parts = [part.choices[0].delta.tool_calls for part in client.chat.completions.create(**asked, stream=True) if part.choices]
    streamed = "".join(call.function.arguments or "" for calls in parts for call in calls or [])
    assert streamed == call.function.arguments
    # The next turn has the call in its history.
    history = [*ASKED, {"role": "assistant", "content": None, "tool_calls": [call.model_dump()]},
               {"role": "tool", "tool_call_id": call.id, "content": "sunny"}]
    answer = client.chat.completions.create(**{**asked, "messages": history, "tool_choice": "none", "max_tokens": 20})
    assert answer.usage.completion_tokens == 20 or answer.choices[0].finish_reason == "stop"
