"""`rein adapter` as processes of a cluster: routers find the engines behind adapters in etcd, and streams survive both. The
engines are stubs (`engine_stub.py`); tests/engines has real ones."""
import contextlib
import http.server
import json
import re
import signal
import subprocess
import threading
import time
import urllib.error
import urllib.request

import pytest
from tokenizers import Tokenizer

from certificates import authority, needs_openssl, signed
from engine_stub import PATHS, EngineStub
from fleet import BIN, DEMO, REPOSITORY, Fleet, Load, assert_unnoticed, free_ports, request, targets, undisturbed_answers, until


@pytest.fixture
def engines():
    made = [EngineStub(DEMO), EngineStub(DEMO)]
    yield made
    for engine in made:
        engine.close()


@pytest.fixture
def fleet(engines, tmp_path):
    """A router and two adapters, a0 and a1, each with its engine."""
    # Otherwise all requests go to the engine that has their prompts.
    fleet = Fleet(tmp_path, workers=0, group_size=1, routers=1, more={"REIN_POLICY": "round-robin"})
    try:
        for at, engine in enumerate(engines):
            start(fleet, f"a{at}", engine)
        until("the router is ready", lambda: fleet.get("r0", "/ready") == 200 and len(known(fleet)) == 2, timeout=60)
        yield fleet
    finally:
        fleet.close()


def start(fleet, name, engine):
    (port,) = free_ports(1)
    fleet.spawn(name, [
        BIN, "adapter", "--engine", f"vllm={engine.url}", "--model", str(DEMO), "--served-name", "demo", "--http", f"127.0.0.1:{port}", "--id", name])


def known(fleet):
    """The engines behind adapters in `rein status`."""
    return (fleet.status() or {}).get("engines", {})


# Shorter than those of the clusters of workers: a random draw is nearly always refused.
REQUESTS = [{**request(i), "max_tokens": 60} for i in range(6)]


def disturbed(fleet, disturb):
    """The answers while `disturb` is called, after some tokens."""
    load = Load(targets(fleet), REQUESTS)
    load.reach(20)
    disturb()
    return load.join()


def test_streams_survive_an_adapter_that_is_killed(fleet, engines):
    undisturbed = undisturbed_answers(fleet, REQUESTS)
    assert all(engine.asked for engine in engines)
    assert_unnoticed(disturbed(fleet, lambda: fleet.kill("a0")), undisturbed)
    assert fleet.metric("r0", "rein_resumed_total") > 0
    # It comes back as another incarnation.
    start(fleet, "a0", engines[0])
    fleet.wait("both engines", lambda status: len(status["engines"]) == 2)
    before = len(engines[0].asked)

    def used():
        assert_unnoticed(undisturbed_answers(fleet, REQUESTS), undisturbed)
        return len(engines[0].asked) > before

    until("the engine is used again", used)


def test_sigterm_drains_an_adapter(fleet):
    undisturbed = undisturbed_answers(fleet, REQUESTS)
    assert_unnoticed(disturbed(fleet, lambda: fleet.signal("a1", signal.SIGTERM)), undisturbed)
    assert fleet.processes["a1"].wait(timeout=60) == 0, fleet.log("a1")
    fleet.wait("one engine", lambda status: len(status["engines"]) == 1)


def test_status_shows_the_engine_and_what_it_can_do(fleet, engines):
    done = subprocess.run([BIN, "status"], env=fleet.environment(), capture_output=True, text=True, timeout=30)
    assert done.returncode == 0, done.stderr
    for part in ("vllm 0.32.0, served", engines[0].url, "4096"):
        assert part in done.stdout, done.stdout


def test_an_engine_with_another_tokenizer_does_not_join(fleet, engines, tmp_path):
    other = EngineStub(DEMO)
    text = (DEMO / "tokenizer.json").read_text()
    changed = json.loads(text)
    changed["pre_tokenizer"] = {"type": "ByteLevel", "add_prefix_space": True, "trim_offsets": True, "use_regex": True}
    other.tokenizer = Tokenizer.from_str(json.dumps(changed))
    try:
        start(fleet, "a2", other)
        assert fleet.processes["a2"].wait(timeout=60) == 1
        assert "its tokenizer differs" in fleet.log("a2")
        assert len(known(fleet)) == 2 and other.asked == []
    finally:
        other.close()


class Answers(http.server.BaseHTTPRequestHandler):
    """Answers everything in the same way."""
    status, body, headers = 200, "", {}

    def log_message(self, *_):
        pass

    def do_GET(self):
        self.send_response(self.status)
        [self.send_header(name, value) for name, value in {"content-length": len(self.body), **self.headers}.items()]
        self.end_headers()
        self.wfile.write(self.body.encode())

    do_POST = do_GET


@contextlib.contextmanager
def answering(status, body, **headers):
    handler = type("Fixed", (Answers,), {"status": status, "body": body, "headers": headers})
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    server.server_close()


@contextlib.contextmanager
def front(folder, *urls):
    """A router in front of these engines: its process, its URL and its log."""
    (port,) = free_ports(1)
    command = [
        BIN, "router", *(f"--engine=vllm={url}" for url in urls), "--model", DEMO, "--served-name", "demo",
        "--http", f"127.0.0.1:{port}", "--grpc", "127.0.0.1:0"]
    with open(folder / "log", "w") as log, subprocess.Popen(command, stderr=log) as router:
        try:
            yield router, f"http://127.0.0.1:{port}", lambda: (folder / "log").read_bytes()
        finally:
            router.kill()


def status(url, path, body=None):
    try:
        body = body and json.dumps(body).encode()
        return urllib.request.urlopen(urllib.request.Request(url + path, body, {"content-type": "application/json"}), timeout=60).status
    except urllib.error.HTTPError as error:
        return error.code
    except OSError:
        return None


CHAT = {"model": "demo", "messages": [{"role": "user", "content": "Hi"}], "max_tokens": 20}


@pytest.mark.parametrize("bad", [
    (302, "", {"location": "/elsewhere"}), (401, '{"error": "who are you?"}', {}), (200, "<html><body>Welcome</body></html>", {}),
    (500, "\x1b]0;owned\x07\x1b[31mred", {}), (200, '{"data": []}', {}),
], ids=["redirect", "unauthorized", "page", "escapes", "nothing"])
def test_a_router_serves_with_the_engines_that_fit(tmp_path, bad):
    engine = EngineStub(DEMO)
    code, body, headers = bad
    with answering(code, body, **headers) as other, front(tmp_path, other, engine.url) as (router, url, log):
        until("the router is ready", lambda: status(url, "/ready") == 200, timeout=30)
        until("the log", lambda: b"an engine does not fit" in log(), timeout=30)
        assert status(url, "/v1/chat/completions", CHAT) == 200
        assert router.poll() is None and b"\x1b]" not in log() and b"\x07" not in log()
        # Without an engine that answers it is not ready.
        engine.close()
        until("the router is not ready", lambda: status(url, "/ready") == 503, timeout=30)
        assert status(url, "/health") == 200
    # Without one that fits, it ends and says why.
    with answering(code, body, **headers) as other, front(tmp_path, other) as (router, url, log):
        assert router.wait(timeout=30) == 1
        assert f"the engine at {other} is refused".encode() in log(), log()


def test_an_engines_name_and_version_are_bounded(tmp_path):
    engine = EngineStub(DEMO)
    pages = {**engine.pages(), "/version": {"version": "0.32\x1b[31m" + "9" * 100_000}}
    engine.pages = lambda: pages
    with front(tmp_path, engine.url) as (_, url, log):
        until("the router is ready", lambda: status(url, "/ready") == 200, timeout=30)
        metrics = urllib.request.urlopen(f"{url}/metrics", timeout=60).read()
        assert b'version="0.32 [31m999' in metrics and b"9" * 65 not in metrics + log()
    pages["/v1/models"] = {"data": [{"id": "m" * 100_000, "max_model_len": 4096}]}
    with front(tmp_path, engine.url) as (router, _, log):
        assert router.wait(timeout=30) == 1
        assert b"the name of its model has 100000 bytes; the limit is 512" in log() and b"m" * 513 not in log()
    engine.close()


def test_a_replaced_engine_gets_no_requests(tmp_path):
    """Between two questions for its health, another engine is started at its address."""
    engine = EngineStub(DEMO)
    with front(tmp_path, engine.url) as (_, url, log):
        until("the router is ready", lambda: status(url, "/ready") == 200, timeout=30)
        assert status(url, "/v1/chat/completions", CHAT) == 200
        engine.close()
        changed = json.loads((DEMO / "tokenizer.json").read_text())
        changed["pre_tokenizer"] = {"type": "ByteLevel", "add_prefix_space": True, "trim_offsets": True, "use_regex": True}
        server = EngineStub(DEMO, address=engine.server_address)
        server.tokenizer = Tokenizer.from_str(json.dumps(changed))
        assert status(url, "/v1/chat/completions", CHAT) == 503
        until("the engine is refused", lambda: b"another engine answers: its tokenizer differs" in log(), timeout=30)
        assert server.asked == [] and status(url, "/ready") == 503
        # The right one comes back.
        server.tokenizer = Tokenizer.from_file(str(DEMO / "tokenizer.json"))
        until("the router is ready", lambda: status(url, "/ready") == 200, timeout=60)
        until("an answer", lambda: status(url, "/v1/chat/completions", CHAT) == 200, timeout=60)
        assert server.asked
        server.close()


def test_requests_while_the_only_engine_is_away(tmp_path):
    """A stream waits until it is back; a new request ends after 10 s."""
    engine = EngineStub(DEMO, step=0.03)

    def lost():
        return re.search(rb"\nrein_engine_lost\{.*\} (\d)", urllib.request.urlopen(f"{url}/metrics", timeout=60).read())[1]

    with front(tmp_path, engine.url) as (_, url, _):
        until("the router is ready", lambda: status(url, "/ready") == 200, timeout=30)
        target = [(url.split("//")[1].split(":")[0], int(url.rsplit(":", 1)[1]))]
        undisturbed = Load(target, REQUESTS[:1]).join()
        load = Load(target, REQUESTS[:1])
        load.reach(5)
        engine.close()
        until("the engine is lost", lambda: lost() == b"1", timeout=30)
        began = time.monotonic()
        assert status(url, "/v1/chat/completions", CHAT) == 503
        assert 5 < time.monotonic() - began < 30
        # Longer than the time in which a sequence would give up an engine that fails.
        time.sleep(5)
        back = EngineStub(DEMO, address=engine.server_address)
        assert_unnoticed(load.join(), undisturbed)
        until("an answer", lambda: status(url, "/v1/chat/completions", CHAT) == 200, timeout=60)
        assert lost() == b"0"
        back.close()


@needs_openssl
def test_an_engine_at_https_is_reached_if_its_authority_is_trusted(tmp_path):
    authority(tmp_path)
    signed(tmp_path, "engine", "localhost")
    engine = EngineStub(DEMO, certificate=(tmp_path / "engine.pem", tmp_path / "engine.key"))
    (port,) = free_ports(1)
    command = [
        BIN, "router", "--engine", f"vllm={engine.url}", "--model", DEMO, "--served-name", "demo", "--http", f"127.0.0.1:{port}",
        "--grpc", "127.0.0.1:0"]
    url = f"http://127.0.0.1:{port}"
    try:
        with open(tmp_path / "log", "w") as log, subprocess.Popen(command, stderr=log) as router:
            until("the router warns", lambda: "the engine does not answer yet" in (tmp_path / "log").read_text(), timeout=30)
            assert "invalid peer certificate: UnknownIssuer" in (tmp_path / "log").read_text()
            router.terminate()
        assert engine.asked == []
        with open(tmp_path / "log", "w") as log, subprocess.Popen([*command, "--engine-ca", tmp_path / "ca.pem"], stderr=log) as router:
            until("the router is ready", lambda: ready(url), timeout=30)
            body = json.dumps({"model": "demo", "messages": [{"role": "user", "content": "Hi"}], "max_tokens": 20}).encode()
            answer = urllib.request.urlopen(urllib.request.Request(f"{url}/v1/chat/completions", body, {"content-type": "application/json"}), timeout=60)
            assert json.load(answer)["usage"]["completion_tokens"] > 0 and engine.asked
            router.terminate()
        done = subprocess.run([*command, "--engine-ca", tmp_path / "engine.key"], capture_output=True, text=True, timeout=30)
        assert done.returncode == 1 and f"--engine-ca: {tmp_path}/engine.key: holds no certificate (PEM)" in done.stderr
    finally:
        engine.close()


def ready(url):
    with contextlib.suppress(OSError):
        return urllib.request.urlopen(f"{url}/ready", timeout=5).status == 200
    return False


def members(answer):
    """The paths of all members of an answer's document, or of its events."""
    found = set()

    def add(value, path):
        if isinstance(value, dict):
            for name, member in value.items():
                found.add(f"{path}/{name}")
                add(member, f"{path}/{name}")
        for entry in value if isinstance(value, list) else ():
            add(entry, path)

    for line in answer.splitlines():
        if line.removeprefix("data: ") not in ("", "[DONE]"):
            add(json.loads(line.removeprefix("data: ")), "")
    return found


@pytest.mark.parametrize("kind", sorted(PATHS))
def test_the_stub_answers_in_the_form_of_the_real_engine(kind):
    recorded = json.loads((REPOSITORY / f"adapter/src/dialect/recorded/{kind}.json").read_text())
    stub, real, stubbed = EngineStub(DEMO, kind, step=0), set(), set()
    stub.vocabulary = 4096
    try:
        for exchange in recorded["exchanges"]:
            real |= members(exchange["answer"])
            stubbed |= members(urllib.request.urlopen(stub.url + PATHS[kind], json.dumps(exchange["request"]).encode(), timeout=20).read().decode())
    finally:
        stub.close()
    assert len(stubbed) > 3 and stubbed <= real, stubbed - real
