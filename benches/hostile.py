#!/usr/bin/env python3
"""The cost of hostile loads for a server: answers, time, memory, and the duration of GET /health meanwhile.

    benches/hostile.py [--rein target/release/rein] [--model models/demo] [CASE ...]

Starts a server on the sim engine for each case and prints one row of a Markdown table for it. Needs nothing but Python and
Linux (/proc tells the memory). docs/benchmarks/hostile.md describes the cases.
"""
import argparse
import http.client
import json
import os
import pathlib
import resource
import signal
import socket
import ssl
import subprocess
import tempfile
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

REPOSITORY = pathlib.Path(__file__).resolve().parents[1]
CHAT = "/v1/chat/completions"
MIB = 1 << 20
SMALL = {"model": "demo", "messages": [{"role": "user", "content": "hi"}], "max_tokens": 4}


class Server:
    """`rein serve` on ports chosen by the system."""

    def __init__(self, rein, model=REPOSITORY / "models/demo", *extra):
        step = [] if "--sim-step-us" in extra else ["--sim-step-us", "2000"]
        command = [rein, "serve", "--engine", "sim", "--model", str(model), "--served-name", "demo",
                   "--http", "127.0.0.1:0", "--grpc", "127.0.0.1:0", *step, *extra]
        environment = {**os.environ, "REIN_LOG": "error"}
        self.process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, text=True, env=environment)
        self.http, self.grpc = (self._announced(name) for name in ("http", "grpc"))
        self.host, port = self.http.split("://")[1].rsplit(":", 1)
        self.port = int(port)

    def _announced(self, name):
        line = self.process.stdout.readline().strip()
        assert f"{name} listening on " in line, line
        return line.split("listening on ")[1]

    def memory(self, field):
        """VmRSS, or VmHWM since `reset_peak`, in bytes."""
        status = pathlib.Path(f"/proc/{self.process.pid}/status").read_text()
        return next(int(line.split()[1]) << 10 for line in status.splitlines() if line.startswith(field))

    def computed(self):
        """Processor time so far, in seconds."""
        fields = pathlib.Path(f"/proc/{self.process.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    def reset_peak(self):
        pathlib.Path(f"/proc/{self.process.pid}/clear_refs").write_text("5")

    def post(self, path, body, timeout=120, **headers):
        """Status, headers and text of an answer."""
        connection = http.client.HTTPConnection(self.host, self.port, timeout=timeout)
        body = body if isinstance(body, bytes) else json.dumps(body).encode()
        connection.request("POST", path, body, {"content-type": "application/json", **headers})
        answer = connection.getresponse()
        text = answer.read().decode(errors="replace")
        connection.close()
        return answer.status, answer.headers, text

    def get(self, path):
        connection = http.client.HTTPConnection(self.host, self.port, timeout=60)
        connection.request("GET", path)
        text = connection.getresponse().read().decode()
        connection.close()
        return text

    def stop(self):
        self.process.send_signal(signal.SIGTERM)
        try:
            self.process.wait(timeout=60)
        except subprocess.TimeoutExpired:
            self.process.kill()


class Health(threading.Thread):
    """Requests /health every few milliseconds, and records the duration of each answer."""

    def __init__(self, server):
        super().__init__(daemon=True)
        self.server, self.times, self.over = server, [], threading.Event()

    def run(self):
        connection = http.client.HTTPConnection(self.server.host, self.server.port, timeout=120)
        while not self.over.is_set():
            began = time.monotonic()
            connection.request("GET", "/health")
            connection.getresponse().read()
            self.times.append(time.monotonic() - began)
            self.over.wait(0.005)
        connection.close()

    def __enter__(self):
        self.start()
        return self

    def __exit__(self, *_):
        self.over.set()
        self.join()

    def percentile(self, share):
        return sorted(self.times)[min(len(self.times) - 1, int(len(self.times) * share))]


def at_once(count, work):
    """The result of `work(i)` for each i, or its error; all run at once."""
    results, gate = [None] * count, threading.Barrier(count)

    def one(i):
        gate.wait()
        try:
            results[i] = work(i)
        except OSError as error:
            results[i] = error

    threads = [threading.Thread(target=one, args=(i,), daemon=True) for i in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return results


@dataclass
class Load:
    """Statuses of the answers; wall time and the server's processor time in seconds; /health meanwhile; additional memory in bytes."""
    answers: list
    seconds: float
    computed: float
    health: Health
    healthy: int  # answers of /health until the last answer
    memory: int


def load(server, path, bodies):
    """Sends the bodies at once."""
    server.post(CHAT, SMALL)
    server.reset_peak()
    memory, computed = server.memory("VmRSS"), server.computed()
    with Health(server) as health:
        time.sleep(0.2)
        began, healthy = time.monotonic(), len(health.times)
        answers = at_once(len(bodies), lambda i: server.post(path, bodies[i])[0])
        seconds, healthy = time.monotonic() - began, len(health.times) - healthy
    return Load(answers, seconds, server.computed() - computed, health, healthy, server.memory("VmHWM") - memory)


def repeated(before, item, after, size):
    """A body of about `size` bytes."""
    count = (size - len(before) - len(after)) // (len(item) + 1)
    return b"".join([before, (item + b",") * count, item, after])


def empty_lists(size):
    return repeated(b'{"model":"demo","messages":[', b"[]", b"]}", size)


def unknown_field(size):
    return repeated(b'{"model":"demo","messages":[{"role":"user","content":"hi"}],"max_tokens":4,"x":[', b"[]", b"]}", size)


def small_messages(size):
    return repeated(b'{"model":"demo","messages":[', b'{"role":"user","content":"a"}', b"]}", size)


def many_calls(count):
    call = b'{"id":"a","type":"function","function":{"name":"f","arguments":"{}"}}'
    size = (len(call) + 1) * count
    return repeated(b'{"model":"demo","messages":[{"role":"user","content":"hi"},{"role":"assistant","tool_calls":[', call, b"]}]}", size)


def han(characters):
    """Text without repetition, so that no cache of words helps."""
    text = "".join(chr(0x4E00 + (i * 7919 + i // 20_902) % 20_902) for i in range(characters))
    return json.dumps({**SMALL, "messages": [{"role": "user", "content": text}]}, ensure_ascii=False).encode()


def stalled(server, count, **headers):
    """Connections, each with a stream that is not read."""
    body = json.dumps({**SMALL, "stream": True, "max_tokens": 4000, "ignore_eos": True, "logprobs": True, "top_logprobs": 20}).encode()
    lines = [f"POST {CHAT} HTTP/1.1", "host: x", "content-type: application/json", f"content-length: {len(body)}"]
    lines += [f"{name}: {value}" for name, value in headers.items()]
    request = ("\r\n".join(lines) + "\r\n\r\n").encode()
    sockets = []
    for _ in range(count):
        connection = socket.socket()
        # Small buffers, so that little is in transit.
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        connection.connect((server.host, server.port))
        connection.sendall(request + body)
        sockets.append(connection)
    return sockets


def upload(server, path, body, context=None, **headers):
    """Like the simplest client: sends the whole body, then reads the answer. Returns its status line, or the error."""
    raw = socket.create_connection((server.host, server.port), timeout=60)
    connection = context.wrap_socket(raw, server_hostname="localhost") if context else raw
    lines = [f"POST {path} HTTP/1.1", "host: x", f"content-length: {len(body)}", *(f"{k}: {v}" for k, v in headers.items())]
    try:
        connection.sendall("\r\n".join(lines).encode() + b"\r\n\r\n" + body)
        answer = connection.recv(4096)
        return answer.split(b"\r\n")[0].decode() or "closed without an answer"
    except OSError as error:
        return f"{type(error).__name__}: {error}"
    finally:
        connection.close()


def summary(answers):
    counts = {}
    for answer in answers:
        name = type(answer).__name__ if isinstance(answer, OSError) else str(answer)
        counts[name] = counts.get(name, 0) + 1
    return ", ".join(f"{count} x {name}" for name, count in sorted(counts.items()))


def bodies(name, make, count=8, size=30 * MIB, path=CHAT):
    def run(start):
        server = start()
        try:
            sent = [make(size)] * count
            found = load(server, path, sent)
            answers, seconds, p99, memory = found.answers, found.seconds, found.health.percentile(0.99), found.memory
            total = sum(map(len, sent))
            return f"{summary(answers)} in {seconds:.2f} s; /health p99 {p99 * 1e3:.0f} ms; {memory / MIB:.0f} MiB, {memory / total:.1f} x the bytes"
        finally:
            server.stop()
    return name, run


def stall_case(start):
    server = start("--max-in-flight", "50", "--client-stall-timeout", "10") if start.stalls else start("--max-in-flight", "50")
    sockets = []
    try:
        sockets = stalled(server, 50)
        time.sleep(2)
        began = time.monotonic()
        try:
            status, *_ = server.post(CHAT, SMALL, timeout=45)
            return f"a small request: {status} after {time.monotonic() - began:.1f} s (stall time 10 s)"
        except OSError as error:
            return f"a small request: nothing for {time.monotonic() - began:.0f} s ({error})"
    finally:
        for connection in sockets:
            connection.close()
        server.stop()


def burst_case(start):
    # Steps are long enough for most of the burst to arrive during one.
    server = start("--max-in-flight", "4000", "--max-queue", "1000", "--max-sequences", "1500", "--sim-step-us", "500000")
    try:
        answers = at_once(2000, lambda _: server.post(CHAT, SMALL)[0])
        return f"{summary(answers)}; 1,500 slots and a queue of 1,000"
    finally:
        server.stop()


def beside(server, count, body, probe, **headers):
    """Sends a body `count` times, and after half a second `probe`. Returns the answer to the probe and its seconds."""
    server.post(CHAT, SMALL)
    for i in range(count):
        threading.Thread(target=lambda i=i: ignoring(lambda: server.post(CHAT, body(i))), daemon=True).start()
    time.sleep(0.5)
    began = time.monotonic()
    try:
        answer = server.post(CHAT, probe, timeout=60, **headers)[0]
    except OSError as error:
        answer = f"nothing ({error})"
    return f"{answer} after {time.monotonic() - began:.2f} s"


def ignoring(work):
    try:
        return work()
    except (OSError, http.client.HTTPException):
        return None


def stop_tokens_case(start):
    server = start()
    try:
        body = {**SMALL, "max_tokens": 1, "structured_outputs": {"grammar": "start: <|im_end|>"}}
        return "a small request beside 64: " + beside(server, 64, lambda _: body, SMALL)
    finally:
        server.stop()


def tools(parameters):
    function = {"name": "f", "parameters": parameters}
    return {**SMALL, "tools": [{"type": "function", "function": function}]}


def costly(i):
    """Tools whose grammar costs much; a schema of its own for each `i`."""
    names = {f"^.*{n + 1000 * i}.*$": {"type": "integer"} for n in range(100)}
    return tools({"type": "object", "patternProperties": names})


def schemas_case(start):
    server = start()
    try:
        probe = tools({"type": "object", "properties": {"city": {"type": "string"}}})
        return "new tools beside six: " + beside(server, 6, costly, probe)
    finally:
        server.stop()


def deadline_case(start):
    server = start()
    try:
        return "a seventh with 2 s: " + beside(server, 6, costly, costly(6), **{"x-request-timeout": "2"})
    finally:
        server.stop()


def wrong_key_case(start):
    tls = REPOSITORY / "tests/fixtures/tls"
    with tempfile.TemporaryDirectory() as folder:
        keys = pathlib.Path(folder) / "keys.toml"
        keys.write_text(subprocess.run([start.rein, "key", "--name", "a"], capture_output=True, text=True, check=True).stdout)
        server = start("--api-keys", str(keys), "--tls-cert", str(tls / "server.pem"), "--tls-key", str(tls / "server.key"))
        try:
            context = ssl.create_default_context(cafile=str(tls / "ca.pem"))
            lines = [upload(server, CHAT, b"x" * (31 * MIB), context, authorization="Bearer sk-wrong") for _ in range(5)]
            return summary(lines)
        finally:
            server.stop()


def two_keys(rein, folder):
    """A file of API keys, and the headers with which each asks."""
    keys, secrets = pathlib.Path(folder) / "keys.toml", {}
    for name in ("many", "few"):
        made = subprocess.run([rein, "key", "--name", name], capture_output=True, text=True, check=True)
        keys.write_text((keys.read_text() if keys.exists() else "") + made.stdout)
        secrets[name] = {"authorization": f"Bearer {made.stderr.split()[-1]}"}
    return keys, secrets


def keys_case(start):
    """One key keeps the slots and the queue full; another key sends ten requests one after the other."""
    with tempfile.TemporaryDirectory() as folder:
        keys, secrets = two_keys(start.rein, folder)
        server = start("--api-keys", str(keys), "--max-in-flight", "8", "--max-queued", "200", "--sim-step-us", "20000")
        over = threading.Event()

        def flood():
            while not over.is_set():
                if ignoring(lambda: server.post(CHAT, {**SMALL, "max_tokens": 16}, **secrets["many"])[0]) != 200:
                    over.wait(0.05)

        try:
            for _ in range(300):
                threading.Thread(target=flood, daemon=True).start()
            time.sleep(3)
            times, statuses = [], []
            for _ in range(10):
                began = time.monotonic()
                statuses.append(server.post(CHAT, {**SMALL, "max_tokens": 16}, **secrets["few"])[0])
                times.append(time.monotonic() - began)
            times.sort()
            return f"ten requests beside 300 of another key: {summary(statuses)}; median {times[4]:.2f} s, longest {times[-1]:.2f} s"
        finally:
            over.set()
            server.stop()


# What one key holds. Each yields a line of /metrics that says when it does, and ends after `over` is set.

def many_choices(server, headers, over):
    body = {**SMALL, "n": 128, "max_tokens": 500, "ignore_eos": True}
    with ThreadPoolExecutor(10) as pool:
        sent = [pool.submit(server.post, CHAT, body, **headers) for _ in range(10)]
        yield "rein_in_flight_slots 1024"
        over.wait()
        server.process.send_signal(signal.SIGKILL)
        assert not any(answer.done() and not answer.exception() for answer in sent), "the choices ended early"


def unread_streams(server, headers, _):
    connections = stalled(server, 150, **headers)
    time.sleep(1)
    yield "rein_requests_in_flight_limit 32"
    [connection.close() for connection in connections]


def read_slowly(server, headers, over):
    connections = stalled(server, 150, **headers)

    def read():
        while not over.wait(3):
            [connection.recv(600) for connection in connections]

    reader = threading.Thread(target=read)
    reader.start()
    time.sleep(1)
    yield "rein_requests_in_flight_limit 32"
    over.wait()
    reader.join()
    [connection.close() for connection in connections]


def costly_grammars(server, headers, over):
    """Each is another grammar that takes 0.3 s to compile."""
    def body(number):
        pattern = r"^(?:\S+\s+){0,%d}\S+$"
        properties = {f"p{i}": {"type": "string", "pattern": pattern % (40 + i), "maxLength": 512 + number * 8 + i} for i in range(8)}
        schema = {"type": "object", "properties": properties, "required": list(properties), "additionalProperties": False}
        form = {"type": "json_schema", "json_schema": {"name": "x", "schema": schema}}
        return {**SMALL, "response_format": form}

    with ThreadPoolExecutor(64) as pool:
        [pool.submit(server.post, CHAT, body(number), **headers) for number in range(300)]
        yield "rein_requests_waiting 32"
        over.wait()
        server.process.send_signal(signal.SIGKILL)


def slow_bodies(server, headers, over):
    """Bodies that are nearly there, of more bytes than bodies may have together."""
    size = 20 * MIB
    lines = [f"POST {CHAT} HTTP/1.1", "host: x", "content-type: application/json", f"content-length: {size}"]
    lines += [f"{name}: {value}" for name, value in headers.items()]

    def send():
        with socket.create_connection((server.host, server.port)) as connection:
            try:
                connection.sendall("\r\n".join(lines).encode() + b"\r\n\r\n" + b" " * (size - 1))
            except OSError:
                """It was refused after some seconds."""
            over.wait()

    threads = [threading.Thread(target=send) for _ in range(8)]
    [thread.start() for thread in threads]
    time.sleep(2)
    yield "rein_requests_in_flight_limit 1024"
    over.wait()
    [thread.join() for thread in threads]


def holders_case(start):
    """One key holds everything in one of several ways; another sends five requests."""
    rows = []
    for hold, *options in (slow_bodies, "--request-memory", "600"), (many_choices,), *((hold, "--max-in-flight", "32") for hold in (unread_streams, read_slowly, costly_grammars)):
        with tempfile.TemporaryDirectory() as folder:
            keys, secrets = two_keys(start.rein, folder)
            server, over, times = start("--api-keys", str(keys), "--sim-step-us", "10000", *options), threading.Event(), []
            holding = hold(server, secrets["many"], over)
            try:
                line = next(holding)
                while line not in server.get("/metrics").splitlines():
                    time.sleep(0.05)
                for _ in range(5):
                    began = time.monotonic()
                    assert server.post(CHAT, SMALL, **secrets["few"])[0] == 200
                    times.append(time.monotonic() - began)
            finally:
                over.set()
                next(holding, None)
                server.stop()
            rows.append(f"{hold.__name__} {max(times):.2f} s")
    return f"the longest of five requests of another key: {', '.join(rows)}"


def open_streams(server, count, **more):
    """Additional memory in bytes for each of `count` streams that are open at once, 20 s after they began."""
    body = json.dumps({**SMALL, "stream": True, "max_tokens": 3000, "ignore_eos": True, **more}).encode()
    request = f"POST {CHAT} HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\ncontent-length: {len(body)}\r\n\r\n".encode()
    before, sockets = server.memory("VmRSS"), []
    try:
        for _ in range(count):
            sockets.append(socket.create_connection((server.host, server.port)))
            sockets[-1].sendall(request + body)
            sockets[-1].setblocking(False)
        until = time.monotonic() + 20
        while time.monotonic() < until:
            for connection in sockets:
                ignoring(lambda: connection.recv(1 << 16))
            time.sleep(0.05)
        return (server.memory("VmRSS") - before) / count
    finally:
        for connection in sockets:
            connection.close()


def streams_case(start):
    resource.setrlimit(resource.RLIMIT_NOFILE, (resource.getrlimit(resource.RLIMIT_NOFILE)[1],) * 2)
    properties = {"a": {"type": "string"}, "b": {"type": "integer"}}
    eight = [{"type": "function", "function": {"name": f"f{i}", "parameters": {"type": "object", "properties": properties}}}
             for i in range(8)]
    each = []
    for more in {}, {"tools": eight}:
        server = start("--max-in-flight", "2000", "--max-sequences", "2000", "--sim-step-us", "100000")
        try:
            each.append(open_streams(server, 1500, **more) / 1024)
        finally:
            server.stop()
    return f"1,500 streams: {each[0]:.0f} KiB each, with eight tools {each[1]:.0f} KiB"


def small_context(run):
    """A model whose context is 4,096 tokens."""
    def wrapped(start):
        return run(lambda *extra: start("--max-context", "4096", *extra))
    return wrapped


CASES = dict([
    bodies("lists", empty_lists),
    bodies("unknown", unknown_field),
    bodies("messages", small_messages),
    bodies("calls", lambda _: many_calls(200_000), count=4, size=0),
    bodies("tokenize", lambda size: repeated(b'{"x":[', b"[]", b"]}", size), path="/tokenize"),
    bodies("detokenize", lambda size: repeated(b'{"tokens":[', b"1", b"]}", size), path="/detokenize"),
])
CASES["han"] = small_context(bodies("han", lambda _: han(1_000_000), count=6, size=0)[1])
CASES |= {"stall": stall_case, "burst": burst_case, "key": wrong_key_case, "stops": stop_tokens_case,
          "schemas": schemas_case, "deadline": deadline_case, "keys": keys_case, "holders": holders_case, "streams": streams_case}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rein", default=str(REPOSITORY / "target/release/rein"))
    parser.add_argument("--model", default=REPOSITORY / "models/demo")
    parser.add_argument("cases", nargs="*", metavar="CASE", help=f"of {', '.join(CASES)}; all by default")
    arguments = parser.parse_args()

    def start(*extra):
        return Server(arguments.rein, arguments.model, *extra)
    start.rein = arguments.rein
    usage = subprocess.run([arguments.rein, "serve", "--help"], capture_output=True, text=True, check=True).stdout
    start.stalls = "--client-stall-timeout" in usage
    print("| case | |\n|---|---|")
    for name in arguments.cases or CASES:
        print(f"| {name} | {CASES[name](start)} |", flush=True)


if __name__ == "__main__":
    main()
