"""Wrong values are refused by both helms with the path of the value. The helms word what the schema finds differently."""
import copy
import json
import re
import tomllib

import jsonschema
import pytest

from cases import GPUS, PROFILES, TRIAL, copied, demo, profile
from chart import CHART, HELMS, REPOSITORY, template

GPU = {"engine": "cuda", "devices": [0], "resources": {"limits": {"memory": "64Gi"}}}
KEDA = {"type": "keda", "prometheus": "http://prometheus:9090"}


def one(**model):
    return {**TRIAL, "models": [demo(**model)]}


def capacity(name, **changes):
    """A profile whose first model has other figures, or lacks those that are None."""
    values = profile(name)
    capacity = {**values["models"][0]["capacity"], **changes}
    values["models"][0]["capacity"] = {key: value for key, value in capacity.items() if value is not None}
    return values


def changed(name, **changes):
    values = profile(name)
    values["models"][0].update(changes)
    return values


# What is wrong: the values, the path of the value, and a part of the message if a rule of the chart finds it.
WRONG = {
    "engines beside an etcd": ({**TRIAL, "front": {"engines": ["vllm=http://vllm:8000"], "model": {"inImage": {"path": "/models/demo"}}}}, "front.engines", "need no etcd"),
    "block events of llama-server": ({"front": {"engines": ["llama-server=http://llama:8080#events=5557"]}}, "front.engines.0", None),
    "engines without a model": ({"front": {"engines": ["vllm=http://vllm:8000"]}}, "front.model", "exactly one"),
    "a model without engines": ({**TRIAL, "front": {"servedName": "m"}}, "front.engines", "must list an engine"),
    "an engine of an unknown kind": ({"front": {"engines": ["tgi=http://tgi:80"]}}, "front.engines.0", None),
    # What the schema finds.
    "an unknown value": ({**TRIAL, "routers": {}}, "routers", None),
    "an unknown value inside": ({**TRIAL, "router": {"replica": 2}}, "router.replica", None),
    "no router": ({**TRIAL, "router": {"replicas": 0}}, "router.replicas", None),
    "a number as text": ({**TRIAL, "router": {"replicas": "2"}}, "router.replicas", None),
    "a grace period": ({**TRIAL, "router": {"terminationGracePeriodSeconds": 30}}, "router.terminationGracePeriodSeconds", None),
    "no drain": ({**TRIAL, "router": {"drainSeconds": 0}}, "router.drainSeconds", None),
    "no sleep": ({**TRIAL, "router": {"preStopSeconds": 0}}, "router.preStopSeconds", None),
    "an option that the router does not have": ({**TRIAL, "router": {"options": {"max-sequences": 3}}}, "router.options.max-sequences", None),
    "an option that the chart sets": ({**TRIAL, "router": {"options": {"http": "0.0.0.0:80"}}}, "router.options.http", None),
    "an option with a list": (one(options={"threads": [1]}), "models.0.options.threads", None),
    "a service of an unknown type": ({**TRIAL, "router": {"service": {"type": "ExternalName"}}}, "router.service.type", None),
    "an IP family": ({**TRIAL, "ipFamily": "IPv5"}, "ipFamily", None),
    "a digest": ({**TRIAL, "image": {"digest": "sha256:12"}}, "image.digest", None),
    "a tag in the repository": ({**TRIAL, "image": {"repository": "rein:latest"}}, "image.repository", None),
    "a pull policy": ({**TRIAL, "image": {"pullPolicy": "Sometimes"}}, "image.pullPolicy", None),
    "root": ({**TRIAL, "security": {"runAsUser": 0}}, "security.runAsUser", None),
    "an etcd without a port": ({"etcd": {"endpoints": ["etcd"]}}, "etcd.endpoints.0", None),
    "a cluster name": ({**TRIAL, "cluster": "a/b"}, "cluster", None),
    "a log format": ({**TRIAL, "log": {"format": "xml"}}, "log.format", None),
    "a share of traces": ({**TRIAL, "tracing": {"share": 2}}, "tracing.share", None),
    "six controllers": ({**TRIAL, "controller": {"replicas": 6}}, "controller.replicas", None),
    "a model without a name": ({**TRIAL, "models": [{"source": {"hostPath": {"path": "/m"}}}]}, "models.0.name", None),
    "a model's name": (one(name="Demo_1"), "models.0.name", None),
    "a relative host path": (one(source={"hostPath": {"path": "models"}}), "models.0.source.hostPath.path", None),
    "an image volume without a tag": (one(source={"image": {"reference": "models"}}), "models.0.source.image.reference", None),
    "a command of no words": (one(source={"init": {**copied(emptyDir={"sizeLimit": "1Gi"})["init"], "command": []}}), "models.0.source.init.command", None),
    "a revision with a slash": (one(source={"init": {**copied(emptyDir={"sizeLimit": "1Gi"})["init"], "revision": "a/b"}}), "models.0.source.init.revision", None),
    "an unknown engine": (one(engine="tpu"), "models.0.engine", None),
    "an unknown device": (one(devices=["gpu0"]), "models.0.devices.0", None),
    "no device": (one(devices=[]), "models.0.devices", None),
    "no groups": (one(groups=0), "models.0.groups", None),
    "a negative number of spares": (one(spares=-1), "models.0.spares", None),
    "an unknown workload": (one(workload="job"), "models.0.workload", None),
    "a quantity": (one(shm="8GB"), "models.0.shm", None),
    "a memory limit": (one(resources={"limits": {"memory": "much"}}), "models.0.resources.limits.memory", None),
    "an environment variable's name": (one(env=[{"name": "A-B", "value": "1"}]), "models.0.env.0.name", None),
    "an RDMA resource": (one(rdma={"resource": "ib", "count": 1}), "models.0.rdma.resource", None),
    "an unknown autoscaler": (one(autoscaling={"type": "vpa"}), "models.0.autoscaling.type", None),
    "an address of Prometheus": (one(autoscaling={"type": "keda", "prometheus": "prometheus:9090"}), "models.0.autoscaling.prometheus", None),
    "an issuer without a name": ({**TRIAL, "peerTls": {"enabled": True, "certManager": {"issuerRef": {"kind": "Issuer"}}}}, "peerTls.certManager.issuerRef.name", None),
    "a host with a path": ({**TRIAL, "ingress": {"enabled": True, "hosts": ["example.com/v1"]}}, "ingress.hosts.0", None),
    "a negative weight": ({**TRIAL, "httpRoute": {"weight": -1}}, "httpRoute.weight", None),
    "a share of valid calls": ({**TRIAL, "verify": {"minSchemaAccuracy": 95}}, "verify.minSchemaAccuracy", None),
    # What rules between values find.
    "no etcd": ({}, "etcd.endpoints", "or set etcd.trial to true"),
    "two etcds": ({"etcd": {"trial": True, "endpoints": ["etcd:2379"]}}, "etcd.trial", "must be false"),
    "TLS of the trial": ({"etcd": {"trial": True, "tls": {"secretName": "a"}}}, "etcd.trial", "has neither TLS nor users"),
    "a server name without TLS": ({"etcd": {"endpoints": ["etcd:2379"], "tls": {"serverName": "a"}}}, "etcd.tls.serverName", "needs etcd.tls.secretName"),
    "a user without a password": ({"etcd": {"endpoints": ["etcd:2379"], "auth": {"user": "a"}}}, "etcd.auth.user", "needs etcd.auth.secretName"),
    "a password in the clear": ({"etcd": {"endpoints": ["etcd:2379"], "auth": {"user": "a", "secretName": "b"}}}, "etcd.auth.user", "sent in the clear"),
    "peer TLS without certificates": ({**TRIAL, "peerTls": {"enabled": True}}, "peerTls.secretName", "name a secret"),
    "two peer certificates": ({**TRIAL, "peerTls": {"enabled": True, "secretName": "a", "certManager": {"issuerRef": {"name": "b"}}}}, "peerTls.secretName", "must be empty"),
    "peer certificates without TLS": ({**TRIAL, "peerTls": {"secretName": "a"}}, "peerTls.enabled", "must be true"),
    "a public certificate without a name": ({**TRIAL, "publicTls": {"enabled": True, "certManager": {"issuerRef": {"name": "b"}}}}, "publicTls.dnsNames", "must list"),
    "fewest above most routers": ({**TRIAL, "router": {"autoscaling": {"enabled": True, "minReplicas": 9, "maxReplicas": 3}}}, "router.autoscaling.minReplicas", "at most"),
    "a share of no CPU": ({**TRIAL, "router": {"autoscaling": {"enabled": True}, "resources": {"requests": {"cpu": None}}}}, "router.resources.requests.cpu", "must be set"),
    "a variable of the chart": ({**TRIAL, "router": {"env": [{"name": "A", "value": "1"}, {"name": "REIN_HTTP", "value": ":80"}]}}, "router.env[1].name", "is set by the chart"),
    "a variable of a worker": (one(env=[{"name": "POD_IP", "value": "::1"}]), "models[0].env[0].name", "is set by the chart"),
    "an ingress without hosts": ({**TRIAL, "ingress": {"enabled": True}}, "ingress.hosts", "at least one"),
    "a route without a gateway": ({**TRIAL, "httpRoute": {"enabled": True}}, "httpRoute.parentRefs", "must name a Gateway"),
    "a route to TLS": ({**TRIAL, "grpcRoute": {"enabled": True, "parentRefs": [{"name": "a"}]}, "publicTls": {"enabled": True, "secretName": "a"}}, "grpcRoute.enabled", "ends TLS"),
    "a Prometheus that is kept out": ({**TRIAL, "monitoring": {"serviceMonitor": {"enabled": True}}}, "networkPolicy.prometheus", "must select"),
    "two models of one name": ({**TRIAL, "models": [demo(), demo(servedName="b")]}, "models[1].name", "taken"),
    "a model named as a part of the chart": (one(name="router"), "models[0].name", "taken"),
    "two models with one served name": ({**TRIAL, "models": [demo(), demo(name="b", servedName="demo")]}, "models[1].servedName", "served by models[0]"),
    "a name that is too long": ({**one(name="m" * 40), "fullnameOverride": "a" * 20}, "models[0].name", "at most 52"),
    "too few ranks": (one(podsPerGroup=2, ranks=1), "models[0].ranks", "must be 2"),
    "a leader-worker set of one": (one(workload="lws"), "models[0].workload", "several pods"),
    "update by group of one pod": (one(updateGroups=1), "models[0].updateGroups", "several pods"),
    "more updated groups than groups": (one(podsPerGroup=2, ranks=2, groups=2, updateGroups=3), "models[0].updateGroups", "at most"),
    "two sources": (one(source={"hostPath": {"path": "/m"}, "pvc": {"claimName": "c"}}), "models[0].source", "exactly one"),
    "no source": (one(source={}), "models[0].source", "got none"),
    "a download without a volume": (one(source={"hub": {"model": "acme/a"}}), "models.0.source.hub", None),
    "a model of the Hub that is a path": (one(source={"hub": {"model": "/acme/a", "volume": {"emptyDir": {"sizeLimit": "1Gi"}}}}), "models.0.source.hub.model", None),
    "two volumes for a download": (one(source={"hub": {"model": "acme/a", "volume": {"emptyDir": {"sizeLimit": "1Gi"}, "pvc": {"claimName": "a"}}}}), "models[0].source.hub.volume", "exactly one"),
    "a claim for downloads in a leader-worker set": (one(source={"hub": {"model": "acme/a", "volume": {"claimTemplate": {"size": "1Gi"}}}}, workload="lws", podsPerGroup=2, ranks=2), "models[0].source.hub.volume.claimTemplate", "needs workload statefulset"),
    "two volumes for a copy": (one(source=copied(emptyDir={"sizeLimit": "1Gi"}, hostPath={"path": "/m"})), "models[0].source.init.volume", "exactly one"),
    "a claim in a leader-worker set": (one(source=copied(claimTemplate={"size": "1Gi"}), workload="lws", podsPerGroup=2, ranks=2), "models[0].source.init.volume.claimTemplate", "needs workload statefulset"),
    "a CPU of the CUDA engine": (one(engine="cuda", devices=["cpu"]), "models[0].devices[0]", "index of a GPU"),
    "a GPU of the CPU engine": (one(devices=[0]), "models[0].devices[0]", "must be cpu"),
    "a GPU twice": (one(**{**GPU, "devices": [0, 0], "ranks": 2}), "models[0].devices[1]", "twice"),
    "GPUs by hand": (one(**{**GPU, "resources": {"limits": {"memory": "64Gi", "nvidia.com/gpu": 2}}}), "models[0].resources.limits[nvidia.com/gpu]", "computed"),
    "claims of CPUs": (one(resourceClaims=[{"name": "g", "deviceClassName": "c", "count": 1}]), "models[0].resourceClaims", "engine cuda"),
    "a claim of nothing": (one(**GPU, resourceClaims=[{"name": "g"}]), "models[0].resourceClaims[0]", "exactly one"),
    "a claim without a count": (one(**GPU, resourceClaims=[{"name": "g", "deviceClassName": "c"}]), "models[0].resourceClaims[0].count", "both or none"),
    "a claim that pods share": (one(**GPU, groups=2, resourceClaims=[{"name": "g", "resourceClaimName": "c"}]), "models[0].resourceClaims[0].resourceClaimName", "use a template"),
    "too few claimed devices": (one(**{**GPU, "devices": [0, 1], "ranks": 2}, resourceClaims=[{"name": "g", "deviceClassName": "c", "count": 1}]), "models[0].resourceClaims", "ask for 1"),
    "shared memory without a limit": (one(engine="cuda", devices=[0]), "models[0].resources.limits.memory", "must be set"),
    "shared memory above the limit": (one(engine="cuda", devices=[0], resources={"limits": {"memory": "8Gi"}}), "models[0].shm", "must be less"),
    "a scaled set of groups": (one(podsPerGroup=2, ranks=2, autoscaling=KEDA), "models[0].autoscaling.type", "workload lws only"),
    "spares of a scaled model": (one(spares=1, autoscaling=KEDA), "models[0].spares", "must be 0"),
    "fewest above most groups": (one(autoscaling={**KEDA, "minReplicas": 3, "maxReplicas": 2}), "models[0].autoscaling.minReplicas", "at most"),
    "HPA to zero": (one(autoscaling={"type": "hpa", "minReplicas": 0}), "models[0].autoscaling.minReplicas", "keda scales to 0"),
    "KEDA without Prometheus": (one(autoscaling={"type": "keda"}), "models[0].autoscaling.prometheus", "must be the URL"),
    "spares of one model only": ({**TRIAL, "models": [demo(spares=1), demo(name="b")]}, "models[1].spares", "must be 1"),
    # What does not fit.
    "a context without a length": (changed("k2-int4-8-gpus", options={}), "models[0].options.max-context", "must be set"),
    "K2 int4 on GPUs of 80 GB": (capacity("k2-int4-8-gpus", deviceMemory="74.5Gi"), "models[0].capacity", "does not fit"),
    "K2 in FP8 with a long context on 8 GPUs": (capacity("k2-fp8-16-gpus", weights="121.20Gi"), "models[0].capacity", "does not fit"),
    "K2 on GPUs of an unknown size": (capacity("k2-int4-8-gpus", deviceMemory=None), "models[0].capacity.deviceMemory", "must be set"),
    "a CPU model in too little memory": (one(options={"max-context": 4096}, capacity={"weights": "11Mi", "tokenBytes": 800}, resources={"limits": {"memory": "12Mi"}}), "models[0].resources.limits.memory", "does not fit"),
    "shared memory that leaves nothing": (one(podsPerGroup=1, **{**GPU, "resources": {"limits": {"memory": "9Gi"}}}, shm="9Gi"), "models[0].shm", "must be less"),
}


def refused_by_schema(version, path, text):
    """Whether the message names the path: `a.b: ...`, or `at '/a/b'`, and for missing or unknown members their parent and name."""
    parent, _, name = path.rpartition(".")
    if version.startswith("3"):
        at = rf"^- {re.escape(path)}: "
        member = rf"^- {re.escape(parent or '(root)')}: .*\b{re.escape(name)}\b"
    else:
        at = rf"at '/{path.replace('.', '/')}'"
        member = rf"at '/?{parent.replace('.', '/')}': .*'{re.escape(name)}'"
    return re.search(at, text, re.M) or re.search(member, text, re.M)


@pytest.mark.parametrize("version", HELMS)
@pytest.mark.parametrize("what", WRONG)
def test_a_wrong_value_is_refused_by_its_path(what, version):
    values, path, message = WRONG[what]
    done = template(version, values)
    assert done.returncode != 0, done.stdout
    if message is None:
        assert refused_by_schema(version, path, done.stderr), done.stderr
    else:
        text = " ".join(done.stderr.split())
        assert f" {path}: " in text and message in text, done.stderr


RULES = {what: case for what, case in WRONG.items() if case[2]}


def both(ours, theirs):
    """The values of two cases together, with the models of both."""
    merged = copy.deepcopy(ours)
    for name, value in theirs.items():
        if isinstance(value, dict) and isinstance(merged.get(name), dict):
            merged[name] = both(merged[name], value)
        elif name == "models":
            merged[name] = [*merged.get(name, []), *value]
        else:
            merged[name] = value
    return merged


@pytest.mark.parametrize("version", HELMS)
def test_all_errors_are_told_at_once(version):
    values = both({
        "etcd": {"trial": True, "endpoints": ["etcd:2379"], "tls": {"serverName": "a"}},
        "router": {"autoscaling": {"enabled": True, "minReplicas": 9, "maxReplicas": 3}, "env": [{"name": "REIN_HTTP", "value": ":80"}]},
        "ingress": {"enabled": True},
        "httpRoute": {"enabled": True},
    }, one(ranks=3, devices=[0, "cpu"], source={}, autoscaling={"type": "keda"}))
    said = template(version, values).stderr.splitlines()
    paths = [match[1] for match in (re.match(r"- (\S+): ", line) for line in said) if match]
    assert paths == [
        "etcd.trial", "etcd.tls.serverName", "router.autoscaling.minReplicas", "router.env[0].name",
        "ingress.hosts", "httpRoute.parentRefs", "models[0].ranks", "models[0].source", "models[0].devices[0]", "models[0].autoscaling.prometheus",
    ], said
    assert f"{len(paths)} values are wrong:" in "\n".join(said)


@pytest.mark.parametrize("what", RULES)
def test_an_error_does_not_hide_or_break_the_next(what):
    """Each case together with the one after it."""
    names = list(RULES)
    ours, theirs = RULES[what], RULES[names[(names.index(what) + 1) % len(names)]]
    said = template("4.3.1", both(ours[0], theirs[0])).stderr
    assert "are wrong:" in said or said.count(": ") >= 3
    for wrong in ("error calling", "nil pointer", "can't evaluate"):
        assert wrong not in said, said


HINTS = tomllib.loads((REPOSITORY / "helm/hints.toml").read_text())


@pytest.mark.parametrize("version", HELMS)
@pytest.mark.parametrize("section", HINTS)
def test_names_of_other_charts_come_with_what_to_write_instead(section, version):
    names = HINTS[section]
    wrong = {name: 4 for name in names}
    values = {"top": {**TRIAL, **wrong}, "model": one(**wrong)}.get(section) or both(TRIAL, {section: wrong})
    said = template(version, values).stderr
    missing = [name for name, text in names.items() if f"unknown name: {text}" not in said]
    assert not missing, said


def arrays(node, path=""):
    if isinstance(node, dict):
        if node.get("type") == "array":
            yield path, node
        for name, part in node.items():
            yield from arrays(part, f"{path}/{name}")


def test_each_list_has_an_example_that_is_valid():
    document = json.loads((CHART / "values.schema.json").read_text())
    lists = dict(arrays(document))
    assert len(lists) > 20
    for path, node in lists.items():
        assert node.get("examples"), f"{path} has no example"
        for example in node["examples"]:
            jsonschema.Draft7Validator({**node, "definitions": document["definitions"]}).validate(example)


def test_an_image_volume_needs_kubernetes_1_35():
    values = one(source={"image": {"reference": "registry.example/model:1"}})
    for version in HELMS:
        assert template(version, values, "1.35.0").returncode == 0
        done = template(version, values, "1.34.9")
        assert "models[0].source.image: image volumes need Kubernetes 1.35" in done.stderr


def test_there_are_enough_wrong_values():
    assert len(WRONG) >= 40 and PROFILES and GPUS
