"""TLS and API keys with real clients: the openai SDK, curl, grpcio."""
import datetime
import hashlib
import json
import os
import re
import shutil
import ssl
import subprocess
import time
import tomllib
import urllib.request

import grpc
import openai
import pytest
import certificates
from grpc_health.v1 import health_pb2, health_pb2_grpc

from conftest import BIN, REPOSITORY, Server

TLS = REPOSITORY / "tests/fixtures/tls"
CA = str(TLS / "ca.pem")
ASK = {"model": "demo", "messages": [{"role": "user", "content": "hello"}], "max_tokens": 4}


def new_key(*limits):
    made = subprocess.run([BIN, "key", "create", *limits], capture_output=True, text=True, check=True)
    return made.stderr.strip(), made.stdout


@pytest.fixture(scope="module")
def guarded(tmp_path_factory):
    """A server with TLS and two keys, one of them with limits."""
    folder = tmp_path_factory.mktemp("guarded")
    free, limited = new_key("free"), new_key("limited", "--requests-per-minute", "2")
    (folder / "keys.toml").write_text(free[1] + limited[1])
    for name in ("server.pem", "server.key"):
        shutil.copy(TLS / name, folder / name)
    server = Server("--engine", "sim", "--api-keys", str(folder / "keys.toml"),
                    "--tls-cert", str(folder / "server.pem"), "--tls-key", str(folder / "server.key"))
    server.folder, server.free, server.limited = folder, free[0], limited[0]
    yield server
    server.stop()


def client(server, key):
    http_client = openai.DefaultHttpxClient(verify=ssl.create_default_context(cafile=CA))
    return openai.OpenAI(base_url=server.http + "/v1", api_key=key, max_retries=0, http_client=http_client)


def curl(server, path, *extra):
    command = ["curl", "-sS", "-o", "-", "-w", "\n%{http_code}", *extra, server.http + path]
    return subprocess.run(command, capture_output=True, text=True, timeout=60)


def test_the_hash_is_what_sha256sum_prints():
    key, entry = new_key("a", "--priority", "-2")
    assert hashlib.sha256(key.encode()).hexdigest() in entry and key not in entry
    assert key.startswith("sk-rein-") and len(key) == 8 + 64
    assert subprocess.run([BIN, "key", "create", "a b"], capture_output=True).returncode != 0


def test_the_sdk_works_over_tls_with_a_key(guarded):
    assert guarded.http.startswith("https://")
    answer = client(guarded, guarded.free).chat.completions.create(**ASK)
    assert answer.usage.completion_tokens == 4
    chunks = list(client(guarded, guarded.free).chat.completions.create(stream=True, **ASK))
    assert chunks[-1].choices[0].finish_reason
    with pytest.raises(openai.AuthenticationError) as caught:
        client(guarded, "sk-wrong").chat.completions.create(**ASK)
    assert caught.value.body["code"] == "invalid_api_key" and "sk-wrong" not in str(caught.value.body)


def test_a_rate_limit_is_shown_in_headers_and_enforced(guarded):
    sdk = client(guarded, guarded.limited)
    raw = sdk.chat.completions.with_raw_response.create(**ASK)
    assert (raw.headers["x-ratelimit-limit-requests"], raw.headers["x-ratelimit-remaining-requests"]) == ("2", "1")
    sdk.chat.completions.create(**ASK)
    with pytest.raises(openai.RateLimitError) as caught:
        sdk.chat.completions.create(**ASK)
    assert 0 < int(caught.value.response.headers["retry-after"]) <= 30


@pytest.mark.skipif(shutil.which("curl") is None, reason="no curl")
def test_curl_trusts_only_the_given_authority(guarded):
    assert curl(guarded, "/health", "--cacert", CA).stdout.endswith("\n200")
    assert curl(guarded, "/v1/models", "--cacert", CA).stdout.endswith("\n401")
    assert curl(guarded, "/v1/models", "--cacert", CA, "-H", f"x-api-key: {guarded.free}").stdout.endswith("\n200")
    assert curl(guarded, "/health").returncode == 60
    plain = subprocess.run(["curl", "-sS", guarded.http.replace("https", "http") + "/health"], capture_output=True, timeout=60)
    assert plain.returncode != 0


def test_grpc_over_tls_with_a_key(guarded):
    channel = grpc.secure_channel(guarded.grpc, grpc.ssl_channel_credentials(open(CA, "rb").read()))
    health = health_pb2_grpc.HealthStub(channel).Check(health_pb2.HealthCheckRequest(), timeout=30)
    assert health.status == health_pb2.HealthCheckResponse.SERVING
    models = channel.unary_unary("/rein.v1.Inference/ListModels")
    with pytest.raises(grpc.RpcError) as caught:
        models(b"", timeout=30)
    assert caught.value.code() == grpc.StatusCode.UNAUTHENTICATED
    assert b"demo" in models(b"", timeout=30, metadata=[("authorization", f"Bearer {guarded.free}")])


def test_metrics_contain_no_secret(guarded):
    context = ssl.create_default_context(cafile=CA)
    metrics = urllib.request.urlopen(guarded.http + "/metrics", context=context).read().decode()
    assert 'rein_key_requests_total{key="free"}' in metrics
    for key in (guarded.free, guarded.limited):
        assert key not in metrics and hashlib.sha256(key.encode()).hexdigest() not in metrics


@pytest.mark.skipif(shutil.which("openssl") is None, reason="no openssl")
def test_a_new_certificate_is_used_without_a_restart(guarded, tmp_path):
    def shown():
        host, port = guarded.http.removeprefix("https://").split(":")
        return ssl.get_server_certificate((host, int(port)), timeout=10)

    before = shown()
    subprocess.run(["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", "-days", "2",
                    "-subj", "/CN=new", "-keyout", tmp_path / "key", "-out", tmp_path / "cert"], check=True, capture_output=True)
    for new, name in (("cert", "server.pem"), ("key", "server.key")):
        os.replace(shutil.copy(tmp_path / new, guarded.folder / (name + ".new")), guarded.folder / name)
    until = time.monotonic() + 20
    while shown() == before:
        assert time.monotonic() < until, "still the old certificate"
        time.sleep(0.2)


@certificates.needs_openssl
def test_an_expired_certificate_is_rejected_at_startup(tmp_path):
    certificates.authority(tmp_path)
    certificates.signed_until(tmp_path, "server", time.time() - 3600)
    command = [BIN, "serve", "--model", str(REPOSITORY / "models/demo"), "--engine", "sim", "--http", "127.0.0.1:0", "--grpc", "127.0.0.1:0"]
    command += ["--tls-cert", str(tmp_path / "server.pem"), "--tls-key", str(tmp_path / "server.key")]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert ended.returncode != 0 and f"--tls-cert: {tmp_path}/server.pem: the certificate expired on " in ended.stderr, ended.stderr
    assert "listening" not in ended.stdout


@certificates.needs_openssl
def test_a_certificate_that_expires_while_serving_is_logged(tmp_path):
    certificates.authority(tmp_path)
    certificates.signed_until(tmp_path, "server", time.time() + 12)
    server = Server("--engine", "sim", "--tls-cert", str(tmp_path / "server.pem"), "--tls-key", str(tmp_path / "server.key"))
    try:
        def left():
            metrics = urllib.request.urlopen(server.http + "/metrics", context=ssl._create_unverified_context()).read().decode()
            return float(next(line for line in metrics.splitlines() if line.startswith("rein_certificate_expiry_seconds{")).split()[1])
        assert left() > 0
        until = time.monotonic() + 40
        while left() >= 0:
            assert time.monotonic() < until, "it does not expire"
            time.sleep(0.5)
        # Clients that do not verify it are still served.
        assert left() < 0
    finally:
        server.stop()


@pytest.mark.parametrize("arguments, said", [
    (["--tls-cert", CA], "--tls-cert needs --tls-key"),
    (["--tls-cert", CA, "--tls-key", CA], "--tls-key: "),
    (["--tls-cert", "missing.pem", "--tls-key", CA], "--tls-cert: cannot read missing.pem"),
    (["--api-keys", "missing.toml"], "--api-keys: cannot read missing.toml"),
    (["--api-keys", CA], "--api-keys: "),
])
def test_startup_errors_name_the_option(arguments, said):
    command = [BIN, "serve", "--model", str(REPOSITORY / "models/demo"), "--engine", "sim", "--http", "127.0.0.1:0", "--grpc", "127.0.0.1:0"]
    ended = subprocess.run(command + arguments, capture_output=True, text=True, timeout=60)
    assert ended.returncode != 0 and said in ended.stderr, ended.stderr


def keys(*arguments):
    return subprocess.run([BIN, "key", *arguments], capture_output=True, text=True)


def test_keys_are_created_listed_and_revoked_in_their_file(tmp_path):
    file = tmp_path / "keys.toml"
    made = {}
    for name, *options in [("a",), ("b", "--expires", "90d", "--models", "demo,acme/other", "--requests-per-minute", "5"), ("c", "--priority", "-3")]:
        run = keys("create", name, "--file", str(file), *options)
        assert run.returncode == 0 and run.stderr == f"the key of '{name}' is in {file}; it is shown once:\n"
        made[name] = run.stdout.strip()
    assert file.stat().st_mode & 0o777 == 0o600
    with open(file, "a") as more:
        more.write("\n# The team of d.\n")
    assert keys("create", "d", "--file", str(file)).returncode == 0
    entries = tomllib.loads(file.read_text())["key"]
    assert [entry["name"] for entry in entries] == ["a", "b", "c", "d"]
    assert entries[1]["hash"] == hashlib.sha256(made["b"].encode()).hexdigest() and entries[1]["models"] == ["demo", "acme/other"]
    assert datetime.timedelta(days=89) < entries[1]["expires"] - datetime.datetime.now(datetime.timezone.utc) < datetime.timedelta(days=90)
    listed = keys("list", "--file", str(file))
    assert re.search(r"^b +2\d{3}-\S+Z +demo,acme/other +5 +- +- +0$", listed.stdout, re.M), listed.stdout
    assert [entry["name"] for entry in json.loads(keys("list", "--json", "--file", str(file)).stdout)] == ["a", "b", "c", "d"]
    # A wrong entry changes nothing.
    before = file.read_text()
    for arguments, says in [(("create", "a"), "another key is named 'a'"), (("create", "a b"), "name must have 1 to 64 letters"), (("revoke", "x"), "has no key 'x'; there are a, b, c, d"),
                            (("create", "e", "--expires", "2001-01-01"), "is past")]:
        run = keys(*arguments, "--file", str(file))
        assert run.returncode != 0 and says in run.stderr, run
    assert file.read_text() == before
    for name in ("a", "c", "d"):
        assert keys("revoke", name, "--file", str(file)).returncode == 0
    assert "# The team of d." in file.read_text() and [entry["name"] for entry in tomllib.loads(file.read_text())["key"]] == ["b"]
    last = keys("revoke", "b", "--file", str(file))
    assert last.returncode == 1 and "is the only key" in last.stderr


def test_a_key_ends_at_its_time_and_sees_its_models_alone(tmp_path):
    file = tmp_path / "keys.toml"
    free, other, old = (keys("create", name, "--file", str(file), *options).stdout.strip() for name, *options in
                        [("free",), ("other", "--models", "something-else"), ("old", "--models", "demo", "--expires", "90d")])
    server = Server("--engine", "sim", "--api-keys", str(file), "--alias", "also=demo")
    try:
        asks = lambda key: openai.OpenAI(base_url=server.http + "/v1", api_key=key, max_retries=0)
        assert [model.id for model in asks(free).models.list().data] == [model.id for model in asks(old).models.list().data] == ["demo", "also"]
        assert asks(other).models.list().data == []
        for name in ("demo", "also"):
            assert asks(old).chat.completions.create(**{**ASK, "model": name}).model == "demo"
            with pytest.raises(openai.NotFoundError) as error:
                asks(other).chat.completions.create(**{**ASK, "model": name})
            assert error.value.code == "model_not_found" and "for this API key" in str(error.value)
        with pytest.raises(openai.NotFoundError):
            asks(other).models.retrieve("demo")
        # An idle server reads the file: nothing is asked while it changes.
        text = file.read_text()
        file.write_text(re.sub(r"expires = \S+", "expires = 2020-01-01T00:00:00Z", text))
        time.sleep(2)
        with pytest.raises(openai.AuthenticationError) as error:
            asks(old).models.list()
        assert "the API key 'old' has expired at 2020-01-01T00:00:00Z" in str(error.value)
        assert keys("revoke", "free", "--file", str(file)).returncode == 0
        time.sleep(2)
        with pytest.raises(openai.AuthenticationError):
            asks(free).models.list()
    finally:
        server.stop()


def test_certificates_are_made_for_hosts_and_renewed(tmp_path):
    run = lambda *options: subprocess.run([BIN, "certs", str(tmp_path / "tls"), *options], capture_output=True, text=True)
    assert run("--hosts", "localhost,127.0.0.1").returncode == 0
    files = {path.name: path.read_bytes() for path in (tmp_path / "tls").iterdir()}
    assert set(files) == {f"{name}.{kind}" for name in ("ca", "peer", "server") for kind in ("key", "pem")}
    assert all(((tmp_path / "tls" / name).stat().st_mode & 0o777) == (0o600 if name.endswith("key") else 0o644) for name in files)
    check = lambda name, *options: subprocess.run(["openssl", "verify", "-x509_strict", "-CAfile", tmp_path / "tls/ca.pem", *options, tmp_path / f"tls/{name}.pem"], capture_output=True, text=True)
    for name, options in (("server", ["-verify_hostname", "localhost", "-purpose", "sslserver"]), ("server", ["-verify_ip", "127.0.0.1"]), ("peer", ["-verify_hostname", "rein-peer", "-purpose", "sslclient"])):
        assert check(name, *options).returncode == 0, check(name, *options)
    server = Server("--engine", "sim", "--tls-cert", str(tmp_path / "tls/server.pem"), "--tls-key", str(tmp_path / "tls/server.key"))
    try:
        context = ssl.create_default_context(cafile=tmp_path / "tls/ca.pem")
        url = server.http.replace("127.0.0.1", "localhost") + "/v1/models"
        with urllib.request.urlopen(url, context=context, timeout=10) as answer:
            assert answer.status == 200
        # Renewed by the same authority; the server reads it.
        assert "the authority that was there" in run("--hosts", "localhost", "--days", "30").stdout
        assert (tmp_path / "tls/ca.pem").read_bytes() == files["ca.pem"] and (tmp_path / "tls/server.pem").read_bytes() != files["server.pem"]
        time.sleep(2.5)
        shown = lambda: ssl.get_server_certificate(("127.0.0.1", int(server.http.rsplit(":", 1)[1])))
        assert shown().strip() == (tmp_path / "tls/server.pem").read_text().strip()
        with urllib.request.urlopen(url, context=context, timeout=10) as answer:
            assert answer.status == 200
    finally:
        server.stop()
    (tmp_path / "tls/ca.key").unlink()
    lost = run()
    assert lost.returncode == 1 and "but not its key" in lost.stderr
    assert run("--hosts", "0.0.0.0").returncode == 2
