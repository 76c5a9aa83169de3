"""A control plane of Kubernetes on this machine: etcd, API server, controller manager, scheduler. scripts/kube.sh builds them."""
import json
import os
import pathlib
import socket
import ssl
import subprocess
import sys
import time
import urllib.error
import urllib.request

REPOSITORY = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(REPOSITORY / "tests/chart"))

from chart import HELMS, KUBE  # noqa: E402

PROGRAMS = pathlib.Path(os.environ.get("REIN_KUBE", "/nonexistent"))
KUBECTL = KUBE / "kubectl-1.37"
ADMIN, INSTALLER = "admin-token", "installer-token"


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


class ApiError(Exception):
    def __init__(self, status, body):
        super().__init__(f"{status}: {body}")
        self.status = status


class ControlPlane:
    def __init__(self, directory):
        self.directory, self.processes = pathlib.Path(directory), []
        self.port = free_port()
        self.url = f"https://127.0.0.1:{self.port}"
        self.trust = ssl._create_unverified_context()
        try:
            self._start()
        except BaseException:
            self.stop()
            raise

    def run(self, program, *arguments):
        """Starts a program that ends with the control plane."""
        log = open(self.directory / f"{program}.log", "w")
        process = subprocess.Popen([PROGRAMS / program, *arguments], stdout=log, stderr=log)
        self.processes.append((program, process))

    def _start(self):
        etcd, peers = free_port(), free_port()
        urls = [f"--listen-client-urls=http://127.0.0.1:{etcd}", f"--advertise-client-urls=http://127.0.0.1:{etcd}", f"--listen-peer-urls=http://127.0.0.1:{peers}"]
        # Durability of this etcd is worth nothing, and a shared disk may take seconds to sync.
        self.run("etcd", f"--data-dir={self.directory}/etcd", "--unsafe-no-fsync", *urls)
        self.etcd = f"127.0.0.1:{etcd}"
        key = self.directory / "service-account.key"
        subprocess.run(["openssl", "genrsa", "-out", key, "2048"], check=True, capture_output=True)
        tokens = self.directory / "tokens.csv"
        tokens.write_text(f'{ADMIN},admin,admin,"system:masters"\n{INSTALLER},installer,installer,\n')
        self.run(
            "kube-apiserver", f"--etcd-servers=http://{self.etcd}", f"--secure-port={self.port}", "--bind-address=127.0.0.1", "--advertise-address=127.0.0.1",
            f"--cert-dir={self.directory}/certificates", f"--service-account-key-file={key}", f"--service-account-signing-key-file={key}", "--service-account-issuer=https://kubernetes.default.svc",
            f"--token-auth-file={tokens}", "--authorization-mode=RBAC", "--service-cluster-ip-range=10.96.0.0/16", "--disable-admission-plugins=TaintNodesByCondition",
            "--endpoint-reconciler-type=none",
        )
        self._until(lambda: self.get("/readyz") is not None, 120, "the API server is not ready")
        config = self.kubeconfig(ADMIN)
        # Nodes of tests have no kubelet that renews leases.
        self.run("kube-controller-manager", f"--kubeconfig={config}", f"--service-account-private-key-file={key}", "--leader-elect=false", "--controllers=*,-node-lifecycle-controller", f"--secure-port={free_port()}", "--use-service-account-credentials=false")
        self.run("kube-scheduler", f"--kubeconfig={config}", "--leader-elect=false", f"--secure-port={free_port()}")
        self._until(lambda: self.get("/api/v1/namespaces/default/serviceaccounts/default") is not None, 60, "there is no default service account")

    def _until(self, ready, seconds, message):
        deadline = time.monotonic() + seconds
        while True:
            try:
                if ready():
                    return
            except (OSError, ApiError):
                pass
            ended = [name for name, process in self.processes if process.poll() is not None]
            if ended or time.monotonic() > deadline:
                name = (ended or ["kube-apiserver"])[0]
                raise RuntimeError(f"{message}; {name}: {(self.directory / f'{name}.log').read_text()[-2000:]}")
            time.sleep(0.1)

    def stop(self):
        for _, process in reversed(self.processes):
            process.kill()
            process.wait()

    def kubeconfig(self, token, namespace="default"):
        path = self.directory / f"{token}-{namespace}.json"
        cluster = {"server": self.url, "insecure-skip-tls-verify": True}
        context = {"cluster": "test", "user": "user", "namespace": namespace}
        path.write_text(json.dumps({
            "apiVersion": "v1", "kind": "Config", "current-context": "test", "clusters": [{"name": "test", "cluster": cluster}],
            "users": [{"name": "user", "user": {"token": token}}], "contexts": [{"name": "test", "context": context}],
        }))
        return path

    def request(self, method, path, body=None, kind="application/json", token=ADMIN, timeout=30):
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(self.url + path, data, {"Authorization": f"Bearer {token}", "Content-Type": kind, "Accept": "application/json"}, method=method)
        try:
            return urllib.request.urlopen(request, context=self.trust, timeout=timeout)
        except urllib.error.HTTPError as error:
            raise ApiError(error.code, error.read().decode()) from None

    def get(self, path):
        """The object at a path, or None."""
        try:
            with self.request("GET", path) as answer:
                text = answer.read()
                return json.loads(text) if text.startswith(b"{") else text
        except ApiError as error:
            if error.status == 404:
                return None
            raise

    def post(self, path, body):
        with self.request("POST", path, body) as answer:
            return json.load(answer)

    def patch(self, path, body, kind="application/strategic-merge-patch+json"):
        with self.request("PATCH", path, body, kind) as answer:
            return json.load(answer)

    def delete(self, path, grace=None):
        try:
            self.request("DELETE", path, None if grace is None else {"kind": "DeleteOptions", "apiVersion": "v1", "gracePeriodSeconds": grace}).close()
        except ApiError as error:
            if error.status != 404:
                raise

    def kubectl(self, *arguments, namespace="default", stdin=None):
        command = [KUBECTL, f"--kubeconfig={self.kubeconfig(ADMIN, namespace)}", *map(str, arguments)]
        return subprocess.run(command, capture_output=True, text=True, input=stdin)

    def helm(self, version, *arguments, namespace="default", token=ADMIN, timeout=300):
        home = self.directory / f"helm-{version}"
        environment = {**os.environ, **{f"HELM_{kind}_HOME": str(home / kind) for kind in ("CACHE", "CONFIG", "DATA")}}
        command = [HELMS[version], f"--kubeconfig={self.kubeconfig(token, namespace)}", f"--namespace={namespace}", *map(str, arguments)]
        return subprocess.run(command, capture_output=True, text=True, env=environment, timeout=timeout)

    def make_namespace(self, name, security="restricted"):
        """A namespace with a level of Pod Security, in which the user `installer` is an admin and nowhere else."""
        self.post("/api/v1/namespaces", {"metadata": {"name": name, "labels": {"pod-security.kubernetes.io/enforce": security}}})
        subject = {"kind": "User", "name": "installer", "apiGroup": "rbac.authorization.k8s.io"}
        role = {"kind": "ClusterRole", "name": "admin", "apiGroup": "rbac.authorization.k8s.io"}
        at = f"/apis/rbac.authorization.k8s.io/v1/namespaces/{name}"
        self.post(f"{at}/rolebindings", {"metadata": {"name": "installer"}, "roleRef": role, "subjects": [subject]})
        # Objects of operators, such as ScaledObjects; some operators add these rights to `admin`.
        groups = ["keda.sh", "leaderworkerset.x-k8s.io", "gateway.networking.k8s.io", "monitoring.coreos.com", "cert-manager.io"]
        self.post(f"{at}/roles", {"metadata": {"name": "operators"}, "rules": [{"apiGroups": groups, "resources": ["*"], "verbs": ["*"]}]})
        self.post(f"{at}/rolebindings", {"metadata": {"name": "operators"}, "roleRef": {**role, "kind": "Role", "name": "operators"}, "subjects": [subject]})

    def add_definitions(self):
        """The custom resources of crds.txt, from Go's module cache."""
        for line in (REPOSITORY / "tests/kube/crds.txt").read_text().splitlines():
            if line.startswith("#"):
                continue
            module, version, directory, *files = line.split()
            found = subprocess.run(["go", "mod", "download", "-json", f"{module}@{version}"], capture_output=True, text=True, check=True, cwd=self.directory)
            for file in files:
                done = self.kubectl("create", "-f", pathlib.Path(json.loads(found.stdout)["Dir"]) / directory / file)
                assert done.returncode == 0, done.stderr
        done = self.kubectl("wait", "--for=condition=Established", "crd", "--all", "--timeout=60s")
        assert done.returncode == 0, done.stderr
