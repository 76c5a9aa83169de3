"""TLS and API keys with real clients: the openai SDK, curl, grpcio."""
import hashlib
import os
import shutil
import ssl
import subprocess
import time
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
    made = subprocess.run([BIN, "key", *limits], capture_output=True, text=True, check=True)
    return made.stderr.strip(), made.stdout


@pytest.fixture(scope="module")
def guarded(tmp_path_factory):
    """A server with TLS and two keys, one of them with limits."""
    folder = tmp_path_factory.mktemp("guarded")
    free, limited = new_key("--name", "free"), new_key("--name", "limited", "--requests-per-minute", "2")
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
    key, entry = new_key("--name", "a", "--priority", "-2")
    assert hashlib.sha256(key.encode()).hexdigest() in entry and key not in entry
    assert key.startswith("sk-rein-") and len(key) == 8 + 64
    assert subprocess.run([BIN, "key", "--name", "a b"], capture_output=True).returncode != 0


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
