"""Names and kinds: who goes by whose id, and groups of one model that are not alike."""
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


def ended(fleet, command, timeout=20):
    """What a process says that does not stay."""
    done = subprocess.run([BIN, *command], env=fleet.environment(), capture_output=True, text=True, timeout=timeout)
    return done.returncode, done.stderr


def test_an_id_is_one_workers_own(fleet):
    before = fleet.whole(2)
    # A second worker, and a second router, are told who has the id, and the first ones notice nothing.
    begun = time.monotonic()
    worker = ["worker", "--model", str(DEMO), "--kv-memory", "32", "--threads", "1", "--id", "w0"]
    code, said = ended(fleet, worker)
    address = before["workers"]["w0"]["address"]
    assert code == 1 and f"--id: worker id w0 is in use at {address}" in said, said
    assert time.monotonic() - begun > 6, "longer than a dead one's record stays"
    http, grpc = free_ports(2)
    code, said = ended(fleet, ["router", "--http", f"127.0.0.1:{http}", "--grpc", f"127.0.0.1:{grpc}", "--id", "r0"])
    assert code == 1 and "--id: router id r0 is in use" in said, said
    after = fleet.status()
    assert after["workers"] == before["workers"]
    # One that died leaves its id to the next.
    fleet.kill("w0")
    fleet.start("w0")
    incarnation = before["workers"]["w0"]["incarnation"]
    fleet.wait("w0 is back", lambda status: status["workers"].get("w0", {}).get("incarnation", incarnation) != incarnation)
    fleet.whole(2)


def test_a_record_that_is_taken_away_comes_back(fleet):
    fleet.whole(2)
    for key in ["/rein/test/workers/w0", "/rein/test/routers/r0"]:
        assert fleet.etcdctl("del", key) == "1\n"
    fleet.wait("w0 is listed", lambda status: {"w0", "w1"} <= status["workers"].keys() and "r0" in status["routers"])
    fleet.whole(2)
    assert fleet.processes["w0"].poll() is None
    # A rank's word that it is ready.
    keys = fleet.etcdctl("get", "--prefix", "--keys-only", "/rein/test/groups/").split()
    for key in (key for key in keys if "/ready/" in key):
        assert fleet.etcdctl("del", key) == "1\n"
        fleet.wait(f"{key} is back", lambda _: fleet.etcdctl("get", key))
    fleet.whole(2)
    # All at once, as by somebody who cleans up the wrong cluster.
    fleet.etcdctl("del", "--prefix", "/rein/test/")
    fleet.wait("all are back", lambda status: {"w0", "w1"} <= status["workers"].keys() and status["controller"])
    fleet.whole(2)


def test_groups_of_other_text_files_wait_until_the_first_are_gone(fleet, tmp_path):
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

    until("it is told", lambda: "groups of one model have different text files" in fleet.log("r0"))
    assert not prompt().startswith("anew") and fleet.metric("r0", "rein_engine_kinds") == 1
    fleet.terminate("w0")
    assert not prompt().startswith("anew")
    fleet.terminate("w1")
    until("the new text files", lambda: prompt().startswith("anew"))
    until("and their group", lambda: fleet.get("r0", "/ready") == 200)
    # Other weights under the same name serve beside them, and the difference is told.
    fleet.worker_args = ["--quantize", "int8"]
    fleet.start("w3")
    until("two kinds", lambda: fleet.metric("r0", "rein_engine_kinds") == 2)
    assert "groups of one model differ in checkpoint, types or size" in fleet.log("r0")


def test_a_request_to_leave_is_for_the_worker_that_was_there(fleet):
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


def test_a_sequence_that_loses_the_last_group_of_its_kind_goes_on_elsewhere(fleet):
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


def test_who_has_no_engine_waits_for_one_and_is_told_in_time(fleet):
    incarnation = fleet.whole(2)["workers"]["w0"]["incarnation"]
    fleet.terminate("w1")
    fleet.kill("w0")
    load = Load(targets(fleet, "r0"), [request(i) for i in range(16)])
    begun = time.monotonic()
    answers = load.join()
    # 10 s, and the time of a slow machine; not the 120 s of a sequence that had one.
    took, errors = time.monotonic() - begun, {str(answer.error) for answer in answers}
    assert 9 < took < 60 and all("no engine" in error for error in errors), (took, errors)
    # One that comes within this time takes them all.
    fleet.start("w0")
    fleet.wait("w0 is back", lambda status: status["workers"].get("w0", {}).get("incarnation", incarnation) != incarnation)
    load = Load(targets(fleet, "r0"), [request(i) for i in range(16)])
    answers = load.join()
    assert all(answer.ok for answer in answers), {str(answer.error) for answer in answers}
