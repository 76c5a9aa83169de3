"""Mutual TLS between processes, authentication at etcd and routers, and secrets in logs."""
import base64
import contextlib
import hashlib
import json
import socket
import ssl
import subprocess
import time

import grpc
import pytest

from certificates import authority, certificates, needs_openssl, signed, signed_until
from conftest import Server
from fleet import BIN, Fleet, Load, assert_unnoticed, request, targets, until
from test_security import new_key

pytestmark = needs_openssl
REQUESTS = [request(i) for i in range(8)]
PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"


@pytest.fixture(scope="module")
def undisturbed():
    """The answers of one process with two ranks, without TLS and authentication."""
    server = Server("--tp", "2", "--kv-memory", "32")
    host, port = server.http.removeprefix("http://").split(":")
    answers = Load([(host, int(port))], REQUESTS).join()
    server.stop()
    assert all(answer.ok for answer in answers), [answer.error for answer in answers]
    return answers


@contextlib.contextmanager
def cluster(directory, **options):
    fleet = Fleet(directory, workers=2, group_size=2, routers=1, **options)
    try:
        yield fleet, fleet.whole(1)
    finally:
        fleet.close()


def connect(address, protocol, ours, folder, file):
    """Connects with this certificate (None: without one) and this protocol, and returns how the process reacts.

    With TLS 1.3 a client's handshake ends before the server has verified the client's certificate. Only a read shows the result:
    an alert, the HTTP/2 preface, or nothing, because a rank waits up to 2 s for the peer's first message."""
    context = ssl.create_default_context(cafile=str(ours / "ca.pem"))
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    context.set_alpn_protocols([protocol])
    if file:
        context.load_cert_chain(folder / f"{file}.pem", folder / f"{file}.key")
    host, port = address.rsplit(":", 1)
    try:
        with socket.create_connection((host, int(port)), timeout=10) as raw:
            with context.wrap_socket(raw, server_hostname="rein-peer") as peer:
                assert peer.selected_alpn_protocol() == protocol
                peer.settimeout(1)
                return "answered" if peer.recv(100) else "refused: the end"
    except TimeoutError:
        return "waiting"
    except (ssl.SSLError, ConnectionError) as error:
        return f"refused: {getattr(error, 'reason', None)}"


def test_only_peers_with_the_authority_and_name_of_the_cluster_connect(tmp_path, undisturbed):
    with cluster(tmp_path, more=certificates(tmp_path)) as (fleet, status):
        assert_unnoticed(Load(targets(fleet), REQUESTS).join(), undisturbed)
        foreign = tmp_path / "foreign"
        authority(foreign)
        signed(foreign, "peer")
        signed(tmp_path, "other", "another-cluster")
        worker = next(iter(status["workers"].values()))
        ports = ((worker["address"], "h2", "answered"), (worker["mesh"], "rein-rank", "waiting"))
        for address, protocol, accepted in ports:
            assert connect(address, protocol, tmp_path, tmp_path, "peer") == accepted
            refused = {
                "no certificate": connect(address, protocol, tmp_path, tmp_path, None),
                "another authority": connect(address, protocol, tmp_path, foreign, "peer"),
                "another name": connect(address, protocol, tmp_path, tmp_path, "other"),
            }
            assert all("ALERT" in how for how in refused.values()), refused
            other = {"h2": "rein-rank", "rein-rank": "h2"}[protocol]
            assert connect(address, other, tmp_path, tmp_path, "peer").startswith("refused")
            # Without TLS.
            host, port = address.rsplit(":", 1)
            with socket.create_connection((host, int(port)), timeout=10) as plain:
                plain.sendall(PREFACE)
                with contextlib.suppress(ConnectionError):
                    answer = plain.recv(100)
                    assert not answer or answer[0] == 0x15, answer
        assert_unnoticed(Load(targets(fleet), REQUESTS).join(), undisturbed)
        assert fleet.status()["groups"].keys() == status["groups"].keys()


def etcd_over_tls(directory):
    """Environment for an etcd with client certificates, a user, and a password from a file."""
    (directory / "password").write_text("a-secret\n")
    files = {name.replace("PEER", "ETCD"): file for name, file in certificates(directory).items()}
    ours = {"REIN_ETCD_NAME": "rein-peer", "REIN_ETCD_USER": "root", "REIN_ETCD_PASSWORD_FILE": str(directory / "password")}
    return {**files, **ours}


def test_an_etcd_with_certificates_and_passwords(tmp_path, undisturbed):
    """Its tokens expire after one second without requests, so clients must authenticate again."""
    expire = ["--auth-token-ttl", "1", "--bcrypt-cost", "4", "--log-level", "warn"]
    with cluster(tmp_path, more=etcd_over_tls(tmp_path), etcd_args=expire) as (fleet, before):
        log = tmp_path / "etcd.log"
        expired = lambda: log.read_text().count("invalid auth token")
        start, known = time.monotonic(), expired()
        while time.monotonic() < start + 4 or expired() < known + 3:
            assert time.monotonic() < start + 30, "no token expired"
            assert_unnoticed(Load(targets(fleet), REQUESTS).join(), undisturbed)
        # The leases were renewed: no process was lost.
        after = fleet.whole(1)
        assert (after["groups"].keys(), after["workers"].keys()) == (before["groups"].keys(), before["workers"].keys())
        epoch = {name: group["epoch"] for name, group in before["groups"].items()}
        assert {name: group["epoch"] for name, group in after["groups"].items()} == epoch
        # A killed worker is replaced by a new one.
        fleet.start("w2")
        fleet.wait("a spare", lambda status: status["workers"].get("w2", {}).get("state") == "ready")
        fleet.kill("w1")
        fleet.wait("w1 is gone", lambda status: "w1" not in status["workers"])
        [group] = fleet.whole(1)["groups"].values()
        assert {rank["worker"] for rank in group["ranks"]} == {"w0", "w2"}
        assert_unnoticed(Load(targets(fleet), REQUESTS).join(), undisturbed)
        # Errors name the wrong option.
        (tmp_path / "wrong").write_text("wrong")
        for wrong, message in (
            ({"REIN_ETCD_PASSWORD_FILE": str(tmp_path / "wrong")}, "authentication failed"),
            ({"REIN_ETCD_PASSWORD_FILE": str(tmp_path / "nowhere")}, "--etcd-password-file: "),
            ({"REIN_ETCD_PASSWORD_FILE": None}, "--etcd-user: set the password in REIN_ETCD_PASSWORD"),
            ({"REIN_ETCD_NAME": "wrong"}, "certificate"),
        ):
            environment = {name: value for name, value in {**fleet.environment(), **wrong}.items() if value is not None}
            done = subprocess.run([BIN, "status"], env=environment, capture_output=True, text=True, timeout=60)
            assert done.returncode != 0 and message in done.stderr, (wrong, done.stderr)


def test_a_certificate_for_etcd_that_expires_is_replaced_without_a_restart(tmp_path):
    files = {name.replace("PEER", "ETCD"): file for name, file in certificates(tmp_path).items()}
    own = {"REIN_ETCD_CERT": str(tmp_path / "client.pem"), "REIN_ETCD_KEY": str(tmp_path / "client.key")}
    over = time.time() + 30
    signed_until(tmp_path, "client", over)
    server = ["--cert-file", files["REIN_ETCD_CERT"], "--key-file", files["REIN_ETCD_KEY"]]
    more = {**files, "REIN_ETCD_NAME": "rein-peer", **own}
    with cluster(tmp_path, more=more, etcd_args=server) as (fleet, before):
        assert 0 < fleet.metric("r0", "rein_certificate_expiry_seconds", usage="etcd") < 30
        until("all warn", lambda: all("--etcd-cert: the certificate expires" in fleet.log(name) for name in ("r0", "w0", "c0")), 30)
        # A running connection outlives the certificate; a new one is refused.
        time.sleep(max(0, over + 1 - time.time()))
        fleet.kill("etcd")
        fleet.start_etcd()
        until("it is refused", lambda: "cannot reach the store" in fleet.log("c0"))
        time.sleep(4)
        status = subprocess.run([BIN, "status"], env=fleet.environment(), capture_output=True, text=True)
        assert status.returncode and "--etcd-cert" in status.stderr, status.stderr
        signed_until(tmp_path, "client", time.time() + 86400)
        after = fleet.whole(1)
        assert {g: v["epoch"] for g, v in after["groups"].items()} == {g: v["epoch"] for g, v in before["groups"].items()}
        for name in ("r0", "w0", "w1", "c0"):
            until(f"{name} has the new one", lambda: "connecting with the new ones" in fleet.log(name, whole=True))


def ask(fleet, headers):
    body = {"model": "demo", "messages": [{"role": "user", "content": "hello"}], "max_tokens": 2}
    with contextlib.closing(fleet.connection("r0")) as connection:
        connection.request("POST", "/v1/chat/completions", json.dumps(body), {"content-type": "application/json", **headers})
        return connection.getresponse().status


def list_models(fleet, ca, metadata):
    credentials = grpc.ssl_channel_credentials(ca.read_bytes())
    options = [("grpc.ssl_target_name_override", "rein-peer")]
    with grpc.secure_channel(f"127.0.0.1:{fleet.ports['r0'][1]}", credentials, options) as channel:
        try:
            return channel.unary_unary("/rein.v1.Inference/ListModels")(b"", timeout=30, metadata=metadata)
        except grpc.RpcError as error:
            return error.code()


def secrets_in(text, secrets):
    return [what for what, secret in secrets.items() if secret in text]


def test_logs_contain_no_secret_at_any_level(tmp_path):
    """All processes use TLS, keys and passwords, and log at level trace, including their libraries."""
    key, entry = new_key("ours")
    wrong = "sk-rein-" + "7" * 64
    (tmp_path / "keys.toml").write_text(entry)
    more = {**etcd_over_tls(tmp_path), **certificates(tmp_path), "REIN_LOG": "trace"}
    more["REIN_API_KEYS"] = str(tmp_path / "keys.toml")
    signed(tmp_path, "server")
    more |= {"REIN_TLS_CERT": str(tmp_path / "server.pem"), "REIN_TLS_KEY": str(tmp_path / "server.key")}
    with cluster(tmp_path, more=more) as (fleet, _):
        assert (ask(fleet, {"authorization": f"Bearer {key}"}), ask(fleet, {"x-api-key": key})) == (200, 200)
        assert (ask(fleet, {"authorization": f"Bearer {wrong}"}), ask(fleet, {"x-api-key": wrong})) == (401, 401)
        assert ask(fleet, {"authorization": key}) == 401
        ca = tmp_path / "ca.pem"
        assert b"demo" in list_models(fleet, ca, [("authorization", f"Bearer {key}")])
        assert list_models(fleet, ca, [("x-api-key", wrong)]) == grpc.StatusCode.UNAUTHENTICATED
        fleet.terminate("r0")
        fleet.terminate("w0")
        fleet.terminate("w1")
        fleet.terminate("c0")
    secrets = {"the key": key, "a wrong key": wrong, "etcd's password": "a-secret"}
    for what in ("the key", "a wrong key"):
        secrets[f"the hash of {what}"] = hashlib.sha256(secrets[what].encode()).hexdigest()
    for file in tmp_path.glob("*.key"):
        lines = [line for line in file.read_text().splitlines() if "-----" not in line]
        secrets |= {f"{file.name}, line {i}": line for i, line in enumerate(lines)}
        der = base64.b64decode("".join(lines))
        # The scalar of the key, as numbers and in hexadecimal.
        scalar = der[der.index(b"\x04\x20") + 2 :][:32]
        secrets |= {f"{file.name} in hexadecimal": scalar.hex(), f"{file.name} as numbers": ", ".join(map(str, scalar))}
    for process in ("c0", "r0", "w0", "w1"):
        text = (tmp_path / f"{process}.log").read_text()
        assert "TRACE rustls" in text or "TRACE h2" in text, "the log has no lines of libraries"
        assert not secrets_in(text, secrets), process
