"""Every rendering is the same under both helms, valid in several versions of Kubernetes, and needs no cluster rights."""
import json
import subprocess

import kubernetes_validate
import pytest
import yaml

from cases import CASES, PROFILES
from chart import CHART, HELMS, NAMESPACE, REPOSITORY, containers, helm, objects, of_kind, pod_templates, rendered, template

VERSIONS = ("1.34", "1.36", "1.37")
# All of them are namespaced, none is a role.
KINDS = {
    "ConfigMap", "Deployment", "HorizontalPodAutoscaler", "Ingress", "NetworkPolicy", "Pod", "PodDisruptionBudget", "ResourceClaimTemplate", "Service",
    "StatefulSet",
}
CUSTOM_KINDS = {"Certificate", "GRPCRoute", "HTTPRoute", "LeaderWorkerSet", "PrometheusRule", "ScaledObject", "ServiceMonitor"}


@pytest.mark.parametrize("name", CASES)
def test_both_helms_render_the_same(name):
    assert rendered("3.17.2", name) == rendered("4.3.1", name)


@pytest.mark.parametrize("version", HELMS)
@pytest.mark.parametrize("path", PROFILES.values(), ids=list(PROFILES))
def test_lint(version, path):
    done = helm(version, "lint", "--strict", CHART, "--values", path, "--kube-version", "1.36.0")
    assert done.returncode == 0, done.stdout + done.stderr


def kubernetes_of(version, name):
    """Image volumes are refused before 1.35; such a case is rendered for 1.36 and checked against all versions."""
    uses_images = any("image" in volume for _, pod in pod_templates(name) for volume in pod["spec"].get("volumes", []))
    return f"{version}.0" if version >= "1.35" or not uses_images else "1.36.0"


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("name", CASES)
def test_objects_are_valid(name, version):
    for one in objects(name, kubernetes_of(version, name)):
        if one["kind"] not in CUSTOM_KINDS:
            kubernetes_validate.validate(one, version, strict=True)


def test_the_validation_refuses_an_unknown_field():
    broken = yaml.safe_load(rendered("4.3.1", "laptop")[0])
    broken["spec"]["nosuchfield"] = 1
    with pytest.raises(kubernetes_validate.ValidationError):
        kubernetes_validate.validate(broken, VERSIONS[0], strict=True)


CHECK_CUSTOM = """
const { createRequire } = await import("node:module");
const require = createRequire(process.argv[1] + "/.tools/kube/");
const { pathToFileURL } = await import("node:url");
const packages = { "keda.sh": "keda", "gateway.networking.k8s.io": "gateway-api", "monitoring.coreos.com": "prometheus-operator", "cert-manager.io": "cert-manager" };
const objects = JSON.parse(require("node:fs").readFileSync(0, "utf8"));
for (const object of objects) {
  const [group, version] = object.apiVersion.split("/");
  const folder = process.argv[1] + "/.tools/kube/node_modules/@kubernetes-models/" + packages[group];
  const module = await import(pathToFileURL(`${folder}/${group}/${version}/${object.kind}.js`));
  try { new module[object.kind](object).validate(); } catch (error) { console.log(`${object.kind} ${object.metadata.name}: ${error.message}`); }
}
"""


def check_custom(objects):
    done = subprocess.run(["node", "--input-type=module", "-e", CHECK_CUSTOM, str(REPOSITORY)], input=json.dumps(objects), capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_custom_objects_satisfy_their_schemas():
    """make test-kube checks LeaderWorkerSets, whose schema npm does not have."""
    custom = [one for name in CASES for one in objects(name) if one["kind"] in CUSTOM_KINDS - {"LeaderWorkerSet"}]
    assert {one["kind"] for one in custom} == CUSTOM_KINDS - {"LeaderWorkerSet"}
    assert check_custom(custom) == ""
    for one in {one["kind"]: one for one in custom}.values():
        broken = {**one, "spec": {**one["spec"], "nosuchfield": 1}}
        wrong = {**one, "spec": {key: 1 for key in one["spec"]}}
        assert check_custom([wrong]), broken["kind"]


@pytest.mark.parametrize("name", CASES)
def test_no_cluster_rights_are_needed(name):
    for one in objects(name):
        assert one["kind"] in KINDS | CUSTOM_KINDS, one["kind"]
        assert one["metadata"].get("namespace", NAMESPACE) == NAMESPACE
    assert not list(CHART.glob("crds"))


@pytest.mark.parametrize("name", CASES)
def test_pods_are_restricted(name):
    """What Pod Security `restricted` asks for; only host paths, the host network and IPC_LOCK may go beyond it."""
    for _, pod in pod_templates(name):
        spec = pod["spec"]
        assert spec["automountServiceAccountToken"] is False and spec["enableServiceLinks"] is False
        assert spec["securityContext"]["runAsNonRoot"] and spec["securityContext"]["runAsUser"] == 65532
        assert spec["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
    rdma = {model["name"] for model in models(name) if model.get("rdma")}
    writable = {model["name"] for model in models(name) if model.get("readOnlyRootFilesystem") is False}
    for _, pod, container in containers(name):
        security, model = container["securityContext"], pod["metadata"]["labels"].get("rein/model")
        assert security["allowPrivilegeEscalation"] is False and security["capabilities"]["drop"] == ["ALL"]
        added = ["IPC_LOCK"] if model in rdma and container["name"] == "worker" else None
        assert security["capabilities"].get("add") == added
        assert security["readOnlyRootFilesystem"] is (model not in writable)


def models(name):
    values = CASES[name] if isinstance(CASES[name], dict) else yaml.safe_load(CASES[name].read_text())
    return values.get("models", [])


def test_replicas_are_left_out_where_something_scales():
    sets = {one["metadata"]["name"]: one["spec"] for one in of_kind("autoscaling", "StatefulSet")}
    assert "replicas" not in sets["rein-demo"] and "replicas" not in sets["rein-asleep"]
    assert "replicas" not in of_kind("autoscaling", "Deployment")[1]["spec"]
    assert of_kind("laptop", "StatefulSet")[1]["spec"]["replicas"] == 2


def test_budgets_are_for_more_than_one_pod():
    assert of_kind("one-of-each", "PodDisruptionBudget") == []
    names = {one["metadata"]["name"] for one in of_kind("fleet", "PodDisruptionBudget")}
    assert names == {f"rein-{part}" for part in ("router", "controller", "kimi-k2-thinking", "qwen3-235b-a22b", "qwen3-30b-a3b")}


def test_budgets_and_services_select_pods():
    for name in CASES:
        labels = [pod["metadata"]["labels"] for _, pod in pod_templates(name)]
        for one in objects(name):
            selector = {"Service": lambda spec: spec["selector"], "NetworkPolicy": lambda spec: spec["podSelector"]["matchLabels"], "PodDisruptionBudget": lambda spec: spec["selector"]["matchLabels"]}.get(one["kind"])
            if not selector or (one["metadata"]["name"].endswith("-workers") and not models(name)):
                continue
            assert any(selector(one["spec"]).items() <= pod.items() for pod in labels), (name, one["kind"], one["metadata"]["name"])


def test_a_group_of_pods_is_a_set_with_a_domain():
    sets = {one["metadata"]["name"]: one["spec"] for one in of_kind("groups-of-pods", "StatefulSet")}
    for group in range(3):
        spec = sets[f"rein-pair-g{group}"]
        assert spec["replicas"] == 2 and spec["podManagementPolicy"] == "Parallel"
        assert f"--domain=rein-pair-g{group}" in spec["template"]["spec"]["containers"][0]["args"]
        # updateGroups: 1 holds the others back.
        assert spec["updateStrategy"].get("rollingUpdate", {}).get("partition") == (2 if group else None)
    assert sets["rein-pair-spare"]["replicas"] == 2
    assert not any(flag.startswith("--domain") for flag in sets["rein-pair-spare"]["template"]["spec"]["containers"][0]["args"])


def test_the_pods_of_a_group_are_replaced_together_from_1_37_on():
    def most(kubernetes):
        sets = [one["spec"]["updateStrategy"] for one in objects("groups-of-pods", kubernetes) if one["metadata"]["name"] == "rein-pair-g0"]
        return sets[0].get("rollingUpdate", {}).get("maxUnavailable")

    assert [most(version) for version in ("1.34.0", "1.35.3", "1.36.0", "1.37.0")] == [None, None, None, 2]


def test_a_leader_worker_set_keeps_the_weights_of_survivors():
    spec = of_kind("leader-worker-sets", "LeaderWorkerSet")[0]["spec"]
    assert spec["replicas"] == 2 and spec["startupPolicy"] == "LeaderCreated"
    assert spec["leaderWorkerTemplate"]["size"] == 2 and spec["leaderWorkerTemplate"]["restartPolicy"] == "None"
    worker = spec["leaderWorkerTemplate"]["workerTemplate"]["spec"]["containers"][0]
    assert "--domain=$(GROUP_KEY)" in worker["args"] and "replicas" not in of_kind("leader-worker-sets", "LeaderWorkerSet")[1]["spec"]
    key = next(one for one in worker["env"] if one["name"] == "GROUP_KEY")
    assert key["valueFrom"]["fieldRef"]["fieldPath"] == "metadata.labels['leaderworkerset.sigs.k8s.io/group-key']"


@pytest.mark.parametrize("name", CASES)
def test_weights_are_mounted_read_only(name):
    for _, _, container in containers(name):
        for mount in container.get("volumeMounts", []):
            if mount["name"] == "weights" and container["name"] == "worker":
                assert mount["readOnly"] is True


def test_shared_memory_counts_in_the_limit():
    _, pod = next((owner, pod) for owner, pod in pod_templates("k2-int4-8-gpus") if owner == "rein-kimi-k2-thinking")
    shm = next(volume for volume in pod["spec"]["volumes"] if volume["name"] == "shm")
    assert shm["emptyDir"] == {"medium": "Memory", "sizeLimit": "8Gi"}
    assert pod["spec"]["containers"][0]["resources"]["limits"]["nvidia.com/gpu"] == "8"


def test_listeners_are_those_of_the_ip_family():
    for name, any_address in (("laptop", "0.0.0.0"), ("ipv6", "[::]")):
        flags = {flag for _, _, container in containers(name) for flag in container.get("args", []) + container.get("command", [])}
        assert {f"--listen={any_address}:7000", f"--mesh={any_address}:7001", f"--http={any_address}:7002", f"--http={any_address}:8000"} <= flags


def test_two_releases_are_two_clusters():
    def clusters(release):
        return {line.strip() for line in template("4.3.1", CASES["laptop"], release=release).stdout.splitlines() if "--cluster=" in line}

    assert clusters("blue") == {'- "--cluster=llm.blue-rein"'} and clusters("green") == {'- "--cluster=llm.green-rein"'}
