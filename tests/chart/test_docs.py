"""Commands and values of the pages on Kubernetes work, and name objects that exist."""
import re
import shlex
import subprocess

import pytest
import yaml

from chart import KUBE, KUBERNETES, REPOSITORY, helm, objects, template
from cases import TRIAL

PAGES = sorted((REPOSITORY / "docs/howto").glob("kubernetes*.md"))
BLOCK = re.compile(r"(?:<!-- (?P<note>[^>]*?) -->\n)?```(?P<language>\w+)\n(?P<code>.*?)\n```", re.S)
# Commands of kubectl with names of objects in them.
NAMED = re.compile(r"\b(deployment|statefulset|service|pod)/([a-z0-9-]+)")


def blocks(language):
    for page in PAGES:
        for match in BLOCK.finditer(page.read_text()):
            if match["language"] == language:
                yield page, match["note"] or "", match["code"]


def lines(command):
    return [line for _, _, code in blocks("sh") for line in code.splitlines() if line.startswith(command)]


@pytest.mark.parametrize("line", lines("helm "))
def test_helm_commands_work(line, monkeypatch):
    monkeypatch.chdir(REPOSITORY)
    verb, release, *rest = shlex.split(line)[1:]
    assert release == "rein"
    if verb in ("install", "upgrade"):
        for version in ("3.17.2", "4.3.1"):
            done = helm(version, "template", release, *rest, "--kube-version", KUBERNETES)
            assert done.returncode == 0, done.stderr
    else:
        assert verb in ("test", "rollback", "uninstall") and not rest


@pytest.mark.parametrize("line", [line for line in lines("kubectl ") if NAMED.search(line)])
def test_kubectl_commands_name_objects_of_the_laptop_profile(line):
    kind, name = NAMED.search(line).groups()
    names = {(one["kind"].lower(), one["metadata"]["name"]) for one in objects("laptop")}
    assert (kind, name) in names or (kind == "pod" and ("statefulset", name.rpartition("-")[0]) in names)


@pytest.mark.parametrize("line", lines("kubectl create secret "))
def test_secrets_are_made_from_files(line, tmp_path):
    """The part before the pipe needs no cluster."""
    command, _, rest = line.partition(" | ")
    assert rest == "kubectl apply -f -"
    (tmp_path / "keys.toml").write_text("[[keys]]\n")
    done = subprocess.run([KUBE / "kubectl-1.37", *shlex.split(command)[1:]], cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    made = yaml.safe_load(done.stdout)
    assert (made["kind"], list(made["data"])) == ("Secret", ["keys.toml"])


@pytest.mark.parametrize("code", [code for _, _, code in blocks("yaml")])
def test_examples_of_values_are_accepted(code):
    values = yaml.safe_load(code)
    if not set(values) & {"models", "httpRoute", "etcd"}:
        values = {"models": [{"name": "demo", "source": {"inImage": {"path": "/models/demo"}}, **values}]}
    for model in values.get("models", []):
        model.setdefault("source", {"inImage": {"path": "/models/demo"}})
        if "updateGroups" in model:
            model.update(podsPerGroup=2, ranks=2)
        if "capacity" in model:
            model.update(engine="cuda", devices=[0], options={"max-context": 4096}, resources={"limits": {"memory": "64Gi"}})
    done = template("4.3.1", values if "etcd" in values else {**TRIAL, **values})
    assert done.returncode == 0, done.stderr
    assert len(done.stdout) > 1000


def test_pages_link_each_other():
    for page in PAGES:
        assert all(f"({other.name}" in page.read_text() or other == page for other in PAGES if page.name == "kubernetes.md")


def test_the_wording_of_the_helms_is_that_of_the_page():
    page = (REPOSITORY / "docs/howto/kubernetes-troubleshooting.md").read_text().replace("\n", " ")
    for version in ("3.17.2", "4.3.1"):
        text = template(version, {**TRIAL, "router": {"replicas": 0}}).stderr
        shown = next(line.strip("- ") for line in text.splitlines() if "replicas" in line)
        assert shown in page, shown
