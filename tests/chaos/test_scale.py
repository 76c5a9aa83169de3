"""A thousand workers without weights and ten thousand open streams on one machine: how long membership takes to converge,
and what streams cost the router. Figures are printed and compared with limits."""
import json
import os
import pathlib
import resource
import signal
import subprocess
import time

import pytest

from fleet import BIN, DEMO, Fleet

WORKERS = int(os.environ.get("REIN_SCALE_WORKERS", "1000"))
STREAMS = int(os.environ.get("REIN_SCALE_STREAMS", "10000"))
FEWER = 4  # divisor of workers and streams for the comparison
TOKENS = 20
STEP = max(500_000, STREAMS * 400)  # µs; a stream lasts longer than it takes to open all of them on two cores
CONVERGED = 5.0  # seconds
GROWTH = 1.5  # maximum ratio of CPU time per stream
CLIENTS = 4  # processes
TICK = os.sysconf("SC_CLK_TCK")


def cost(pid):
    """CPU seconds and resident bytes of a process."""
    stat = pathlib.Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
    pages = int(pathlib.Path(f"/proc/{pid}/statm").read_text().split()[1])
    return (int(stat[11]) + int(stat[12])) / TICK, pages * resource.getpagesize()


class Thousand(Fleet):
    def __init__(self, directory, count):
        resource.setrlimit(resource.RLIMIT_NOFILE, (resource.getrlimit(resource.RLIMIT_NOFILE)[1],) * 2)
        more = {"REIN_MAX_IN_FLIGHT": str(2 * STREAMS), "REIN_LOG": "warn"}
        self.count = count
        super().__init__(directory, workers=0, group_size=1, routers=1, more=more)
        self.workers()

    def workers(self):
        sim = ["--engine", "sim", "--replicas", str(self.count), "--sim-blocks", "512", "--sim-step-us", str(STEP)]
        self.spawn("workers", [BIN, "worker", "--model", str(DEMO), "--id", "w", *sim])

    def serving(self):
        return self.metric("r0", "rein_engines", model="demo", standing="serving")

    def converged(self, began, timeout=120):
        """Seconds until the router knows all workers."""
        while self.serving() < self.count:
            assert time.monotonic() < began + timeout, self.log("c0") + self.log("workers")
            time.sleep(0.1)
        return time.monotonic() - began

    def metric(self, router, name, **labels):
        try:
            return super().metric(router, name, **labels)
        except OSError:
            return 0.0


@pytest.fixture(scope="module")
def thousand(tmp_path_factory):
    fleet = Thousand(tmp_path_factory.mktemp("thousand"), WORKERS)
    try:
        yield fleet
    finally:
        fleet.close()


def test_membership_converges_after_a_mass_restart(thousand):
    first = thousand.converged(time.monotonic())
    thousand.kill("workers")
    time.sleep(8)  # longer than their leases
    assert thousand.serving() == 0
    began = time.monotonic()
    thousand.workers()
    again = thousand.converged(began)
    print(f"\n{WORKERS} workers: first seen by the router after {first:.1f} s, after a mass restart {again:.1f} s, including the start of the process")
    assert again < CONVERGED


def bench(fleet, each, tokens=TOKENS):
    url = f"http://127.0.0.1:{fleet.ports['r0'][0]}/v1"
    command = [BIN, "bench", "--base-url", url, "--concurrency", str(each), "--requests", str(each)]
    # About 128 prompt tokens: without a warm-up, which would last as long as all streams, the estimate is half of that.
    command += ["--prompt-tokens", "60", "--output-tokens", str(tokens), "--warmup", "0", "--json", "-"]
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True)


def streamed(fleet, streams):
    """CPU seconds of the router per stream, with this many at once."""
    fleet.converged(time.monotonic())
    # Includes work that is done once, by the first requests.
    assert bench(fleet, max(1, streams // 100), tokens=1).wait() == 0
    pid = fleet.processes["r0"].pid
    cpu, memory = cost(pid)
    each = streams // CLIENTS
    clients = [bench(fleet, each) for _ in range(CLIENTS)]
    most_open, most_memory = 0, memory
    while any(client.poll() is None for client in clients):
        time.sleep(1)
        most_open = max(most_open, fleet.metric("r0", "rein_open_streams"))
        most_memory = max(most_memory, cost(pid)[1])
    spent = (cost(pid)[0] - cpu) / streams
    failed = [client.returncode for client in clients if client.returncode != 0]
    assert not failed and most_open > 0.9 * streams, (failed, most_open)
    print(f"\n{most_open:.0f} streams of {TOKENS} tokens open at once on {fleet.count} workers")
    print(f"router: {(most_memory - memory) / streams / 1024:.1f} KiB and {spent * 1000:.2f} ms of CPU a stream")
    for client in clients:
        [level] = json.loads(client.stdout.read())["levels"]
        assert (level["answered"], level["errors"]) == (each, {}), level
        print({name: level[name] for name in ("answered", "seconds", "ttft_ms", "itl_ms")})
    fleet.signal("workers", signal.SIGTERM)
    return spent


def test_cost_per_stream_does_not_grow_with_streams_and_workers(thousand, tmp_path):
    """The same number per worker, so that pings and messages, which carry tokens of several streams, count alike."""
    on_many = streamed(thousand, STREAMS)
    thousand.close()
    fewer = Thousand(tmp_path, WORKERS // FEWER)
    try:
        on_few = streamed(fewer, STREAMS // FEWER)
    finally:
        fewer.close()
    print(f"CPU a stream: {on_few * 1000:.2f} ms on {WORKERS // FEWER} workers, {on_many * 1000:.2f} ms on {WORKERS}")
    assert on_many < GROWTH * on_few
