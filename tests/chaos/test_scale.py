"""A thousand workers without weights and ten thousand open streams, on one machine. Figures are printed, with what they cost the router."""
import http.client
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
TOKENS = 20
STEP = 4_000_000  # µs; a stream lasts longer than it takes to open all of them on two cores
CLIENTS = 4  # processes
TICK = os.sysconf("SC_CLK_TCK")


def cost(pid):
    """CPU seconds and resident bytes of a process."""
    stat = pathlib.Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
    pages = int(pathlib.Path(f"/proc/{pid}/statm").read_text().split()[1])
    return (int(stat[11]) + int(stat[12])) / TICK, pages * resource.getpagesize()


class Thousand(Fleet):
    def __init__(self, directory):
        resource.setrlimit(resource.RLIMIT_NOFILE, (resource.getrlimit(resource.RLIMIT_NOFILE)[1],) * 2)
        more = {"REIN_MAX_IN_FLIGHT": str(2 * STREAMS), "REIN_LOG": "warn"}
        super().__init__(directory, workers=0, group_size=1, routers=1, more=more)
        self.workers()

    def workers(self):
        sim = ["--engine", "sim", "--replicas", str(WORKERS), "--sim-blocks", "512", "--sim-step-us", str(STEP)]
        self.spawn("workers", [BIN, "worker", "--model", str(DEMO), "--id", "w", *sim])

    def converged(self, began, timeout=60):
        """Seconds until the router has all of them."""
        while self.metric("r0", 'rein_engines{model="demo",standing="serving"}') < WORKERS:
            assert time.monotonic() < began + timeout, self.log("c0") + self.log("workers")
            time.sleep(0.1)
        return time.monotonic() - began

    def metric(self, router, name):
        connection = http.client.HTTPConnection(self.host(router), self.ports[router][0], timeout=60)
        try:
            connection.request("GET", "/metrics")
            lines = connection.getresponse().read().decode().splitlines()
        except OSError:
            return 0.0
        finally:
            connection.close()
        return sum(float(line.split()[-1]) for line in lines if line.startswith(name))


@pytest.fixture(scope="module")
def thousand(tmp_path_factory):
    fleet = Thousand(tmp_path_factory.mktemp("thousand"))
    try:
        yield fleet
    finally:
        fleet.close()


def test_membership_converges_after_a_mass_restart(thousand):
    first = thousand.converged(time.monotonic(), timeout=120)
    thousand.kill("workers")
    time.sleep(8)  # longer than their leases
    thousand.workers()
    again = thousand.converged(time.monotonic(), timeout=120)
    print(f"\n{WORKERS} workers: first seen by the router after {first:.1f} s, after a mass restart {again:.1f} s, the time of the process to start included")


def test_ten_thousand_streams(thousand):
    thousand.converged(time.monotonic(), timeout=120)
    pid = thousand.processes["r0"].pid
    cpu, memory = cost(pid)
    port = thousand.ports["r0"][0]
    each = STREAMS // CLIENTS
    command = [BIN, "bench", "--base-url", f"http://127.0.0.1:{port}/v1", "--concurrency", str(each)]
    command += ["--requests", str(each), "--output-tokens", str(TOKENS), "--json", "-"]
    clients = [subprocess.Popen(command, stdout=subprocess.PIPE, text=True) for _ in range(CLIENTS)]
    most_open, most_memory = 0, memory
    while any(client.poll() is None for client in clients):
        time.sleep(1)
        most_open = max(most_open, thousand.metric("r0", "rein_open_streams "))
        most_memory = max(most_memory, cost(pid)[1])
    spent = cost(pid)[0] - cpu
    failed = [client.returncode for client in clients if client.returncode != 0]
    assert not failed and most_open > 0.9 * STREAMS, (failed, most_open)
    print(f"\n{most_open:.0f} streams of {TOKENS} tokens open at once on {WORKERS} workers")
    print(f"router: {(most_memory - memory) / STREAMS / 1024:.1f} KiB and {spent / STREAMS * 1000:.2f} ms of CPU a stream")
    for client in clients:
        [level] = json.loads(client.stdout.read())["levels"]
        assert (level["answered"], level["errors"]) == (each, {}), level
        print({name: level[name] for name in ("answered", "seconds", "ttft_ms", "itl_ms")})
    thousand.signal("workers", signal.SIGTERM)
