"""Real pods of the chart under load: whatever an operator does, no request fails and no token changes."""
import concurrent.futures
import functools
import json
import os
import shutil
import socket
import ssl
import subprocess
import sys
import time
import urllib.request

import pytest

import lws
from agent import RUNC, Agent
from cases import PROFILES
from chart import BIN, CHART, REPOSITORY
from control_plane import INSTALLER, PROGRAMS, ApiError, ControlPlane
from load import Load, ask, body

sys.path.append(str(REPOSITORY / "tests/py"))

import certificates  # noqa: E402

NAMESPACE = "serve"
ROUTERS = ["--set", "router.replicas=2", "--set", "controller.replicas=2"]

pytestmark = pytest.mark.skipif(os.geteuid() != 0 or not RUNC or not shutil.which("umoci"), reason="needs root, runc, umoci and buildah: pods have network namespaces")


@pytest.fixture(scope="module")
def images(tmp_path_factory):
    """Maps the image of a container to its root: the image that make image makes, and etcd of make test-kube."""
    out = tmp_path_factory.mktemp("images")
    done = subprocess.run([REPOSITORY / "scripts/image.sh"], env={**os.environ, "BIN": BIN, "OUT": str(out)}, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    (out / "layout").mkdir()
    archive = next(out.glob("rein-*.tar"))
    subprocess.run(["tar", "-xf", archive, "-C", out / "layout"], check=True)
    subprocess.run(["umoci", "unpack", "--image", f"{out}/layout:{archive.stem.removeprefix('rein-')}", out / "bundle"], check=True, capture_output=True)
    root, etcd = out / "bundle/rootfs", out / "etcd"
    subprocess.run(["cp", "-al", root, etcd], check=True)
    for directory in (root, etcd):
        for place in ("proc", "dev", "etc/rein/peer", "results", "var/lib/etcd", "tmp", "weights"):
            (directory / place).mkdir(parents=True, exist_ok=True)
        (directory / "etc/hosts").touch()
    (etcd / "usr/local/bin").mkdir(parents=True)
    shutil.copy(PROGRAMS / "etcd", etcd / "usr/local/bin/etcd")
    known = {"rein": {"root": root, "command": ["/usr/bin/rein"]}, "registry.k8s.io/etcd": {"root": etcd, "command": []}}
    return lambda image: known[image.partition("@")[0].rpartition(":")[0] or image.partition("@")[0]]


@pytest.fixture(scope="module")
def cluster(tmp_path_factory):
    directory = tmp_path_factory.mktemp("pods")
    plane = ControlPlane(directory)
    plane.make_namespace(NAMESPACE)
    yield plane
    plane.stop()


@pytest.fixture(scope="module")
def agent(cluster, images, tmp_path_factory):
    made = Agent(cluster, tmp_path_factory.mktemp("agent"), images)
    yield made
    made.stop()


@pytest.fixture(autouse=True)
def uninstalled(cluster, agent):
    """After each test, the release is uninstalled and leaves no pod."""
    yield
    run(cluster, "uninstall", "rein", "--wait")
    until(lambda: not agent.pods, 120, "the end of all pods", agent)


def run(plane, *arguments, timeout=300):
    done = plane.helm("4.3.1", *arguments, namespace=NAMESPACE, token=INSTALLER, timeout=timeout)
    assert done.returncode == 0, f"helm {' '.join(map(str, arguments))}\n{done.stdout}{done.stderr}"


def verify(plane):
    """`helm test`: the demo model answers a hundred requests with calls, on the CPU that all pods share."""
    run(plane, "test", "rein", "--timeout=12m", timeout=800)


def kubectl(plane, *arguments):
    done = plane.kubectl(*arguments, namespace=NAMESPACE)
    assert done.returncode == 0, f"kubectl {' '.join(map(str, arguments))}\n{done.stdout}{done.stderr}"
    return done.stdout


def routers(plane):
    found = plane.get(f"/apis/discovery.k8s.io/v1/namespaces/{NAMESPACE}/endpointslices?labelSelector=kubernetes.io/service-name=rein-router")["items"]
    return sorted(endpoint["addresses"][0] for piece in found for endpoint in piece.get("endpoints") or [] if endpoint["conditions"]["ready"])


def pods(plane, component):
    return plane.get(f"/api/v1/namespaces/{NAMESPACE}/pods?labelSelector=app.kubernetes.io/component={component}")["items"]


def uids(found):
    return {pod["metadata"]["name"]: pod["metadata"]["uid"] for pod in found}


def is_ready(pod):
    return any(one["type"] == "Ready" and one["status"] == "True" for one in pod["status"].get("conditions", [])) and not pod["metadata"].get("deletionTimestamp")


def until(condition, seconds, what, agent):
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, f"{what} takes longer than {seconds} s; {agent.errors[-3:]}"
        time.sleep(0.2)


def all_ready(plane, count, component="worker"):
    found = pods(plane, component)
    return len(found) == count and all(map(is_ready, found))


def restart(plane, kind, name):
    kubectl(plane, "rollout", "restart", f"{kind}/{name}")
    kubectl(plane, "rollout", "status", f"{kind}/{name}", "--timeout=240s")


def kill(plane, agent, name):
    """kill -9, and the wait for the container that replaces the process."""
    def restarts():
        pod = plane.get(f"/api/v1/namespaces/{NAMESPACE}/pods/{name}")
        return pod["status"]["containerStatuses"][0]["restartCount"]

    before = restarts()
    agent.kill(name)
    until(lambda: restarts() > before, 60, f"the restart of {name}", agent)


def drain(plane, node, agent, keep=("etcd",)):
    """Evicts what runs on a node, as kubectl drain does, but the trial etcd."""
    kubectl(plane, "cordon", node)
    for component in ("worker", "router", "controller"):
        for pod in pods(plane, component):
            if pod["spec"]["nodeName"] != node:
                continue
            name = pod["metadata"]["name"]
            eviction = {"apiVersion": "policy/v1", "kind": "Eviction", "metadata": {"name": name, "namespace": NAMESPACE}}

            def evicted():
                try:
                    plane.request("POST", f"/api/v1/namespaces/{NAMESPACE}/pods/{name}/eviction", eviction).close()
                    return True
                except ApiError as error:
                    # 429: the budget allows no more pods to be away.
                    if error.status == 404:
                        return True
                    assert error.status == 429, error
                    return False

            until(evicted, 240, f"the eviction of {name}", agent)
    kubectl(plane, "uncordon", node)


def operate(plane, agent, load, workers, steps):
    """Runs steps under load; each names itself when a request fails or a token changes."""
    report = []
    for name, step in steps:
        began, answers = time.monotonic(), load.answers
        step()
        until(lambda: all_ready(plane, workers()) and all_ready(plane, 2, "router") and all_ready(plane, 2, "controller"), 240, f"{name}: readiness", agent)
        report.append((name, round(time.monotonic() - began, 1), load.answers - answers))
        assert not load.failures, (name, load.failures[:5])
        assert not load.changes, (name, load.changes[:2])
    print(json.dumps(report))
    assert not agent.killed_by_grace and not agent.killed_by_liveness
    return report


def test_the_laptop_profile_survives_its_operator(cluster, agent):
    values = ["--values", PROFILES["laptop"], *ROUTERS]
    run(cluster, "install", "rein", CHART, *values, "--wait", "--timeout=4m")
    until(lambda: len(routers(cluster)) == 2 and all_ready(cluster, 2), 60, "endpoints of routers", agent)
    requests = [body(number) for number in range(8)]
    load = Load(lambda: routers(cluster), requests)
    count = [2]

    def scale(groups):
        count[0] = groups
        kubectl(cluster, "scale", "statefulset/rein-demo", f"--replicas={groups}")
        until(lambda: all_ready(cluster, groups), 120, f"scaling to {groups}", agent)

    def wrong_image():
        run(cluster, "upgrade", "rein", CHART, *values, "--set", "models[0].options.sim-seed=no")
        until(lambda: not all_ready(cluster, 2), 60, "the rollout", agent)
        time.sleep(10)
        assert sum(map(is_ready, pods(cluster, "worker"))) == 1
        run(cluster, "rollback", "rein", "--wait", "--timeout=4m")

    try:
        report = operate(cluster, agent, load, lambda: count[0], [
            ("restart workers", lambda: restart(cluster, "statefulset", "rein-demo")),
            ("restart routers", lambda: restart(cluster, "deployment", "rein-router")),
            ("restart controllers", lambda: restart(cluster, "deployment", "rein-controller")),
            # The trial etcd loses its data.
            ("restart etcd", lambda: restart(cluster, "statefulset", "rein-etcd")),
            ("kill -9 of a worker", lambda: kill(cluster, agent, "rein-demo-1")),
            ("upgrade", lambda: run(cluster, "upgrade", "rein", CHART, *values, "--set", "models[0].options.max-queue=900", "--set", "router.options.max-queued=900", "--wait", "--timeout=4m")),
            ("rollback", lambda: run(cluster, "rollback", "rein", "--wait", "--timeout=4m")),
            ("a worker that cannot start", wrong_image),
            ("drain of a node", lambda: drain(cluster, pods(cluster, "worker")[0]["spec"]["nodeName"], agent)),
            ("scale to 1", lambda: scale(1)),
            ("scale to 2", lambda: scale(2)),
        ])
    finally:
        load.stop()
    assert load.answers > 50 and len(report) == 11
    assert not load.failures and not load.changes
    verify(cluster)


def make_secret(plane, name, **files):
    """Creates a Secret from files, by their keys in it with `_` for `.`."""
    sources = [f"--from-file={key.replace('_', '.')}={path}" for key, path in files.items()]
    kubectl(plane, "create", "secret", "generic", name, *sources)


def test_certificates_and_keys_hold_in_every_connection(cluster, agent, tmp_path):
    """Mutual TLS between pods, TLS and API keys for clients, all from given Secrets, while pods are replaced."""
    certificates.authority(tmp_path)
    certificates.signed(tmp_path, "peer")
    certificates.signed(tmp_path, "public", "rein-router")
    stranger = tmp_path / "stranger"
    certificates.authority(stranger)
    for name in ("peer", "public"):
        make_secret(cluster, f"{name}-tls", ca_crt=tmp_path / "ca.pem", tls_crt=tmp_path / f"{name}.pem", tls_key=tmp_path / f"{name}.key")
    made = subprocess.run([BIN, "key", "create", "team-a"], check=True, capture_output=True, text=True)
    key = next(word for word in made.stderr.split() if word.startswith("sk-"))
    (tmp_path / "keys.toml").write_text(made.stdout)
    (tmp_path / "key").write_text(key)
    make_secret(cluster, "keys", keys_toml=tmp_path / "keys.toml")
    make_secret(cluster, "key-of-team-a", key=tmp_path / "key")
    secrets = ["peerTls.enabled=true", "peerTls.secretName=peer-tls", "publicTls.enabled=true", "publicTls.secretName=public-tls", "apiKeys.secretName=keys", "verify.apiKeySecretName=key-of-team-a"]
    values = [*ROUTERS, "--values", PROFILES["laptop"], "--set", ",".join(secrets), "--set", "models[0].podsPerGroup=2,models[0].ranks=2,models[0].groups=2"]
    run(cluster, "install", "rein", CHART, *values, "--wait", "--timeout=4m")
    until(lambda: len(routers(cluster)) == 2 and all_ready(cluster, 4), 90, "two groups", agent)
    trust = ssl.create_default_context(cafile=tmp_path / "ca.pem")
    trust.check_hostname = False
    address, request = routers(cluster)[0], body(1)
    with pytest.raises(RuntimeError, match="401"):
        ask(address, request, trust=trust)
    with pytest.raises(ssl.SSLCertVerificationError):
        ask(address, request, trust=ssl.create_default_context(cafile=stranger / "ca.pem"), key=key)
    load = Load(lambda: routers(cluster), [body(number) for number in range(4)], threads=8, ask=functools.partial(ask, trust=trust, key=key))
    try:
        operate(cluster, agent, load, lambda: 4, [
            ("restart routers", lambda: restart(cluster, "deployment", "rein-router")),
            ("kill -9 of a worker", lambda: kill(cluster, agent, "rein-demo-g0-1")),
        ])
    finally:
        load.stop()
    assert not load.failures and not load.changes and load.answers > 10
    # A worker's port takes no connection without a certificate of this cluster.
    worker = pods(cluster, "worker")[0]["status"]["podIP"]
    for client in (ssl._create_unverified_context(), trust):
        with socket.create_connection((worker, 7000), timeout=10) as plain, pytest.raises(OSError):
            client.set_alpn_protocols(["h2"])
            with client.wrap_socket(plain) as connection:
                connection.sendall(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n")
                assert connection.recv(1)
    verify(cluster)


def test_a_request_waits_for_a_model_without_pods(cluster, agent):
    """Scale from 0 to 1, which KEDA would do when it sees the waiting request."""
    asleep = ["--set", "models[0].autoscaling.type=keda,models[0].autoscaling.minReplicas=0,models[0].autoscaling.prometheus=http://prometheus:9090"]
    if not cluster.get("/apis/keda.sh/v1alpha1"):
        cluster.add_definitions()
    run(cluster, "install", "rein", CHART, "--values", PROFILES["laptop"], *asleep, "--wait", "--timeout=4m")
    until(lambda: len(routers(cluster)) == 1, 60, "the endpoint of the router", agent)
    expected = ask(routers(cluster)[0], body(1))
    kubectl(cluster, "scale", "statefulset/rein-demo", "--replicas=0")
    until(lambda: not pods(cluster, "worker"), 90, "scaling to 0", agent)
    assert len(routers(cluster)) == 1, "the router of an expected model is not ready"
    with concurrent.futures.ThreadPoolExecutor() as pool:
        answer = pool.submit(ask, routers(cluster)[0], body(1))
        time.sleep(15)
        assert not answer.done(), answer.exception()
        with urllib.request.urlopen(f"http://{routers(cluster)[0]}:8000/metrics", timeout=10) as page:
            text = page.read().decode()
        assert 'rein_model_requests_waiting{model="demo"} 1' in text
        kubectl(cluster, "scale", "statefulset/rein-demo", "--replicas=1")
        assert answer.result(timeout=120) == expected


def test_groups_of_two_pods_survive_their_operator(cluster, agent):
    """One StatefulSet for each group, whose pods find each other by their domain."""
    pair = [*ROUTERS, "--values", PROFILES["laptop"], "--set", "models[0].podsPerGroup=2,models[0].ranks=2"]
    run(cluster, "install", "rein", CHART, *pair, "--wait", "--timeout=4m")
    until(lambda: len(routers(cluster)) == 2 and all_ready(cluster, 4), 90, "two groups", agent)
    load = Load(lambda: routers(cluster), [body(number) for number in range(8)])

    def upgrade(groups):
        """Changes the arguments of the first groups only."""
        before = uids(pods(cluster, "worker"))
        changed = ["--set", f"models[0].options.max-queue=900,models[0].updateGroups={groups}"]
        run(cluster, "upgrade", "rein", CHART, *pair, *changed, "--wait", "--timeout=4m")
        kubectl(cluster, "rollout", "status", f"statefulset/rein-demo-g{groups - 1}", "--timeout=240s")
        after = uids(pods(cluster, "worker"))
        assert {name for name in after if before[name] != after[name]} == {f"rein-demo-g{groups - 1}-{number}" for number in range(2)}

    try:
        operate(cluster, agent, load, lambda: 4, [
            ("restart group 0", lambda: restart(cluster, "statefulset", "rein-demo-g0")),
            ("restart group 1", lambda: restart(cluster, "statefulset", "rein-demo-g1")),
            ("kill -9 of a worker", lambda: kill(cluster, agent, "rein-demo-g0-1")),
            ("upgrade of group 0", lambda: upgrade(1)),
            ("upgrade of group 1", lambda: upgrade(2)),
            ("drain of a node", lambda: drain(cluster, pods(cluster, "worker")[0]["spec"]["nodeName"], agent)),
        ])
    finally:
        load.stop()
    assert not load.failures and not load.changes and load.answers > 20


def test_a_leader_worker_set_restarts_one_pod(cluster, agent):
    """Its controller makes the groups; when a pod dies, the others keep running, and the group serves again."""
    if not cluster.get("/apis/leaderworkerset.x-k8s.io/v1"):
        cluster.add_definitions()
    lws.start(cluster)
    sets = [*ROUTERS, "--values", PROFILES["laptop"], "--set", "models[0].podsPerGroup=2,models[0].ranks=2,models[0].workload=lws"]
    run(cluster, "install", "rein", CHART, *sets)
    names = {"rein-demo-0", "rein-demo-0-1", "rein-demo-1", "rein-demo-1-1"}
    until(lambda: len(routers(cluster)) == 2 and all_ready(cluster, 4), 180, "two groups", agent)
    found = pods(cluster, "worker")
    assert {pod["metadata"]["name"] for pod in found} == names
    domains = {pod["metadata"]["name"]: pod["metadata"]["labels"]["leaderworkerset.sigs.k8s.io/group-key"] for pod in found}
    assert domains["rein-demo-0"] == domains["rein-demo-0-1"] != domains["rein-demo-1"] == domains["rein-demo-1-1"]
    load = Load(lambda: routers(cluster), [body(number) for number in range(4)], threads=8)
    try:
        kill(cluster, agent, "rein-demo-0-1")
        until(lambda: all_ready(cluster, 4), 120, "the group", agent)
        # A pod that is deleted comes back alone, too.
        kubectl(cluster, "delete", "pod", "rein-demo-1-1", "--wait=true")
        until(lambda: all_ready(cluster, 4), 120, "the group", agent)
        before, after = uids(found), uids(pods(cluster, "worker"))
        assert {name for name in names if before[name] != after[name]} == {"rein-demo-1-1"}
        restarts = {pod["metadata"]["name"]: pod["status"]["containerStatuses"][0]["restartCount"] for pod in pods(cluster, "worker")}
        assert restarts == {"rein-demo-0": 0, "rein-demo-0-1": 1, "rein-demo-1": 0, "rein-demo-1-1": 0}
        # An upgrade replaces every pod, one group after the other.
        run(cluster, "upgrade", "rein", CHART, *sets, "--set", "models[0].options.max-queue=900")
        until(lambda: all_ready(cluster, 4) and not set(after.values()) & set(uids(pods(cluster, "worker")).values()), 240, "the upgrade", agent)
    finally:
        load.stop()
    assert not load.failures and not load.changes and load.answers > 10
