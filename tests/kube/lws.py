"""The LeaderWorkerSet controller beside a control plane, with its webhooks at an address of this machine."""
import base64
import subprocess
import time

import yaml

from control_plane import ADMIN, free_port

# The webhooks of pods see only those of LeaderWorkerSets, as in its own manifests.
OWN_PODS = {"matchExpressions": [{"key": "leaderworkerset.sigs.k8s.io/name", "operator": "Exists"}]}
WEBHOOKS = {
    "Mutating": {"mutate-leaderworkerset-x-k8s-io-v1-leaderworkerset": "leaderworkersets", "mutate--v1-pod": "pods"},
    "Validating": {"validate-leaderworkerset-x-k8s-io-v1-leaderworkerset": "leaderworkersets", "validate--v1-pod": "pods"},
}


def start(plane):
    """Starts the controller; the control plane stops it."""
    port, directory = free_port(), plane.directory / "lws"
    directory.mkdir()
    subject = ["-subj", "/CN=127.0.0.1", "-addext", "subjectAltName=IP:127.0.0.1"]
    subprocess.run(["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "1", *subject, "-keyout", directory / "tls.key", "-out", directory / "tls.crt"], check=True, capture_output=True)
    config = {
        "apiVersion": "config.lws.x-k8s.io/v1alpha1", "kind": "Configuration", "leaderElection": {"leaderElect": False}, "internalCertManagement": {"enable": False},
        "webhook": {"port": port, "host": "127.0.0.1", "certDir": str(directory)}, "metrics": {"bindAddress": "0"}, "health": {"healthProbeBindAddress": f"127.0.0.1:{free_port()}"},
    }
    (directory / "config.yaml").write_text(yaml.safe_dump(config))
    bundle = base64.b64encode((directory / "tls.crt").read_bytes()).decode()
    for kind, paths in WEBHOOKS.items():
        hooks = []
        for path, resource in paths.items():
            rule = {"apiGroups": ["" if resource == "pods" else "leaderworkerset.x-k8s.io"], "apiVersions": ["v1"], "operations": ["CREATE"] if resource == "pods" else ["CREATE", "UPDATE"], "resources": [resource]}
            hook = {"name": f"{resource}.{kind.lower()}.kb.io", "admissionReviewVersions": ["v1"], "sideEffects": "None", "failurePolicy": "Fail", "rules": [rule], "clientConfig": {"url": f"https://127.0.0.1:{port}/{path}", "caBundle": bundle}}
            hooks.append(hook | ({"objectSelector": OWN_PODS} if resource == "pods" else {}))
        plane.post(f"/apis/admissionregistration.k8s.io/v1/{kind.lower()}webhookconfigurations", {"metadata": {"name": "lws"}, "webhooks": hooks})
    plane.run("lws", f"--config={directory}/config.yaml", f"--kubeconfig={plane.kubeconfig(ADMIN)}", "--metrics-bind-address=0")
    deadline = time.monotonic() + 60
    while subprocess.run(["openssl", "s_client", "-connect", f"127.0.0.1:{port}"], stdin=subprocess.DEVNULL, capture_output=True).returncode:
        assert time.monotonic() < deadline, (plane.directory / "lws.log").read_text()[-2000:]
        time.sleep(0.2)
