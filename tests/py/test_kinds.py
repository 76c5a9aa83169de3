"""Unique ids of processes, and groups of one model that differ in checkpoint or settings."""
import http.client
import json
import shutil
import subprocess
import time

import pytest

from fleet import BIN, DEMO, Fleet, Load, free_ports, request, targets, until


@pytest.fixture
def fleet(tmp_path):
    fleet = Fleet(tmp_path, workers=2, group_size=1, routers=1)
    try:
        yield fleet
    finally:
        fleet.close()


def run_until_exit(fleet, command, timeout=20):
    """The exit code and standard error of a process that exits by itself."""
    done = subprocess.run([BIN, *command], env=fleet.environment(), capture_output=True, text=True, timeout=timeout)
    return done.returncode, done.stderr


def test_a_second_process_with_an_id_exits_with_an_error(fleet):
    before = fleet.whole(2)
    # A second worker and a second router exit with an error that names the holder, and do not affect the first ones.
    begun = time.monotonic()
    worker = ["worker", "--model", str(DEMO), "--kv-memory", "32", "--threads", "1", "--id", "w0"]
    code, error = run_until_exit(fleet, worker)
    address = before["workers"]["w0"]["address"]
    assert code == 1 and f"--id: worker id w0 is in use at {address}" in error, error
    assert time.monotonic() - begun > 6, "it exited before the record of a dead process would have expired"
    http, grpc = free_ports(2)
    code, error = run_until_exit(fleet, ["router", "--http", f"127.0.0.1:{http}", "--grpc", f"127.0.0.1:{grpc}", "--id", "r0"])
    assert code == 1 and "--id: router id r0 is in use" in error, error
    after = fleet.status()
    assert after["workers"] == before["workers"]
    # The id of a killed worker can be used again.
    fleet.kill("w0")
    fleet.start("w0")
    incarnation = before["workers"]["w0"]["incarnation"]
    fleet.wait("w0 is back", lambda status: status["workers"].get("w0", {}).get("incarnation", incarnation) != incarnation)
    fleet.whole(2)


def test_a_deleted_record_is_written_again(fleet):
    fleet.whole(2)
    for key in ["/rein/test/workers/w0", "/rein/test/routers/r0"]:
        assert fleet.etcdctl("del", key) == "1\n"
    fleet.wait("w0 is listed", lambda status: {"w0", "w1"} <= status["workers"].keys() and "r0" in status["routers"])
    fleet.whole(2)
    assert fleet.processes["w0"].poll() is None
    # The ready keys of ranks.
    keys = fleet.etcdctl("get", "--prefix", "--keys-only", "/rein/test/groups/").split()
    for key in (key for key in keys if "/ready/" in key):
        assert fleet.etcdctl("del", key) == "1\n"
        fleet.wait(f"{key} is back", lambda _: fleet.etcdctl("get", key))
    fleet.whole(2)
    # All keys at once.
    fleet.etcdctl("del", "--prefix", "/rein/test/")
    fleet.wait("all are back", lambda status: {"w0", "w1"} <= status["workers"].keys() and status["controller"])
    fleet.whole(2)


def test_groups_with_other_text_files_wait_until_the_first_are_gone(fleet, tmp_path):
    fleet.whole(2)
    fleet.model = shutil.copytree(DEMO, tmp_path / "other" / "demo")
    template = fleet.model / "chat_template.jinja"
    template.write_text("{{ 'anew' }}" + template.read_text())
    fleet.start("w2")
    serving = lambda n: lambda status: sum(g["state"] == "serving" for g in status["groups"].values()) == n
    fleet.wait("three groups", serving(3))

    def prompt():
        connection = http.client.HTTPConnection("127.0.0.1", fleet.ports["r0"][0], timeout=30)
        body = {"model": "demo", "messages": [{"role": "user", "content": "hello"}]}
        connection.request("POST", "/v1/chat/completions/render", json.dumps(body), {"content-type": "application/json"})
        response = connection.getresponse()
        assert response.status == 200
        return json.loads(response.read())["prompt"]

    until("the router logs the difference", lambda: "groups of one model have different text files" in fleet.log("r0"))
    assert not prompt().startswith("anew") and fleet.metric("r0", "rein_engine_kinds") == 1
    fleet.terminate("w0")
    assert not prompt().startswith("anew")
    fleet.terminate("w1")
    until("the new text files", lambda: prompt().startswith("anew"))
    until("and their group", lambda: fleet.get("r0", "/ready") == 200)
    # Groups with other weights serve at the same time, and the router logs the difference.
    fleet.worker_args = ["--quantize", "int8"]
    fleet.start("w3")
    until("two kinds", lambda: fleet.metric("r0", "rein_engine_kinds") == 2)
    assert "groups of one model differ in checkpoint, data types or group size" in fleet.log("r0")


def test_a_drain_request_does_not_apply_to_a_later_worker_with_the_same_id(fleet):
    before = fleet.whole(2)
    drain = [BIN, "drain", "--no-wait", "w0"]
    fleet.kill("w0")
    subprocess.run(drain, env=fleet.environment(), check=True, capture_output=True)
    fleet.start("w0")
    gone = lambda status: status["workers"].get("w0", before["workers"]["w0"])["incarnation"] != before["workers"]["w0"]["incarnation"]
    fleet.wait("w0 is back", lambda status: gone(status) and not status["draining"])
    fleet.whole(2)
    assert fleet.processes["w0"].poll() is None
    subprocess.run([BIN, "drain", "w0"], env=fleet.environment(), check=True, capture_output=True, timeout=60)
    assert fleet.processes["w0"].wait(timeout=30) == 0


def test_a_sequence_resumes_on_another_kind_if_no_group_of_its_kind_is_left(fleet):
    fleet.whole(2)
    fleet.terminate("w1")
    fleet.worker_args = ["--quantize", "int8"]
    fleet.start("w2")
    until("two kinds", lambda: fleet.metric("r0", "rein_engine_kinds") == 2)
    load = Load(targets(fleet, "r0"), [request(i) for i in range(12)])
    load.reach(100)
    fleet.kill("w0")
    answers = load.join()
    assert all(answer.ok for answer in answers), [answer.error for answer in answers]
    assert fleet.metric("r0", "rein_resume_failed_total") == 0


def test_a_request_without_an_engine_waits_and_then_fails(fleet):
    incarnation = fleet.whole(2)["workers"]["w0"]["incarnation"]
    fleet.terminate("w1")
    fleet.kill("w0")
    load = Load(targets(fleet, "r0"), [request(i) for i in range(16)])
    begun = time.monotonic()
    answers = load.join()
    # The wait is 10 s, longer on a slow machine, and not the 120 s of a sequence that had an engine.
    took, errors = time.monotonic() - begun, {str(answer.error) for answer in answers}
    assert 9 < took < 60 and all("no engine" in error for error in errors), (took, errors)
    # An engine that starts within this time serves all requests.
    fleet.start("w0")
    fleet.wait("w0 is back", lambda status: status["workers"].get("w0", {}).get("incarnation", incarnation) != incarnation)
    load = Load(targets(fleet, "r0"), [request(i) for i in range(16)])
    answers = load.join()
    assert all(answer.ok for answer in answers), {str(answer.error) for answer in answers}
