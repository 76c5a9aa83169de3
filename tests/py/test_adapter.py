"""`rein adapter` as processes of a cluster: routers find the engines behind adapters in etcd, and streams survive both. The
engines are stubs (`engine_stub.py`); tests/engines has real ones."""
import contextlib
import json
import signal
import subprocess
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
