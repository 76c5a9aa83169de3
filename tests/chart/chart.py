"""Renders the chart with both helms. scripts/setup.sh puts helm and kubectl into .tools/kube."""
import functools
import json
import os
import pathlib
import subprocess
import tempfile

import yaml

REPOSITORY = pathlib.Path(__file__).resolve().parents[2]
CHART = REPOSITORY / "helm/rein"
KUBE = REPOSITORY / ".tools/kube"
BIN = os.environ.get("REIN_BIN", str(REPOSITORY / "target/debug/rein"))
HELMS = {"3.17.2": KUBE / "helm-3.17.2", "4.3.1": KUBE / "helm-4.3.1"}
# The release and namespace of every rendering.
RELEASE, NAMESPACE = "rein", "llm"
# Without --kube-version each helm assumes the version that it was built for.
KUBERNETES = "1.36.0"


def helm(version, *arguments):
    with tempfile.TemporaryDirectory() as home:
        environment = {**os.environ, **{f"HELM_{kind}_HOME": home for kind in ("CACHE", "CONFIG", "DATA")}}
        return subprocess.run([HELMS[version], *map(str, arguments)], capture_output=True, text=True, env=environment)


def template(version, values, kubernetes=KUBERNETES, release=RELEASE):
    """Runs `helm template` with a values file or a dictionary."""
    with tempfile.NamedTemporaryFile("w", suffix=".yaml") as file:
        if isinstance(values, dict):
            json.dump(values, file)
            file.flush()
            values = file.name
        options = ["--namespace", NAMESPACE, "--kube-version", kubernetes, "--values", values]
        return helm(version, "template", release, CHART, *options)


@functools.cache
def rendered(version, name, kubernetes=KUBERNETES):
    """The documents of a case as text. The helms differ in the empty lines between documents, which are left out."""
    from cases import CASES
    done = template(version, CASES[name], kubernetes)
    assert done.returncode == 0, f"{name}: {done.stderr}"
    return [text.strip("\n") for text in ("\n" + done.stdout).split("\n---\n") if text.strip()]


@functools.cache
def objects(name, kubernetes=KUBERNETES):
    return [yaml.safe_load(text) for text in rendered("4.3.1", name, kubernetes)]


def of_kind(name, kind):
    return [one for one in objects(name) if one["kind"] == kind]


def pod_templates(name, kubernetes=KUBERNETES):
    """(name of the object, pod template) of everything that makes pods."""
    for one in objects(name, kubernetes):
        path = {"Deployment": ["template"], "StatefulSet": ["template"], "LeaderWorkerSet": ["leaderWorkerTemplate", "workerTemplate"]}.get(one["kind"])
        if path:
            spec = one["spec"]
            for key in path:
                spec = spec[key]
            yield one["metadata"]["name"], spec
        elif one["kind"] == "Pod":
            yield one["metadata"]["name"], one


def containers(name, kubernetes=KUBERNETES):
    for owner, pod in pod_templates(name, kubernetes):
        for container in pod["spec"].get("initContainers", []) + pod["spec"]["containers"]:
            yield owner, pod, container


def rein_containers(name):
    """(owner, command of rein, container) of containers that run `rein`."""
    for owner, _, container in containers(name):
        if container["name"] in ("router", "controller", "worker", "samples", "verify"):
            yield owner, container["args"][0], container
