"""Spares that other workers cannot link with. They are first in the order of names, and must not block a repair."""
import contextlib
import os
import re
import signal
import socket
import subprocess
import threading
import time
import urllib.request

import pytest

from certificates import authority, certificates, named, needs_openssl, signed, signed_until
from fleet import BIN, DEMO, Fleet, Load, assert_unnoticed, free_ports, request, targets, undisturbed_answers, until

REQUESTS = [request(i) for i in range(6)]
NO_TLS = {"REIN_PEER_CA": None, "REIN_PEER_CERT": None, "REIN_PEER_KEY": None}
# Limit in seconds from the loss of a rank until the group serves again. It takes 1 to 2 s, more on a busy machine, but less than
# the 10 s that ranks wait for a missing one.
REPAIR_TIME = 9


@contextlib.contextmanager
def cluster(directory, **options):
    directory.mkdir(exist_ok=True)
    fleet = Fleet(directory, workers=2, group_size=2, routers=1, **options)
    try:
        fleet.whole(1)
        yield fleet, undisturbed_answers(fleet, REQUESTS)
    finally:
        fleet.close()


def over_tls(directory):
    return cluster(directory, more=certificates(directory))


def plain(directory):
    return cluster(directory)


def of_another_authority(fleet):
    foreign = fleet.directory / "foreign"
    authority(foreign)
    signed(foreign, "peer")
    fleet.start("a0", **named(foreign, "peer"))


def without_tls(fleet):
    fleet.start("a0", **NO_TLS)


def with_tls_where_nobody_has_it(fleet):
    theirs = fleet.directory / "theirs"
    authority(theirs)
    signed(theirs, "peer")
    fleet.start("a0", **named(theirs, "peer"))


def at_a_wrong_address(fleet):
    fleet.start("a0", "--advertise", "127.0.0.3")


def at_the_address_of_another(fleet):
    """Advertises the host of another worker, with the same port."""
    port = fleet.status()["workers"]["w0"]["mesh"].rsplit(":", 1)[1]
    fleet.start("a0", "--mesh", f"127.0.0.2:{port}", "--advertise", "127.0.0.1")


def behind(listen):
    """Starts a spare that advertises an address on which `listen` listens instead of the spare."""

    def start(fleet):
        [port] = free_ports(1)
        listen(("127.0.0.1", port))
        fleet.start("a0", "--mesh", f"127.0.0.2:{port}", "--advertise", "127.0.0.1")

    return start


KEPT = []


def drops(address):
    """Neither accepts nor refuses connections, like a firewall that drops packets: the accept queue is full."""
    listener = socket.create_server(address, backlog=0)
    KEPT.append(listener)
    for _ in range(3):
        waiting = socket.socket()
        waiting.setblocking(False)
        with contextlib.suppress(BlockingIOError):
            waiting.connect(address)
        KEPT.append(waiting)


def never_answers(address):
    listener = socket.create_server(address)
    KEPT.append(listener)

    def accept():
        while True:
            KEPT.append(listener.accept()[0])

    threading.Thread(target=accept, daemon=True).start()


def hangs_up(address):
    listener = socket.create_server(address)
    KEPT.append(listener)

    def accept():
        while True:
            listener.accept()[0].close()

    threading.Thread(target=accept, daemon=True).start()


def assert_unlinked(fleet, spare, why):
    """Waits until the status, the table and the controller's log report why a spare has no seat."""

    def reported(status):
        faults = status["workers"].get(spare, {}).get("missed_by", {})
        return {"w0", "w1"} <= set(faults) and all(re.search(why, fault) for fault in faults.values())

    fleet.wait(f"why {spare} gets no seat", reported, timeout=20)
    table = subprocess.run([BIN, "status"], env=fleet.environment(), capture_output=True, text=True, timeout=30).stdout
    assert re.search(f"^{spare}: worker.*w0.* cannot link with it: .*({why})", table, re.MULTILINE), table
    # Their certificates are short.
    assert not re.search("^w[01]: (?!its certificate expires)", table, re.MULTILINE), table
    until("the controller says why", lambda: re.search(f"no seat .*{spare}.*({why})", plain_text(fleet.log("c0"))), 10)


def plain_text(log):
    return re.sub("\x1b\\[[0-9;]*m", "", log)


def lose_a_rank(fleet, undisturbed, bad, good=None):
    """Kills a member under load. The group must continue with a good spare, or with the survivor alone."""
    load = Load(targets(fleet), REQUESTS)
    load.reach(100)
    fleet.kill("w1")
    began = time.monotonic()
    members = {"w0", good} - {None}

    def repaired(status):
        groups = list(status["groups"].values())
        workers = {rank["worker"] for group in groups for rank in group["ranks"]}
        assert bad not in workers, f"{bad} has a seat"
        return len(groups) == 1 and groups[0]["state"] == "serving" and workers == members

    fleet.wait("the group serves again", repaired, timeout=REPAIR_TIME)
    print(f"\nserves again after {time.monotonic() - began:.1f} s")
    assert_unnoticed(load.join(), undisturbed)


KINDS = {
    "of another authority": (over_tls, of_another_authority, "invalid peer certificate: BadSignature"),
    "without TLS": (over_tls, without_tls, "TLS handshake"),
    "with TLS where nobody has it": (plain, with_tls_where_nobody_has_it, "both sides use TLS"),
    "at a wrong address": (plain, at_a_wrong_address, "cannot connect to 127.0.0.3:"),
    "at the address of another": (plain, at_the_address_of_another, "another worker listens"),
    "behind a firewall": (plain, behind(drops), "cannot connect to .*timed out"),
    "behind a firewall, over TLS": (over_tls, behind(drops), "cannot connect to .*timed out"),
    "that never answers": (plain, behind(never_answers), "did not answer"),
    "that never answers, over TLS": (over_tls, behind(never_answers), "did not answer"),
    "that hangs up": (plain, behind(hangs_up), "without an answer"),
}


@needs_openssl
@pytest.mark.parametrize("kind", KINDS)
def test_a_bad_spare_does_not_block_a_repair(kind, tmp_path):
    over, start, why = KINDS[kind]
    with over(tmp_path) as (fleet, undisturbed):
        before = fleet.status()
        start(fleet)
        assert_unlinked(fleet, "a0", why)
        lose_a_rank(fleet, undisturbed, "a0")
        # The group is complete again when the worker is restarted.
        fleet.start("w1")
        fleet.whole(1)
        assert fleet.status()["groups"].keys() == before["groups"].keys()


@needs_openssl
def test_a_good_spare_is_seated_before_bad_ones(tmp_path):
    with over_tls(tmp_path) as (fleet, undisturbed):
        of_another_authority(fleet)
        fleet.start("a1", "--advertise", "127.0.0.3")
        fleet.start("z0")
        assert_unlinked(fleet, "a0", "BadSignature")
        assert_unlinked(fleet, "a1", "cannot connect to 127.0.0.3:")
        z0 = lambda status: status["workers"].get("z0", {}).get("missed_by", {})
        fleet.wait("z0 is a spare", lambda status: set(z0(status)) == {"a0"}, timeout=20)
        lose_a_rank(fleet, undisturbed, "a0", good="z0")


@needs_openssl
def test_a_process_whose_certificate_peers_would_reject_does_not_start(tmp_path):
    certificates(tmp_path)
    foreign = tmp_path / "foreign"
    authority(foreign)
    signed(foreign, "peer")
    signed(tmp_path, "other", "another-name")
    signed_until(tmp_path, "expired", time.time() - 60)
    strange = {**named(tmp_path, "peer"), "REIN_PEER_CERT": str(foreign / "peer.pem"), "REIN_PEER_KEY": str(foreign / "peer.key")}
    mixed = {**named(tmp_path, "peer"), "REIN_PEER_KEY": str(tmp_path / "other.key")}
    for environment, why in (
        (named(tmp_path, "expired"), "expired.pem: the certificate, or one of its chain, expired on "),
        (strange, "peer.pem: the signature of the certificate does not match its issuer in --peer-ca"),
        (named(tmp_path, "other"), "other.pem: .*another-name"),
        (mixed, "--peer-key: .*other.key: "),
    ):
        for command in (["worker", "--model", str(DEMO), "--group-size", "2"], ["router", "--http", "127.0.0.1:0", "--grpc", "127.0.0.1:0"]):
            done = subprocess.run([BIN, *command], env={**fleet_environment(), **environment}, capture_output=True, text=True, timeout=60)
            assert done.returncode == 1 and re.search(why, done.stderr), (command, done.stderr)


def fleet_environment():
    return {**os.environ, "REIN_ETCD": "127.0.0.1:9", "REIN_LOG": "warn"}


@needs_openssl
def test_a_worker_with_an_expired_certificate_is_replaced_and_returns_with_a_new_one(tmp_path):
    more = certificates(tmp_path)
    fleet = Fleet(tmp_path, workers=1, group_size=2, routers=1, more=more)
    try:
        [http] = free_ports(1)
        expires = time.time() + 25
        signed_until(tmp_path, "short", expires)
        fleet.start("w1", "--http", f"127.0.0.1:{http}", **named(tmp_path, "short"))
        fleet.whole(1)
        undisturbed = undisturbed_answers(fleet, REQUESTS)
        assert 0 < expiry(http) <= 25
        assert "the certificate expires on" in plain_text(fleet.log("w1")), fleet.log("w1")
        # Without a spare it keeps its seat and its open connections.
        until("it has expired", lambda: time.time() > expires + 1, 40)
        assert {rank["worker"] for rank in next(iter(fleet.whole(1)["groups"].values()))["ranks"]} == {"w0", "w1"}
        assert_unnoticed(Load(targets(fleet), REQUESTS).join(), undisturbed)
        assert expiry(http) < 0
        # A spare replaces it.
        fleet.start("w2")

        def replaced(status):
            ranks = [rank["worker"] for group in status["groups"].values() for rank in group["ranks"]]
            return sorted(ranks) == ["w0", "w2"] and all(group["state"] == "serving" for group in status["groups"].values())

        fleet.wait("w2 has its seat", replaced, timeout=30)
        assert_unnoticed(Load(targets(fleet), REQUESTS).join(), undisturbed)
        # It does not count as a spare until it has a new certificate.
        fleet.kill("w2")
        fleet.wait("w0 alone", lambda status: {rank["worker"] for group in status["groups"].values() for rank in group["ranks"]} == {"w0"}, 30)
        signed(tmp_path, "short")
        fleet.whole(1, timeout=40)
        assert expiry(http) > 3600
        assert_unnoticed(Load(targets(fleet), REQUESTS).join(), undisturbed)
        fleet.signal("w1", signal.SIGTERM)
    finally:
        fleet.close()


def expiry(port):
    text = urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=10).read().decode()
    return float(re.search(r'^rein_certificate_expiry_seconds\{usage="peer"\} (\S+)$', text, re.MULTILINE)[1])


def test_a_worker_warns_about_open_ports(tmp_path):
    fleet = Fleet(tmp_path, workers=0, group_size=2, routers=0)
    try:
        fleet.start("x0", "--listen", "0.0.0.0:0", "--advertise", "127.0.0.1")
        fleet.start("x1")
        logs = {name: lambda name=name: plain_text(fleet.log(name)) for name in ("x0", "x1")}
        for name in logs:
            until("it listens", lambda: "listening on" in logs[name](), 30)
        for flag in ("--listen", "--mesh"):
            assert re.search(rf"{flag}: 0\.0\.0\.0:\d+ is unencrypted and unauthenticated", logs["x0"]()), logs["x0"]()
        assert "unauthenticated" not in logs["x1"]()
    finally:
        fleet.close()
