"""With REIN_LOG_FORMAT=json, standard error has nothing but JSON: logs, usage errors, and why a process ends."""
import json
import os
import signal
import socket
import subprocess
import time
import urllib.request

import pytest

from conftest import BIN, REPOSITORY

DEMO = str(REPOSITORY / "models/demo")


def lines(text):
    read = [json.loads(line) for line in text.splitlines()]
    assert all({"timestamp", "level", "fields", "target"} <= set(line) for line in read), text
    return read


@pytest.mark.parametrize("arguments, code, says", [
    (["serve", "--model", "/no/such/model"], 1, "rein: --model: /no/such/model: no such directory"),
    (["serve", DEMO, "--max-model-len", "1"], 2, "--max-model-len is an option of vLLM"),
    (["serve", DEMO, "--tp", "0"], 2, "--tp"),
    (["serve"], 2, "the model is missing"),
    (["status", "--etcd", "127.0.0.1:9"], 1, "cannot reach etcd at 127.0.0.1:9"),
    (["--config", "/no/such/file", "serve"], 1, "/no/such/file"),
    (["key", "list", "--file", "/no/such/file"], 1, "/no/such/file"),
    (["pull", "no"], 1, "expected ORG/NAME"),
])
def test_errors_of_commands_are_json(arguments, code, says):
    run = subprocess.run([BIN, *arguments], capture_output=True, text=True, env={**os.environ, "REIN_LOG_FORMAT": "json"}, timeout=60)
    read = lines(run.stderr)
    assert run.returncode == code and says in read[-1]["fields"]["message"] and read[-1]["level"] == "ERROR", run
    # On a terminal they are as before.
    plain = subprocess.run([BIN, *arguments], capture_output=True, text=True, timeout=60)
    assert says in plain.stderr and not plain.stderr.startswith("{")


@pytest.mark.parametrize("command", [["serve", DEMO, "--http", "127.0.0.1:0", "--grpc", "127.0.0.1:0"], ["router", "--etcd", "127.0.0.1:9", "--http", "127.0.0.1:0", "--grpc", "127.0.0.1:0"],
                                     ["controller", "--etcd", "127.0.0.1:9"]])
def test_a_whole_life_of_a_process_logs_json(command):
    process = subprocess.Popen([BIN, *command], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env={**os.environ, "REIN_LOG_FORMAT": "json", "REIN_LOG": "debug"})
    if command[0] == "serve":
        url = process.stdout.readline().split()[-1]
        with urllib.request.urlopen(url + "/v1/models", timeout=10):
            pass
        # What is no HTTP.
        with socket.create_connection(url.removeprefix("http://").split(":"), timeout=10) as raw:
            raw.sendall(b"\x16\x03\x01nonsense\r\n\r\n")
            raw.recv(1000)
    else:
        time.sleep(2)
    process.send_signal(signal.SIGTERM)
    _, log = process.communicate(timeout=60)
    read = lines(log)
    assert len(read) > 2 and process.returncode == 0, log
    texts = json.dumps([line["fields"] for line in read])
    # What libraries say is said once, without a page of their manuals.
    assert "docs.rs" not in texts
    for line in read:
        parts = line["fields"].get("error", "").split(": ") if line["target"].startswith("rein") else []
        assert len(parts) == len(set(parts)), line
