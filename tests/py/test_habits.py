"""What people bring from other servers: names of models, paths, options."""
import http.client
import json
import subprocess
import urllib.request

import anthropic
import openai
import pytest

from conftest import BIN, REPOSITORY, Server
from playground import DESK, NO_BROWSER, PHONE, browser, visit

DEMO = str(REPOSITORY / "models/demo")
HELLO = [{"role": "user", "content": "hello"}]


@pytest.fixture(scope="module")
def named():
    """Two names by --served-name, a further one by --alias, and an alias of a model that is not there."""
    server = Server("--served-name", "acme/demo,demo-latest", "--alias", "gpt-4o=acme/demo,ghost=nobody")
    yield server
    server.stop()


def ask(server, path, body=None, headers={"Content-Type": "application/json"}):
    data = None if body is None else json.dumps(body).encode()
    connection = http.client.HTTPConnection(server.http.removeprefix("http://"), timeout=60)
    connection.request("GET" if body is None else "POST", path, data, headers)
    answer = connection.getresponse()
    return answer.status, json.load(answer)


def test_a_model_has_several_names(named):
    models = openai.OpenAI(base_url=f"{named.http}/v1", api_key="none").models.list().data
    assert [model.id for model in models] == ["acme/demo", "demo-latest", "gpt-4o"] or {model.id for model in models} == {"acme/demo", "demo-latest", "gpt-4o"}
    assert models[0].id == "acme/demo" and models[1].root == "acme/demo" and models[1].max_model_len == models[0].max_model_len
    client = openai.OpenAI(base_url=f"{named.http}/v1", api_key="none")
    answers = {client.chat.completions.create(model=name, messages=HELLO, temperature=0).choices[0].message.content for name in ("acme/demo", "demo-latest", "gpt-4o")}
    assert len(answers) == 1
    assert client.models.retrieve("gpt-4o").id == "gpt-4o"
    with pytest.raises(openai.NotFoundError) as error:
        client.chat.completions.create(model="ghost", messages=HELLO)
    assert "this server has: acme/demo, demo-latest, gpt-4o" in str(error.value)


@pytest.mark.parametrize("path, body", [
    ("/v1/chat/completions", {"messages": HELLO}), ("/v1/completions", {"prompt": "a"}), ("/v1/responses", {"input": "hello"}),
    ("/v1/messages", {"messages": HELLO, "max_tokens": 4}), ("/v1/messages/count_tokens", {"messages": HELLO}), ("/tokenize", {"prompt": "a"}),
    ("/v1/chat/completions/render", {"messages": HELLO}),
])
def test_a_request_without_a_model_gets_the_only_one(named, path, body):
    for model in ({}, {"model": None}, {"model": ""}):
        status, answer = ask(named, path, {**body, **model})
        assert status == 200 and answer.get("model", "acme/demo") == "acme/demo", answer


def test_clients_whose_base_url_lacks_v1_reach_the_same_api(named):
    client = openai.OpenAI(base_url=named.http, api_key="none")
    stream = client.chat.completions.create(model="acme/demo", messages=HELLO, stream=True)
    assert "".join(chunk.choices[0].delta.content or "" for chunk in stream if chunk.choices)
    assert client.responses.create(model="acme/demo", input="hello").output_text
    assert client.completions.create(model="acme/demo", prompt="a", max_tokens=2).choices
    assert client.models.retrieve("acme/demo").id == "acme/demo"
    assert anthropic.Anthropic(base_url=named.http, api_key="none").messages.create(model="acme/demo", messages=HELLO, max_tokens=4).content
    status, answer = ask(named, "/chat/completions/nothing", {})
    assert status == 404 and "the path /v1/chat/completions/nothing does not exist" in answer["error"]["message"]
    assert ask(named, "/chat", {})[0] == 404


def test_a_slash_at_the_end_of_a_path_changes_nothing(named):
    for path in ("/v1/models/", "/models/", "/v1/models//"):
        assert urllib.request.urlopen(named.http + path).status == 200, path
    assert ask(named, "/v1/chat/completions/", {"messages": HELLO, "max_tokens": 2})[0] == 200
    page = urllib.request.urlopen(named.http + "/").read()
    for path in ("/playground", "/playground/"):
        assert urllib.request.urlopen(named.http + path).read() == page, path


def test_version_and_a_body_without_a_content_type(named):
    version = subprocess.run([BIN, "--version"], capture_output=True, text=True, check=True).stdout.split()[1]
    assert ask(named, "/version") == (200, {"version": version})
    assert ask(named, "/v1/chat/completions", {"messages": HELLO, "max_tokens": 2}, headers={})[0] == 200
    # A page of another site can send these two without asking: they stay refused, and the error says what to add.
    for kind in ("text/plain", "application/x-www-form-urlencoded"):
        status, answer = ask(named, "/v1/chat/completions", {"messages": HELLO}, headers={"Content-Type": kind})
        assert status == 415 and "-H 'content-type: application/json'" in answer["error"]["message"]


@NO_BROWSER
@pytest.mark.parametrize("width", [DESK, PHONE])
def test_the_page_of_the_api_shows_fields(visit, demo, width):
    page = visit(demo, width, path="/docs")
    page.until("document.querySelectorAll('details.path').length > 20")
    page.js("document.querySelector('details.path').open = true")
    page.until("document.querySelectorAll('details.path[open] .field').length > 30")
    texts = page.texts("details.path[open] .field code")
    assert {"messages", "tools", "temperature", "400"} <= set(texts)
    page.js("document.querySelector('details.fields').open = true")
    page.until("document.querySelectorAll('details.fields[open] .field').length > 1")
    assert page.js("document.documentElement.scrollWidth") <= width
    page.fill("#filter", "thinking_token_budget")
    shown = page.js("[...document.querySelectorAll('details.path:not([hidden]) > summary code')].map(code => code.textContent)")
    assert "/v1/chat/completions" in shown and "/v1/models" not in shown


def refused(*arguments):
    run = subprocess.run([BIN, *arguments], capture_output=True, text=True, timeout=60)
    assert run.returncode == 2, run.stderr
    return run.stderr


@pytest.mark.parametrize("arguments, says", [
    (["serve", DEMO, "--max-model-len", "8192"], "--max-model-len is an option of vLLM; in Rein: --max-context"),
    (["serve", DEMO, "--tool-call-parser=hermes"], "--tool-call-parser is an option of vLLM; in Rein: --format"),
    (["serve", DEMO, "--enable-auto-tool-choice"], "--enable-auto-tool-choice is an option of vLLM"),
    (["serve", DEMO, "-ngl", "99"], "-ngl is an option of llama-server"),
    (["serve", "--no-such-thing"], "unexpected argument '--no-such-thing'"),
    (["serve"], "the model is missing: a directory, or ORG/NAME of the Hugging Face Hub, such as `rein serve Qwen/Qwen3-0.6B`"),
    (["serve", DEMO, "--model", DEMO], "the model is given twice"),
    (["serve", DEMO, "--alias", "a"], "expected NAME=MODEL"),
])
def test_options_of_other_servers_are_told(arguments, says):
    assert says in refused(*arguments)


def test_a_model_is_given_without_an_option():
    run = subprocess.run([BIN, "score", DEMO, "--tokens", "-"], input="[1, 2, 3]", capture_output=True, text=True, timeout=60)
    assert run.returncode == 0, run.stderr
    # It comes before the environment's.
    run = subprocess.run([BIN, "score", DEMO, "--tokens", "-"], input="[1, 2, 3]", capture_output=True, text=True, timeout=60, env={"REIN_MODEL": "/nonexistent"})
    assert run.returncode == 0, run.stderr
