"""`rein router --expect`: requests for a model without engines wait in the queue until its first group serves."""
import concurrent.futures
import http.client
import json
import time
import urllib.error
import urllib.request

import pytest

import test_grpc
from fleet import Fleet, until

ANSWER_TIME = 60


@pytest.fixture
def fleet(tmp_path):
    fleet = Fleet(tmp_path, workers=0, group_size=1, routers=1, more={"REIN_EXPECT": "demo,later", "REIN_MAX_QUEUED": "2",
                                                                     "REIN_MAX_IN_FLIGHT": "2"})
    try:
        until("the router is ready", lambda: fleet.get("r0", "/ready") == 200)
        yield fleet
    finally:
        fleet.close()


def url(fleet, path):
    return f"http://{fleet.host('r0')}:{fleet.ports['r0'][0]}{path}"


def ask(fleet, path="/v1/chat/completions", headers=(), **body):
    """Status and body of an answer."""
    body = {"model": "demo", "messages": [{"role": "user", "content": "Hello"}], "max_tokens": 8, **body}
    asked = urllib.request.Request(url(fleet, path), json.dumps(body).encode(), {"content-type": "application/json", **dict(headers)})
    try:
        with urllib.request.urlopen(asked, timeout=ANSWER_TIME) as response:
            return response.status, json.load(response)
    except urllib.error.HTTPError as error:
        return error.code, json.load(error)


def demand(fleet, model="demo"):
    names = ["rein_model_requests_waiting", "rein_model_requests_running"]
    return [fleet.metric("r0", name, model=model) for name in names]


def waiting(fleet, number):
    until(f"{number} wait", lambda: demand(fleet) == [number, 0])


def test_requests_wait_for_the_first_group_and_start_when_it_serves(fleet):
    with urllib.request.urlopen(url(fleet, "/v1/models")) as response:
        assert [model["id"] for model in json.load(response)["data"]] == ["demo", "later"]
    with urllib.request.urlopen(url(fleet, "/v1/models/demo")) as response:
        assert json.load(response)["id"] == "demo"
    assert demand(fleet) == [0, 0] == demand(fleet, "later")
    status, error = ask(fleet, model="other")
    assert status == 404 and "other" in error["error"]["message"] and "demo" in error["error"]["message"]
    # Deadlines hold while a request waits.
    began = time.monotonic()
    status, error = ask(fleet, headers={"x-request-timeout": "1"})
    assert (status, error["error"]["code"]) == (504, "deadline_exceeded") and time.monotonic() - began < 10
    with concurrent.futures.ThreadPoolExecutor() as pool:
        messages = pool.submit(ask, fleet, "/v1/messages")
        responses = pool.submit(ask, fleet, "/v1/responses", input="Hello", messages=None, max_tokens=None, max_output_tokens=8)
        tokens = pool.submit(ask, fleet, "/tokenize")
        waiting(fleet, 3)
        # A client that leaves waits no longer.
        connection = http.client.HTTPConnection(fleet.host("r0"), fleet.ports["r0"][0])
        connection.request("POST", "/v1/completions", json.dumps({"model": "demo", "prompt": "a"}), {"content-type": "application/json"})
        waiting(fleet, 4)
        # The queue is full: 2 slots and 2 requests that wait for one.
        status, error = ask(fleet)
        assert status == 429, error
        connection.close()
        waiting(fleet, 3)
        assert not any(answer.done() for answer in (messages, responses, tokens))
        fleet.start("w0")
        assert [answer.result(timeout=ANSWER_TIME)[0] for answer in (messages, responses, tokens)] == [200, 200, 200]
        assert messages.result()[1]["content"] and responses.result()[1]["output"] and tokens.result()[1]["tokens"]
    assert demand(fleet) == [0, 0]


def test_a_model_that_was_scaled_to_zero_is_awaited_again(fleet):
    fleet.start("w0")
    assert ask(fleet)[0] == 200
    assert fleet.metric("r0", "rein_engine_max_sequences", model="demo") > 0
    fleet.terminate("w0")
    until("the model has no engine", lambda: fleet.metric("r0", "rein_engines", model="demo", standing="serving") == 0)
    assert fleet.get("r0", "/ready") == 200
    client = test_grpc.Client(f"{fleet.host('r0')}:{fleet.ports['r0'][1]}")
    with concurrent.futures.ThreadPoolExecutor() as pool:
        over_http = pool.submit(ask, fleet)
        over_grpc = pool.submit(lambda: list(client.call("Chat", test_grpc.chat(client, "demo", "Hello", max_tokens=8))))
        waiting(fleet, 2)
        fleet.start("w1")
        assert over_http.result(timeout=ANSWER_TIME)[0] == 200
        assert over_grpc.result(timeout=ANSWER_TIME)
    assert demand(fleet) == [0, 0]
