"""`rein adapter` as processes of a cluster: routers find the engines behind adapters in etcd, and streams survive both. The
engines are stubs with vLLM's HTTP interface; tests/engines has real ones."""
import hashlib
import http.server
import json
import signal
import subprocess
import threading
import time

import pytest
from tokenizers import Tokenizer

from fleet import BIN, DEMO, Fleet, Load, assert_unnoticed, free_ports, request, targets, undisturbed_answers, until

VOCABULARY = json.loads((DEMO / "config.json").read_text())["vocab_size"]
STEP = 0.002


class StubVllm(http.server.ThreadingHTTPServer):
    """Its next token is a hash of all tokens before: every engine gives the same answers, whatever was lost on the way."""

    daemon_threads = True

    def __init__(self):
        super().__init__(("127.0.0.1", 0), Handler)
        self.tokenizer, self.asked = Tokenizer.from_file(str(DEMO / "tokenizer.json")), []
        self.url = f"http://127.0.0.1:{self.server_port}"
        threading.Thread(target=self.serve_forever, daemon=True).start()

    def draw(self, tokens, allowed, excluded):
        digest = hashlib.sha256(repr(tokens).encode()).digest()
        for _ in range(10 * VOCABULARY):
            token = int.from_bytes(digest[:4]) % VOCABULARY
            if (not allowed or token in allowed) and token not in excluded:
                return token
            digest = hashlib.sha256(digest).digest()
        return min(allowed)


class Handler(http.server.BaseHTTPRequestHandler):
    def log_message(self, *_):
        pass

    def answer(self, body, kind="application/json", status=200):
        self.send_response(status)
        self.send_header("content-type", kind)
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def do_GET(self):
        pages = {
            "/v1/models": {"data": [{"id": "served", "max_model_len": 4096}]}, "/version": {"version": "0.32.0"}, "/health": {},
        }
        if self.path in pages:
            return self.answer(json.dumps(pages[self.path]).encode())
        if self.path == "/metrics":
            line = 'vllm:cache_config_info{block_size="16",enable_prefix_caching="True",num_gpu_blocks="4096"} 1\n'
            return self.answer(line.encode(), "text/plain")
        return self.answer(b"{}", status=404)

    def do_POST(self):
        body = json.loads(self.rfile.read(int(self.headers["content-length"])))
        if self.path == "/tokenize":
            ids = self.server.tokenizer.encode(body["prompt"], add_special_tokens=False).ids
            return self.answer(json.dumps({"tokens": ids}).encode())
        assert self.path == "/v1/completions", self.path
        self.server.asked.append(body)
        excluded = {int(id) for id, bias in body.get("logit_bias", {}).items() if bias <= -100}
        allowed, tokens = set(body.get("allowed_token_ids", [])), list(body["prompt"])
        ids, reason = [], None
        if body["stream"]:
            self.send_response(200)
            self.send_header("content-type", "text/event-stream")
            self.end_headers()
        while not reason:
            time.sleep(STEP)
            ids.append(self.server.draw(tokens, allowed, excluded))
            tokens.append(ids[-1])
            stops = ids[-1] in body["stop_token_ids"]
            reason = "stop" if stops else "length" if len(ids) == body["max_tokens"] else None
            choice = {"index": 0, "text": "", "token_ids": ids, "finish_reason": reason, "stop_reason": ids[-1] if stops else None}
            if body["stream"]:
                try:
                    self.wfile.write(b"data: " + json.dumps({"choices": [{**choice, "token_ids": ids[-1:]}]}).encode() + b"\n\n")
                    self.wfile.flush()
                except OSError:
                    return
        if not body["stream"]:
            return self.answer(json.dumps({"choices": [choice]}).encode())
        self.wfile.write(b"data: [DONE]\n\n")


@pytest.fixture
def engines():
    made = [StubVllm(), StubVllm()]
    yield made
    for engine in made:
        engine.shutdown()
        engine.server_close()


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
    other = StubVllm()
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
        other.shutdown()
        other.server_close()
