"""Tools of an operator: `make cluster`, `rein status --watch`, workers with several devices."""
import functools
import http.client
import json
import os
import pathlib
import re
import shlex
import signal
import subprocess
import threading
import urllib.request

import pytest

from fleet import BIN, REPOSITORY, Fleet, Load, assert_unnoticed, free_ports, request, targets, undisturbed_answers

REQUESTS = [request(i) for i in range(8)]
CLEAR = "\x1b[H\x1b[2J"


class Screen:
    """A process in its own process group, whose output is read continuously."""

    def __init__(self, command, **more):
        self.shown, self.came = "", threading.Condition()
        # Restores SIGINT, which background jobs and their children ignore.
        restore = functools.partial(signal.signal, signal.SIGINT, signal.SIG_DFL)
        piped = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT}
        self.process = subprocess.Popen(command, **piped, start_new_session=True, preexec_fn=restore, **more)
        self.reader = threading.Thread(target=self.read, daemon=True)
        self.reader.start()

    def read(self):
        while part := os.read(self.process.stdout.fileno(), 1 << 16):
            with self.came:
                self.shown += part.decode()
                self.came.notify_all()

    def wait(self, what, holds, timeout=60):
        with self.came:
            assert self.came.wait_for(lambda: holds(self.shown), timeout), f"{what}: {self.shown[-3000:]}"
            return self.shown

    def end(self, number=signal.SIGINT, timeout=60):
        os.killpg(self.process.pid, number)  # like Ctrl-C, to the whole group
        code = self.process.wait(timeout=timeout)
        self.reader.join(timeout=10)
        return code


@pytest.fixture
def fleet(tmp_path):
    """Two groups of four ranks. Each group has two processes with two devices."""
    fleet = Fleet(tmp_path, workers=4, group_size=4, routers=1, devices=2)
    try:
        yield fleet
    finally:
        fleet.close()


def rows(table, header):
    """The rows of the table with this heading, by their first cell."""
    lines = iter(table.splitlines())
    names = next(line for line in lines if line.startswith(header)).split()
    found = {}
    for line in lines:
        # Reasons follow the table.
        if not line or re.match(r"\S+: ", line):
            break
        cells = re.split(r"  +", line)
        found[cells[0]] = dict(zip(names, cells))
    return found


def test_a_process_holds_several_ranks_and_status_shows_changes(fleet):
    status = fleet.whole(2)
    for group in status["groups"].values():
        assert [rank["rank"] for rank in group["ranks"]] == [0, 1, 2, 3] and group["group_size"] == 4
        workers = [rank["worker"] for rank in group["ranks"]]
        assert workers[0] == workers[1] != workers[2] == workers[3]
        heads = [rank["heads"] for rank in group["ranks"]]
        assert heads[0][0] == 0 and all(a[1] == b[0] for a, b in zip(heads, heads[1:])), "each head has one rank"
    assert all(worker["ranks"] == 2 and worker["device"] == "cpu,cpu" for worker in status["workers"].values())
    undisturbed = undisturbed_answers(fleet, REQUESTS)

    watch = Screen([BIN, "status", "--watch"], env=fleet.environment())
    lines = Screen([BIN, "status", "--watch", "--json"], env=fleet.environment())
    try:
        def last(shown):
            return shown.split(CLEAR)[-1]

        def complete(shown):
            return CLEAR in shown and "ROUTER" in last(shown) and last(shown).endswith("\n")

        table = last(watch.wait("a table", complete))
        assert {name: row["STATE"] for name, row in rows(table, "WORKER").items()} == dict.fromkeys(status["workers"], "seated")
        assert sorted(row["RANK"] for row in rows(table, "WORKER").values()) == ["0,1", "0,1", "2,3", "2,3"]
        assert [row["STATE"] for row in rows(table, "GROUP").values()] == ["serving", "serving"]
        assert rows(table, "ROUTER")["r0"]["STATE"] == "serving"

        # Two ranks are lost with their process. The other process takes them over, and the tables show it.
        victim = status["groups"][min(status["groups"])]["ranks"][2]["worker"]
        load = Load(targets(fleet), REQUESTS)
        load.reach(sum(len(answer.ids) for answer in undisturbed) / 3)

        def running(shown):
            groups = rows(last(shown), "GROUP").values() if complete(shown) else []
            return any(row["RUNNING"] != "0" for row in groups)

        watch.wait("sequences run", running)
        fleet.kill(victim)
        assert_unnoticed(load.join(), undisturbed)

        def dead(shown):
            return complete(shown) and rows(last(shown), "WORKER").get(victim, {}).get("STATE") == "dead"

        watch.wait("the worker is dead", dead)

        def taken_over(shown):
            states = [row["STATE"] for row in rows(last(shown), "GROUP").values()] if complete(shown) else []
            ranks = sorted(row["RANK"] for row in rows(last(shown), "WORKER").values() if row["STATE"] != "dead") if states else []
            return states == ["serving", "serving"] and ranks == ["0,1", "0,1,2,3", "2,3"]

        watch.wait("its ranks are taken over", taken_over)
        fleet.start(victim)

        def back(shown):
            whole = [json.loads(line) for line in shown.splitlines(keepends=True) if line.endswith("\n")]
            gone = [victim not in status["workers"] for status in whole]
            return any(gone) and len({rank["worker"] for group in whole[-1]["groups"].values() for rank in group["ranks"]}) == 4

        lines.wait("gone and back, in lines of JSON", back)
        fleet.whole(2)
        assert_unnoticed(Load(targets(fleet), REQUESTS).join(), undisturbed)
    finally:
        watch.end(signal.SIGKILL)
        lines.end(signal.SIGKILL)


def test_a_group_size_that_does_not_fit_the_devices_is_rejected(fleet):
    command = [BIN, "worker", "--model", str(fleet.model), "--group-size", "3", "--devices", "cpu,cpu"]
    done = subprocess.run(command, env=fleet.environment(), capture_output=True, text=True, timeout=30)
    assert done.returncode == 1
    assert "--group-size: must be a multiple of 2, the number of devices of this worker, got 3" in done.stderr


def children(pid):
    stats = [path.read_text() for path in pathlib.Path("/proc").glob("[0-9]*/stat")]
    return [stat.split()[0] for stat in stats if stat.rpartition(")")[2].split()[1] == str(pid)]


def test_make_cluster(tmp_path):
    """scripts/cluster.sh, which `make cluster` runs after the build: the printed commands work, and no process outlives it."""
    etcd, _, *ports = free_ports(6)
    more = {"REIN_BIN": BIN, "ETCD_PORT": str(etcd), "ROUTER_PORTS": " ".join(map(str, ports)), "TMPDIR": str(tmp_path)}
    make = subprocess.run(["make", "-n", "cluster"], cwd=REPOSITORY, capture_output=True, text=True, check=True)
    assert "exec scripts/cluster.sh" in make.stdout
    script = Screen([REPOSITORY / "scripts/cluster.sh"], env={**os.environ, **more})
    try:
        said = script.wait("ready", lambda shown: "Ctrl-C stops all of it.\n" in shown, timeout=120)
        began = children(script.process.pid)
        assert len(began) >= 8, "etcd, a controller, two routers, four workers"
        # The table that it prints.
        assert [row["STATE"] for row in rows(said, "GROUP").values()] == ["serving", "serving"]
        assert [row["STATE"] for row in rows(said, "WORKER").values()] == ["seated"] * 4
        assert [row["STATE"] for row in rows(said, "ROUTER").values()] == ["serving"] * 2

        def printed(start):
            """The command after `start`, with its continuation lines."""
            return said[said.index(start) + len(start) :].replace("\\\n", " ").split("\n")[0]

        url, _, kind, _, body = shlex.split(printed("curl "))
        ask = urllib.request.Request(url, body.encode(), dict([kind.split(": ")]))
        assert json.load(urllib.request.urlopen(ask, timeout=60))["choices"][0]["message"]["content"]
        for port in ports[:2]:
            connection = http.client.HTTPConnection("127.0.0.1", port, timeout=30)
            connection.request("GET", "/v1/models")
            assert json.load(connection.getresponse())["data"][0]["id"] == "demo"
        kill = re.search(r"kill -9 (\d+)", said)
        subprocess.run(["kill", "-9", kill[1]], check=True)
        environment = dict(re.findall(r"(REIN_ETCD|REIN_CLUSTER)=(\S+)", said))
        watch = Screen([BIN, "status", "--watch", "--json"], env={**os.environ, **environment}, cwd=REPOSITORY)

        def shown_gone(shown):
            lines = [line for line in shown.splitlines(keepends=True) if line.endswith("\n")]
            return bool(lines) and "worker-1" not in json.loads(lines[-1])["workers"]

        try:
            watch.wait("worker-1 is gone", shown_gone)
        finally:
            watch.end(signal.SIGKILL)
        subprocess.run(printed("drain a worker:"), shell=True, check=True, cwd=REPOSITORY, capture_output=True, timeout=90)
        assert json.load(urllib.request.urlopen(ask, timeout=60))["choices"][0]["message"]["content"]
        # Ctrl-C.
        code = script.end(signal.SIGINT)
    finally:
        script.process.terminate()
    assert code == 0, script.shown[-2000:]
    assert "cluster: stopped; logs are in" in script.shown
    assert not [pid for pid in began if pathlib.Path(f"/proc/{pid}").exists()], "a process outlives the script"
