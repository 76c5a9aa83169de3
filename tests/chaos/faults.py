"""Random, overlapping faults of a cluster's processes, and a record of when each process was disturbed."""
import contextlib
import heapq
import itertools
import json
import signal
import subprocess
import threading
import time

from certificates import authority, named, signed
from fleet import BIN

# For this long after a process runs again, the store may still have its earlier state.
LINGER = 5.0
NO_TLS = {"REIN_PEER_CA": None, "REIN_PEER_CERT": None, "REIN_PEER_KEY": None}


class Spans:
    """When each process was disturbed."""

    def __init__(self):
        self.spans, self.lock = {}, threading.Lock()

    def begin(self, name):
        span = [time.monotonic(), float("inf")]
        with self.lock:
            self.spans.setdefault(name, []).append(span)
        return span

    def end(self, name, linger=0.0, span=None):
        """Ends this span, or the last one that began: another may have begun since."""
        with self.lock:
            (span or self.spans[name][-1])[1] = time.monotonic() + linger

    def hit(self, name, since, until):
        with self.lock:
            return any(begin <= until and since <= end for begin, end in self.spans.get(name, []))


class Sampler:
    """Samples the groups that serve, while the store answers."""

    def __init__(self, fleet):
        self.fleet, self.samples, self.bad_seats, self.over = fleet, [], set(), False
        self.thread = threading.Thread(target=self.run, daemon=True)
        self.thread.start()

    def run(self):
        while not self.over:
            began = time.monotonic()
            with contextlib.suppress(subprocess.TimeoutExpired, ValueError):
                command = [BIN, "status", "--json"]
                done = subprocess.run(command, env=self.fleet.environment(), capture_output=True, text=True, timeout=2)
                self.take(began, json.loads(done.stdout))
            time.sleep(0.3)

    def take(self, began, status):
        groups = {name: {rank["worker"] for rank in group["ranks"]} for name, group in status["groups"].items()}
        for name, members in groups.items():
            self.bad_seats |= {(worker, status["groups"][name]["state"], *sorted(members)) for worker in members if worker.startswith("a")}
        serving = [groups[name] for name, group in status["groups"].items() if group["state"] == "serving"]
        self.samples.append((began, serving))

    def close(self):
        self.over = True
        self.thread.join()


class Faults:
    """Random faults. Each begins, lasts for a while and ends; a process has one fault at a time."""

    def __init__(self, fleet, random, workers):
        self.more = []
        self.fleet, self.random, self.spans = fleet, random, Spans()
        self.workers, self.ends, self.numbers = workers, [], itertools.count()
        self.busy, self.counts = set(), {}
        self.foreign = fleet.directory / "foreign"
        authority(self.foreign)
        signed(self.foreign, "peer")

    def run(self, seconds):
        until = time.monotonic() + seconds
        next_fault = time.monotonic()
        while time.monotonic() < until:
            if time.monotonic() >= next_fault:
                self.one()
                next_fault = time.monotonic() + self.random.uniform(0.1, 2.5)
            self.end_due(time.monotonic())
            time.sleep(0.02)
        self.end_due(float("inf"))

    def end_due(self, now):
        while self.ends and self.ends[0][0] <= now:
            _, _, name, end = heapq.heappop(self.ends)
            end()
            self.busy.discard(name)

    def one(self):
        kinds = [self.kill, self.stop, self.restart, self.bad_spare, self.router, self.controller, self.pause_etcd, self.empty_etcd]
        weights = [5, 5, 3, 5, 2, 1, 1.5, 1]
        kind = self.random.choices([*kinds, *self.more], weights=[*weights, *(3 for _ in self.more)])[0]
        fault = kind()
        if fault is None:
            return
        name, seconds, begin, end = fault
        self.counts[kind.__name__] = self.counts.get(kind.__name__, 0) + 1
        self.busy.add(name)
        begin()
        heapq.heappush(self.ends, (time.monotonic() + seconds, next(self.numbers), name, end))

    def idle(self, names):
        names = [name for name in names if name not in self.busy]
        return self.random.choice(names) if names else None

    def again(self, name, *arguments, linger=LINGER, **environment):
        """Kills the process with this name if it still runs, and starts it."""
        process = self.fleet.processes[name]
        if process.poll() is None:
            process.kill()
        process.wait()
        self.fleet.start(name, *arguments, **environment)
        self.spans.end(name, linger)

    def killed(self, name, longest):
        if name is None:
            return None

        def begin():
            self.spans.begin(name)
            self.fleet.kill(name)

        return name, self.random.uniform(0, longest), begin, lambda: self.again(name)

    def kill(self):
        return self.killed(self.idle(self.workers), 5)

    def controller(self):
        return self.killed(self.idle(["c0"]), 4)

    def stopped(self, name, longest, linger):
        if name is None:
            return None

        def begin():
            self.spans.begin(name)
            self.fleet.signal(name, signal.SIGSTOP)

        def end():
            self.fleet.signal(name, signal.SIGCONT)
            self.spans.end(name, linger)

        return name, self.random.uniform(0.1, longest), begin, end

    def stop(self):
        return self.stopped(self.idle(self.workers), 6, LINGER)

    def pause_etcd(self):
        return self.stopped(self.idle(["etcd"]), 6, 0.0)

    def empty_etcd(self):
        name = self.idle(["etcd"])
        if name is None:
            return None

        def begin():
            self.spans.begin(name)
            self.fleet.lose_etcd()

        def end():
            self.fleet.start_etcd()
            self.spans.end(name)

        return name, self.random.uniform(0, 4), begin, end

    def restart(self):
        name = self.idle(self.workers)
        if name is None:
            return None

        def begin():
            self.spans.begin(name)
            self.fleet.signal(name, signal.SIGTERM)

        return name, self.random.uniform(0.5, 8), begin, lambda: self.again(name)

    def router(self):
        """Restarts one router at a time, so that clients always have another one."""
        if any(name in self.busy for name in self.fleet.ports):
            return None
        name, number = self.random.choice(list(self.fleet.ports)), self.random.choice([signal.SIGKILL, signal.SIGTERM])

        def begin():
            self.spans.begin(name)
            self.fleet.signal(name, number)

        def end():
            self.again(name)
            # The router counts as disturbed until it is ready.
            span = self.spans.begin(name)
            threading.Thread(target=self.ready, args=(name, self.fleet.processes[name], span), daemon=True).start()

        return name, self.random.uniform(0.2, 4), begin, end

    def ready(self, name, process, span):
        while process.poll() is None:
            with contextlib.suppress(OSError):
                if self.fleet.get(name, "/ready") == 200:
                    break
            time.sleep(0.05)
        self.spans.end(name, span=span)

    def damaged_file(self):
        """Flips bits in a file of KV blocks while workers use it."""
        name, files = self.idle(self.workers), sorted(self.fleet.directory.glob("*.kv*"))
        if name is None or not files:
            return None
        file = self.random.choice(files)

        def begin():
            with open(file, "r+b") as f:
                for _ in range(50):
                    at = self.random.randrange(file.stat().st_size)
                    f.seek(at)
                    byte = f.read(1)
                    f.seek(at)
                    f.write(bytes([byte[0] ^ 1 << self.random.randrange(8)]))

        return name, 0, begin, lambda: None

    def bad_spare(self):
        name = self.idle(["a0", "a1", "a2"])
        if name is None:
            return None
        arguments, environment = self.random.choice(
            [([], named(self.foreign, "peer")), ([], NO_TLS), (["--advertise", "127.0.0.3"], {})]
        )
        begin = lambda: self.fleet.start(name, *arguments, **environment)
        return name, self.random.uniform(1, 15), begin, lambda: self.fleet.kill(name)
