"""Ranks on emulated GPUs: models over several ranks of one process, and groups of workers that our own NCCL links.

The drivers are kernels/cuda/tests/driver.cpp and nccl.cpp."""
import json
import os
import re
import signal
import subprocess
import threading
import time
from collections import Counter
from types import SimpleNamespace

import pytest

from conftest import REPOSITORY
from fleet import Fleet, until
from test_cuda import FIXTURES, ask, driver, rein, selftest  # noqa: F401

NCCL = REPOSITORY / "target/cuda/nccl"
PROMPTS = [[5 + i, 6, 7 + 3 * i, 8] for i in range(5)]


@pytest.fixture(scope="session")
def nccl(driver):  # noqa: F811
    """The LD_LIBRARY_PATH of both libraries."""
    return f"{driver}:{NCCL}"


@pytest.fixture(scope="session")
def model(tmp_path_factory):
    """A small model with experts, and a tokenizer of its 256 tokens. The demo model takes too long on emulated GPUs."""
    made = tmp_path_factory.mktemp("model") / "small"
    made.mkdir()
    for file in ["config.json", "model.safetensors"]:
        (made / file).symlink_to(FIXTURES / "qwen3_moe" / file)
    tokenizer = json.loads((FIXTURES / "qwen3/tokenizer.json").read_text())
    (made / "tokenizer.json").write_text(json.dumps({**tokenizer, "added_tokens": []}))
    (made / "chat_template.jinja").write_text("{{ messages[0].content }}")
    return made


@pytest.mark.parametrize("package, tests, seen", [
    ("rein-kernels", "cuda::backend::tests::ranks", "ncclGroupEnd"),
    ("rein-worker", "rank::tests::cuda", None),
])
def test_ranks_of_one_process(nccl, tmp_path, package, tests, seen):
    """The unit tests that need a driver and an NCCL: without them they do nothing."""
    trace, calls = tmp_path / "calls", tmp_path / "nccl"
    ours = {"LD_LIBRARY_PATH": nccl, "REIN_FAKE_CUDA_DEVICES": "8", "REIN_FAKE_CUDA_TRACE": str(trace),
            "REIN_FAKE_NCCL_TRACE": str(calls)}
    done = subprocess.run(["cargo", "test", "--locked", "-p", package, "--features", "cuda", "--lib", tests],
                          cwd=REPOSITORY, capture_output=True, text=True, env={**os.environ, **ours}, timeout=900)
    assert done.returncode == 0 and re.search("test result: ok. [1-9]", done.stdout), done.stdout + done.stderr
    assert "cuLaunchKernel" in trace.read_text()
    assert seen is None or seen in calls.read_text()


def test_models_over_ranks_are_those_of_one_rank(driver, tmp_path):  # noqa: F811
    path = tmp_path / "report.json"
    code, out, err = selftest("--sections", "ranks", "--reduced", "--report", path, library_path=driver)
    assert (code, err) == (0, ""), out
    rows = json.loads(path.read_text())["sections"]["ranks"]["rows"]
    assert {row["name"] for row in rows} >= {"sums over 4 ranks", "qwen3_moe, bf16, 4 ranks", "kimi_k2_int4, int4, 2 ranks"}


def test_a_wrong_kernel_fails_the_sums(driver, tmp_path):  # noqa: F811
    path = tmp_path / "report.json"
    code, _, _ = selftest("--sections", "ranks", "--reduced", "--report", path, library_path=driver, skip="sum_ranks_f32")
    rows = json.loads(path.read_text())["sections"]["ranks"]["rows"]
    assert code == 1 and {row["name"] for row in rows if not row["passed"]} >= {"sums over 2 ranks", "sums over 4 ranks"}


def test_devices_that_cannot_reach_each_other_are_named(driver, model):  # noqa: F811
    code, out, err = rein("serve", "--model", model, "--tp", 2, library_path=driver, devices=2, peers=0)
    assert code == 1 and "of rank " in err and "cannot reach the memory of device " in err, err


class GpuFleet(Fleet):
    """Workers on emulated GPUs. `faults`: REIN_FAKE_* of some workers."""

    def __init__(self, directory, model, nccl, workers, group_size=2, faults=(), more=(), worker_args=(), **others):
        self.faults, self.trace, self.launches = dict(faults), directory / "nccl", directory / "launches"
        self.launches.touch()
        ours = {"LD_LIBRARY_PATH": nccl, "REIN_FAKE_NCCL_TRACE": str(self.trace),
                "REIN_FAKE_CUDA_TRACE": str(self.launches), **dict(more)}
        super().__init__(directory, workers, group_size, routers=1, model=model, more=ours,
                         worker_args=["--engine", "cuda", *worker_args], **others)

    def start(self, name, *arguments, **environment):
        super().start(name, *arguments, **{**self.faults.get(name, {}), **environment})

    def http(self):
        return SimpleNamespace(http=f"http://127.0.0.1:{self.ports['r0'][0]}")

    def body(self, i):
        return {"model": "small", "prompt": PROMPTS[i], "max_tokens": 40, "ignore_eos": True, "seed": i,
                "temperature": 0.0 if i % 2 else 0.8, "return_token_ids": True}

    def answers(self, disturb=lambda: None):
        """Of all prompts at once; `disturb` is called while they are computed."""
        found = [None] * len(PROMPTS)

        def one(i):
            found[i] = ask(self.http(), "completions", **self.body(i))

        threads = [threading.Thread(target=one, args=(i,)) for i in range(len(PROMPTS))]
        for thread in threads:
            thread.start()
        disturb()
        for thread in threads:
            thread.join(timeout=200)
        assert all(status == 200 for status, _ in found), found
        return [answer["choices"] for _, answer in found]

    def calls(self, function):
        return [line.split() for line in self.trace.read_text().splitlines() if line.endswith(f" {function}")]

    def member(self, rank):
        """The worker that holds a rank."""
        [group] = self.status()["groups"].values()
        return group["ranks"][rank]["worker"]

    def computing(self):
        """Waits until the group has launched some recorded steps."""
        launches = lambda: sum(line.endswith("cuGraphLaunch") for line in self.launches.read_text().splitlines())  # noqa: E731
        before = launches()
        until("the group computes", lambda: launches() > before + 20)


@pytest.fixture
def fleets(model, nccl, tmp_path):
    """Starts fleets, and stops them."""
    started = []

    def start(**options):
        directory = tmp_path / str(len(started))
        directory.mkdir()
        started.append(GpuFleet(directory, model, nccl, **options))
        return started[-1]

    yield start
    for fleet in started:
        fleet.close()


@pytest.fixture(scope="module")
def undisturbed(model, nccl, tmp_path_factory):
    fleet = GpuFleet(tmp_path_factory.mktemp("undisturbed"), model, nccl, workers=2)
    try:
        fleet.whole(1)
        answers = fleet.answers()
        assert fleet.answers() == answers
        # One communicator of two ranks, in two processes, which called NCCL alike.
        assert len({pid for pid, *_ in fleet.calls("ncclCommInitRankConfig")}) == 2
        groups = Counter(pid for pid, *_ in fleet.calls("ncclGroupEnd"))
        assert len(groups) == 2 and len(set(groups.values())) == 1, groups
        # Both recorded and repeated the same steps.
        calls = [line.split() for line in fleet.launches.read_text().splitlines()]
        for function in ["cuStreamBeginCapture_v2", "cuGraphLaunch"]:
            found = Counter(thread for thread, name in calls if name == function)
            assert len(found) == 2 and len(set(found.values())) == 1, (function, found)
        return answers
    finally:
        fleet.close()


@pytest.mark.parametrize("rank, number", [(0, signal.SIGKILL), (1, signal.SIGKILL), (0, signal.SIGSTOP), (1, signal.SIGSTOP)])
def test_streams_go_on_when_a_rank_is_lost(fleets, undisturbed, rank, number):
    """The spare takes the lost rank; the survivor keeps its weights, aborts its communicator and makes another."""
    fleet = fleets(workers=3, spares=1)
    fleet.whole(1)
    victim = fleet.member(rank)

    def lose():
        fleet.computing()
        fleet.signal(victim, number)

    assert fleet.answers(lose) == undisturbed
    if number == signal.SIGSTOP:
        fleet.signal(victim, signal.SIGCONT)
    fleet.whole(1)
    assert fleet.answers() == undisturbed
    assert fleet.calls("ncclCommAbort")
    survivor = next(w for w in ["w0", "w1", "w2"] if w != victim and "left the group" in fleet.log(w))
    assert "reading weights" not in fleet.log(survivor).split("left the group")[-1]


@pytest.mark.parametrize("fault, cause", [
    ("-1:kill:150", None),
    ("-1:async:150", "NCCL failed: remote process exited or there was a network error"),
    ("-1:group:150", "ncclGroupEnd failed: unhandled cuda error"),
    ("-1:hang:150", "longer than --step-deadline"),
])
def test_streams_go_on_when_a_communicator_fails(fleets, undisturbed, fault, cause):
    """A rank that is killed inside a collective, and errors and hangs of NCCL. Steps are recorded by then: the next ones
    are launches of graphs."""
    fleet = fleets(workers=0, spares=1, worker_args=["--step-deadline", "3"])
    fleet.start("w0")
    fleet.start("w1", REIN_FAKE_NCCL_FAULT=fault)
    fleet.whole(1)
    fleet.start("w2")
    fleet.wait("the spare", lambda s: len(s["workers"]) == 3)
    begin = time.monotonic()
    assert fleet.answers() == undisturbed
    # The step deadline, and 5 s to abort and to begin again.
    assert time.monotonic() - begin < 60
    logs = "".join(fleet.log(worker) for worker in ["w0", "w1", "w2"])
    assert cause is None or cause in logs, logs


def test_experts_move_while_streams_run(fleets, undisturbed):
    restless = {"REIN_REDUNDANT_EXPERTS": "2", "REIN_REBALANCE_EVERY": "2", "REIN_REBALANCE_ABOVE": "1.001"}
    fleet = fleets(workers=2, more=restless)
    [first] = fleet.whole(1)["groups"].values()
    used, end = {0}, time.monotonic() + 90
    while len(used) == 1:
        assert time.monotonic() < end, f"{fleet.log('c0')}\n{fleet.log('w0')}"
        assert fleet.answers() == undisturbed
        [group] = fleet.status()["groups"].values()
        assert group["epoch"] == first["epoch"], "the group ended"
        used.add((group["experts"] or {"layout": 0})["layout"])
    assert fleet.answers() == undisturbed


def test_the_banner_and_the_record_say_where_gpus_are(fleets, nccl):
    nvml = REPOSITORY / "target/cuda/nvml"
    fleet = fleets(workers=2, more={"LD_LIBRARY_PATH": f"{nccl}:{nvml}", "REIN_FAKE_NVML_CLIQUE": "3", "NCCL_DEBUG": "WARN"},
                   faults={"w1": {"REIN_FAKE_NVML_CLIQUE": "4"}})
    fleet.whole(1)
    domain = "ab" * 16
    assert f"rein: GPUs cuda:0: NVLink domain {domain}.3; " in fleet.log("w0")
    assert f"NVLink domain {domain}.4" in fleet.log("w1") and "NCCL_DEBUG=WARN" in fleet.log("w1")
    # On one host, but in two cliques of the fabric.
    assert "formed, epoch 1 on w0, w1; NVLink does not connect all its GPUs" in fleet.log("c0")


def never_whole(fleet, message):
    until(message, lambda: any(re.search(message, fleet.log(w)) for w in fleet.processes if w.startswith("w")), 60)


def test_workers_whose_nccl_differs_say_so(fleets):
    fleet = fleets(workers=2, faults={"w1": {"REIN_FAKE_NCCL_VERSION": "23001"}})
    never_whole(fleet, r"rank 0 has NCCL 2\.(28\.9|30\.1), rank 1 has NCCL 2\.(28\.9|30\.1): install one version on all hosts")


def test_an_old_nccl_is_named_with_both_versions(fleets):
    fleet = fleets(workers=2, faults={"w1": {"REIN_FAKE_NCCL_VERSION": "21605"}})
    never_whole(fleet, r"libnccl\.so\.2 is NCCL 2\.16\.5, expected 2\.18\.0 or later")


def test_a_missing_nccl_is_named_with_what_to_do(fleets, driver):  # noqa: F811
    fleet = fleets(workers=2, faults={"w1": {"LD_LIBRARY_PATH": str(driver)}})
    never_whole(fleet, r"need NCCL 2\.18\.0 or later: libnccl\.so\.2: cannot open shared object file")


def test_two_workers_on_one_gpu_are_refused(fleets):
    fleet = fleets(workers=2, more={"REIN_FAKE_CUDA_MACHINE": "7"})
    never_whole(fleet, r"ranks 0 and 1 are on the same GPU \([0-9a-f]{32}\): give each rank a GPU of its own")
