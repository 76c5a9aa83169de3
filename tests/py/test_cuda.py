"""CUDA without a GPU: the kernels on the CPU, and servers over a driver that runs them there.

The kernels' own tests are one C++ binary. They are started from Python, so that a change of a kernel compiles no Rust.
"""
import itertools
import json
import os
import re
import shutil
import signal
import subprocess
import threading
import urllib.error
import urllib.request
from types import SimpleNamespace

import pytest

from conftest import BIN, REPOSITORY, Server
from fleet import DEMO, Fleet, until

FIXTURES = REPOSITORY / "tests/fixtures/models"


def script(what):
    done = subprocess.run([REPOSITORY / "scripts/cuda.sh", what], capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stdout + done.stderr


def test_kernels_on_the_cpu():
    script("test")


NEED_NCCL = ["cuda::backend::tests::ranks", "cuda::backend::tests::ways"]


def unit_tests(folder, arguments, environment):
    """Runs unit tests of a crate that are ignored where there is no driver, in the binary that `cargo test --workspace` has built."""
    command = ["cargo", "test", "--workspace", "--locked", "--no-run", "--message-format", "json"]
    built = subprocess.run(command, cwd=REPOSITORY, capture_output=True, text=True, timeout=1800)
    assert built.returncode == 0, built.stderr
    artifacts = [json.loads(line) for line in built.stdout.splitlines() if line.startswith("{")]
    [binary] = [made["executable"] for made in artifacts if made.get("executable") and made["profile"]["test"]
                and made["target"]["src_path"] == str(REPOSITORY / folder / "src/lib.rs")]
    done = subprocess.run([binary, "--ignored", *arguments], cwd=REPOSITORY / folder, capture_output=True, text=True, env=environment, timeout=900)
    assert done.returncode == 0 and re.search("test result: ok. [1-9]", done.stdout), done.stdout + done.stderr


@pytest.fixture(scope="session")
def driver():
    """The directory of the driver's libcuda.so.1."""
    script("driver")
    return REPOSITORY / "target/cuda/driver"


def test_models_of_the_backend(driver, tmp_path):
    """All that need a driver, but those that need NCCL (test_cuda_ranks.py)."""
    trace = tmp_path / "trace"
    environment = {**os.environ, "LD_LIBRARY_PATH": str(driver), "REIN_FAKE_CUDA_TRACE": str(trace)}
    unit_tests("kernels", [part for tests in NEED_NCCL for part in ["--skip", tests]], environment)
    assert "cuGraphLaunch" in trace.read_text()


def environment(library_path, visible=None, **settings):
    """`visible` is CUDA_VISIBLE_DEVICES; settings are REIN_FAKE_CUDA_*."""
    ours = {**os.environ, "LD_LIBRARY_PATH": str(library_path), "REIN_LOG": "warn"}
    ours.pop("CUDA_VISIBLE_DEVICES", None)
    if visible is not None:
        ours["CUDA_VISIBLE_DEVICES"] = visible
    return ours | {f"REIN_FAKE_CUDA_{name.upper()}": str(value) for name, value in settings.items()}


def rein(command, *options, library_path, **settings):
    """Exit code, standard output and standard error of a command on the CUDA engine."""
    done = subprocess.run([BIN, command, "--engine", "cuda", *map(str, options)], capture_output=True, text=True,
                          env=environment(library_path, **settings), timeout=300)
    return done.returncode, done.stdout, done.stderr


def selftest(*options, library_path, **settings):
    return rein("selftest", *options, library_path=library_path, **settings)


def rows_of(path, section):
    """What a section's rows say, by their names: those that passed, and the others."""
    found = json.loads(path.read_text())["sections"][section]["rows"]
    return ({row["name"]: row["value"] for row in found if row["passed"] is passed} for passed in (True, False))


# All models and faults, as `make chaos` takes them: minutes on the emulation.
ALL = os.environ.get("REIN_CUDA_MODELS") == "all"


def fixtures(directory, *few):
    """A directory with these fixtures, or that of all."""
    if ALL:
        return FIXTURES
    made = directory / "models"
    made.mkdir()
    for name in few:
        (made / name).symlink_to(FIXTURES / name)
    return made


def test_streams_have_queues_of_their_own(driver, tmp_path, monkeypatch):
    """Ranks that share a device wait for each other in streams: two in one queue would wait for ever."""
    path = tmp_path / "queues"
    monkeypatch.delenv("CUDA_DEVICE_MAX_CONNECTIONS", raising=False)
    assert selftest("--sections", "ptx", library_path=driver, queues=path)[0] == 0
    assert set(path.read_text().split()) == {"32"}
    path.unlink()
    monkeypatch.setenv("CUDA_DEVICE_MAX_CONNECTIONS", "4")
    assert selftest("--sections", "ptx", library_path=driver, queues=path)[0] == 0
    assert set(path.read_text().split()) == {"4"}


UNUSABLE = [
    ([], {"version": 12040},
     "the NVIDIA driver supports CUDA 12.4, expected 13.0 or later: install driver 580 or later"),
    ([], {"devices": 0}, "no CUDA device: the driver reports none"),
    ([3], {}, "device 3 does not exist: the driver reports device 0 only"),
    ([2], {"devices": 2}, "device 2 does not exist: the driver reports devices 0 to 1"),
    ([], {"capability": 75}, "device 0 (Rein's CPU emulation) has compute capability 7.5, expected 8.0 or later"),
    ([2], {"devices": 4, "visible": "3,1"},
     "device 2 does not exist with CUDA_VISIBLE_DEVICES=3,1: the driver reports devices 0 to 1"),
    ([], {"devices": 4, "visible": "4"}, "no CUDA device with CUDA_VISIBLE_DEVICES=4: the driver reports none"),
    ([], {"capability": 120, "fault": "cuModuleLoadDataEx:0:209"},
     "device 0 (Rein's CPU emulation, compute capability 12.0): the kernels cannot be loaded: cuModuleLoadDataEx failed: "
     "no kernel image is available for execution on the device (CUDA_ERROR_NO_BINARY_FOR_GPU); the driver says: ptxas "
     "fatal: no such instruction"),
]


@pytest.mark.parametrize("device, settings, message", UNUSABLE)
def test_a_device_that_cannot_be_used_is_a_clear_error(driver, device, settings, message):
    code, out, err = selftest(*(["--device", *device] if device else []), library_path=driver, **settings)
    assert (code, out, err) == (1, "", f"rein: {message}\n")


@pytest.mark.parametrize("device, settings, message", UNUSABLE)
def test_no_server_starts_on_a_device_that_cannot_be_used(driver, unreadable, device, settings, message):
    options = ["--model", unreadable, *(["--devices", *device] if device else [])]
    code, out, err = rein("serve", *options, library_path=driver, **settings)
    assert (code, out) == (1, "") and err.endswith(f"rein: --engine cuda: {message}\n")


@pytest.fixture
def unreadable(tmp_path):
    """The demo model with weights that are not safetensors: reading them is an error of another text."""
    for file in DEMO.iterdir():
        if file.suffix in (".json", ".jinja"):
            (tmp_path / file.name).symlink_to(file)
    (tmp_path / "model.safetensors").write_text("unreadable")
    return tmp_path


@pytest.mark.parametrize("options, settings, message", [
    (["--tp", 2], {}, "--engine cuda: device 1 does not exist: the driver reports device 0 only"),
    (["--tp", 2, "--devices", "0"], {}, "--devices: must name one device for each of the 2 ranks of --tp, got 1"),
    (["--devices", "0,0"], {}, "--devices: names device 0 twice; a device has one rank"),
    (["--devices", "cpu"], {}, "--devices: with --engine cuda, must be indices of GPUs such as 0,1, got cpu"),
    (["--quantize", "int8"], {}, "--engine cuda: --quantize int8 is for CPUs: use a checkpoint that is stored as FP8 or "
     "int4, which a GPU computes as it is"),
])
def test_options_that_the_engine_cannot_serve_are_refused(driver, unreadable, options, settings, message):
    code, out, err = rein("serve", "--model", unreadable, *options, library_path=driver, **settings)
    assert (code, out, err) == (1, "", f"rein: {message}\n")


def test_a_gpu_needs_the_cuda_engine(driver):
    done = subprocess.run([BIN, "serve", "--model", str(DEMO), "--devices", "0"], capture_output=True, text=True,
                          env=environment(driver), timeout=60)
    assert (done.returncode, done.stderr) == (1, "rein: --devices: device 0 is a GPU: add --engine cuda\n")
    done = subprocess.run([BIN, "serve", "--model", str(DEMO), "--gpu-kernels", "fast"], capture_output=True, text=True,
                          env=environment(driver), timeout=60)
    assert (done.returncode, done.stderr) == (1, "rein: --gpu-kernels: add --engine cuda\n")


@pytest.mark.parametrize("options, settings, message", [
    ([], {"memory": 10 << 20},
     "--engine cuda: the weights need 10.4 MiB, but 9.4 MiB of device memory are free for them and the KV cache (other "
     "processes on the device count too); what would fit: if they are stored as bf16, a checkpoint quantized to FP8 "
     "(about 5.2 MiB); or 2 ranks on 2 such devices"),
    ([], {"memory": 4 << 20}, "a checkpoint quantized to int4 (about 2.6 MiB)"),
    ([], {"memory": 200 << 20, "others": 180 << 20}, "but 7.5 MiB of device memory are free"),
    (["--kv-memory", 150], {"memory": 100 << 20},
     "--kv-memory: a KV cache of 150.0 MiB exceeds the device memory that the weights leave free"),
    (["--max-context", 4096], {"memory": 12 << 20}, "--max-context: 4096 tokens exceed the KV cache, which holds "),
])
def test_what_does_not_fit_is_refused_before_weights_are_read(driver, options, settings, message):
    code, out, err = rein("serve", "--model", DEMO, *options, library_path=driver, **settings)
    assert (code, out) == (1, "") and message in err and "loading" not in err, err


def score(driver, *options, **settings):
    """Of a fixture's tokens: the output, and the log."""
    tokens = json.loads((FIXTURES / "qwen3/reference.json").read_text())["tokens"]
    done = subprocess.run([BIN, "score", "--engine", "cuda", "--model", str(FIXTURES / "qwen3"), "--tokens", "-", *options],
                          input=json.dumps(tokens), capture_output=True, text=True, env=environment(driver, **settings),
                          timeout=120)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout), done.stderr


def test_scores_are_those_of_the_cpu(driver):
    reference = json.loads((FIXTURES / "qwen3/reference.json").read_text())
    found, log = score(driver)
    differences = [abs(a - b) for a, b in zip(found["logprobs"][1:], reference["logprobs"][1:])]
    assert max(differences) < 5e-2 and log == ""


def test_unusual_devices_are_named_in_the_log(driver):
    wanted, _ = score(driver)
    found, log = score(driver, memory=4 << 30, others=3 << 30)
    assert found == wanted and "device 0: 3.0 GiB of its memory are in use by other processes" in log
    # It has no fast kernels, whose sums have another order.
    plain, _ = score(driver, "--gpu-kernels", "plain")
    found, log = score(driver, capability=120)
    assert found == plain and "no machine code for compute capability 12.0; the driver compiles the kernels" in log


@pytest.fixture
def server(driver, monkeypatch):
    """Starts `rein serve --engine cuda` with settings of the driver."""
    monkeypatch.setenv("LD_LIBRARY_PATH", str(driver))
    started = []

    def start(*options, model=DEMO, **settings):
        options = map(str, options)
        for name, value in settings.items():
            monkeypatch.setenv(f"REIN_FAKE_CUDA_{name.upper()}", str(value))
        started.append(Server("--engine", "cuda", *options, model=model))
        return started[-1]

    yield start
    for one in started:
        one.process.kill()


def ask(server, path, **body):
    """Status and body."""
    request = urllib.request.Request(f"{server.http}/v1/{path}", json.dumps(body).encode(),
                                     {"content-type": "application/json"})
    try:
        with urllib.request.urlopen(request, timeout=300) as answer:
            return answer.status, json.load(answer)
    except urllib.error.HTTPError as error:
        return error.code, json.load(error)


WEATHER = {"type": "function", "function": {
    "name": "get_weather", "description": "Get the weather",
    "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}}}


@pytest.mark.parametrize("options, kernels", [(["--gpu-kernels", "plain"], "plain"), ([], "fast, on GPUs of compute capability 9.0")])
def test_the_demo_model_calls_a_tool_as_on_the_cpu(server, demo, options, kernels):
    question = {"model": "demo", "temperature": 0, "max_tokens": 40, "tools": [WEATHER],
                "messages": [{"role": "user", "content": "What is the weather in Paris?"}]}
    cuda = server(*options)
    banner = itertools.takewhile(lambda line: not line.startswith("  gRPC"), cuda.process.stdout)
    assert f"  kernels     {kernels}\n" in banner
    (status, found), (_, wanted) = (ask(one, "chat/completions", **question) for one in (cuda, demo))
    assert status == 200 and found["choices"] == wanted["choices"]
    # Not what the prefix cache held: the servers have answered different requests before.
    for count in ["prompt_tokens", "completion_tokens"]:
        assert found["usage"][count] == wanted["usage"][count]
    assert found["choices"][0]["message"]["tool_calls"][0]["function"]["arguments"] == '{"city":"Paris"}'
    # The end of the process frees the device.
    cuda.stop()


@pytest.mark.parametrize("name", ["qwen3_all", "deepseek_v3", "phi3"])
def test_adapters_of_joined_weights_give_the_scores_of_peft(server, tmp_path, name):
    """An adapter is of one of the modules whose weights a GPU keeps as one matrix."""
    adapter = FIXTURES.parent / "loras" / name
    reference = json.loads((adapter / "reference.json").read_text())
    directory = shutil.copytree(FIXTURES / reference["model"], tmp_path / reference["model"])
    # A server wants a tokenizer, of which the request needs none.
    shutil.copy(FIXTURES / "qwen3/tokenizer.json", directory)
    cuda = server("--dtype", "f32", "--lora", f"of={adapter}", model=directory)
    for model, wanted in [("of", reference["logprobs"]), (reference["model"], reference["of_model"])]:
        status, found = ask(cuda, "completions", model=model, prompt=reference["tokens"], max_tokens=1, temperature=0,
                            echo=True, logprobs=1)
        assert status == 200, found
        logprobs = found["choices"][0]["logprobs"]["token_logprobs"]
        differences = [abs(a - b) for a, b in zip(logprobs[1:], wanted[1:])]
        assert len(differences) == len(wanted) - 1 and max(differences) < 1e-4, (model, max(differences))


@pytest.mark.parametrize("settings, cause", [
    ({"fault": "cuGraphLaunch:20"}, "cuGraphLaunch failed: an illegal memory access was encountered"),
    ({"fault": "cuEventSynchronize:60"}, "cuEventSynchronize failed: an illegal memory access was encountered"),
    ({"fault": "cuGraphLaunch:20:214"}, "cuGraphLaunch failed: uncorrectable ECC error encountered"),
    ({"fault": "cuMemAlloc_v2:35:2"}, "device memory is exhausted"),
    ({"hang": "flash_split_bf16_64:40"}, "a step is running for"),
])
def test_a_device_that_fails_in_a_step_ends_the_process_with_its_cause(server, capfd, settings, cause):
    cuda = server("--step-deadline", 3, model=FIXTURES / "qwen3", **settings)
    status, body = ask(cuda, "completions", model="qwen3", prompt=[5, 6, 7], max_tokens=100, ignore_eos=True, n=8)
    assert status == 503 and "error" in body, body
    code = cuda.process.wait(timeout=60)
    # A driver that waits for a kernel which never ends is not waited for.
    assert code == (-signal.SIGKILL if "hang" in settings else 1)
    log = capfd.readouterr().err
    assert "the engine is lost: requests end with an error, and this process ends" in log and cause in log


def steps(server):
    """The steps that the engine has ended."""
    with urllib.request.urlopen(f"{server.http}/metrics", timeout=60) as answer:
        lines = answer.read().decode().splitlines()
    return sum(float(line.split()[-1]) for line in lines if line.startswith("rein_engine_steps_total"))


# The kernel brings the tokens of the step before, which still runs.
STEADY = ["cuMemcpyHtoDAsync_v2", "cuLaunchKernelEx", "cuGraphLaunch", "cuMemcpyDtoHAsync_v2", "cuEventRecord", "cuEventSynchronize"]


def test_a_served_step_in_the_steady_state_is_two_launches_two_copies_and_one_wait(server, tmp_path):
    trace = tmp_path / "trace"
    cuda = server(model=FIXTURES / "qwen3", trace=trace)
    # Logprobs and penalties are part of what is drawn.
    body = {"model": "qwen3", "prompt": [5, 6, 7], "max_tokens": 60, "ignore_eos": True, "n": 3, "logprobs": 1,
            "frequency_penalty": 0.5, "seed": 1}
    status, answer = ask(cuda, "completions", **body)
    assert status == 200 and answer["usage"]["completion_tokens"] == 180
    calls = [line.split()[1] for line in trace.read_text().splitlines()]
    # All steps but a few at the start, and at the end when some sequences have ended.
    assert "\n".join(STEADY * 50) in "\n".join(calls)
    cuda.stop()


@pytest.mark.parametrize("ranks", [1, 2])
def test_a_device_that_decodes_does_not_wait_for_the_host(server, tmp_path, ranks):
    idle = tmp_path / "idle"
    cuda = server("--tp", ranks, model=FIXTURES / "qwen3", devices=ranks, skip="meet", kernel_time=100, idle=idle, memory=9 << 30)
    idle.write_text("")
    before = steps(cuda)
    status, answer = ask(cuda, "completions", model="qwen3", prompt=[5, 6, 7], max_tokens=110, ignore_eos=True, n=2)
    assert status == 200 and answer["usage"]["completion_tokens"] == 220, answer
    count, waits = steps(cuda) - before, {}
    cuda.stop()
    for stream, microseconds in map(str.split, idle.read_text().splitlines()):
        waits.setdefault(stream, []).append(int(microseconds))
    # The first wait is for the request.
    waited = max((times[1:] for times in waits.values()), key=len)
    print(f"{ranks} ranks: {count:.0f} steps; a device waited {len(waited)} times, for {sum(waited) / count:.0f} us per step")
    assert len(waited) < count / 4, waited


LAYERS = json.loads((FIXTURES / "qwen3/config.json").read_text())["num_hidden_layers"]


@pytest.mark.parametrize("settings, code", [({}, 0), ({"hang": "flash_split_bf16_64:40"}, -signal.SIGKILL)])
def test_sigterm_in_a_step_frees_the_device(server, settings, code):
    cuda = server("--drain-seconds", 2, model=FIXTURES / "qwen3", **settings)
    body = {"model": "qwen3", "prompt": [5, 6, 7], "max_tokens": 100, "ignore_eos": True, "n": 8}
    threading.Thread(target=lambda: ask(cuda, "completions", **body), daemon=True).start()
    until("no steps", lambda: steps(cuda) > 5)
    if settings:
        # Each attention layer of a step is one of the 40.
        until("the step does not hang", lambda: steps(cuda) >= 40 // LAYERS - 1)
    cuda.process.terminate()
    assert cuda.process.wait(timeout=30) == code


def test_sigterm_during_a_load_frees_the_device(driver, tmp_path):
    command = [BIN, "serve", "--engine", "cuda", "--model", str(DEMO), "--http", "127.0.0.1:0", "--grpc", "127.0.0.1:0"]
    calls = tmp_path / "calls"
    settings = environment(driver, trace=calls, hang="cuMemcpyHtoDAsync_v2:10")
    process = subprocess.Popen(command, env=settings, stdout=subprocess.DEVNULL)
    until("it does not load", lambda: calls.exists() and calls.read_text().count("cuMemcpyHtoDAsync_v2") > 10)
    process.terminate()
    assert process.wait(timeout=30) == -signal.SIGTERM


@pytest.mark.parametrize("settings, cause, ends", [
    # In the middle of the answer. The process cannot use the device any more.
    ({"fault": "cuEventSynchronize:40"}, "an illegal memory access was encountered",
     (1, "the device has failed and this process must be restarted")),
    ({"fault": "cuGraphLaunch:20:214"}, "uncorrectable ECC error encountered",
     (1, "the device has failed and this process must be restarted")),
    ({"hang": "flash_split_bf16_64:60"}, "a step is running for",
     (-signal.SIGKILL, "a rank is stuck and this process must be restarted")),
])
def test_streams_of_a_lost_device_resume_on_another(driver, tmp_path, settings, cause, ends):
    fleet = Fleet(tmp_path, workers=0, group_size=1, routers=1, model=FIXTURES / "qwen3",
                  more={"LD_LIBRARY_PATH": str(driver)}, worker_args=["--engine", "cuda", "--step-deadline", "3"])
    try:
        fleet.start("w0")
        fleet.whole(1)
        router = f"127.0.0.1:{fleet.ports['r0'][0]}"
        body = {"model": "qwen3", "prompt": [5, 6, 7, 8], "max_tokens": 60, "ignore_eos": True, "temperature": 0.8,
                "seed": 3, "return_token_ids": True}
        served = SimpleNamespace(http=f"http://{router}")
        _, wanted = ask(served, "completions", **body)
        fleet.terminate("w0")
        fleet.start("w1", **{f"REIN_FAKE_CUDA_{name.upper()}": value for name, value in settings.items()})
        fleet.whole(1)
        answers = []
        asking = threading.Thread(target=lambda: answers.append(ask(served, "completions", **body)))
        asking.start()
        fleet.start("w2")
        asking.join(timeout=200)
        status, found = answers[0]
        assert status == 200 and found["choices"] == wanted["choices"]
        assert cause in fleet.log("w1")
        assert fleet.processes["w1"].wait(timeout=60) == ends[0]
        assert ends[1] in fleet.log("w1")
        assert fleet.metric("r0", "rein_resumed_total") == 1
    finally:
        fleet.close()
