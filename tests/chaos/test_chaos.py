"""Long tests, and tests that cut networks. All printed figures are measured in the run."""
import signal
import time

import pytest

from fleet import Fleet, Load, assert_unnoticed, request, targets, undisturbed_answers, whole_fleet
from networks import Networks, possible

STREAMS = 32
REQUESTS = [request(i) for i in range(STREAMS)]
needs_namespaces = pytest.mark.skipif(not possible(), reason="network namespaces need root and ip")


class Steady:
    """Load that runs continuously."""

    def __init__(self, fleet, undisturbed):
        self.fleet, self.undisturbed = fleet, undisturbed
        self.requests, self.silence, self.retried = 0, 0.0, 0

    def run(self, seconds, meanwhile=lambda: None, retries=0, spread=0):
        until = time.monotonic() + seconds
        load = Load(targets(self.fleet), REQUESTS, retries, spread)
        load.reach(500)
        meanwhile()
        while True:
            assert_unnoticed(load.join(), self.undisturbed)
            self.requests, self.silence = self.requests + STREAMS, max(self.silence, load.silence)
            self.retried += load.retried
            if time.monotonic() > until:
                return
            load = Load(targets(self.fleet), REQUESTS, retries, spread)

    def report(self, what):
        print(f"\n{what}: {self.requests} requests, longest silence {self.silence:.2f} s, {self.retried} retried")


@pytest.fixture(scope="module")
def fleet(tmp_path_factory):
    yield from whole_fleet(Fleet, tmp_path_factory.mktemp("fleet"))


@pytest.fixture(scope="module")
def undisturbed(fleet):
    return undisturbed_answers(fleet, REQUESTS)


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSTOP])
@pytest.mark.parametrize("at", [0.1, 0.5, 0.9])
def test_every_worker_in_turn(fleet, undisturbed, number, at):
    total = sum(len(answer.ids) for answer in undisturbed)
    for worker in list(fleet.whole(2)["workers"]):
        load = Load(targets(fleet), REQUESTS)
        load.reach(at * total)
        fleet.signal(worker, number)
        assert_unnoticed(load.join(), undisturbed)
        print(f"\n{number.name} of {worker} after {at:.0%}: longest silence {load.silence:.2f} s")
        fleet.start(worker) if number == signal.SIGKILL else fleet.signal(worker, signal.SIGCONT)
        fleet.whole(2)


def test_etcd_is_away_for_a_minute(fleet, undisturbed):
    steady = Steady(fleet, undisturbed)
    fleet.whole(2)
    steady.run(60, lambda: fleet.kill("etcd"))
    fleet.start_etcd()
    steady.run(5)
    fleet.whole(2)
    steady.report("etcd away for 60 s")


def test_one_group_and_spares(tmp_path):
    """Four workers, which would form two groups without `--spares`."""
    fleet = Fleet(tmp_path, workers=4, group_size=2, spares=1)
    try:
        fleet.whole(1)
        undisturbed = undisturbed_answers(fleet, REQUESTS)
        total = sum(len(answer.ids) for answer in undisturbed)
        for number in (signal.SIGKILL, signal.SIGSTOP):
            for rank in (1, 0):
                seats = fleet.wait("all four", lambda s: len(s["workers"]) == 4 and len(s["groups"]) == 1)
                [group] = fleet.whole(1)["groups"].values()
                workers = [member["worker"] for member in group["ranks"]]
                load = Load(targets(fleet), REQUESTS)
                load.reach(0.4 * total)
                fleet.signal(workers[rank], number)
                assert_unnoticed(load.join(), undisturbed)
                print(f"\n{number.name} of rank {rank}, a spare takes its place: longest silence {load.silence:.2f} s")
                [after] = fleet.whole(1)["groups"].values()
                now = [member["worker"] for member in after["ranks"]]
                assert now[1 - rank] == workers[1 - rank] and now[rank] in seats["workers"].keys() - set(workers)
                fleet.start(workers[rank]) if number == signal.SIGKILL else fleet.signal(workers[rank], signal.SIGCONT)
    finally:
        fleet.close()


def test_rolling_restarts_for_a_while(fleet, undisturbed):
    """No request may fail. Only a leaving router may refuse a request, before it has begun to answer."""
    workers, routers, controller = (Steady(fleet, undisturbed) for _ in range(3))
    for _ in range(2):
        turns = [(workers, name, 0) for name in fleet.whole(2)["workers"]]
        turns += [(routers, name, 30) for name in fleet.ports] + [(controller, "c0", 0)]
        for steady, name, retries in turns:
            steady.run(1, lambda: fleet.terminate(name), retries, spread=1.5)
            fleet.start(name)
            fleet.whole(2)
    for steady, what in (workers, "workers"), (routers, "routers"), (controller, "the controller"):
        steady.report(f"two rolling restarts of {what}")
    assert routers.retried, "no stream wanted to begin while its router was leaving"


@pytest.fixture(scope="module")
def networks(tmp_path_factory):
    yield from whole_fleet(Networks, tmp_path_factory.mktemp("networks"))


@pytest.fixture(scope="module")
def over_networks(networks):
    return undisturbed_answers(networks, REQUESTS)


def cut_in_the_middle(fleet, undisturbed, a, b, what):
    total = sum(len(answer.ids) for answer in undisturbed)
    load = Load(targets(fleet), REQUESTS)
    load.reach(0.4 * total)
    fleet.cut(a, b)
    assert_unnoticed(load.join(), undisturbed)
    print(f"\n{what}: longest silence {load.silence:.2f} s")
    steady = Steady(fleet, undisturbed)
    steady.run(8)
    fleet.mend(a, b)
    fleet.whole(2)
    assert_unnoticed(Load(targets(fleet), REQUESTS).join(), undisturbed)


@needs_namespaces
def test_a_cut_between_two_ranks(networks, over_networks):
    ranks = next(iter(networks.whole(2)["groups"].values()))["ranks"]
    cut_in_the_middle(networks, over_networks, ranks[0]["worker"], ranks[1]["worker"], "a cut between two ranks")


@needs_namespaces
def test_a_cut_between_router_and_leader(networks, over_networks):
    leader = next(iter(networks.whole(2)["groups"].values()))["ranks"][0]["worker"]
    cut_in_the_middle(networks, over_networks, "r0", leader, "a cut between a router and a leader")


@needs_namespaces
@pytest.mark.parametrize("rank", [0, 1])
def test_a_cut_between_a_worker_and_etcd(networks, over_networks, rank):
    before = networks.whole(2)
    worker = next(iter(before["groups"].values()))["ranks"][rank]["worker"]
    cut_in_the_middle(networks, over_networks, worker, "etcd", f"a cut between rank {rank} and etcd")


@needs_namespaces
def test_a_cut_between_a_router_and_etcd(networks, over_networks):
    cut_in_the_middle(networks, over_networks, "r0", "etcd", "a cut between a router and etcd")
