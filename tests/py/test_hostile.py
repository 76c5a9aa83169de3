"""Hostile clients: small versions of the loads in benches/hostile.py, with bounds on processor time, memory and counts. benches/hostile.py
measures wall time."""
import http.client
import json
import os
import re
import signal
import socket
import ssl
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import pytest

from conftest import BIN, REPOSITORY
from test_security import CA, new_key

sys.path.insert(0, str(REPOSITORY / "benches"))
import hostile  # noqa: E402

MIB = hostile.MIB
# Of /health while a load is answered: none, or the one that was asked before, if requests block each other.
HEALTHY = 3


@pytest.fixture(scope="module")
def server():
    server = hostile.Server(BIN)
    yield server
    server.stop()


@pytest.mark.parametrize("make, status", [(hostile.empty_lists, 400), (hostile.unknown_field, 200)])
def test_bodies_with_many_values_do_not_block_others_and_take_little_memory(server, make, status):
    body = make(16 * MIB)
    load = hostile.load(server, hostile.CHAT, [body] * 8)
    assert load.answers == [status] * 8
    assert load.memory < 3 * 8 * len(body)
    assert load.healthy >= HEALTHY


@pytest.mark.parametrize("path, body, count, status", [
    (hostile.CHAT, hostile.small_messages(16 * MIB), 8, 400),
    (hostile.CHAT, hostile.many_calls(200_000), 4, 400),
    ("/detokenize", hostile.repeated(b'{"tokens":[', b"1", b"]}", 4 * MIB), 8, 200),
], ids=["messages", "calls", "detokenize"])
def test_bodies_with_many_parts_take_little_time_and_memory(server, path, body, count, status):
    load = hostile.load(server, path, [body] * count)
    assert load.answers == [status] * count
    # In a release build 0.3 to 1.9 s.
    assert load.computed < 15
    assert load.healthy >= HEALTHY
    assert load.memory < 3 * count * len(body)


def test_bodies_that_exceed_the_total_limit_are_rejected_or_wait(server):
    """A body 1 MiB over the limit is rejected. Bodies within the limit are all served."""
    status, _, text = server.post(hostile.CHAT, b"x" * (33 * MIB))
    assert (status, "body_too_large" in text) == (413, True)
    text = b'{"model":"demo","messages":[{"role":"user","content":"' + b"x" * (30 * MIB) + b'"}]}'
    assert hostile.load(server, hostile.CHAT, [text] * 8).answers == [400] * 8


# Appends to a text for each message, as public templates of DeepSeek and Granite do.
APPENDING = """{% set ns = namespace(text='') %}{% for m in messages %}{% set ns.text = ns.text + '\\n' + m.content %}{% endfor %}{{ ns.text }}"""


def test_a_template_that_appends_to_a_text_for_each_message_ends_at_its_limit(tmp_path):
    template = tmp_path / "template.jinja"
    template.write_text(APPENDING)
    server = hostile.Server(BIN, REPOSITORY / "models/demo", "--chat-template", str(template))
    messages = [{"role": "user", "content": "x" * (16 * MIB if i == 0 else 8)} for i in range(16_384)]
    body = json.dumps({"model": "demo", "messages": messages, "max_tokens": 4}).encode()
    try:
        load = hostile.load(server, hostile.CHAT, [body] * 4)
        assert load.answers == [400] * 4
        # 2 s each for the template; without the limit, 200 s.
        assert load.computed < 30
        assert load.healthy >= HEALTHY
        assert load.memory < 8 * 4 * len(body)
        error = json.loads(server.post(hostile.CHAT, body)[2])["error"]
        assert (error["code"], error["param"]) == ("template_error", "messages") and "2s of CPU time" in error["message"]
    finally:
        server.stop()


def keys_of(folder, *owners):
    """A file of API keys, each with the name of its owner and options, and the headers with which they ask."""
    made = {name: new_key(name, *options) for name, *options in owners}
    (folder / "keys.toml").write_text("".join(entry for _, entry in made.values()))
    return folder / "keys.toml", {name: {"authorization": f"Bearer {key}"} for name, (key, _) in made.items()}


def until(server, metric):
    """Waits until /metrics has this line."""
    end = time.monotonic() + 30
    while metric not in server.get("/metrics").splitlines():
        assert time.monotonic() < end, metric
        time.sleep(0.05)


def test_streams_that_are_not_read_end_and_free_their_slots():
    server = hostile.Server(BIN, REPOSITORY / "models/demo", "--max-in-flight", "2", "--client-stall-timeout", "2")
    try:
        sockets = hostile.stalled(server, 2)
        until(server, "rein_parked_total 2")
        status, *_ = server.post(hostile.CHAT, hostile.SMALL, timeout=60)
        assert status == 200
        until(server, "rein_stalled_total 2")
        for connection in sockets:
            connection.close()
    finally:
        server.stop()


def test_a_rejection_reaches_a_client_that_sends_everything_before_it_reads(tmp_path):
    keys = tmp_path / "keys.toml"
    key, entry = new_key("a")
    keys.write_text(entry)
    tls = REPOSITORY / "tests/fixtures/tls"
    body = b"x" * (31 * MIB)
    for secure in (True, False):
        extra = ["--tls-cert", str(tls / "server.pem"), "--tls-key", str(tls / "server.key")] if secure else []
        server = hostile.Server(BIN, REPOSITORY / "models/demo", "--api-keys", str(keys), *extra)
        context = ssl.create_default_context(cafile=CA) if secure else None
        right = {"authorization": f"Bearer {key}", "content-type": "application/json"}
        try:
            for path, headers, size, expected in [
                (hostile.CHAT, {"authorization": "Bearer sk-wrong"}, 31, "401 Unauthorized"),
                ("/v1/nothing", right, 31, "404 Not Found"),
                ("/v1/models", right, 31, "405 Method Not Allowed"),
                (hostile.CHAT, {**right, "content-type": "text/plain"}, 31, "415 Unsupported Media Type"),
                (hostile.CHAT, right, 33, "413 Payload Too Large"),
                (hostile.CHAT, right, 31, "400 Bad Request"),
            ]:
                sent = body if size == 31 else body + b"x" * (2 * MIB)
                answer = hostile.upload(server, path, sent, context, **headers)
                assert answer == f"HTTP/1.1 {expected}", (secure, path, size)
        finally:
            server.stop()


@pytest.mark.parametrize("options", [[], ["--max-in-flight", "4"]], ids=["engine queue", "router queue"])
def test_a_key_with_few_requests_does_not_wait_behind_one_with_many(tmp_path, options):
    """With four slots, a request waits for about one of the other key's requests, whoever holds the queue."""
    keys, secrets = keys_of(tmp_path, ["many"], ["few"])
    server = hostile.Server(BIN, REPOSITORY / "models/demo", "--api-keys", str(keys), "--max-sequences", "4",
                            "--sim-step-us", "10000", *options)
    body, done = {**hostile.SMALL, "max_tokens": 20, "ignore_eos": True}, []
    try:
        def flood(_):
            answer = server.post(hostile.CHAT, body, **secrets["many"])[0]
            done.append(answer)
            return answer

        with ThreadPoolExecutor(120) as pool:
            flooding = pool.map(flood, range(120))
            end = time.monotonic() + 60
            while not done:
                assert time.monotonic() < end, "no request of the flood ends"
                time.sleep(0.01)
            for _ in range(3):
                before = len(done)
                assert server.post(hostile.CHAT, body, **secrets["few"])[0] == 200
                # Those in flight when it arrives end, and as many again while it runs.
                assert len(done) - before <= 16
            assert len(done) < 100, "the flood has ended too early for the test to mean anything"
            assert set(flooding) == {200}
    finally:
        server.stop()


REQUEST_MEMORY = 256


@pytest.fixture(scope="module")
def small_server(tmp_path_factory):
    """As in a container with little memory."""
    kept = tmp_path_factory.mktemp("responses")
    server = hostile.Server(BIN, REPOSITORY / "models/demo", "--request-memory", str(REQUEST_MEMORY), "--responses-store", str(kept))
    yield server
    server.stop()


def large_bodies(server):
    text = b'{"model":"demo","messages":[{"role":"user","content":"' + b"x" * (10 * MIB) + b'"}]}'
    assert set(hostile.load(server, hostile.CHAT, [text] * 6).answers) <= {400, 429}
    status, _, answer = server.post(hostile.CHAT, b"x" * (11 * MIB))
    assert status == 413 and "must have at most" in answer


def unread(server, request, count):
    """Sends a request on each of many connections, and reads none of the answers."""
    connections = []
    for _ in range(count):
        connection = socket.socket()
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        connection.connect((server.host, server.port))
        connection.sendall(request)
        connections.append(connection)
    time.sleep(3)
    [connection.close() for connection in connections]


def unread_tokens(server):
    body = json.dumps({"model": "demo", "prompt": "ab " * 50_000}).encode()
    head = f"POST /tokenize HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\ncontent-length: {len(body)}\r\n\r\n"
    assert server.post("/tokenize", body)[0] == 200
    unread(server, head.encode() + body, 60)


def unread_responses(server):
    body = {"model": "demo", "input": "hi", "store": True, "max_output_tokens": 16, "truncate_prompt_tokens": 100}
    status, _, answer = server.post("/v1/responses", {**body, "user": "x" * 20_000})
    assert status == 400 and "'user' takes" in answer
    status, _, answer = server.post("/v1/responses", {**body, "instructions": "i" * 150_000, "metadata": {"a": "b"}})
    assert status == 200, answer
    path = f"/v1/responses/{json.loads(answer)['id']}"
    unread(server, f"GET {path} HTTP/1.1\r\nhost: x\r\n\r\n".encode(), 400)
    assert json.loads(server.get(path))["instructions"] == "i" * 150_000


def many_grammars(server):
    for number in range(60):
        properties = {f"p{number}_{i}": {"type": "string", "pattern": f"^[A-Z]{{2}}{number}-[0-9]{{{1 + i % 7}}}$"} for i in range(60)}
        schema = {"type": "object", "properties": properties, "required": list(properties), "additionalProperties": False}
        form = {"type": "json_schema", "json_schema": {"name": "x", "schema": schema}}
        assert server.post(hostile.CHAT, {**hostile.SMALL, "response_format": form})[0] == 200


@pytest.mark.parametrize("load", [large_bodies, unread_tokens, unread_responses, many_grammars])
def test_requests_share_the_memory_that_there_is(small_server, load):
    """Without limits that follow the memory, these loads took 300 MiB to 3.7 GiB."""
    server, before = small_server, small_server.memory("VmRSS")
    server.reset_peak()
    load(server)
    grown = (server.memory("VmHWM") - before) / MIB
    print(f"{load.__name__}: {grown:.0f} MiB")
    assert grown < REQUEST_MEMORY
    assert server.post(hostile.CHAT, hostile.SMALL)[0] == 200


def test_idle_connections_make_place_when_descriptors_run_out(tmp_path):
    limited = tmp_path / "limited"
    limited.write_text(f"#!/bin/sh\nulimit -n 120\nexport REIN_LOG=warn\nexec {BIN} \"$@\" 2>{tmp_path}/log\n")
    limited.chmod(0o755)
    server = hostile.Server(str(limited), REPOSITORY / "models/demo")
    try:
        # Some have had an answer, some have sent nothing.
        idle = [http.client.HTTPConnection(server.host, server.port, timeout=60) for _ in range(40)]
        for connection in idle:
            connection.request("GET", "/health")
            connection.getresponse().read()
        silent = []
        for _ in range(120):
            connection = socket.create_connection((server.host, server.port))
            silent.append(connection)
        busy = hostile.stalled(server, 1)[0]
        for _ in range(20):
            # An idle connection was closed only after 60 s.
            assert server.post(hostile.CHAT, hostile.SMALL, timeout=30)[0] == 200
        assert busy.recv(15) == b"HTTP/1.1 200 OK"
        log = (tmp_path / "log").read_text()
        assert "the limit of open files is below --max-in-flight" in log and "those that are idle are closed" in log
        [connection.close() for connection in [*idle, *silent, busy]]
    finally:
        server.stop()


def ended(server):
    """The number of answers that have ended, and of requests that were refused."""
    ends = re.compile(r'(?:rein_finished_total\{|rein_requests_total\{.*status="[45]).* (\d+)')
    return sum(int(found[1]) for found in map(ends.match, server.get("/metrics").splitlines()) if found)


# `most`: requests of the other key that may end meanwhile. Of the grammars, 32 are in flight and 32 wait.
@pytest.mark.parametrize("hold, most, options", [
    (hostile.slow_bodies, 0, ["--request-memory", "600"]),
    (hostile.many_choices, 0, []),
    (hostile.unread_streams, 0, ["--max-in-flight", "32"]),
    (hostile.read_slowly, 0, ["--max-in-flight", "32"]),
    (hostile.costly_grammars, 8, ["--max-in-flight", "32"]),
])
def test_a_key_that_holds_nothing_is_served_while_another_holds_all(tmp_path, hold, most, options):
    keys, secrets = keys_of(tmp_path, ["many"], ["few"])
    server = hostile.Server(BIN, REPOSITORY / "models/demo", "--api-keys", str(keys), "--sim-step-us", "10000", *options)
    over = threading.Event()
    holding = hold(server, secrets["many"], over)
    try:
        until(server, next(holding))
        # The last body counts towards the memory of bodies.
        for body in [hostile.SMALL] * 5 + [{**hostile.SMALL, "note": "x" * MIB}]:
            before, began = ended(server), time.monotonic()
            assert server.post(hostile.CHAT, body, **secrets["few"])[0] == 200
            others = ended(server) - before - 1
            print(f"{hold.__name__}: {time.monotonic() - began:.2f} s, {others} others")
            assert others <= most
    finally:
        over.set()
        next(holding, None)
        server.stop()


def test_another_keys_prompt_cannot_be_guessed(tmp_path):
    """The number of cached tokens tells a key only what it has asked itself."""
    shares = "--share-prefix-cache"
    keys, secrets = keys_of(tmp_path, ["victim"], ["other"], ["mate", shares], ["friend", shares])
    server = hostile.Server(BIN, REPOSITORY / "models/demo", "--api-keys", str(keys))

    def cached(name, text, path="/v1/completions"):
        body = {"model": "demo", "max_tokens": 1, "prompt": text} if path == "/v1/completions" else {
            "model": "demo", "max_tokens": 1, "messages": [{"role": "user", "content": text}]}
        status, _, answer = server.post(path, body, **secrets[name])
        assert status == 200, answer
        return json.loads(answer)["usage"]["prompt_tokens_details"]["cached_tokens"]

    try:
        for path in ("/v1/completions", hostile.CHAT):
            known = f"{path}: the PIN of the account is a number of four digits, and it is exactly this one: " * 4
            asked = known + "4711 " * 40
            cached("victim", asked, path)
            assert cached("victim", asked, path) > 100
            assert cached("other", asked, path) == 0
            cached("mate", asked, path)
            assert cached("friend", asked, path) > 100
            guesses = {pin: cached("other", known + f"{pin} " * 40, path) for pin in (4710, 4712, 4713)}
            assert len(set(guesses.values())) == 1, guesses
    finally:
        server.stop()


def test_a_file_of_keys_that_hangs_and_a_hangup_disturb_nobody(tmp_path):
    keys = tmp_path / "keys.toml"
    key, entry = new_key("a")
    keys.write_text(entry)
    allowed = {"authorization": f"Bearer {key}"}
    server = hostile.Server(BIN, REPOSITORY / "models/demo", "--api-keys", str(keys))
    body = {**hostile.SMALL, "max_tokens": 500, "ignore_eos": True}
    try:
        with ThreadPoolExecutor(8) as pool:
            running = [pool.submit(server.post, hostile.CHAT, body, **allowed) for _ in range(8)]
            until(server, "rein_requests_in_flight 8")
            server.process.send_signal(signal.SIGHUP)
            keys.unlink()
            os.mkfifo(keys)
            time.sleep(3)
            assert server.post(hostile.CHAT, hostile.SMALL, timeout=10, **allowed)[0] == 200
            assert server.get("/health")
            assert [answer.result()[0] for answer in running] == [200] * 8
        # What replaces it is read.
        other, entry = new_key("b")
        keys.unlink()
        keys.write_text(entry)
        end = time.monotonic() + 10
        while server.post(hostile.CHAT, hostile.SMALL, authorization=f"Bearer {other}")[0] != 200:
            assert time.monotonic() < end
        assert server.post(hostile.CHAT, hostile.SMALL, **allowed)[0] == 401
    finally:
        server.stop()
    assert server.process.returncode == 0


def begun(server, size, *more, path=hostile.CHAT, kind="application/json"):
    """A connection that has sent the head of a request with a body of this size, and nothing of the body."""
    connection = socket.create_connection((server.host, server.port), timeout=60)
    lines = [f"POST {path} HTTP/1.1", "host: x", f"content-type: {kind}", f"content-length: {size}", *more]
    connection.sendall("\r\n".join(lines).encode() + b"\r\n\r\n")
    return connection


def test_a_full_server_answers_before_a_large_body_has_arrived():
    server = hostile.Server(BIN, REPOSITORY / "models/demo", "--max-in-flight", "1", "--max-queued", "0")
    try:
        endless = {**hostile.SMALL, "max_tokens": 3000, "ignore_eos": True, "stream": True}
        body = json.dumps(endless).encode()
        holder = begun(server, len(body))
        holder.sendall(body)
        until(server, "rein_requests_in_flight 1")
        with begun(server, 31 * MIB) as connection:
            connection.sendall(b"x" * MIB)
            head = connection.recv(4096).decode()
            assert head.startswith("HTTP/1.1 429 Too Many Requests\r\n") and "\r\nretry-after: " in head.lower(), head
        # A client that sends the whole body before it reads gets the same answer.
        for size in (1, 31):
            answer = hostile.upload(server, hostile.CHAT, b"x" * (size * MIB), **{"content-type": "application/json"})
            assert answer == "HTTP/1.1 429 Too Many Requests"
        holder.close()
        until(server, "rein_requests_in_flight 0")
        assert server.post(hostile.CHAT, hostile.SMALL)[0] == 200
    finally:
        server.stop()


def test_large_bodies_wait_for_100_continue(server):
    text = b'{"model":"demo","messages":[{"role":"user","content":"' + b"x" * (30 * MIB) + b'"}]}'
    with begun(server, len(text), "expect: 100-continue", "connection: close") as connection:
        assert connection.recv(4096) == b"HTTP/1.1 100 Continue\r\n\r\n"
        connection.sendall(text)
        answer = b"".join(iter(lambda: connection.recv(1 << 16), b""))
        assert answer.startswith(b"HTTP/1.1 400 ") and b"context_length_exceeded" in answer, answer[:1000]
    # A request that is rejected by its head is rejected at once, so that the client does not send the body.
    for size, path, kind, status in [
        (33 * MIB, hostile.CHAT, "application/json", b"413"),
        (30 * MIB, "/v1/nothing", "application/json", b"404"),
        (30 * MIB, "/v1/models", "application/json", b"405"),
        (30 * MIB, hostile.CHAT, "text/plain", b"415"),
    ]:
        with begun(server, size, "expect: 100-continue", path=path, kind=kind) as connection:
            assert connection.recv(4096).startswith(b"HTTP/1.1 " + status), (size, path)
