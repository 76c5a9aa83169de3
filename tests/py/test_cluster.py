"""Real processes over a real etcd that die, hang and are restarted while clients stream. Nobody may notice.

The long versions, and those that cut networks, are `make chaos`."""
import shutil
import signal
import socket
import ssl
import subprocess
import time

import pytest

from fleet import BIN, Fleet, Load, assert_unnoticed, request, targets, undisturbed_answers

STREAMS = 32
REQUESTS = [request(i) for i in range(STREAMS)]


@pytest.fixture(scope="module")
def fleet(tmp_path_factory):
    fleet = Fleet(tmp_path_factory.mktemp("fleet"), workers=4, group_size=2)
    try:
        fleet.whole(2)
        yield fleet
    finally:
        fleet.close()


@pytest.fixture(scope="module")
def undisturbed(fleet):
    answers = undisturbed_answers(fleet, REQUESTS)
    calls = [answer for answer in answers if "|book_room{" in answer.text]
    assert len(calls) == STREAMS // 2
    return answers


def leads(status, worker):
    return any(group["ranks"] and group["ranks"][0]["worker"] == worker for group in status["groups"].values())


def disturbed(fleet, undisturbed, disturb, record_property, at=0.3):
    """Streams of which `disturb` gets in the way once this part of all tokens has come; 2 s of silence is the aim."""
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
def test_a_killed_worker(fleet, undisturbed, record_property, leader):
    status = fleet.whole(2)
    victim = next(w for w in status["workers"] if leads(status, w) == leader)
    resumed = sum(fleet.metric(router, "rein_resumed_total") for router in fleet.ports)
    disturbed(fleet, undisturbed, lambda: fleet.kill(victim), record_property)
    assert sum(fleet.metric(router, "rein_resumed_total") for router in fleet.ports) > resumed
    # Its group goes on without it: another member holds its rank.
    fleet.wait("both groups", lambda s: sum(g["state"] == "serving" for g in s["groups"].values()) == 2)
    assert_unnoticed(Load(targets(fleet), REQUESTS).join(), undisturbed)
    fleet.start(victim)
    fleet.whole(2)


@pytest.mark.parametrize("leader", [False, True])
def test_a_worker_that_hangs(fleet, undisturbed, record_property, leader):
    status = fleet.whole(2)
    victim = next(w for w in status["workers"] if leads(status, w) == leader)
    disturbed(fleet, undisturbed, lambda: fleet.signal(victim, signal.SIGSTOP), record_property)
    fleet.signal(victim, signal.SIGCONT)
    # It rejoins without a restart.
    fleet.whole(2)


def test_etcd_stops_and_comes_back(fleet, undisturbed):
    before = fleet.whole(2)
    fleet.kill("etcd")
    until = time.monotonic() + 6  # longer than any lease
    while time.monotonic() < until:
        assert_unnoticed(Load(targets(fleet), REQUESTS).join(), undisturbed)
    fleet.start_etcd()
    assert_unnoticed(Load(targets(fleet), REQUESTS).join(), undisturbed)
    after = fleet.whole(2)
    assert {g: v["epoch"] for g, v in after["groups"].items()} == {g: v["epoch"] for g, v in before["groups"].items()}


def test_etcd_forgets_everything(fleet, undisturbed):
    before = fleet.whole(2)
    fleet.lose_etcd()
    assert_unnoticed(Load(targets(fleet), REQUESTS).join(), undisturbed)
    fleet.start_etcd()
    assert_unnoticed(Load(targets(fleet), REQUESTS).join(), undisturbed)
    after = fleet.whole(2)
    assert {g: v["epoch"] for g, v in after["groups"].items()} == {g: v["epoch"] for g, v in before["groups"].items()}


def test_a_dead_router_is_a_clean_error_and_another_one_answers(fleet, undisturbed):
    total = sum(len(answer.ids) for answer in undisturbed)
    load = Load(targets(fleet, "r0"), REQUESTS)
    load.reach(0.3 * total)
    fleet.kill("r0")
    broken = [answer for answer in load.join() if not answer.ok]
    assert broken and all(answer.error or not answer.done for answer in broken)
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


def test_a_rolling_restart_fails_no_request(fleet, undisturbed):
    status = fleet.whole(2)
    loads = []
    for name in [*status["workers"], *fleet.ports]:
        load = Load(targets(fleet), REQUESTS, retries=20)
        load.reach(200)
        fleet.terminate(name)
        fleet.start(name)
        loads.append(load)
        fleet.whole(2)
    for load in loads:
        assert_unnoticed(load.join(), undisturbed)


def test_drain_moves_a_worker_out(fleet, undisturbed):
    status = fleet.whole(2)
    worker = next(iter(status["workers"]))
    load = Load(targets(fleet), REQUESTS)
    load.reach(200)
    done = subprocess.run([BIN, "drain", worker], env=fleet.environment(), capture_output=True, text=True, timeout=90)
    assert done.returncode == 0 and f"{worker} has left" in done.stdout, done
    assert fleet.processes[worker].wait(timeout=30) == 0
    assert_unnoticed(load.join(), undisturbed)
    fleet.start(worker)
    fleet.whole(2)
    unknown = subprocess.run([BIN, "drain", "nobody"], env=fleet.environment(), capture_output=True, text=True, timeout=90)
    assert unknown.returncode == 1 and "no worker" in unknown.stderr


def run(directory, *command):
    subprocess.run(command, cwd=directory, check=True, capture_output=True)


def certificates(directory):
    """As docs/security.md makes them."""
    curve = ["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes"]
    run(directory, "openssl", "req", "-x509", *curve, "-days", "2", "-subj", "/CN=ca", "-keyout", "ca.key", "-out", "ca.pem")
    run(directory, "openssl", "req", *curve, "-subj", "/CN=rein", "-keyout", "peer.key", "-out", "peer.csr")
    (directory / "peer.ext").write_text("subjectAltName=DNS:rein-peer\nextendedKeyUsage=serverAuth,clientAuth\n")
    sign = ["-CA", "ca.pem", "-CAkey", "ca.key", "-CAcreateserial", "-days", "2", "-extfile", "peer.ext"]
    run(directory, "openssl", "x509", "-req", "-in", "peer.csr", *sign, "-out", "peer.pem")
    names = {"CA": "ca.pem", "CERT": "peer.pem", "KEY": "peer.key"}
    return {f"REIN_PEER_{name}": str(directory / file) for name, file in names.items()}


@pytest.mark.skipif(shutil.which("openssl") is None, reason="no openssl")
def test_peers_know_each_other_and_refuse_everybody_else(tmp_path, undisturbed):
    fleet = Fleet(tmp_path, workers=2, group_size=2, routers=1, more=certificates(tmp_path))
    try:
        status = fleet.whole(1)
        assert_unnoticed(Load(targets(fleet), REQUESTS[:8]).join(), undisturbed[:8])
        worker = next(iter(status["workers"].values()))
        for address in (worker["address"], worker["mesh"]):
            host, port = address.rsplit(":", 1)
            # Plain, and TLS without a certificate.
            with socket.create_connection((host, int(port)), timeout=10) as plain:
                plain.sendall(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n")
                assert not readable(plain)
            context = ssl.create_default_context(cafile=str(tmp_path / "ca.pem"))
            context.set_alpn_protocols(["h2"])
            with socket.create_connection((host, int(port)), timeout=10) as raw:
                try:
                    with context.wrap_socket(raw, server_hostname="rein-peer") as stranger:
                        stranger.sendall(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n")
                        assert not readable(stranger)
                except (ssl.SSLError, ConnectionError):
                    pass
    finally:
        fleet.close()


@pytest.mark.skipif(shutil.which("openssl") is None, reason="no openssl")
def test_an_etcd_that_asks_for_certificates_and_passwords(tmp_path, undisturbed):
    files = {name.replace("PEER", "ETCD"): file for name, file in certificates(tmp_path).items()}
    more = {**files, "REIN_ETCD_NAME": "rein-peer", "REIN_ETCD_USER": "root", "REIN_ETCD_PASSWORD": "a-secret"}
    fleet = Fleet(tmp_path, workers=2, group_size=2, routers=1, more=more)
    try:
        fleet.whole(1)
        assert_unnoticed(Load(targets(fleet), REQUESTS[:2]).join(), undisturbed[:2])
        assert not any("a-secret" in log.read_text() for log in tmp_path.glob("*.log"))
        for wrong, said in (("REIN_ETCD_PASSWORD", "authentication failed"), ("REIN_ETCD_NAME", "")):
            environment = {**fleet.environment(), wrong: "wrong"}
            told = subprocess.run([BIN, "status"], env=environment, capture_output=True, text=True, timeout=60)
            assert told.returncode != 0 and said in told.stderr, told.stderr
    finally:
        fleet.close()


def readable(connection):
    """Whether the other side answers with anything but an alert or its end."""
    try:
        answer = connection.recv(100)
    except (ssl.SSLError, ConnectionError):
        return False
    return bool(answer) and answer[0] != 0x15


def test_experts_move_while_streams_run(undisturbed, tmp_path):
    """Another cluster, whose controller lays experts out anew as often as it can: the answers are those of the first one."""
    restless = {"REIN_REDUNDANT_EXPERTS": "2", "REIN_REBALANCE_EVERY": "2", "REIN_REBALANCE_ABOVE": "1.001"}
    fleet = Fleet(tmp_path, workers=2, group_size=2, routers=1, more=restless)
    try:
        [first] = fleet.whole(1)["groups"].values()
        used, until = {0}, time.monotonic() + 90
        while len(used) == 1:
            assert time.monotonic() < until, f"{fleet.log('c0')}\n{fleet.log('w0')}"
            assert_unnoticed(Load(targets(fleet), REQUESTS).join(), undisturbed)
            [group] = fleet.status()["groups"].values()
            assert group["epoch"] == first["epoch"], "the group broke"
            used.add((group["experts"] or {"layout": 0})["layout"])
        assert_unnoticed(Load(targets(fleet), REQUESTS).join(), undisturbed)
        assert fleet.status()["groups"].popitem()[1]["epoch"] == first["epoch"], "the group broke"
        assert sum(rank["experts"] for rank in group["ranks"]) > 8, "no expert has copies"
    finally:
        fleet.close()
