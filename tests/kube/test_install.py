"""Both helms install, upgrade, roll back and uninstall the chart with the rights of one namespace; Pod Security admits the pods."""
import copy
import json
import subprocess

import pytest
import yaml

from control_plane import INSTALLER, KUBECTL
from cases import CASES, PROFILES
from chart import CHART, HELMS, pod_templates, template

# What Kubernetes puts into every namespace, and what it removes later by itself.
ALWAYS = {("ConfigMap", "kube-root-ca.crt"), ("ServiceAccount", "default"), ("RoleBinding", "installer"), ("RoleBinding", "operators"), ("Role", "operators")}
PASSING = {"Event", "Endpoints", "EndpointSlice"}


def left(plane, namespace):
    """Objects of every namespaced kind."""
    kinds = subprocess.run([KUBECTL, f"--kubeconfig={plane.kubeconfig('admin-token', namespace)}", "api-resources", "--namespaced", "--verbs=list", "-o", "name"], capture_output=True, text=True, check=True).stdout.split()
    done = plane.kubectl("get", ",".join(kinds), "-o", "json", "--ignore-not-found", namespace=namespace)
    assert done.returncode == 0, done.stderr
    items = json.loads(done.stdout)["items"] if done.stdout.strip() else []
    found = {(one["kind"], one["metadata"]["name"]) for one in items if one["kind"] not in PASSING}
    return found - ALWAYS


def run(plane, version, namespace, *arguments):
    done = plane.helm(version, *arguments, namespace=namespace, token=INSTALLER)
    assert done.returncode == 0, f"helm {' '.join(map(str, arguments))}\n{done.stdout}{done.stderr}"
    return done.stdout


def replicas(plane, namespace, kind, name):
    return plane.get(f"/apis/apps/v1/namespaces/{namespace}/{kind}/{name}")["spec"]["replicas"]


@pytest.mark.parametrize("time", ["once", "twice"])
@pytest.mark.parametrize("version", HELMS)
def test_install_upgrade_rollback_uninstall(plane, nodes, version, time):
    namespace = f"life-{version.replace('.', '-')}"
    if time == "once":
        plane.make_namespace(namespace)
    values = PROFILES["laptop"]
    run(plane, version, namespace, "install", "rein", CHART, "--values", values, "--wait", "--timeout=3m")
    sets = plane.get(f"/apis/apps/v1/namespaces/{namespace}/statefulsets/rein-demo")
    assert sets["status"]["readyReplicas"] == 2
    run(plane, version, namespace, "upgrade", "rein", CHART, "--values", values, "--set", "router.replicas=2,models[0].groups=3", "--wait", "--timeout=3m")
    assert replicas(plane, namespace, "statefulsets", "rein-demo") == 3 and replicas(plane, namespace, "deployments", "rein-router") == 2
    run(plane, version, namespace, "rollback", "rein", "--wait", "--timeout=3m")
    assert replicas(plane, namespace, "statefulsets", "rein-demo") == 2 and replicas(plane, namespace, "deployments", "rein-router") == 1
    run(plane, version, namespace, "test", "rein", "--timeout=2m")
    run(plane, version, namespace, "uninstall", "rein", "--wait", "--timeout=3m")
    done = plane.kubectl("wait", "--for=delete", "pods", "--all", "--timeout=60s", namespace=namespace)
    assert done.returncode == 0, done.stderr
    assert left(plane, namespace) == set()


def test_the_installer_has_no_other_rights(plane):
    for path in ("/api/v1/nodes", "/api/v1/namespaces/kube-system/secrets", "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"):
        with pytest.raises(Exception, match="forbidden"):
            plane.request("GET", path, token=INSTALLER)


def test_a_wrong_image_stops_the_rollout_and_rollback_ends_it(plane, nodes):
    namespace = "stalled"
    plane.make_namespace(namespace)
    values = ["--values", PROFILES["laptop"]]
    run(plane, "4.3.1", namespace, "install", "rein", CHART, *values, "--wait", "--timeout=3m")
    run(plane, "4.3.1", namespace, "upgrade", "rein", CHART, *values, "--set", "image.repository=no-such-image")
    with pytest.raises(AssertionError):
        run(plane, "4.3.1", namespace, "upgrade", "rein", CHART, *values, "--set", "image.repository=no-such-image", "--wait", "--timeout=10s")
    pods = plane.get(f"/api/v1/namespaces/{namespace}/pods")["items"]
    ready = [pod["metadata"]["name"] for pod in pods if "no-such-image" not in pod["spec"]["containers"][0]["image"]]
    # One worker of two waits for its image; the other one, and the old router and controller, serve.
    assert sum(name.startswith("rein-demo-") for name in ready) == 1
    assert {name.split("-")[1] for name in ready} == {"demo", "router", "controller", "etcd"}
    run(plane, "4.3.1", namespace, "rollback", "rein", "1", "--wait", "--timeout=3m")
    sets = plane.get(f"/apis/apps/v1/namespaces/{namespace}/statefulsets/rein-demo")
    assert sets["status"]["readyReplicas"] == 2
    run(plane, "4.3.1", namespace, "uninstall", "rein", "--wait")


def beyond(pod):
    """What Pod Security `restricted` refuses in a pod of the chart, in its words."""
    spec = pod["spec"]
    found = set()
    if any("hostPath" in volume for volume in spec.get("volumes", [])):
        found |= {"restricted volume types"}
    if spec.get("hostNetwork"):
        found |= {"host namespaces", "hostPort"}
    if any("IPC_LOCK" in container["securityContext"]["capabilities"].get("add", []) for container in spec["containers"]):
        found |= {"unrestricted capabilities"}
    return found


def test_pod_security_admits_every_pod_but_those_that_ask_for_more(plane):
    plane.make_namespace("security")
    kinds = set()
    for name in CASES:
        for owner, pod in pod_templates(name):
            pod = copy.deepcopy(pod)
            spec = {**pod["spec"]}
            # Objects that a pod refers to, and that admission of pods would look up.
            for key in ("priorityClassName", "runtimeClassName", "serviceAccountName"):
                spec.pop(key, None)
            volumes = spec.get("volumes", [])
            if any(mount["name"] == "weights" for container in spec["containers"] for mount in container.get("volumeMounts", [])) and not any(volume["name"] == "weights" for volume in volumes):
                # Of a claim template.
                spec["volumes"] = [*volumes, {"name": "weights", "emptyDir": {}}]
            body = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "pod", "labels": pod["metadata"]["labels"]}, "spec": spec}
            expected = beyond(body)
            kinds |= expected
            try:
                plane.request("POST", "/api/v1/namespaces/security/pods?dryRun=All&fieldValidation=Strict", body).close()
                refused = set()
            except Exception as error:
                text = str(error)
                assert "violates PodSecurity" in text, (name, owner, text)
                reasons = json.loads(text.partition(": ")[2])["message"].partition('"restricted:latest": ')[2]
                refused = {reason.partition(" (")[0].strip() for reason in reasons.split("), ")}
            assert refused == expected, (name, owner)
    assert kinds == {"restricted volume types", "host namespaces", "hostPort", "unrestricted capabilities"}


@pytest.mark.parametrize("name", CASES)
def test_the_api_server_accepts_every_object(plane, name):
    """With strict validation of fields, also of the custom resources."""
    namespace = f"accept-{name}"
    plane.make_namespace(namespace, "privileged")
    # One case names it.
    plane.post(f"/api/v1/namespaces/{namespace}/serviceaccounts", {"metadata": {"name": "serving"}})
    done = template("4.3.1", CASES[name], "1.36.0")
    text = done.stdout.replace("namespace: llm", f"namespace: {namespace}")
    applied = plane.kubectl("apply", "--dry-run=server", "--validate=strict", "-f", "-", namespace=namespace, stdin=text)
    assert applied.returncode == 0, applied.stderr
    assert applied.stdout.count("created (server dry run)") == sum(1 for one in yaml.safe_load_all(text) if one)
