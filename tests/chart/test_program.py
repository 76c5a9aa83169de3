"""The renderings fit the program: flags, environment, ports, metrics, probes, times of shutdown, and memory."""
import functools
import importlib.util
import json
import os
import re
import signal
import socket
import subprocess
import tempfile
import time
import urllib.request

import pytest
import yaml

from cases import CASES, PROFILES
from chart import BIN, CHART, REPOSITORY, containers, objects, of_kind, pod_templates, rein_containers

spec = importlib.util.spec_from_file_location("chart_script", REPOSITORY / "scripts/chart.py")
chart_script = importlib.util.module_from_spec(spec)
spec.loader.exec_module(chart_script)

@functools.cache
def help_of(command):
    return subprocess.run([BIN, command, "--help"], capture_output=True, text=True, check=True).stdout


def flags_of(command):
    return set(re.findall(r"^\s+(?:-\w, )?--([a-z0-9-]+)", help_of(command), re.M))


@pytest.mark.parametrize("name", CASES)
def test_flags_are_those_of_the_command(name):
    seen = 0
    for _, command, container in rein_containers(name):
        for argument in container["args"][1:]:
            if command == "pull" and not argument.startswith("-"):
                continue
            flag = re.fullmatch(r"--([a-z0-9-]+)(=.*)?", argument)
            assert flag and flag[1] in flags_of(command), (command, argument)
            seen += 1
    # Routers alone, without etcd, need fewer.
    assert seen >= (11 if "front" in values_of(name) else 15)


@pytest.mark.parametrize("command", ["router", "controller", "worker"])
def test_options_are_the_flags_that_the_chart_does_not_set(command):
    schema = json.loads((CHART / "values.schema.json").read_text())
    place = schema["definitions"]["model"] if command == "worker" else schema["properties"][command]
    options = set(place["properties"]["options"]["properties"])
    managed = chart_script.OWN[command] | chart_script.LEFT_OUT[command] | {"help"}
    assert options == flags_of(command) - managed


@pytest.mark.parametrize("name", CASES)
def test_environment_variables_are_known(name):
    known = {"POD_NAME", "POD_IP", "GROUP_KEY", "CUDA_CACHE_PATH"}
    top = subprocess.run([BIN, "--help"], capture_output=True, text=True, check=True).stdout
    mine = {variable["name"] for model in values_of(name).get("models", []) for variable in model.get("env", [])}
    for _, command, container in rein_containers(name):
        text = help_of(command) + top
        for variable in container.get("env", []):
            assert variable["name"] in known | mine or re.search(rf"\b{variable['name']}\b", text), variable["name"]


def values_of(name):
    return CASES[name] if isinstance(CASES[name], dict) else yaml.safe_load(CASES[name].read_text())


@pytest.mark.parametrize("name", CASES)
def test_ports_are_those_that_the_process_listens_on(name):
    for owner, _, container in containers(name):
        ports = {port["containerPort"] for port in container.get("ports", [])}
        flags = container.get("args", []) + container.get("command", [])
        listening = {int(flag.rpartition(":")[2]) for flag in flags if re.match(r"--(listen|mesh|http|grpc|listen-client-urls)=", flag)}
        assert ports == listening, owner
        names = {port["name"] for port in container.get("ports", [])}
        for probe in (container.get("readinessProbe"), container.get("livenessProbe")):
            assert probe is None or probe["httpGet"]["port"] in names
    for service in of_kind(name, "Service"):
        for port in service["spec"]["ports"]:
            pods = [pod for _, pod in pod_templates(name) if service["spec"]["selector"].items() <= pod["metadata"]["labels"].items()]
            for container in (container for pod in pods for container in pod["spec"]["containers"]):
                assert port.get("targetPort", port["name"]) in {one["name"] for one in container["ports"]}


@pytest.mark.parametrize("name", CASES)
def test_the_grace_period_covers_sleep_and_drain(name):
    for _, pod in pod_templates(name):
        container = pod["spec"]["containers"][0]
        if container["name"] == "router":
            drain = next(int(flag.partition("=")[2]) for flag in container["args"] if flag.startswith("--drain-seconds="))
            sleep = container["lifecycle"]["preStop"]["sleep"]["seconds"]
            assert sleep >= 1 and pod["spec"]["terminationGracePeriodSeconds"] == sleep + drain + 10
        if container["name"] == "worker":
            assert pod["spec"]["terminationGracePeriodSeconds"] == 60


def metrics_table():
    text = (REPOSITORY / "docs/reference/metrics.md").read_text()
    rows = re.findall(r"^\| `(\w+)` \| (\w+) \| (.*?) \|", text, re.M)
    table = {}
    for metric, kind, labels in rows:
        for suffix in ("_bucket", "_count", "_sum") if kind == "histogram" else ("",):
            table[metric + suffix] = set(re.findall(r"`(\w+)`", labels)) | ({"le"} if suffix == "_bucket" else set())
    return table


def expressions():
    """Every PromQL expression, and external metric with its labels as an expression, of every rendering."""
    for name in CASES:
        for one in objects(name):
            if one["kind"] == "ScaledObject":
                yield from (trigger["metadata"]["query"] for trigger in one["spec"]["triggers"])
            elif one["kind"] == "HorizontalPodAutoscaler":
                for metric in one["spec"]["metrics"]:
                    if metric["type"] == "Pods":
                        yield metric["pods"]["metric"]["name"]
                    if metric["type"] == "External":
                        of = metric["external"]["metric"]
                        yield of["name"] + "{" + ",".join(f'{key}="{value}"' for key, value in of["selector"]["matchLabels"].items()) + "}"
            elif one["kind"] == "PrometheusRule":
                yield from (rule["expr"] for group in one["spec"]["groups"] for rule in group["rules"])
            elif one["kind"] == "ConfigMap":
                for text in one["data"].values():
                    yield from re.findall(r'"expr": "((?:[^"\\]|\\.)*)"', text)


# Labels that Prometheus and the Prometheus operator add.
SCRAPED = {"namespace", "service", "pod", "job", "instance", "cluster", "container", "endpoint"}


def test_metrics_are_in_the_table():
    table = metrics_table()
    found = list(expressions())
    assert len(found) > 10
    for expression in found:
        text = expression.replace('\\"', '"')
        names = re.findall(r"\b((?:rein|process)_\w+)(\{[^}]*\})?", re.sub(r'"[^"]*"', '""', text))
        assert names, expression
        for metric, matchers in names:
            assert metric in table, (metric, expression)
            assert set(re.findall(r"(\w+)\s*(?:=~|!~|!=|=)", matchers)) <= table[metric] | SCRAPED, expression


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def status(url):
    try:
        with urllib.request.urlopen(url, timeout=5) as answer:
            return answer.status
    except urllib.error.HTTPError as error:
        return error.code
    except OSError:
        return None


@pytest.fixture
def etcd():
    port, peers = free_port(), free_port()
    with tempfile.TemporaryDirectory() as directory:
        urls = [f"--listen-client-urls=http://127.0.0.1:{port}", f"--advertise-client-urls=http://127.0.0.1:{port}", f"--listen-peer-urls=http://127.0.0.1:{peers}"]
        process = subprocess.Popen(["etcd", f"--data-dir={directory}", "--log-level=error", *urls])
        yield f"127.0.0.1:{port}"
        process.kill()
        process.wait()


@pytest.mark.parametrize("name, loopback", [("laptop", "127.0.0.1"), ("ipv6", "::1")])
def test_every_probe_path_answers_and_sigterm_ends_in_time(etcd, name, loopback):
    """Runs the processes of a rendering with the flags of their pods, on other ports of the loopback address."""
    at = f"[{loopback}]" if ":" in loopback else loopback
    ports, running = {}, []
    try:
        for owner, command, container in rein_containers(name):
            if command == "verify":
                continue
            def local(argument, ports=ports, owner=owner):
                def listen(match):
                    ports[owner, int(match[1])] = port = free_port()
                    return f"={at}:{port}"
                argument = re.sub(r"=(?:0\.0\.0\.0|\[::\]):(\d+)", listen, argument).replace("$(POD_NAME)", f"{owner}-0").replace("$(POD_IP)", loopback)
                return argument.replace("rein-etcd:2379", etcd).replace("=/models", f"={REPOSITORY}/models")
            environment = {**os.environ, **{variable["name"]: variable["value"] for variable in container["env"] if "value" in variable}, "REIN_LOG": "warn"}
            running.append((owner, container, subprocess.Popen([BIN, *map(local, container["args"])], env=environment, stdout=subprocess.DEVNULL)))
        for owner, container, process in running:
            number = {port["name"]: port["containerPort"] for port in container["ports"]}
            for probe in ("livenessProbe", "readinessProbe"):
                get = container[probe]["httpGet"]
                url = f"http://{at}:{ports[owner, number[get['port']]]}{get['path']}"
                deadline = time.monotonic() + 60
                while status(url) != 200:
                    assert time.monotonic() < deadline and process.poll() is None, (owner, url, status(url))
                    time.sleep(0.1)
        # Workers first: without a controller they wait for their seats in vain, up to 40 s.
        for owner, _, process in reversed(running):
            process.send_signal(signal.SIGTERM)
            assert process.wait(timeout=30) == 0, owner
    finally:
        for _, _, process in running:
            process.kill()
            process.wait()


GIB = 1 << 30


@pytest.mark.parametrize("name, model", [(name, model["name"]) for name in PROFILES for model in values_of(name).get("models", []) if "capacity" in model])
def test_the_memory_of_profiles_is_what_rein_capacity_says(name, model):
    value = next(one for one in values_of(name).get("models", []) if one["name"] == model)
    done = subprocess.run([BIN, "capacity", model, "--gpus", str(value.get("podsPerGroup", 1) * len(value["devices"])), "--json"], capture_output=True, text=True, check=True)
    report = json.loads(done.stdout)
    memory, stated = report["memory"], value["capacity"]
    gib = {key: float(stated.get(key, "0Gi").removesuffix("Gi")) for key in ("weights", "expertRoom", "deviceMemory")}
    assert abs(gib["weights"] - sum(memory["weights"].values()) / GIB) < 0.01
    assert abs(gib["expertRoom"] - memory["moves"] / GIB) < 0.01
    assert abs(gib["deviceMemory"] - report["gpu"]["memory"] / GIB) < 0.05
    assert stated["tokenBytes"] == memory["kv_bytes_per_token"]
    assert value["options"]["max-context"] <= memory["kv_tokens"]
