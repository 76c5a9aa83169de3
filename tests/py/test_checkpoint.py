"""Checkpoints that change while a cluster runs, and file systems that hang. A worker must use the files with which it started, or
exit with an error."""
import contextlib
import json
import os
import pathlib
import random
import shutil
import signal
import struct
import subprocess
import time

import grpc
import pytest

from fleet import BIN, DEMO, Fleet, Load, assert_unnoticed, request, targets, undisturbed_answers, until

REQUESTS = [request(i) for i in range(8)]
WEIGHTS = "model.safetensors"


def copy(directory, name="model"):
    """Copies the demo model to a directory with this name."""
    (directory / name).mkdir(exist_ok=True)
    for file in DEMO.iterdir():
        if file.suffix in (".json", ".jinja", ".safetensors"):
            shutil.copy(file, directory / name / file.name)
    return directory / name


def others():
    """The weights of another model with the same tensors and the same size."""
    data = bytearray((DEMO / WEIGHTS).read_bytes())
    (header,) = struct.unpack("<Q", data[:8])
    for at in range(8 + header + 1, len(data), 6):
        data[at] ^= 0x80
    return bytes(data)


def in_place(path, data, pause=0.0):
    """Overwrites the file, like `cp` or a resumed download."""
    with open(path, "r+b") as file:
        for at in range(0, len(data), 1 << 20):
            file.write(data[at : at + (1 << 20)])
            file.flush()
            time.sleep(pause)


def in_place_with_its_time(path, data):
    """Overwrites the file and keeps its modification time, like `rsync --inplace --times`."""
    before = path.stat()
    in_place(path, data)
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))


def renamed(path, data):
    aside = path.with_name("aside")
    aside.write_bytes(data)
    aside.rename(path)


def truncated(path, _):
    os.truncate(path, 1 << 20)


@contextlib.contextmanager
def running(directory, **options):
    fleet = Fleet(directory, routers=1, **{"model": copy(directory, "demo"), "workers": 3, "group_size": 2, **options})
    try:
        yield fleet
    finally:
        fleet.close()


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory):
    with running(tmp_path_factory.mktemp("fleet"), workers=2) as fleet:
        fleet.whole(1)
        return undisturbed_answers(fleet, REQUESTS)


def wait_for_first_tokens(load):
    """Waits until each stream has a token. A stream without one waits 10 s for an engine, instead of 120 s."""
    until("all streams have a token", lambda: all(answer.ids for answer in load.answers))


def ended(fleet, worker, *named):
    """Waits until a worker has exited with an error that contains these texts."""
    until(f"{worker} ends: {fleet.log(worker)}", lambda: fleet.processes[worker].poll() is not None)
    assert fleet.processes[worker].returncode == 1, f"{fleet.processes[worker].returncode}: {fleet.log(worker)}"
    last = fleet.log(worker).strip().splitlines()[-1]
    assert all(name in last for name in named), last


@pytest.mark.parametrize("change", [in_place, in_place_with_its_time, truncated])
def test_a_lost_rank_is_not_loaded_from_changed_files(change, undisturbed, tmp_path):
    with running(tmp_path) as fleet:
        [group] = fleet.whole(1)["groups"].values()
        survivor, victim = (rank["worker"] for rank in group["ranks"])
        [spare] = {"w0", "w1", "w2"} - {survivor, victim}
        load = Load(targets(fleet), REQUESTS)
        wait_for_first_tokens(load)
        change(fleet.model / WEIGHTS, others())
        fleet.kill(victim)
        ended(fleet, spare, WEIGHTS, "the checkpoint has changed or cannot be read")
        # The survivor then takes over the lost rank, and must read the weights too.
        ended(fleet, survivor, WEIGHTS, "the checkpoint has changed or cannot be read")
        assert all(answer.is_prefix_of(whole) for answer, whole in zip(load.answers, undisturbed))
        # The streams wait for workers with the original checkpoint.
        (tmp_path / "again").mkdir()
        fleet.model = copy(tmp_path / "again", "demo")
        for worker in (survivor, victim):
            fleet.start(worker)
        assert_unnoticed(load.join(), undisturbed)


def test_a_checkpoint_is_replaced_by_renaming(undisturbed, tmp_path):
    with running(tmp_path) as fleet:
        [group] = fleet.whole(1)["groups"].values()
        for file in (WEIGHTS, "tokenizer.json", "config.json"):
            renamed(fleet.model / file, others())
        load = Load(targets(fleet), REQUESTS)
        load.reach(200)
        fleet.kill(group["ranks"][1]["worker"])
        assert_unnoticed(load.join(), undisturbed)
        # A router that starts later gets the text files with which the workers started.
        fleet.terminate("r0")
        fleet.start("r0")
        fleet.whole(1)
        assert_unnoticed(Load(targets(fleet), REQUESTS).join(), undisturbed)


def test_experts_are_not_loaded_from_changed_files(undisturbed, tmp_path):
    restless = {"REIN_REDUNDANT_EXPERTS": "2", "REIN_REBALANCE_EVERY": "2", "REIN_REBALANCE_ABOVE": "1.001"}
    with running(tmp_path, workers=2, more=restless) as fleet:
        fleet.whole(1)
        in_place_with_its_time(fleet.model / WEIGHTS, others())
        gone, load = set(), Load(targets(fleet), REQUESTS)
        end = time.monotonic() + 90
        while not gone:
            assert time.monotonic() < end, f"{fleet.log('c0')}\n{fleet.log('w0')}"
            if not any(thread.is_alive() for thread in load.threads):
                assert_unnoticed(load.join(), undisturbed)
                load = Load(targets(fleet), REQUESTS)
            gone = {worker for worker in ("w0", "w1") if fleet.processes[worker].poll() is not None}
            time.sleep(0.05)
        # The survivor takes over the lost rank, and must read the weights too.
        for worker in ("w0", "w1"):
            ended(fleet, worker, WEIGHTS, "the checkpoint has changed or cannot be read")
        (tmp_path / "again").mkdir()
        fleet.model = copy(tmp_path / "again", "demo")
        for worker in ("w0", "w1"):
            fleet.start(worker)
        # A stream without a token may have timed out.
        for answer, whole in zip(load.join(), undisturbed):
            assert answer.seen() == whole.seen() if answer.ok else answer.is_prefix_of(whole)


def test_answers_come_from_the_old_or_the_new_checkpoint_whenever_it_changes(tmp_path):
    """Restarts a worker several times, and changes its checkpoint at a random time during each start."""
    rng = random.Random(7)
    ways = [in_place, in_place_with_its_time, truncated, renamed]
    with running(tmp_path, workers=1, group_size=1, worker_args=("--block-size", "16")) as fleet:
        fleet.whole(1)
        [first] = Load(targets(fleet), REQUESTS[1:2]).join()
        fleet.kill("w0")
        in_place(fleet.model / WEIGHTS, others())
        fleet.start("w0")
        fleet.whole(1)
        [second] = Load(targets(fleet), REQUESTS[1:2]).join()
        assert first.ok and second.ok and first.seen() != second.seen()
        for i, way in enumerate(ways * 2):
            fleet.kill("w0")
            # Changes the fingerprint but not the answers: the controller waits longer with each loss of an identical group.
            fleet.worker_args[-1] = str(17 + i)
            fleet.model = copy(tmp_path, "demo")
            fleet.start("w0")
            time.sleep(rng.uniform(0, 0.6))
            way(fleet.model / WEIGHTS, others())
            load, end = Load(targets(fleet), REQUESTS[1:2]), time.monotonic() + 30
            while fleet.processes["w0"].poll() is None and load.threads[0].is_alive():
                assert time.monotonic() < end, f"{way}: {fleet.log('w0')}"
                time.sleep(0.02)
            [answer] = load.answers
            if fleet.processes["w0"].poll() is None:
                assert answer.ok and answer.seen() in (first.seen(), second.seen()), f"{way}: {answer.error}"
            else:
                ended(fleet, "w0", WEIGHTS)
                assert answer.is_prefix_of(first) or answer.is_prefix_of(second), way


HANGS = """
#define _GNU_SOURCE
#include <dlfcn.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
ssize_t pread64(int fd, void *to, size_t n, off64_t at) {
    static ssize_t (*real)(int, void *, size_t, off64_t);
    if (!real) real = (ssize_t (*)(int, void *, size_t, off64_t))dlsym(RTLD_NEXT, "pread64");
    char link[64], path[PATH_MAX] = {0};
    snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
    if (readlink(link, path, sizeof path - 1) > 0 && strstr(path, "safetensors"))
        while (access(getenv("HANG_WHILE"), F_OK) == 0) usleep(10000);
    return real(fd, to, n, at);
}
"""


@pytest.fixture(scope="module")
def hangs(tmp_path_factory):
    """Makes reads of weights hang while a file exists, like a network file system without its server."""
    directory = tmp_path_factory.mktemp("hangs")
    (directory / "hangs.c").write_text(HANGS)
    subprocess.run(["cc", "-shared", "-fPIC", "-o", directory / "hangs.so", directory / "hangs.c", "-ldl"], check=True)
    yield directory / "there", {"LD_PRELOAD": str(directory / "hangs.so"), "HANG_WHILE": str(directory / "there")}
    (directory / "there").unlink(missing_ok=True)


def test_a_worker_with_a_hung_file_system_exits(hangs, undisturbed, tmp_path):
    there, environment = hangs
    with running(tmp_path, workers=4, more={**environment, "REIN_READ_TIMEOUT": "2"}) as fleet:
        fleet.whole(2)
        load = Load(targets(fleet), REQUESTS)
        load.reach(100)
        there.touch()
        began = time.monotonic()
        fleet.start("w4")
        ended(fleet, "w4", WEIGHTS, "returned nothing for 2 s")
        [group, _] = fleet.status()["groups"].values()
        victim, other = (rank["worker"] for rank in group["ranks"])
        fleet.kill(victim)
        # The survivor takes over the lost rank and reads the weights. Its other streams resume elsewhere.
        ended(fleet, other, WEIGHTS, "returned nothing for 2 s")
        assert time.monotonic() - began < 30
        assert_unnoticed(load.join(), undisturbed)
        there.unlink()


def test_a_server_with_a_hung_file_system_exits(hangs, tmp_path):
    there, environment = hangs
    there.touch()
    command = [BIN, "serve", "--model", DEMO, "--read-timeout", "1", "--http", "127.0.0.1:0", "--grpc", "127.0.0.1:0"]
    for stop, code in ((None, 1), (signal.SIGTERM, -signal.SIGTERM)):
        server = subprocess.Popen(command, stderr=subprocess.PIPE, env={**os.environ, **environment}, text=True)
        if stop:
            time.sleep(0.5)
            server.send_signal(stop)
        _, error = server.communicate(timeout=20)
        assert server.returncode == code, error
        assert stop or WEIGHTS in error and "returned nothing for 1 s" in error
    there.unlink()


@pytest.mark.parametrize("change", [in_place, truncated])
def test_a_server_exits_if_its_checkpoint_changes_while_it_loads(change, hangs, tmp_path):
    there, environment = hangs
    model = copy(tmp_path)
    there.touch()
    command = [BIN, "serve", "--model", model, "--http", "127.0.0.1:0", "--grpc", "127.0.0.1:0"]
    server = subprocess.Popen(command, stderr=subprocess.PIPE, env={**os.environ, **environment}, text=True)
    until("it has opened the weights", lambda: any(WEIGHTS in str(fd.readlink()) for fd in descriptors(server)))
    change(model / WEIGHTS, others())
    there.unlink()
    try:
        _, error = server.communicate(timeout=20)
    finally:
        server.kill()
    assert server.returncode == 1 and WEIGHTS in error and "after this process opened it" in error, error


@pytest.mark.parametrize("file", [WEIGHTS, "config.json", "tokenizer.json", "chat_template.jinja"])
def test_a_fifo_in_the_model_directory_is_an_error(file, tmp_path):
    model = copy(tmp_path)
    (model / file).unlink()
    os.mkfifo(model / file)
    etcd = ["--etcd", "127.0.0.1:1"]
    for command in (["serve", "--http", "127.0.0.1:0", "--grpc", "127.0.0.1:0"], ["worker", "--listen", "127.0.0.1:0", *etcd]):
        done = subprocess.run([BIN, *command, "--model", model], capture_output=True, text=True, timeout=20)
        assert done.returncode == 1 and f"{file} is a FIFO" in done.stderr.replace(":", ""), done.stderr


def descriptors(process):
    return list(pathlib.Path(f"/proc/{process.pid}/fd").iterdir())


def test_a_worker_that_hangs_while_loading_keeps_its_lease_and_handles_signals(hangs, undisturbed, tmp_path):
    there, environment = hangs
    with running(tmp_path, more=environment) as fleet:
        [group] = fleet.whole(1)["groups"].values()
        survivor, victim = (rank["worker"] for rank in group["ranks"])
        [spare] = {"w0", "w1", "w2"} - {survivor, victim}
        load = Load(targets(fleet), REQUESTS)
        wait_for_first_tokens(load)
        there.touch()
        fleet.kill(victim)
        until("the spare loads", lambda: "taking a seat" in fleet.log(spare))
        began = time.monotonic()
        while time.monotonic() < began + 5:
            assert spare in fleet.status()["workers"], "the lease expired"
            time.sleep(0.2)
        fleet.terminate(spare, timeout=15)
        there.unlink()
        assert_unnoticed(load.join(), undisturbed)


def test_workers_with_another_protocol_get_no_seat(undisturbed, tmp_path):
    with running(tmp_path, workers=2) as fleet:
        [group] = fleet.whole(1)["groups"].values()
        assert group["protocol"] >= 1
        status = fleet.status()
        number, version = status["workers"]["w0"]["protocol"], status["workers"]["w0"]["version"]
        assert status["routers"]["r0"]["protocol"] == status["controller_release"]["protocol"] == number
        record = json.loads(fleet.etcdctl("get", "--print-value-only", "/rein/test/workers/w0"))
        # A worker of a later release. It is before w0 in the order of names, so that the controller would choose it first.
        alien = {**record, "protocol": number + 1, "version": "9.0.0", "seat": {"group": None, "epoch": 0}}
        fleet.etcdctl("put", "/rein/test/workers/a0", json.dumps(alien))
        status = fleet.wait("it is known", lambda status: "a0" in status["workers"])
        assert (status["workers"]["a0"]["protocol"], status["workers"]["a0"]["version"]) == (number + 1, "9.0.0")
        table = subprocess.run([BIN, "status"], env=fleet.environment(), capture_output=True, text=True, check=True).stdout
        assert "PROTOCOL" in table and "9.0.0" in table and version in table
        load = Load(targets(fleet), REQUESTS)
        load.reach(100)
        fleet.kill(group["ranks"][1]["worker"])
        assert_unnoticed(load.join(), undisturbed)
        status = fleet.status()
        seated = {rank["worker"] for group in status["groups"].values() for rank in group["ranks"]}
        assert seated == {group["ranks"][0]["worker"]}, "the survivor must hold both ranks"
        # An engine rejects a router whose protocol is too far from its own.
        address = status["workers"][group["ranks"][0]["worker"]]["address"]
        with grpc.insecure_channel(address) as channel:
            info = channel.unary_unary("/rein.internal.v1.Engine/Info")
            assert info(b"", timeout=10) and info(bytes([8, number + 1]), timeout=10)
            with pytest.raises(grpc.RpcError) as refused:
                info(bytes([8, number + 2]), timeout=10)
        assert refused.value.code() == grpc.StatusCode.FAILED_PRECONDITION
        assert f"protocol {number + 2}" in refused.value.details() and f"protocol {number}" in refused.value.details()
