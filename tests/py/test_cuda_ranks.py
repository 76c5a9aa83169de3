"""Ranks on emulated GPUs: models over several ranks of one process, and groups of workers that our own NCCL links.

The drivers are kernels/cuda/tests/driver.cpp and nccl.cpp."""
import json
import os
import re
import signal
import threading
import time
import urllib.request
from collections import Counter
from types import SimpleNamespace

import pytest

from conftest import REPOSITORY, Server
from fleet import Fleet, until
from test_cuda import ALL, FIXTURES, NEED_NCCL, ask, driver, fixtures, rein, selftest, server, unit_tests  # noqa: F401
from test_embeddings import apart

NCCL = REPOSITORY / "target/cuda/nccl"
EMBEDDER = FIXTURES / "qwen3_embedding"
# Not the longest text, which takes minutes on the emulation.
EMBEDDED = json.loads((EMBEDDER / "embeddings.json").read_text())[:-1]
PROMPTS = [[5 + i, 6, 7 + 3 * i, 8] for i in range(5)]


@pytest.fixture(scope="session")
def nccl(driver):  # noqa: F811
    """The LD_LIBRARY_PATH of both libraries."""
    return f"{driver}:{NCCL}"


@pytest.fixture(scope="session")
def model(tmp_path_factory):
    """A small model with experts, and a tokenizer of its 256 tokens. The demo model takes too long on emulated GPUs."""
    return with_tokenizer("qwen3_moe", tmp_path_factory.mktemp("model") / "small")


@pytest.fixture(scope="session")
def latent_model(tmp_path_factory):
    """The same with latent attention."""
    return with_tokenizer("deepseek_v3", tmp_path_factory.mktemp("latent") / "small")


def with_tokenizer(fixture, made):
    made.mkdir()
    for file in ["config.json", "model.safetensors"]:
        (made / file).symlink_to(FIXTURES / fixture / file)
    tokenizer = json.loads((FIXTURES / "qwen3/tokenizer.json").read_text())
    (made / "tokenizer.json").write_text(json.dumps({**tokenizer, "added_tokens": []}))
    (made / "chat_template.jinja").write_text("{{ messages[0].content }}")
    return made


@pytest.mark.parametrize("folder, tests, seen", [
    ("kernels", NEED_NCCL, "ncclGroupEnd"),
    ("worker", [], None),
])
def test_ranks_of_one_process(nccl, tmp_path, folder, tests, seen):
    trace, calls = tmp_path / "calls", tmp_path / "nccl"
    ours = {"LD_LIBRARY_PATH": nccl, "REIN_FAKE_CUDA_DEVICES": "8", "REIN_FAKE_CUDA_TRACE": str(trace),
            "REIN_FAKE_NCCL_TRACE": str(calls)}
    unit_tests(folder, tests, {**os.environ, **ours})
    assert "cuLaunchKernelEx" in trace.read_text()
    assert seen is None or seen in calls.read_text()


def test_models_over_ranks_are_those_of_one_rank(driver, tmp_path):  # noqa: F811
    path = tmp_path / "report.json"
    # A section may take three times as long as a check: 90 s are for a GPU, and the emulation can be slower.
    models = fixtures(tmp_path, "qwen3_moe", "kimi_k2_int4")
    code, out, err = selftest("--sections", "ranks", "--reduced", "--fixtures", models, "--check-time", 90, "--report", path, library_path=driver)
    assert (code, err) == (0, ""), out
    rows = json.loads(path.read_text())["sections"]["ranks"]["rows"]
    assert {row["name"] for row in rows} >= {"sums over 4 ranks", "qwen3_moe, bf16, 4 ranks", "kimi_k2_int4, int4, 2 ranks"}
    [over_nccl] = [row for row in rows if row["name"] == "sums over 2 ranks by NCCL"]
    assert over_nccl["value"].startswith("not possible here: "), over_nccl


@pytest.mark.parametrize("devices, version, ranks", [(4, 22809, [2, 4]), (2, 22809, [2]), (1, 23000, [2, 4]), (1, 22809, [])])
def test_sums_are_timed_beside_those_of_nccl_where_it_can_link_the_ranks(nccl, tmp_path, monkeypatch, devices, version, ranks):
    monkeypatch.setenv("REIN_FAKE_NCCL_VERSION", str(version))
    monkeypatch.setenv("NCCL_MULTI_RANK_GPU_ENABLE", "1")
    path, fixtures = tmp_path / "report.json", tmp_path / "models"
    fixtures.mkdir()
    (fixtures / "mistral").symlink_to(FIXTURES / "mistral")
    options = ["--sections", "ranks", "--reduced", "--fixtures", fixtures, "--report", path]
    code, out, _ = selftest(*options, library_path=nccl, devices=devices)
    assert code == 0, out
    rows = {row["name"]: row for row in json.loads(path.read_text())["sections"]["ranks"]["rows"]}
    assert rows["NCCL with one rank"]["value"].endswith("all bytes came"), rows
    assert all(row["passed"] for name, row in rows.items() if "NCCL" in name), rows
    timed = [n for n in (2, 4) if f"sum over {n} ranks, 1 rows of 7168 in bf16, NCCL's all-reduce" in rows]
    compared = [n for n in (2, 4) if f"on {n} of {n} ranks" in rows[f"sums over {n} ranks by NCCL"]["value"]]
    assert timed == compared == ranks, rows


def test_a_wrong_kernel_fails_the_sums(driver, tmp_path):  # noqa: F811
    path = tmp_path / "report.json"
    models = fixtures(tmp_path, "mistral")
    code, _, _ = selftest("--sections", "ranks", "--reduced", "--fixtures", models, "--report", path, library_path=driver, skip="sum_ranks_f32")
    rows = json.loads(path.read_text())["sections"]["ranks"]["rows"]
    assert code == 1 and {row["name"] for row in rows if not row["passed"]} >= {"sums over 2 ranks", "sums over 4 ranks"}


def test_devices_that_cannot_reach_each_other_are_named(driver, model):  # noqa: F811
    code, out, err = rein("serve", "--model", model, "--tp", 2, library_path=driver, devices=2, peers=0)
    assert code == 1 and "of rank " in err and "cannot reach the memory of device " in err, err


class GpuFleet(Fleet):
    """Workers on emulated GPUs. `faults`: REIN_FAKE_* of some workers."""

    def __init__(self, directory, model, nccl, workers, group_size=2, faults=(), more=(), worker_args=(), devices=1, **others):
        self.faults, self.trace, self.launches = dict(faults), directory / "nccl", directory / "launches"
        self.launches.touch()
        ours = {"LD_LIBRARY_PATH": nccl, "REIN_FAKE_NCCL_TRACE": str(self.trace),
                "REIN_FAKE_CUDA_TRACE": str(self.launches), **dict(more)}
        super().__init__(directory, workers, group_size, routers=1, model=model, more=ours,
                         worker_args=["--engine", "cuda", *worker_args], **others)
        self.members = group_size // devices

    def start(self, name, *arguments, **environment):
        super().start(name, *arguments, **{**self.faults.get(name, {}), **environment})

    def http(self):
        return SimpleNamespace(http=f"http://127.0.0.1:{self.ports['r0'][0]}")

    def body(self, i):
        return {"model": "small", "prompt": PROMPTS[i], "max_tokens": 24, "ignore_eos": True, "seed": i,
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
        """Calls of NCCL: process, rank, function, bytes sent."""
        lines = [line.split() for line in self.trace.read_text().splitlines()] if self.trace.exists() else []
        return [line for line in lines if line[2] == function]

    def member(self, rank):
        """The worker that holds a rank."""
        [group] = self.status()["groups"].values()
        return group["ranks"][rank]["worker"]

    def computing(self):
        """Waits until the group has launched some recorded steps."""
        launches = lambda: sum(line.endswith("cuGraphLaunch") for line in self.launches.read_text().splitlines())  # noqa: E731
        before = launches()
        until("the group computes", lambda: launches() > before + 8)


@pytest.fixture
def fleets(model, nccl, tmp_path):
    """Starts fleets, and stops them."""
    started = []

    def start(model=model, **options):
        directory = tmp_path / str(len(started))
        directory.mkdir()
        started.append(GpuFleet(directory, model, nccl, **options))
        return started[-1]

    yield start
    for fleet in started:
        fleet.close()


BEGIN, END, LAUNCH, EXCHANGE = "cuStreamBeginCapture_v2", "cuStreamEndCapture", "cuGraphLaunch", "rein_fake_enqueue"


def same_order(fleet):
    """Both ranks exchanged, recorded and repeated in one order; what a rank records, it has run before."""
    orders = {}
    for thread, name in map(str.split, fleet.launches.read_text().splitlines()):
        if name in (BEGIN, END, LAUNCH, EXCHANGE):
            orders.setdefault(thread, []).append(name)
    assert len(orders) == 2, {thread: len(order) for thread, order in orders.items()}
    first, second = orders.values()
    assert first == second
    assert 0 < first.count(BEGIN) < first.count(LAUNCH), Counter(first)
    # The bytes of each exchange, by rank, in the same order.
    sent = {rank: [int(bytes_) for _, r, _, bytes_ in fleet.calls("ncclGroupEnd") if r == rank] for rank in ("0", "1")}
    assert len(sent["0"]) == len(sent["1"]) == first.count(EXCHANGE)
    for of_rank in sent.values():
        eager, recorded, recording, nth = [], [], False, 0
        for name in first:
            if name == BEGIN:
                recording, recorded = True, []
            elif name == END:
                runs = range(len(eager) - len(recorded) + 1)
                assert recorded and any(eager[i:i + len(recorded)] == recorded for i in runs), recorded
                recording = False
            elif name == EXCHANGE:
                (recorded if recording else eager).append(of_rank[nth])
                nth += 1
        assert not recording and nth == len(of_rank)


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
        same_order(fleet)
        return answers
    finally:
        fleet.close()


LOST = [(0, signal.SIGKILL), (1, signal.SIGSTOP), (1, signal.SIGKILL), (0, signal.SIGSTOP)]


@pytest.mark.parametrize("rank, number", LOST if ALL else LOST[:2])
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
    # In the first prompt, then in a recorded step.
    ("-1:kill:5", None),
    ("-1:kill:100", None),
    ("-1:async:100", "NCCL failed: remote process exited or there was a network error"),
    # In a prompt: a recorded step calls it no more.
    ("-1:group:12", "ncclGroupEnd failed: unhandled cuda error"),
    # Noticed within half of the step deadline, when it is still known which rank hangs.
    ("-1:hang:100", "rank [01]: its device has passed no exchange between ranks for 1.5s"),
])
def test_streams_go_on_when_a_communicator_fails(fleets, undisturbed, fault, cause):
    """A rank that is killed inside a collective and inside a recorded step, and errors and hangs of NCCL. After 100
    exchanges, steps are recorded: the next ones are launches of graphs."""
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
    assert cause is None or re.search(cause, logs), logs


def test_a_communicator_that_hangs_is_aborted_long_before_the_step_deadline(fleets, undisturbed):
    fleet = fleets(workers=0, spares=1)
    fleet.start("w0")
    fleet.start("w1", REIN_FAKE_NCCL_FAULT="-1:hang:100")
    fleet.whole(1)
    fleet.start("w2")
    fleet.wait("the spare", lambda s: len(s["workers"]) == 3)
    assert fleet.answers() == undisturbed
    logs = "".join(fleet.log(worker) for worker in ["w0", "w1", "w2"])
    assert re.search("rank [01]: its device has passed no exchange between ranks for 4s", logs), logs
    assert "longer than --step-deadline" not in logs
    # A second abort does nothing: one for each communicator.
    aborts = Counter((pid, rank) for pid, rank, *_ in fleet.calls("ncclCommAbort"))
    made = Counter((pid, rank) for pid, rank, *_ in fleet.calls("ncclCommInitRankConfig"))
    assert aborts and all(count <= made[of] for of, count in aborts.items()), (aborts, made)


def test_a_device_that_hangs_among_ranks_of_one_process_ends_long_before_the_step_deadline(fleets, undisturbed):
    """Two groups, of two ranks in a process each. Streams go on in the other group; the process that hangs exits."""
    hangs = {"REIN_FAKE_CUDA_HANG": "meet_ranks:400"}
    fleet = fleets(workers=2, devices=2, worker_args=["--devices", "0,1"], more={"REIN_FAKE_CUDA_DEVICES": "2"},
                   faults={"w1": hangs})
    fleet.whole(2)
    log = lambda: (fleet.directory / "w1.log").read_text()  # noqa: E731
    for _ in range(20):
        assert fleet.answers() == undisturbed
        if "its device has passed no exchange" in log():
            break
    assert re.search("rank [01]: its device has passed no exchange between ranks for 4s", log()), log()
    assert "longer than --step-deadline" not in log()


def test_a_worker_stands_in_for_the_other_one_of_its_group(fleets, undisturbed):
    """Both ranks are on its GPU then, where they read each other's memory: NCCL would not put them there."""
    fleet = fleets(workers=2)
    fleet.whole(1)
    victim = fleet.member(1)

    def lose():
        fleet.computing()
        fleet.signal(victim, signal.SIGKILL)

    assert fleet.answers(lose) == undisturbed
    assert fleet.member(0) == fleet.member(1) != victim
    assert fleet.answers() == undisturbed
    fleet.start(victim)
    fleet.whole(1)
    assert fleet.answers() == undisturbed


def test_survivors_keep_their_kv_cache(fleets, undisturbed, tmp_path):
    """As the emulated driver of each worker counts: the survivor allocates nothing of the size of a cache again."""
    traces = {worker: tmp_path / worker for worker in ["w0", "w1", "w2"]}
    faults = {worker: {"REIN_FAKE_CUDA_ALLOCATIONS": str(path)} for worker, path in traces.items()}
    fleet = fleets(workers=3, spares=1, faults=faults)
    fleet.whole(1)
    victim, survivor = fleet.member(1), fleet.member(0)
    allocated = lambda: [int(line) for line in traces[survivor].read_text().split()]  # noqa: E731
    cache = max(allocated())
    assert allocated().count(cache) >= 4, "keys and values of at least two layers"
    # Memory of activations is there from now on.
    assert fleet.answers() == undisturbed
    before = len(allocated())
    fleet.signal(victim, signal.SIGKILL)
    fleet.wait("another member", lambda s: all(victim != r["worker"] for g in s["groups"].values() for r in g["ranks"]))
    fleet.whole(1)
    later = allocated()[before:]
    assert "left the group" in fleet.log(survivor) and later, "it linked again"
    assert cache not in later, later
    assert fleet.answers() == undisturbed


def test_ranks_of_one_process_use_nccl_for_much_data_only(nccl, model, tmp_path, monkeypatch):
    """Here, all exchanges are small: NCCL links the ranks, and moves nothing."""
    calls = tmp_path / "nccl"
    for name, value in {"LD_LIBRARY_PATH": nccl, "REIN_FAKE_CUDA_DEVICES": "2", "REIN_FAKE_NCCL_TRACE": str(calls)}.items():
        monkeypatch.setenv(name, value)
    server = Server("--engine", "cuda", "--tp", "2", "--kv-memory", "32", model=model)
    try:
        assert ask(server, "completions", model="small", prompt=PROMPTS[0], max_tokens=8, ignore_eos=True)[0] == 200
    finally:
        server.stop()
    functions = Counter(line.split()[2] for line in calls.read_text().splitlines())
    assert functions["ncclCommInitRankConfig"] == 2 and functions["ncclGroupEnd"] == 0, functions


def test_the_positions_of_a_cache_are_split_over_ranks(nccl, latent_model, fleets, tmp_path, monkeypatch):
    """Over ranks of one process and over NCCL the same bits, those of CPUs but for rounding, twice the tokens in the
    same memory, and the same answers when a rank is lost."""
    options = ["--kv-parallel", "--dtype", "f32", "--kv-memory", "1"]
    # Beyond a tile of 64 positions, which the other rank has.
    prompts = [[(7 * i + 3 * n) % 250 + 3 for i in range(length)] for n, length in enumerate([100, 70, 3])]

    def answers(server):
        asked = dict(model="small", max_tokens=6, ignore_eos=True, temperature=0, logprobs=1, return_token_ids=True)
        found = [ask(server, "completions", prompt=prompt, **asked) for prompt in prompts]
        assert all(status == 200 for status, _ in found), found
        return [(answer["choices"][0]["token_ids"], answer["choices"][0]["logprobs"]["token_logprobs"]) for _, answer in found]

    def in_process(*more):
        server = Server(*more, "--tp", "2", model=latent_model)
        try:
            # The context is what the cache holds.
            [served] = json.loads(urllib.request.urlopen(f"{server.http}/v1/models").read())["data"]
            return answers(server), served["max_model_len"]
        finally:
            server.stop()

    on_cpus, _ = in_process(*options)
    for name, value in {"LD_LIBRARY_PATH": nccl, "REIN_FAKE_CUDA_DEVICES": "2"}.items():
        monkeypatch.setenv(name, value)
    on_gpus, tokens = in_process("--engine", "cuda", *options)
    alone = in_process("--engine", "cuda", *options[1:])[1]
    assert 1.8 * alone < tokens <= 2 * alone, (alone, tokens)
    for (ids, logprobs), (cpu_ids, cpu_logprobs) in zip(on_gpus, on_cpus, strict=True):
        assert ids == cpu_ids
        assert max(abs(a - b) for a, b in zip(logprobs, cpu_logprobs, strict=True)) < 1e-4
    fleet = fleets(model=latent_model, workers=3, spares=1, worker_args=options)
    fleet.whole(1)
    assert answers(fleet.http()) == on_gpus
    fleet.signal(fleet.member(1), signal.SIGKILL)
    fleet.whole(1)
    assert answers(fleet.http()) == on_gpus


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
    assert f"rein: GPUs cuda:0: kernels fast, on GPUs of compute capability 9.0; NVLink domain {domain}.3; " in fleet.log("w0")
    assert f"NVLink domain {domain}.4" in fleet.log("w1") and "NCCL_DEBUG=WARN" in fleet.log("w1")
    # On one host, but in two cliques of the fabric.
    assert "formed, epoch 1 on w0, w1; NVLink does not connect all its GPUs" in fleet.log("c0")


def test_gpus_linked_in_pairs_are_no_nvlink_domain(fleets, nccl):
    nvml = REPOSITORY / "target/cuda/nvml"
    more = {"LD_LIBRARY_PATH": f"{nccl}:{nvml}", "REIN_FAKE_NVML_LINKS": "4", "REIN_FAKE_NVML_PAIRS": "1",
            "REIN_FAKE_CUDA_DEVICES": "4"}
    fleet = fleets(workers=2, more=more, faults={"w0": {"CUDA_VISIBLE_DEVICES": "1"}, "w1": {"CUDA_VISIBLE_DEVICES": "2"}})
    for worker, pair in [("w0", r"0000:01:00\.0\+0000:02:00\.0"), ("w1", r"0000:03:00\.0\+0000:04:00\.0")]:
        until("the banner", lambda: re.search(rf"rein: GPUs cuda:0: kernels fast, on GPUs of compute capability 9.0; NVLink domain \S+/{pair}; ", fleet.log(worker)), 60)


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


def check_embeddings(http, sent=EMBEDDED):
    """Those of transformers in bf16, up to rounding."""
    status, body = ask(http, "embeddings", model="qwen3_embedding", input=[row["text"] for row in sent])
    assert status == 200, body
    for row, item in zip(sent, body["data"], strict=True):
        number, angle = apart(item["embedding"], row["bf16"])
        assert number < 1.5e-2 and angle < 5e-4, (row["text"], number, angle)


@pytest.mark.parametrize("ranks", [2, 4])
def test_ranks_of_one_process_compute_embeddings(server, ranks):  # noqa: F811
    # Texts of several chunks, too.
    served = server("--task", "embed", "--tp", ranks, "--token-budget", "32", model=EMBEDDER, devices=ranks)
    check_embeddings(served)
    served.stop()


def test_embeddings_go_on_when_a_rank_is_lost(fleets):
    """Two workers whose ranks NCCL links, and a spare."""
    fleet = fleets(model=EMBEDDER, workers=3, spares=1, worker_args=["--task", "embed"])
    fleet.whole(1)
    check_embeddings(fleet.http())
    ended, failures, rounds = threading.Event(), [], []

    def run():
        while not ended.is_set():
            try:
                check_embeddings(fleet.http(), EMBEDDED[:2])
                rounds.append(time.monotonic())
            except Exception as error:
                failures.append(error)

    threads = [threading.Thread(target=run) for _ in range(3)]
    [thread.start() for thread in threads]
    until("requests run", lambda: len(rounds) > 3 or failures, timeout=90)
    fleet.kill(fleet.member(1))
    killed = len(rounds)
    until("requests run", lambda: len(rounds) > killed + 6 or failures, timeout=90)
    ended.set()
    [thread.join() for thread in threads]
    assert not failures, failures[0]
    fleet.whole(1)
