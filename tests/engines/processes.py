"""Starts vLLM, SGLang, llama-server, adapters and routers on loopback, and speaks to an adapter as a router does."""
import contextlib
import json
import os
import pathlib
import queue
import signal
import subprocess
import threading
import time
import urllib.error
import urllib.request
from types import SimpleNamespace

import grpc
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

from fleet import BIN, REPOSITORY, free_ports, samples

# The directory that scripts/engines.sh prints.
ENGINES = pathlib.Path(os.environ.get("REIN_ENGINES_DIR", "/nonexistent"))
START_SECONDS = 300
SEQUENCE_SECONDS = 120
SLOTS = 16
BLOCK = 32


def http(url, body=None, timeout=60):
    request = urllib.request.Request(url, None if body is None else json.dumps(body).encode(), {"content-type": "application/json"})
    with urllib.request.urlopen(request, timeout=timeout) as answer:
        return json.loads(answer.read() or "null")


class Process:
    """A process with a log file, whose `url` answers at `probe`."""

    def __init__(self, name, command, directory, port, probe, environment=()):
        self.name, self.log, self.url = name, directory / f"{name}-{port}.log", f"http://127.0.0.1:{port}"
        self.probe = probe
        with open(self.log, "w") as log:
            self.child = subprocess.Popen(
                [str(part) for part in command], stdout=log, stderr=log, cwd=directory, start_new_session=True, env={**os.environ, **dict(environment)})

    def answers(self):
        with contextlib.suppress(OSError, ValueError):
            urllib.request.urlopen(self.url + self.probe, timeout=5).read()
            return True
        return False

    def wait(self):
        end = time.monotonic() + START_SECONDS
        while not self.answers():
            assert self.child.poll() is None and time.monotonic() < end, f"{self.name} does not start:\n{self.log.read_text()[-3000:]}"
            time.sleep(0.2)
        return self

    def stop(self):
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.child.pid, signal.SIGKILL)
        self.child.wait()


def start_vllm(directory, model, *options):
    (port,) = free_ports(1)
    home = directory / "home"
    home.mkdir(exist_ok=True)
    environment = {
        "HOME": home, "HF_HUB_OFFLINE": "1", "VLLM_TARGET_DEVICE": "cpu", "VLLM_NO_USAGE_STATS": "1", "DO_NOT_TRACK": "1",
        "VLLM_CPU_KVCACHE_SPACE": "1"}
    command = [
        ENGINES / "vllm/bin/python", ENGINES / "vllm/bin/vllm", "serve", model, "--host", "127.0.0.1", "--port", port, "--served-model-name", "m",
        "--dtype", "float32", "--enforce-eager", "--max-num-seqs", SLOTS, "--block-size", BLOCK, "--enable-prompt-tokens-details", *options]
    return Process("vllm", command, directory, port, "/health", {name: str(value) for name, value in environment.items()})


def start_sglang(directory, model, *options):
    (port,) = free_ports(1)
    home = directory / "home"
    home.mkdir(exist_ok=True)
    command = [
        ENGINES / "sglang/bin/python", "-m", "sglang.launch_server", "--model-path", model, "--host", "127.0.0.1", "--port", port,
        "--served-model-name", "m", "--device", "cpu", "--dtype", "float32", "--attention-backend", "torch_native", "--sampling-backend", "pytorch",
        "--disable-overlap-schedule", "--max-running-requests", SLOTS, "--max-total-tokens", 4096 * SLOTS, *options]
    environment = {"HOME": str(home), "HF_HUB_OFFLINE": "1", "SGLANG_USE_CPU_ENGINE": "1"}
    return Process("sglang", command, directory, port, "/health", environment)


def start_llama(directory, file, *options):
    (port,) = free_ports(1)
    command = [
        ENGINES / "llama-server", "--model", file, "--host", "127.0.0.1", "--port", port, "--alias", "m", "--ctx-size", 4096 * SLOTS,
        "--parallel", SLOTS, "--threads", 2, "--no-webui", *options]
    return Process("llama-server", command, directory, port, "/health")


class Router:
    """`rein router` in front of engines."""

    def __init__(self, directory, model, engines, *options):
        (port,) = free_ports(1)
        command = [BIN, "router", "--http", f"127.0.0.1:{port}", "--grpc", "127.0.0.1:0", "--model", model, "--served-name", "m", *options]
        for kind, engine in engines:
            command += ["--engine", f"{kind}={engine.url}"]
        self.process = Process("router", command, directory, port, "/ready", {"REIN_LOG": "info"}).wait()
        self.url = self.process.url

    def stop(self):
        self.process.stop()

    def chat(self, **request):
        return http(f"{self.url}/v1/chat/completions", {"model": "m", **request}, timeout=300)

    def metric(self, name, **labels):
        return samples(urllib.request.urlopen(self.url + "/metrics", timeout=20).read().decode(), name, **labels)


def messages():
    """The message types of engine.proto by name."""
    proto = REPOSITORY / "proto/proto"
    command = ["protoc", f"-I{proto}", "--include_imports", "--descriptor_set_out=/dev/stdout", "rein/internal/v1/engine.proto"]
    files = descriptor_pb2.FileDescriptorSet.FromString(subprocess.run(command, check=True, capture_output=True).stdout)
    pool = descriptor_pool.DescriptorPool()
    for file in files.file:
        pool.Add(file)
    names = ("ToEngine", "FromEngine", "Start", "Steer", "EngineInfo", "InfoRequest", "EventsRequest", "EngineEvents")
    return SimpleNamespace(**{
        name: message_factory.GetMessageClass(pool.FindMessageTypeByName(f"rein.internal.v1.{name}")) for name in names})


class Adapter:
    """`rein adapter` in a cluster of its own, as a router sees it."""

    def __init__(self, directory, model, kind, engine, etcd, *options, events=None):
        port, page = free_ports(2)
        self.types = messages()
        fragment = f"#events={events}" if events else ""
        command = [
            BIN, "adapter", "--engine", f"{kind}={engine.url}{fragment}", "--model", model, "--served-name", "m", "--listen", f"127.0.0.1:{port}",
            "--http", f"127.0.0.1:{page}", *options]
        environment = {"REIN_ETCD": etcd, "REIN_CLUSTER": "engines", "REIN_ID": f"{kind}-{port}"}
        self.process = Process("adapter", command, directory, page, "/ready", environment).wait()
        self.channel = grpc.insecure_channel(f"127.0.0.1:{port}")
        self.info = self.call("Info", self.types.InfoRequest(), self.types.EngineInfo)

    def call(self, name, request, answer):
        return self.channel.unary_unary(f"/rein.internal.v1.Engine/{name}", lambda m: m.SerializeToString(), answer.FromString)(request)

    def stop(self):
        self.channel.close()
        self.process.stop()

    def sequence(self, prompt, **start):
        return Sequence(self, prompt, **start)

    def cached(self, enough, timeout=20):
        """The hashes of the blocks that the adapter reports to routers, once there are enough or the time is over."""
        call = self.channel.unary_stream("/rein.internal.v1.Engine/Events", lambda m: m.SerializeToString(), self.types.EngineEvents.FromString)
        known, events = set(), call(self.types.EventsRequest(interval_ms=50), timeout=timeout)
        try:
            for event in events:
                known = set() if event.reset else known
                known |= set(event.stored)
                known -= set(event.removed)
                if len(known) >= enough:
                    events.cancel()
                    break
        except grpc.RpcError as error:
            assert error.code() == grpc.StatusCode.DEADLINE_EXCEEDED, error
        return known


class Sequence:
    """A sequence on an adapter. `steer` changes it; `tokens` returns the accepted ones once it has finished."""

    def __init__(self, adapter, prompt, max_tokens=24, temperature=0.0, top_p=1.0, top_k=0, seed=1, resume=(), stop=(), logprobs=-1, **start):
        self.types, self.requests = adapter.types, queue.SimpleQueue()
        self.epoch, self.ids, self.finish, self.times = 0, list(resume), None, []
        start = self.types.Start(request_id="test", prompt=prompt, resume=resume, protocol=adapter.info.protocol, logprobs=logprobs, prompt_logprobs=-1, **start)
        start.sampling.temperature, start.sampling.top_p, start.sampling.top_k, start.sampling.seed = temperature, top_p, top_k, seed
        start.sampling.repetition_penalty = 1.0
        start.limits.max_tokens, start.limits.ignore_eos = max_tokens, not stop
        start.limits.stop_token_ids.extend(stop)
        self.requests.put(self.types.ToEngine(start=start))
        stub = adapter.channel.stream_stream("/rein.internal.v1.Engine/Generate", lambda m: m.SerializeToString(), self.types.FromEngine.FromString)
        self.answers = stub(iter(self.requests.get, None), timeout=SEQUENCE_SECONDS)

    def events(self):
        for answer in self.answers:
            kind = answer.WhichOneof("kind")
            if kind == "tokens" and answer.tokens.epoch == self.epoch:
                assert answer.tokens.position == len(self.ids), (answer.tokens.position, len(self.ids))
                self.ids.extend(answer.tokens.ids)
                self.times.append(time.monotonic())
                yield "tokens"
            elif kind == "admitted":
                self.admitted = answer.admitted
            elif kind == "finish":
                self.finish = answer.finish
                if answer.finish.epoch == self.epoch:
                    self.requests.put(None)
                    yield "finish"
                    return

    def steer(self, keep, append=(), mask=None, hold=False, stop=False):
        self.epoch += 1
        steer = self.types.Steer(epoch=self.epoch, keep=keep, append=append, hold=hold, stop=stop)
        if mask is not None:
            steer.mask = mask
        del self.ids[keep:]
        self.ids.extend(append)
        self.requests.put(self.types.ToEngine(steer=steer))

    def tokens(self):
        for _ in self.events():
            pass
        return self.ids


def mask_of(ids, vocabulary):
    bits = bytearray((vocabulary + 7) // 8)
    for id in ids:
        bits[id // 8] |= 1 << id % 8
    return bytes(bits)


class Concurrent:
    """Runs calls at once; `results` raises what one of them raised."""

    def __init__(self, calls):
        self.values, self.errors = [None] * len(calls), []
        self.threads = [threading.Thread(target=self.run, args=(at, call)) for at, call in enumerate(calls)]
        for thread in self.threads:
            thread.start()

    def run(self, at, call):
        try:
            self.values[at] = call()
        except Exception as error:
            self.errors.append(error)

    def results(self, timeout=300):
        for thread in self.threads:
            thread.join(timeout)
            assert not thread.is_alive()
        if self.errors:
            raise self.errors[0]
        return self.values
