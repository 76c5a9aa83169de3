"""Real processes with a real etcd are killed, hung and restarted while clients stream. Answers must not change.

`make chaos` runs longer versions, and tests that cut networks."""
import re
import signal
import subprocess
import threading
import time

import pytest

from fleet import BIN, Fleet, Load, assert_unnoticed, request, targets, undisturbed_answers, until, whole_fleet

STREAMS = 16
REQUESTS = [request(i) for i in range(STREAMS)]
# Longer than all answers together take on a loaded machine; the default cuts them after 30 s.
DRAIN = "80"


@pytest.fixture(scope="module")
def fleet(tmp_path_factory):
    yield from whole_fleet(Fleet, tmp_path_factory.mktemp("fleet"), more={"REIN_LOG": "info,rein_worker=debug", "REIN_DRAIN_SECONDS": DRAIN})


@pytest.fixture(scope="module")
def undisturbed(fleet):
    answers = undisturbed_answers(fleet, REQUESTS)
    calls = [answer for answer in answers if "|book_room{" in answer.text]
    assert len(calls) == STREAMS // 2
    return answers


def resumed(fleet):
    return sum(fleet.metric(router, "rein_resumed_total") for router in fleet.ports)


def leads(status, worker):
    return any(group["ranks"] and group["ranks"][0]["worker"] == worker for group in status["groups"].values())


def disturbed(fleet, undisturbed, disturb, record_property, at=0.3):
    """Runs streams and calls `disturb` when this share of all tokens has arrived. The target for silence is 2 s."""
    total = sum(len(answer.ids) for answer in undisturbed)
    load = Load(targets(fleet), REQUESTS)
    load.reach(at * total)
    disturb()
    answers = load.join()
    record_property("longest silence", round(load.silence, 2))
    print(f"longest silence {load.silence:.2f} s")
    assert_unnoticed(answers, undisturbed)
    return load


def test_all_routers_give_the_same_answers(fleet, undisturbed):
    assert_unnoticed(Load(targets(fleet, "r1"), REQUESTS).join(), undisturbed)


@pytest.mark.parametrize("leader", [False, True])
def test_sequences_resume_when_a_worker_is_killed(fleet, undisturbed, record_property, leader):
    status = fleet.whole(2)
    victim = next(w for w in status["workers"] if leads(status, w) == leader)
    before = resumed(fleet)
    disturbed(fleet, undisturbed, lambda: fleet.kill(victim), record_property)
    assert resumed(fleet) > before
    # The group continues without it: another member holds its rank.
    fleet.wait("both groups", lambda s: sum(g["state"] == "serving" for g in s["groups"].values()) == 2)
    assert_unnoticed(Load(targets(fleet), REQUESTS).join(), undisturbed)
    fleet.start(victim)
    fleet.whole(2)


@pytest.mark.parametrize("leader", [False, True])
def test_a_worker_that_hangs(fleet, undisturbed, record_property, leader):
    status = fleet.whole(2)
    victim = next(w for w in status["workers"] if leads(status, w) == leader)
    before = resumed(fleet)
    disturbed(fleet, undisturbed, lambda: fleet.signal(victim, signal.SIGSTOP), record_property)
    assert resumed(fleet) > before, "no sequence was resumed"
    fleet.signal(victim, signal.SIGCONT)
    # It rejoins without a restart.
    fleet.whole(2)


def test_etcd_stops_and_restarts(fleet, undisturbed):
    before = fleet.whole(2)
    fleet.kill("etcd")
    until = time.monotonic() + 6  # longer than any lease
    while time.monotonic() < until:
        assert_unnoticed(Load(targets(fleet), REQUESTS).join(), undisturbed)
    fleet.start_etcd()
    assert_unnoticed(Load(targets(fleet), REQUESTS).join(), undisturbed)
    after = fleet.whole(2)
    assert {g: v["epoch"] for g, v in after["groups"].items()} == {g: v["epoch"] for g, v in before["groups"].items()}


def test_etcd_loses_its_data(fleet, undisturbed):
    before = fleet.whole(2)
    fleet.lose_etcd()
    assert_unnoticed(Load(targets(fleet), REQUESTS).join(), undisturbed)
    fleet.start_etcd()
    assert_unnoticed(Load(targets(fleet), REQUESTS).join(), undisturbed)
    after = fleet.whole(2)
    assert {g: v["epoch"] for g, v in after["groups"].items()} == {g: v["epoch"] for g, v in before["groups"].items()}


@pytest.mark.parametrize("by", [signal.SIGKILL, signal.SIGTERM], ids=lambda by: by.name)
def test_routers_stay_ready_while_an_empty_store_is_filled_again(fleet, by):
    """Workers notice only after a while that their leases are gone. An etcd that is told to end (3.6 does) waits up to seven seconds for
    its watches: it renews no lease any more, and reports those that expire."""
    before = fleet.whole(2)
    answers, over = [], threading.Event()

    def watch():
        while not over.wait(0.02):
            answers.append(fleet.get("r0", "/ready"))

    watcher = threading.Thread(target=watch)
    watcher.start()
    # The store must still be empty when the router reads again: nobody writes groups and seats meanwhile.
    fleet.signal("c0", signal.SIGSTOP)
    seen = len(fleet.log("r0", whole=True))
    fleet.lose_etcd(by)
    time.sleep(6 if by == signal.SIGKILL else 0)
    fleet.start_etcd()
    # Which of the two it says depends on what expires first: the store was reset, or leases expired.
    said = lambda: re.search(r"stays? for a while", fleet.log("r0", whole=True)[seen:])
    until("the router keeps what the store has lost", said)
    fleet.signal("c0", signal.SIGCONT)
    after = fleet.whole(2)
    over.set()
    watcher.join()
    assert set(answers) == {200}, answers
    assert {g: v["epoch"] for g, v in after["groups"].items()} == {g: v["epoch"] for g, v in before["groups"].items()}


def test_the_status_shows_dead_workers_until_they_are_back(fleet):
    victim = next(iter(fleet.whole(2)["workers"]))
    fleet.kill(victim)
    status = fleet.wait("it is dead", lambda status: victim in status["dead"] and victim not in status["workers"])
    assert "lease" in status["dead"][victim]["reason"]
    table = subprocess.run([BIN, "status"], env=fleet.environment(), capture_output=True, text=True, check=True).stdout
    assert re.search(rf"^{victim} .* dead ", table, re.M) and re.search(rf"^{victim}: its lease ", table, re.M), table
    fleet.wait("the controller has noted it", lambda status: status["dead"].get(victim, {}).get("since"))
    fleet.start(victim)
    fleet.wait("it is back", lambda status: not status["dead"])
    fleet.whole(2)


def test_garbage_in_the_store_is_written_over(fleet, undisturbed):
    before = fleet.whole(2)
    stored = lambda: fleet.etcdctl("get", "--prefix", "/", "--keys-only").split()
    # The controller writes seats again a while after a store was reset.
    until("keys of every kind are there", lambda: {key.split("/")[3] for key in stored()} >= {"workers", "seats", "groups", "routers"})
    keys = stored()
    running = {name: process.pid for name, process in fleet.processes.items()}
    for i, key in enumerate(keys):
        load = Load(targets(fleet), REQUESTS)
        load.reach(50)
        # A person's write has no lease; with the lease it looks like the process's own.
        keeps = ["--ignore-lease"] if i % 2 else []
        fleet.etcdctl("put", key, "x" * 1000, *keeps)
        assert_unnoticed(load.join(), undisturbed)
        assert fleet.status(), f"rein status fails while {key} holds garbage"
    after = fleet.whole(2)
    assert {name: process.pid for name, process in fleet.processes.items() if process.poll() is None} == running
    assert {g: v["epoch"] for g, v in after["groups"].items()} == {g: v["epoch"] for g, v in before["groups"].items()}
    for key in fleet.etcdctl("get", "--prefix", "/", "--keys-only").split():
        until(f"{key} is written again", lambda: "xxxx" not in fleet.etcdctl("get", key, "--print-value-only"))


def test_a_killed_router_ends_its_streams_with_an_error_and_another_answers(fleet, undisturbed):
    total = sum(len(answer.ids) for answer in undisturbed)
    load = Load(targets(fleet, "r0"), REQUESTS)
    load.reach(0.3 * total)
    fleet.kill("r0")
    killed = time.monotonic()
    pairs = list(zip(load.join(), undisturbed))
    broken = [(answer, whole) for answer, whole in pairs if not answer.ok]
    assert broken
    assert all(answer.seen() == whole.seen() for answer, whole in pairs if answer.ok)
    for answer, whole in broken:
        assert answer.cut and not answer.done and answer.is_prefix_of(whole), (answer.error, answer.text, whole.text)
        assert answer.ended - killed < 3, "a hang"
    assert_unnoticed(Load(targets(fleet, "r1"), REQUESTS).join(), undisturbed)
    fleet.start("r0")
    fleet.whole(2)


def test_another_controller_takes_over(fleet, undisturbed):
    fleet.whole(2)
    fleet.start("c1")
    fleet.kill("c0")
    fleet.wait("another controller", lambda status: status["controller"] == "c1")
    status = fleet.whole(2)
    victim = next(iter(status["workers"]))
    fleet.kill(victim)
    fleet.start(victim)
    fleet.whole(2)
    fleet.start("c0")


def restarted_in_turn(fleet, undisturbed, names, retries=0, leaving=lambda name: True):
    """Restarts each process while one half of the streams runs. The other half starts when it is leaving."""
    half, retried = STREAMS // 2, 0
    for name in names:
        early = Load(targets(fleet), REQUESTS[:half], retries=retries)
        early.reach(100)
        fleet.signal(name, signal.SIGTERM)
        until(f"{name} is leaving", lambda: leaving(name))
        late = Load(targets(fleet), REQUESTS[half:], retries=retries)
        assert fleet.processes[name].wait(timeout=90) == 0, fleet.log(name)
        fleet.start(name)
        assert_unnoticed(early.join() + late.join(), undisturbed)
        fleet.whole(2)
        retried += early.retried + late.retried
    return retried


def test_a_rolling_restart_of_the_workers_fails_no_request(fleet, undisturbed):
    restarted_in_turn(fleet, undisturbed, list(fleet.whole(2)["workers"]))


def test_a_rolling_restart_of_the_routers_breaks_no_stream(fleet, undisturbed):
    fleet.whole(2)
    retried = restarted_in_turn(fleet, undisturbed, fleet.ports, retries=20, leaving=lambda router: fleet.get(router, "/ready") != 200)
    assert retried, "no stream started while its router was draining"


def test_drain_moves_a_worker_out(fleet, undisturbed):
    status = fleet.whole(2)
    (draining, worker), (_, other) = ((name, group["ranks"][0]["worker"]) for name, group in status["groups"].items())
    # Long requests, which still run when the next ones start.
    long = [{**request(2 * i + 1), "max_tokens": 400, "seed": i} for i in range(8)]
    alone = undisturbed_answers(fleet, long)
    load = Load(targets(fleet), long)
    until("all run", lambda: all(answer.ids for answer in load.answers))
    drain = subprocess.Popen([BIN, "drain", worker], env=fleet.environment(), stdout=subprocess.PIPE, text=True)
    until("all routers know", lambda: all(fleet.metric(r, "rein_engines", standing="draining") == 1 for r in fleet.ports))
    took = {leader: fleet.admitted(leader) for leader in (worker, other)}
    later = Load(targets(fleet), REQUESTS)
    later.reach(STREAMS)
    assert fleet.metric("r0", "rein_engine_running_sequences", engine=draining) > 0, "the draining group has no open sequences"
    assert_unnoticed(later.join(), undisturbed)
    assert_unnoticed(load.join(), alone)
    said, _ = drain.communicate(timeout=90)
    assert drain.returncode == 0 and f"{worker} has left" in said, said
    assert fleet.processes[worker].wait(timeout=30) == 0
    # It finished its open sequences, and all new ones went to the other group.
    assert {leader: fleet.admitted(leader) - took[leader] for leader in took} == {worker: 0, other: STREAMS}
    fleet.start(worker)
    fleet.whole(2)
    unknown = subprocess.run([BIN, "drain", "nobody"], env=fleet.environment(), capture_output=True, text=True, timeout=90)
    assert unknown.returncode == 1 and "no worker" in unknown.stderr


def test_a_spare_is_kept_for_a_rank_that_is_lost(undisturbed, tmp_path):
    """Four workers, which would form two groups without spares."""
    fleet = Fleet(tmp_path, workers=4, group_size=2, spares=1, routers=1)
    try:
        [group] = fleet.whole(1)["groups"].values()
        survivor, victim = (rank["worker"] for rank in group["ranks"])
        free = {"w0", "w1", "w2", "w3"} - {survivor, victim}
        seats = fleet.wait("all four", lambda status: len(status["workers"]) == 4)["workers"]
        assert {name for name, worker in seats.items() if worker["group"] is None} == free
        load = Load(targets(fleet), REQUESTS)
        load.reach(500)
        fleet.kill(victim)
        assert_unnoticed(load.join(), undisturbed)
        [after] = fleet.whole(1)["groups"].values()
        assert after["epoch"] > group["epoch"] and after["ranks"][0]["worker"] == survivor
        assert after["ranks"][1]["worker"] in free, "a member holds both ranks"
        # Two workers are free again. A controller without spares forms a group from them.
        fleet.start(victim)
        fleet.wait("two are free", lambda status: sum(worker["group"] is None for worker in status["workers"].values()) == 2)
        fleet.whole(1)
        fleet.spares = 0
        fleet.terminate("c0")
        fleet.start("c0")
        fleet.whole(2)
    finally:
        fleet.close()


def test_experts_move_while_streams_run(undisturbed, tmp_path):
    """A cluster that rebalances experts as often as possible must give the same answers as one that does not."""
    restless = {"REIN_REDUNDANT_EXPERTS": "2", "REIN_REBALANCE_EVERY": "2", "REIN_REBALANCE_ABOVE": "1.001"}
    fleet = Fleet(tmp_path, workers=2, group_size=2, routers=1, more=restless)
    try:
        [first] = fleet.whole(1)["groups"].values()
        used, until = {0}, time.monotonic() + 90
        while len(used) == 1:
            assert time.monotonic() < until, f"{fleet.log('c0')}\n{fleet.log('w0')}"
            assert_unnoticed(Load(targets(fleet), REQUESTS).join(), undisturbed)
            [group] = fleet.status()["groups"].values()
            assert group["epoch"] == first["epoch"], "the group ended"
            used.add((group["experts"] or {"layout": 0})["layout"])
        assert_unnoticed(Load(targets(fleet), REQUESTS).join(), undisturbed)
        assert fleet.status()["groups"].popitem()[1]["epoch"] == first["epoch"], "the group ended"
        dense, *sparse = zip(*(rank["experts"] for rank in group["ranks"]), strict=True)
        assert not any(dense) and all(set().union(*held) == set(range(8)) for held in sparse), "an expert has no rank"
        assert any(sum(map(len, held)) > 8 for held in sparse), "no expert has copies"
    finally:
        fleet.close()


def domains_of(status):
    """For each serving group, the domains of its members."""
    workers, serving = status["workers"], [g for g in status["groups"].values() if g["state"] == "serving"]
    return sorted(sorted({workers[rank["worker"]]["domain"] for rank in group["ranks"]}) for group in serving)


def test_groups_form_within_domains_also_after_a_parallel_restart(tmp_path):
    """Workers start in an order that mixes the domains. Both groups then lose a worker at once."""
    domains = {"w0": "rack-a", "w1": "rack-b", "w2": "rack-a", "w3": "rack-b"}
    fleet = Fleet(tmp_path, workers=0, group_size=2, routers=1)
    try:
        for name, domain in domains.items():
            fleet.start(name, "--domain", domain)
        whole = [["rack-a"], ["rack-b"]]
        assert domains_of(fleet.whole(2)) == whole
        for pair in ["w1", "w2"], ["w0", "w3"]:
            for name in pair:
                fleet.signal(name, signal.SIGTERM)
            for name in pair:
                assert fleet.processes[name].wait(timeout=90) == 0, fleet.log(name)
                fleet.start(name, "--domain", domains[name])
            # The others stop when these are ready, as in a rolling update.
            fleet.wait("two groups within domains", lambda status: domains_of(status) == whole, timeout=120)
        fleet.whole(2)
    finally:
        fleet.close()
