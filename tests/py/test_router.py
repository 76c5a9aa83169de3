"""Hedging, sessions and model listings of a router in a cluster of real processes."""
import contextlib
import http.client
import itertools
import json
import shutil
import signal
import urllib.request

import test_grpc
from fleet import BIN, DEMO, Fleet, Load, assert_unnoticed, request, targets, undisturbed_answers
from script_proxy import tokens


@contextlib.contextmanager
def cluster(directory, workers, more):
    fleet = Fleet(directory, workers=workers, group_size=1, routers=1, more=more)
    try:
        yield fleet, fleet.whole(workers)
    finally:
        fleet.close()


def post(fleet, body, headers=()):
    host, port = targets(fleet)[0]
    with contextlib.closing(http.client.HTTPConnection(host, port, timeout=60)) as connection:
        headers = {"content-type": "application/json", **dict(headers)}
        connection.request("POST", "/v1/chat/completions", json.dumps(body), headers)
        response = connection.getresponse()
        assert response.status == 200, response.read()
        return json.load(response)


def test_models_show_the_revision_of_the_workers_checkpoint(tmp_path):
    commit = "0123456789abcdef0123456789abcdef01234567"
    model = tmp_path / "hub/models--rein--demo/snapshots" / commit
    shutil.copytree(DEMO, model)
    fleet = Fleet(tmp_path, workers=1, group_size=1, routers=1, model=model, worker_args=["--served-name", "demo"])
    try:
        fleet.whole(1)
        with urllib.request.urlopen(f"http://{fleet.host('r0')}:{fleet.ports['r0'][0]}/v1/models") as response:
            [listed] = json.load(response)["data"]
        assert (listed["id"], listed["revision"]) == ("demo", commit)
    finally:
        fleet.close()


def test_a_silent_worker_is_hedged_before_it_counts_as_dead(tmp_path):
    requests = [{**request(i), "max_tokens": 120} for i in range(6)]
    with cluster(tmp_path, 2, {"REIN_HEDGE_AFTER": "100", "REIN_POLICY": "round-robin"}) as (fleet, _):
        undisturbed = undisturbed_answers(fleet, requests)
        counted = fleet.metric("r0", "rein_generated_tokens_total")
        before = fleet.metric("r0", "rein_hedges_won_total")
        fleet.signal("w1", signal.SIGSTOP)
        assert_unnoticed(Load(targets(fleet), requests).join(), undisturbed)
        assert fleet.metric("r0", "rein_hedges_won_total") > before
        assert fleet.metric("r0", "rein_generated_tokens_total") == 2 * counted


def test_the_requests_of_a_session_go_to_one_worker(tmp_path):
    with cluster(tmp_path, 3, {"REIN_LOG": "info,rein_worker=debug"}) as (fleet, _):
        counter = itertools.count()

        def served(how, session):
            """The workers that served three requests without common prefixes."""
            before = {name: fleet.admitted(name) for name in alive}
            for _ in range(3):
                # A unique salt keeps the prompt out of all caches.
                body = {**request(1), "stream": False, "max_tokens": 2, "cache_salt": str(next(counter))}
                if how == "x-rein-session":
                    post(fleet, body, {how: session})
                elif how == "metadata":
                    ask = test_grpc.chat(grpc, "demo", "hello", max_tokens=2, cache_salt=body["cache_salt"])
                    assert list(grpc.call("Chat", ask, metadata=[("x-rein-session", session)]))
                else:
                    post(fleet, {**body, how: session})
            took = {name: fleet.admitted(name) - before[name] for name in alive}
            assert sum(took.values()) == 3
            return {name for name, count in took.items() if count}

        grpc = test_grpc.Client(f"{fleet.host('r0')}:{fleet.ports['r0'][1]}")
        alive = ["w0", "w1", "w2"]
        # The hash includes the groups' names, which are random. With 32 sessions, a worker gets none in one of 140,000 runs.
        homes = {session: served("x-rein-session", session) for session in map(str, range(32))}
        assert all(len(home) == 1 for home in homes.values()) and len(set.union(*homes.values())) == 3, homes
        # All ways to name a session are equivalent.
        assert all(served("prompt_cache_key", session) == homes[session] for session in "012")
        assert all(served("user", session) == homes[session] for session in "345")
        assert all(served("metadata", session) == homes[session] for session in "0123")
        # Requests without a session are spread.
        assert len(set.union(*(served("seed", seed) for seed in range(4)))) > 1
        # When a worker is lost, sessions on other workers stay there.
        [gone] = homes["0"]
        fleet.kill(gone)
        alive.remove(gone)
        fleet.wait("a group is gone", lambda status: len(status["groups"]) == 2)
        for session, home in homes.items():
            now = served("x-rein-session", session)
            assert len(now) == 1 and (now == home or home == {gone}), (session, home, now)


def test_http_and_grpc_give_the_same_answer(tmp_path):
    with cluster(tmp_path, 1, {}) as (fleet, _):
        grpc = test_grpc.Client(f"{fleet.host('r0')}:{fleet.ports['r0'][1]}")
        for text in ("hello", "What is the weather in Paris?"):
            ask = test_grpc.chat(grpc, "demo", text, return_token_ids=True)
            events = list(grpc.call("Chat", ask, metadata=[("x-rein-session", "one")]))
            said = "".join(event.text_delta.text for event in events if event.WhichOneof("event") == "text_delta")
            body = {"model": "demo", "messages": [{"role": "user", "content": text}], "temperature": 0, "max_tokens": 120}
            [choice] = post(fleet, {**body, "return_token_ids": True}, {"x-rein-session": "one"})["choices"]
            assert said and said == choice["message"]["content"]
            assert [token for event in events for token in event.token_ids] == choice["token_ids"]


BLOCK = 16  # tokens per KV block, the workers' default
TURNS = ("tell me about all the rooms there are in this house, from the first to the last", "And the last?", "And the first?")


def cached(fleet, salt):
    """Eight conversations side by side: of each, the tokens in whole blocks of the prompts before the last, and how many a cache had in
    those after the first."""
    conversations, had = [[] for _ in range(8)], [[0, 0] for _ in range(8)]
    for turn, text in enumerate(TURNS):
        for i, messages in enumerate(conversations):
            messages.append({"role": "user", "content": f"{i}: {text}"})
            body = {"model": "demo", "messages": messages, "temperature": 0, "max_tokens": 30, "cache_salt": salt}
            answer = post(fleet, body)
            messages.append(answer["choices"][0]["message"])
            if turn + 1 < len(TURNS):
                had[i][0] += answer["usage"]["prompt_tokens"] // BLOCK * BLOCK
            if turn:
                had[i][1] += answer["usage"]["prompt_tokens_details"]["cached_tokens"]
    return had


def test_the_next_turn_is_routed_to_the_worker_with_the_cached_conversation(tmp_path):
    with cluster(tmp_path, 3, {}) as (fleet, _):
        took = {name: fleet.metric("r0", "rein_engine_steps_total", engine=name) for name in fleet.status()["groups"]}
        aware = cached(fleet, "aware")
        assert all(hits >= tokens for tokens, hits in aware), aware
        now = {name: fleet.metric("r0", "rein_engine_steps_total", engine=name) for name in took}
        assert sum(now[name] > took[name] for name in took) > 1, "one has all"
        # Eight is not a multiple of three: with round robin, no conversation returns to its worker in the next turn.
        fleet.terminate("r0")
        fleet.more["REIN_POLICY"] = "round-robin"
        fleet.start("r0")
        fleet.whole(3)
        in_turn = cached(fleet, "in turn")
        assert sum(hits for _, hits in in_turn) < 0.3 * sum(hits for _, hits in aware), in_turn


def test_the_clients_trace_is_forwarded_without_a_collector(tmp_path):
    trace, parent = "4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7"
    with cluster(tmp_path, 1, {"REIN_LOG": "info,rein_worker=debug", "REIN_LOG_FORMAT": "json"}) as (fleet, _):
        host, port = targets(fleet)[0]
        connection = http.client.HTTPConnection(host, port, timeout=60)
        headers = {"content-type": "application/json", "traceparent": f"00-{trace}-{parent}-01"}
        connection.request("POST", "/v1/chat/completions", json.dumps({**request(1), "stream": False}), headers)
        assert connection.getresponse().status == 200
        for process, message in [("r0", "the request ended"), ("w0", "admitted")]:
            lines = [json.loads(line) for line in fleet.log(process).splitlines() if line.startswith("{")]
            [line] = [line for line in lines if line["fields"].get("message") == message]
            assert line["span"]["trace_id"] == trace


def test_a_draining_router_is_visible(tmp_path):
    with cluster(tmp_path, 1, {}) as (fleet, _):
        long = [{**request(1), "max_tokens": 600}]
        load = Load(targets(fleet), long)
        load.reach(1)
        fleet.signal("r0", signal.SIGTERM)
        router = fleet.wait("it says so", lambda status: status["routers"]["r0"]["draining"])["routers"]["r0"]
        assert router["in_flight"] == 1
        assert all(answer.ok for answer in load.join())
        fleet.wait("it has left", lambda status: not status["routers"])


def test_a_router_opens_what_another_sealed_and_keeps_no_responses_unless_told_to(tmp_path):
    fleet = Fleet(tmp_path, workers=0, group_size=1, routers=2)
    try:
        fleet.spawn("w0", [BIN, "worker", "--model", str(DEMO), "--id", "w0", "--engine", "sim"])
        fleet.whole(1)

        def respond(router, method="POST", path="/v1/responses", **body):
            with contextlib.closing(http.client.HTTPConnection(fleet.host(router), fleet.ports[router][0], timeout=60)) as connection:
                sent = json.dumps({"model": "demo", **body}) if body else None
                connection.request(method, path, sent, {"content-type": "application/json"})
                response = connection.getresponse()
                return response.status, json.load(response)

        def count(router, items):
            status, body = respond(router, path="/v1/responses/input_tokens", input=items)
            assert status == 200, body
            return body["input_tokens"]

        asked = {"role": "user", "content": "hi"}
        status, first = respond("r0", input=[asked], store=True, include=["reasoning.encrypted_content"], script=tokens("<think>I must look.</think>Yes."))
        assert (status, first["store"]) == (200, False)
        status, error = respond("r0", "GET", f"/v1/responses/{first['id']}")
        assert status == 404 and "--responses-store" in error["error"]["message"]
        reasoning, message = first["output"]
        sealed, plain = {**reasoning, "content": []}, {**reasoning, "encrypted_content": None}
        assert sealed["encrypted_content"] and "look" not in sealed["encrypted_content"]
        for router in ["r0", "r1"]:
            assert count(router, [asked, sealed, message, asked]) == count(router, [asked, plain, message, asked])
            status, body = respond(router, input=[asked, sealed, message, asked], script=tokens("No."))
            assert status == 200, body
    finally:
        fleet.close()
