"""Starts a cluster of real processes with a real etcd on loopback, and clients that record what they receive.

REIN_BIN names the binary (make test sets it)."""
import contextlib
import http.client
import json
import os
import pathlib
import random
import shutil
import signal
import socket
import ssl
import subprocess
import threading
import time
from types import SimpleNamespace

REPOSITORY = pathlib.Path(__file__).resolve().parents[2]
BIN = os.path.abspath(os.environ.get("REIN_BIN", REPOSITORY / "target/debug/rein"))
DEMO = REPOSITORY / "models/demo"


def free_ports(n):
    """Finds free ports below the range of outgoing connections, so that no connection takes one before its process binds
    it."""
    ports = set()
    while len(ports) < n:
        port = random.SystemRandom().randrange(15000, 32000)
        with socket.socket() as s, contextlib.suppress(OSError):
            s.bind(("127.0.0.1", port))
            ports.add(port)
    return list(ports)


def until(what, holds, timeout=30):
    end = time.monotonic() + timeout
    while not holds():
        assert time.monotonic() < end, what
        time.sleep(0.1)


def samples(page, name, **labels):
    """The sum of a page's samples with this name and these labels."""
    wanted = [f'{label}="{value}"' for label, value in labels.items()]
    lines = [line for line in page.splitlines() if line.split("{")[0].split(" ")[0] == name and all(part in line for part in wanted)]
    return sum(float(line.split()[-1]) for line in lines)


class Fleet:
    """Workers w0, w1, ..., routers r0, r1, ..., and the controller c0. `more` is added to their environment. Each process
    has a log file in `directory`. In the arguments of workers, NAME is the worker's name."""

    def __init__(
        self, directory, workers, group_size, spares=0, routers=2, model=DEMO, devices=1, worker_args=(), etcd_args=(), more=()
    ):
        self.directory, self.model, self.group_size, self.spares = pathlib.Path(directory), model, group_size, spares
        self.members = group_size // devices  # worker processes per complete group
        given = ["--devices", ",".join(["cpu"] * devices)] if devices > 1 else []
        self.worker_args, self.more = [*given, *worker_args], dict(more)
        self.etcd_args = list(etcd_args)
        client, peer, *ports = free_ports(2 + 2 * routers)
        self.etcd_url, self.peer_url = f"{'https' if 'REIN_ETCD_CA' in self.more else 'http'}://127.0.0.1:{client}", f"http://127.0.0.1:{peer}"
        self.ports = {f"r{i}": (ports[2 * i], ports[2 * i + 1]) for i in range(routers)}
        self.processes, self.passwords_asked = {}, False
        self.start_etcd()
        if "REIN_ETCD_USER" in self.more:
            self.ask_for_passwords()
        for name in ["c0", *self.ports, *(f"w{i}" for i in range(workers))]:
            self.start(name)

    def environment(self, **other):
        """`other` overrides variables; None removes one."""
        ours = {"REIN_ETCD": self.etcd_url, "REIN_CLUSTER": "test", "REIN_LOG": "info"}
        return {name: value for name, value in {**os.environ, **ours, **self.more, **other}.items() if value is not None}

    def spawn(self, name, command, **environment):
        log = open(self.directory / f"{name}.log", "a")
        self.processes[name] = subprocess.Popen(command, stdout=log, stderr=log, env=self.environment(**environment))

    def start_etcd(self):
        data = ["--data-dir", str(self.directory / "etcd"), "--log-level", "error", "--unsafe-no-fsync"]
        client = ["--listen-client-urls", self.etcd_url, "--advertise-client-urls", self.etcd_url]
        peer = ["--listen-peer-urls", self.peer_url, "--initial-advertise-peer-urls", self.peer_url]
        if "REIN_ETCD_CA" in self.more:
            client += ["--trusted-ca-file", self.more["REIN_ETCD_CA"], "--client-cert-auth"]
            client += ["--cert-file", self.more["REIN_ETCD_CERT"], "--key-file", self.more["REIN_ETCD_KEY"]]
        self.spawn("etcd", ["etcd", *data, *client, *peer, "--initial-cluster", f"default={self.peer_url}", *self.etcd_args])

    def password(self):
        file = self.more.get("REIN_ETCD_PASSWORD_FILE")
        return pathlib.Path(file).read_text().strip() if file else self.more["REIN_ETCD_PASSWORD"]

    def ask_for_passwords(self):
        password = self.password()
        for _ in range(100):
            try:
                self.etcdctl("user", "add", f"root:{password}")
                break
            except subprocess.CalledProcessError:
                time.sleep(0.1)
        for command in (["role", "add", "root"], ["user", "grant-role", "root", "root"], ["auth", "enable"]):
            self.etcdctl(*command)
        self.passwords_asked = True

    def etcdctl(self, *command):
        command = ["etcdctl", "--endpoints", self.etcd_url, *command]
        if self.passwords_asked:
            command += ["--user", f"{self.more['REIN_ETCD_USER']}:{self.password()}"]
        if "REIN_ETCD_CA" in self.more:
            ours = ["--cert", self.more["REIN_ETCD_CERT"], "--key", self.more["REIN_ETCD_KEY"]]
            command += [*ours, "--insecure-skip-tls-verify"]
        environment = {**os.environ, "ETCDCTL_API": "3"}
        return subprocess.run(command, check=True, capture_output=True, text=True, env=environment).stdout

    def lose_etcd(self, by=signal.SIGKILL):
        """Ends etcd and deletes its data."""
        self.signal("etcd", by)
        self.processes["etcd"].wait(timeout=30)
        shutil.rmtree(self.directory / "etcd")

    def start(self, name, *arguments, **environment):
        if name.startswith("c"):
            command = ["controller", "--spares", str(self.spares)]
        elif name.startswith("r"):
            http, grpc = self.ports[name]
            command = ["router", "--http", f"127.0.0.1:{http}", "--grpc", f"127.0.0.1:{grpc}"]
        else:
            command = ["worker", "--model", str(self.model), "--group-size", str(self.group_size), "--threads", "1"]
            kv = [] if "--kv-memory" in self.worker_args else ["--kv-memory", "32"]
            command += [*kv, *(argument.replace("NAME", name) for argument in self.worker_args)]
        self.spawn(name, [BIN, *command, "--id", name, *arguments], **environment)

    def signal(self, name, number):
        self.processes[name].send_signal(number)
        if number == signal.SIGKILL:
            self.processes[name].wait()

    def kill(self, name):
        self.signal(name, signal.SIGKILL)

    def terminate(self, name, timeout=90):
        """Sends SIGTERM and expects a clean exit."""
        self.signal(name, signal.SIGTERM)
        assert self.processes[name].wait(timeout=timeout) == 0, self.log(name)

    def log(self, name, whole=False):
        text = (self.directory / f"{name}.log").read_text()
        return text if whole else text[-4000:]

    def admitted(self, worker):
        """The number of sequences that a worker has admitted, from its log at level debug."""
        return sum("admitted" in line for line in (self.directory / f"{worker}.log").read_text().splitlines())

    def status(self):
        command = [BIN, "status", "--json"]
        done = subprocess.run(command, env=self.environment(), capture_output=True, text=True, timeout=30)
        return json.loads(done.stdout) if done.returncode == 0 else None

    def wait(self, what, holds, timeout=60):
        """Waits until `holds(status)` and returns the status."""
        until = time.monotonic() + timeout
        while True:
            status = self.status()
            if status and holds(status):
                return status
            assert time.monotonic() < until, f"{what}: {json.dumps(status, indent=1)}\n{self.log('c0')}"
            time.sleep(0.1)

    def whole(self, groups, timeout=60):
        """Waits until this number of groups serve, each with all its workers, and the routers are ready."""

        def holds(status):
            serving = [g for g in status["groups"].values() if g["state"] == "serving"]
            full = [g for g in serving if len({rank["worker"] for rank in g["ranks"]}) == self.members]
            return len(full) == groups == len(serving)

        status = self.wait(f"{groups} whole groups", holds, timeout)
        for name in self.ports:
            while self.get(name, "/ready") != 200:
                assert self.processes[name].poll() is None, self.log(name)
                time.sleep(0.05)
        return status

    def host(self, router):
        return "127.0.0.1"

    def connection(self, router):
        address = self.host(router), self.ports[router][0]
        if "REIN_TLS_CERT" in self.more:
            return http.client.HTTPSConnection(*address, timeout=30, context=ssl._create_unverified_context())
        return http.client.HTTPConnection(*address, timeout=30)

    def get(self, router, path):
        with contextlib.closing(self.connection(router)) as c:
            try:
                c.request("GET", path)
                return c.getresponse().status
            except OSError:
                return None

    def metric(self, router, name, **labels):
        """The sum of the samples with these labels."""
        with contextlib.closing(self.connection(router)) as c:
            c.request("GET", "/metrics")
            return samples(c.getresponse().read().decode(), name, **labels)

    def close(self):
        for process in self.processes.values():
            process.kill()
        for process in self.processes.values():
            process.wait()


TOOL = {
    "type": "function",
    "function": {
        "name": "book_room",
        "description": "Books a room",
        "parameters": {
            "type": "object",
            "properties": {
                "room": {"type": "string", "minLength": 80, "maxLength": 120},
                "note": {"type": "string", "minLength": 80, "maxLength": 120},
            },
            "required": ["room", "note"],
            "additionalProperties": False,
        },
    },
}


def request(i):
    """Request number i. Every second one is an enforced tool call, every third one is greedy."""
    text = f"request number {i}: tell me about room {i * 37}"
    body = {
        "model": "demo",
        "stream": True,
        "messages": [{"role": "user", "content": text}],
        "seed": i,
        "temperature": 0.0 if i % 3 == 0 else 0.8,
        "return_token_ids": True,
    }
    if i % 2 == 0:
        return {**body, "tools": [TOOL], "tool_choice": "required", "max_tokens": 250}
    return {**body, "ignore_eos": True, "max_tokens": 150}


class Answer:
    """What one client received: text, calls and token ids in order, errors, and the longest time without data.

    `refused`: no answer had started, so the client may retry on another router. `cut`: the connection ended early.
    `ended`: the time of the end."""

    def __init__(self):
        self.text, self.ids, self.error, self.done, self.silence = "", [], None, False, 0.0
        self.refused, self.cut, self.ended = False, False, None

    def seen(self):
        return self.text, self.ids

    def is_prefix_of(self, whole):
        """Whether this is the start of a complete answer."""
        return whole.text.startswith(self.text) and whole.ids[: len(self.ids)] == self.ids

    @property
    def ok(self):
        return self.done and self.error is None


class Load:
    """Sends the requests to the targets (host, port) in turn: all at once, or with their starts spread over `spread` seconds.

    A refused request is retried on the next target, up to `retries` times. A request is not retried after its first byte."""

    def __init__(self, targets, requests, retries=0, spread=0):
        self.answers = [Answer() for _ in requests]
        self.tokens, self.retried, self.lock = 0, 0, threading.Lock()
        turns = [targets[i % len(targets) :] + targets[: i % len(targets)] for i in range(len(requests))]
        self.threads = [
            threading.Thread(target=self.client, args=(turn, body, i, retries, i * spread / len(requests)), daemon=True)
            for i, (turn, body) in enumerate(zip(turns, requests))
        ]
        for thread in self.threads:
            thread.start()

    def client(self, targets, body, i, retries, later):
        time.sleep(later)
        for attempt in range(retries + 1):
            answer = self.answers[i] = Answer()
            try:
                self.stream(*targets[attempt % len(targets)], body, answer)
            except (OSError, http.client.HTTPException) as error:
                answer.error, answer.cut = repr(error), isinstance(error, (ConnectionError, http.client.IncompleteRead))
            answer.ended = time.monotonic()
            if not answer.refused or attempt == retries:
                return
            with self.lock:
                self.retried += 1
            time.sleep(0.2)

    def stream(self, host, port, body, answer):
        connection = http.client.HTTPConnection(host, port, timeout=120)
        last = time.monotonic()
        with contextlib.closing(connection):
            try:
                connection.request("POST", "/v1/chat/completions", json.dumps(body), {"content-type": "application/json"})
                response = connection.getresponse()
            except ConnectionError:
                answer.refused = True
                raise
            if response.status != 200:
                answer.error, answer.refused = f"{response.status} {response.read()[:500]}", response.status == 503
                return
            for line in response:
                if not line.startswith(b"data:"):
                    continue
                now = time.monotonic()
                answer.silence, last = max(answer.silence, now - last), now
                data = line[5:].strip()
                if data == b"[DONE]":
                    answer.done = True
                    return
                chunk = json.loads(data)
                if "error" in chunk:
                    answer.error = chunk["error"]
                    continue
                for choice in chunk["choices"]:
                    self.take(choice, answer)
            # http.client treats an end inside a chunk as the end of the body.
            answer.error, answer.cut = answer.error or "the connection ended", answer.error is None

    def take(self, choice, answer):
        delta = choice["delta"]
        answer.text += (delta.get("reasoning_content") or "") + (delta.get("content") or "")
        for call in delta.get("tool_calls") or []:
            name, arguments = call["function"].get("name"), call["function"].get("arguments")
            answer.text += (f"|{name}" if name else "") + (arguments or "")
        if choice.get("finish_reason"):
            answer.text += f"<{choice['finish_reason']}>"
        ids = choice.get("token_ids") or []
        answer.ids += ids
        with self.lock:
            self.tokens += len(ids)

    def reach(self, tokens):
        """Waits until this number of tokens has arrived in total, or all streams have ended."""
        while self.tokens < tokens and any(thread.is_alive() for thread in self.threads):
            time.sleep(0.005)

    def join(self):
        for thread in self.threads:
            thread.join(timeout=300)
            assert not thread.is_alive(), "a request hangs"
        return self.answers

    @property
    def silence(self):
        return max(answer.silence for answer in self.answers)


def whole_fleet(kind, directory, **options):
    """Two groups of two workers that serve; for fixtures."""
    fleet = kind(directory, workers=4, group_size=2, **options)
    try:
        fleet.whole(2)
        yield fleet
    finally:
        fleet.close()


def targets(fleet, *routers):
    return [(fleet.host(router), fleet.ports[router][0]) for router in routers or fleet.ports]


def undisturbed_answers(fleet, requests):
    answers = Load(targets(fleet), requests).join()
    assert all(answer.ok for answer in answers), [answer.error for answer in answers]
    return answers


def assert_unnoticed(answers, undisturbed):
    """Asserts that every request has the same answer as without a fault."""
    failed = [(i, answer.error) for i, answer in enumerate(answers) if not answer.ok]
    assert not failed, failed
    different = [i for i, (a, b) in enumerate(zip(answers, undisturbed)) if a.seen() != b.seen()]
    assert not different, [(answers[i].text, undisturbed[i].text) for i in different[:2]]


@contextlib.contextmanager
def sim_fleet(directory, model):
    """Three workers with the sim engine, and the address of their router."""
    fleet = Fleet(directory, workers=0, group_size=1, routers=1)
    try:
        for name in ("w0", "w1", "w2"):
            fleet.spawn(name, [BIN, "worker", "--model", str(model), "--id", name, "--engine", "sim", "--sim-step-us", "20000"])
        until("three workers serve", lambda: serving_engines(fleet) == 3)
        yield fleet, SimpleNamespace(http=f"http://127.0.0.1:{fleet.ports['r0'][0]}")
    finally:
        fleet.close()


def kill_computing(fleet):
    """Kills the worker that computes the most answers, once one computes several: agents start one after the other, and
    prefixes that they share lead them to one worker."""
    workers = {name: group["ranks"][0]["worker"] for name, group in fleet.status()["groups"].items()}
    counts = {}

    def computing():
        counts.update({name: fleet.metric("r0", "rein_engine_running_sequences", engine=name) for name in workers})
        return max(counts.values()) > 2

    until("a worker computes answers", computing, timeout=120)
    fleet.kill(workers[max(counts, key=counts.get)])


def serving_engines(fleet):
    try:
        return fleet.metric("r0", "rein_engines", model="demo", standing="serving")
    except OSError:
        return 0
