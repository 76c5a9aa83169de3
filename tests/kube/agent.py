"""Nodes with containers: each pod has a network namespace and runs under runc, with its probes, hooks and grace period.

It does what a kubelet does for the pods of the chart, and no more. A name of a Service resolves to its pods by /etc/hosts,
since there is neither DNS nor a proxy.
"""
import itertools
import json
import os
import pathlib
import re
import shutil
import ssl
import subprocess
import threading
import time
import urllib.error
import urllib.request

from control_plane import ApiError
from hollow import RESOURCES, now

RUNC = shutil.which("runc", path=os.environ["PATH"] + ":/usr/sbin:/sbin")
NETWORK = "10.213"


def command(*arguments):
    return subprocess.run([*map(str, arguments)], check=True, capture_output=True, text=True).stdout


class Container:
    """One container of a pod: its bundle, its process, and what its probes said last."""

    def __init__(self, agent, pod, spec, is_init=False):
        self.agent, self.pod, self.spec, self.is_init = agent, pod, spec, is_init
        self.process, self.restarts, self.started, self.ready, self.failures, self.liveness = None, 0, None, False, 0, 0
        self.exit = None
        self.number = 0

    def environment(self):
        values = {"PATH": "/usr/local/bin:/usr/bin"}
        for variable in self.spec.get("env", []):
            if "value" in variable:
                values[variable["name"]] = self._expand(variable["value"], values)
            elif "fieldRef" in variable["valueFrom"]:
                values[variable["name"]] = self.pod.field(variable["valueFrom"]["fieldRef"]["fieldPath"])
            else:
                reference = variable["valueFrom"]["secretKeyRef"]
                values[variable["name"]] = self.agent.secret(self.pod.namespace, reference["name"])[reference["key"]].decode()
        return values

    @staticmethod
    def _expand(text, values):
        return re.sub(r"\$\((\w+)\)", lambda match: values.get(match[1], match[0]), text)

    def start(self):
        values = self.environment()
        image = self.agent.images(self.spec["image"])
        words = [*self.spec.get("command", image["command"]), *self.spec.get("args", [])]
        security, pod = self.spec["securityContext"], self.pod.spec["securityContext"]
        mounts = [
            {"destination": "/proc", "type": "proc", "source": "proc"},
            {"destination": "/dev", "type": "tmpfs", "source": "tmpfs", "options": ["nosuid", "mode=755"]},
            {"destination": "/etc/hosts", "type": "bind", "source": str(self.pod.hosts), "options": ["bind", "ro"]},
        ]
        for mount in self.spec.get("volumeMounts", []):
            options = ["rbind", "ro" if mount.get("readOnly") else "rw"]
            mounts.append({"destination": mount["mountPath"], "type": "bind", "source": str(self.pod.volume(mount["name"])), "options": options})
        capabilities = ["CAP_" + name for name in security["capabilities"].get("add", [])]
        config = {
            "ociVersion": "1.0.2",
            "process": {
                "user": {"uid": pod["runAsUser"], "gid": pod["runAsGroup"]},
                "args": [self._expand(word, values) for word in words],
                "env": [f"{name}={value}" for name, value in values.items()],
                "cwd": "/",
                "noNewPrivileges": not security["allowPrivilegeEscalation"],
                "capabilities": {kind: capabilities for kind in ("bounding", "effective", "permitted")} if capabilities else {},
            },
            "root": {"path": str(image["root"]), "readonly": security["readOnlyRootFilesystem"]},
            "mounts": mounts,
            "linux": {"namespaces": [{"type": "pid"}, {"type": "mount"}, {"type": "ipc"}, {"type": "uts"}, {"type": "network", "path": f"/var/run/netns/{self.pod.netns}"}]},
        }
        self.number += 1
        bundle = self.pod.directory / f"{self.spec['name']}-{self.number}"
        bundle.mkdir()
        (bundle / "config.json").write_text(json.dumps(config))
        self.name = f"{self.pod.netns}-{self.spec['name']}-{self.number}"
        log = open(self.pod.directory / f"{self.spec['name']}.log", "a")
        self.process = subprocess.Popen([RUNC, "--root", self.agent.runc, "run", "--bundle", bundle, self.name], stdin=subprocess.DEVNULL, stdout=log, stderr=log)
        self.started, self.ready, self.failures, self.liveness, self.exit = time.monotonic(), False, 0, time.monotonic(), None

    def signal(self, name):
        subprocess.run([RUNC, "--root", self.agent.runc, "kill", self.name, name], capture_output=True)

    def poll(self):
        """Notices an exit; probes if it runs."""
        if self.process is None:
            return
        code = self.process.poll()
        if code is not None:
            if self.exit is None:
                self.exit = code
                self.ready = False
                subprocess.run([RUNC, "--root", self.agent.runc, "delete", "--force", self.name], capture_output=True)
            return
        probe = self.spec.get("readinessProbe")
        if probe is None:
            self.ready = not self.is_init
        elif time.monotonic() - getattr(self, "probed", 0) >= probe.get("periodSeconds", 10):
            self.probed = time.monotonic()
            self.failures = 0 if self._probe(probe) else self.failures + 1
            self.ready = self.failures == 0 or (self.ready and self.failures < probe.get("failureThreshold", 3))
        probe = self.spec.get("livenessProbe")
        if probe and time.monotonic() - getattr(self, "checked", 0) >= probe["periodSeconds"]:
            self.checked = time.monotonic()
            if self._probe(probe):
                self.liveness = time.monotonic()
            elif time.monotonic() - self.liveness > probe["periodSeconds"] * probe["failureThreshold"]:
                self.agent.killed_by_liveness.append(self.name)
                self.signal("KILL")

    def _probe(self, probe):
        port = next(port["containerPort"] for port in self.spec["ports"] if port["name"] == probe["httpGet"]["port"])
        url = f"{probe['httpGet'].get('scheme', 'HTTP').lower()}://{self.pod.address}:{port}{probe['httpGet']['path']}"
        try:
            # As kubelet, whatever the certificate is.
            trust = ssl._create_unverified_context()
            with urllib.request.urlopen(url, timeout=probe.get("timeoutSeconds", 1), context=trust) as answer:
                return 200 <= answer.status < 400
        except OSError:
            return False


class Pod:
    """A thread that starts, watches and ends the containers of one pod."""

    def __init__(self, agent, body):
        self.agent, self.body, self.spec, self.metadata = agent, body, body["spec"], body["metadata"]
        self.namespace, self.uid = self.metadata["namespace"], self.metadata["uid"]
        self.path = f"/api/v1/namespaces/{self.namespace}/pods/{self.metadata['name']}"
        number = next(agent.numbers)
        self.netns = f"{agent.prefix}-{number}"
        # A pod keeps its address if its thread restarts.
        self.address = agent.addresses.setdefault(self.uid, f"{NETWORK}.{number // 250 + 1}.{number % 250 + 2}")
        self.directory = agent.directory / self.netns
        self.directory.mkdir()
        self.hosts = self.directory / "hosts"
        self.hosts.write_text("127.0.0.1 localhost\n")
        self.leaving, self.deadline, self.reported = None, None, None
        self.init = [Container(agent, self, spec, True) for spec in self.spec.get("initContainers", [])]
        self.containers = [Container(agent, self, spec) for spec in self.spec["containers"]]
        self.thread = threading.Thread(target=self._run, name=self.metadata["name"])
        self.thread.start()

    def field(self, path):
        label = re.fullmatch(r"metadata\.labels\['(.*)'\]", path)
        if label:
            return self.metadata["labels"][label[1]]
        return {"metadata.name": self.metadata["name"], "status.podIP": self.address}[path]

    def volume(self, name):
        path = self.directory / "volumes" / name
        if not path.exists():
            path.mkdir(parents=True)
            volume = next(one for one in self.spec["volumes"] if one["name"] == name)
            if "secret" in volume:
                data = self.agent.secret(self.namespace, volume["secret"]["secretName"])
                items = {one["key"]: one["path"] for one in volume["secret"].get("items", [])} or {key: key for key in data}
                for key, file in items.items():
                    (path / file).write_bytes(data[key])
            elif "emptyDir" not in volume:
                raise RuntimeError(f"the agent has no volume of the kind of {volume}")
            for one in [path, *path.iterdir()]:
                os.chown(one, self.spec["securityContext"]["runAsUser"], self.spec["securityContext"]["fsGroup"])
        return path

    def _connect(self):
        command("ip", "netns", "add", self.netns)
        outer, inner = f"{self.netns}o", f"{self.netns}i"
        command("ip", "link", "add", outer, "type", "veth", "peer", "name", inner, "netns", self.netns)
        command("ip", "link", "set", outer, "master", self.agent.bridge, "up")
        for words in (["addr", "add", f"{self.address}/16", "dev", inner], ["link", "set", inner, "up"], ["link", "set", "lo", "up"]):
            command("ip", "-n", self.netns, *words)

    def _run(self):
        try:
            self._connect()
            self._live()
        except Exception as error:
            if not self.agent.stopping.is_set():
                self.agent.errors.append(f"{self.metadata['name']}: {type(error).__name__}: {error}")
        finally:
            for container in self.init + self.containers:
                if container.process is not None and container.process.poll() is None:
                    container.signal("KILL")
                    container.process.wait()
            subprocess.run(["ip", "netns", "del", self.netns], capture_output=True)
            self.agent.pods.pop(self.uid, None)

    def _live(self):
        pending, backoff = list(self.init), 0.0
        while not self.agent.stopping.is_set():
            if self.leaving is not None:
                return self._leave()
            for container in (pending[:1] or self.containers):
                if container.process is None or (container.exit not in (None, 0) or (container.exit == 0 and not container.is_init and self.spec["restartPolicy"] != "Never")):
                    if container.process is None or (self.spec["restartPolicy"] != "Never" and time.monotonic() > backoff):
                        container.restarts += container.process is not None
                        backoff = time.monotonic() + min(10, 2 ** container.restarts)
                        container.start()
                container.poll()
            if pending and pending[0].exit == 0:
                pending.pop(0)
            self._tell(bool(pending))
            time.sleep(0.05)

    def _tell(self, initializing):
        """Reports, or does so the next time."""
        try:
            self._report(initializing)
        except (ApiError, OSError) as error:
            self.agent.errors.append(f"{self.metadata['name']}: {error}")

    def _report(self, initializing):
        ready = not initializing and all(container.ready for container in self.containers)
        ended = self.spec["restartPolicy"] == "Never" and all(container.exit is not None for container in self.containers)
        phase = "Pending" if initializing else "Running"
        if ended:
            phase = "Failed" if any(container.exit for container in self.containers) else "Succeeded"
        state = (phase, ready, tuple(container.restarts for container in self.containers), self.leaving)
        if state == self.reported:
            return
        statuses = []
        for container in self.containers:
            now_running = {"terminated": {"exitCode": container.exit, "startedAt": now(), "finishedAt": now()}} if container.exit is not None else {"running": {"startedAt": now()}} if container.process else {"waiting": {"reason": "PodInitializing"}}
            statuses.append({"name": container.spec["name"], "image": container.spec["image"], "imageID": "", "ready": container.ready, "started": container.process is not None, "restartCount": container.restarts, "state": now_running})
        conditions = [{"type": kind, "status": "True" if value else "False", "lastTransitionTime": now()} for kind, value in (("Initialized", not initializing), ("Ready", ready), ("ContainersReady", ready), ("PodScheduled", True))]
        self.agent.plane.patch(f"{self.path}/status", {"status": {"phase": phase, "podIP": self.address, "podIPs": [{"ip": self.address}], "startTime": now(), "conditions": conditions, "containerStatuses": statuses}})
        self.reported = state

    def _leave(self):
        """preStop, SIGTERM, and SIGKILL at the end of the grace period, which the hook shares."""
        end = time.monotonic() + self.leaving
        running = [container for container in self.init + self.containers if container.process is not None and container.process.poll() is None]
        hooks = [container.spec.get("lifecycle", {}).get("preStop", {}).get("sleep", {}).get("seconds", 0) for container in running]
        wait = time.monotonic() + max(hooks, default=0)
        while time.monotonic() < min(wait, end) and not self.agent.stopping.is_set():
            for container in running:
                container.poll()
            self._tell(False)
            time.sleep(0.05)
        for container in running:
            container.signal("TERM")
        while any(container.process.poll() is None for container in running) and time.monotonic() < end and not self.agent.stopping.is_set():
            for container in running:
                container.poll()
            self._tell(False)
            time.sleep(0.05)
        for container in running:
            if container.process.poll() is None:
                self.agent.killed_by_grace.append(self.metadata["name"])
                container.signal("KILL")
                container.process.wait()
        self.agent.plane.delete(self.path, grace=0)


class Agent:
    """Two nodes on this machine."""

    def __init__(self, plane, directory, images, names=("node-a", "node-b")):
        self.plane, self.directory, self.images = plane, pathlib.Path(directory), images
        self.prefix = f"rk{os.getpid() % 10000}"
        self.bridge, self.runc = f"{self.prefix}br", str(self.directory / "runc")
        self.numbers, self.names, self.pods, self.addresses = itertools.count(), names, {}, {}
        self.errors, self.killed_by_liveness, self.killed_by_grace = [], [], []
        self.stopping = threading.Event()
        command("ip", "link", "add", self.bridge, "type", "bridge")
        command("ip", "addr", "add", f"{NETWORK}.0.1/16", "dev", self.bridge)
        command("ip", "link", "set", self.bridge, "up")
        for number, name in enumerate(names):
            plane.post("/api/v1/nodes", {"metadata": {"name": name, "labels": {"kubernetes.io/hostname": name, "topology.kubernetes.io/zone": f"zone-{number}"}}})
            ready = {"type": "Ready", "status": "True", "reason": "Agent", "message": "", "lastHeartbeatTime": now(), "lastTransitionTime": now()}
            plane.patch(f"/api/v1/nodes/{name}/status", {"status": {"capacity": RESOURCES, "allocatable": RESOURCES, "conditions": [ready]}})
        self.thread = threading.Thread(target=self._run)
        self.thread.start()

    def secret(self, namespace, name):
        import base64
        data = self.plane.get(f"/api/v1/namespaces/{namespace}/secrets/{name}")["data"]
        return {key: base64.b64decode(value) for key, value in data.items()}

    def stop(self):
        self.stopping.set()
        self.thread.join()
        for pod in list(self.pods.values()):
            pod.thread.join()
        subprocess.run(["ip", "link", "del", self.bridge], capture_output=True)

    def _run(self):
        while not self.stopping.wait(0.1):
            try:
                self._sync()
            except (ApiError, OSError) as error:
                self.errors.append(str(error))

    def _sync(self):
        present = set()
        for body in self.plane.get("/api/v1/pods")["items"]:
            if body["spec"].get("nodeName") not in self.names:
                continue
            uid = body["metadata"]["uid"]
            present.add(uid)
            pod = self.pods.get(uid)
            if pod is None:
                if body["metadata"].get("deletionTimestamp"):
                    self.plane.delete(f"/api/v1/namespaces/{body['metadata']['namespace']}/pods/{body['metadata']['name']}", grace=0)
                elif body["status"].get("phase") not in ("Succeeded", "Failed"):
                    self.pods[uid] = Pod(self, body)
            elif body["metadata"].get("deletionTimestamp") and pod.leaving is None:
                pod.leaving = body["metadata"]["deletionGracePeriodSeconds"]
        for uid, pod in list(self.pods.items()):
            if uid not in present and pod.leaving is None:
                pod.leaving = 0
        self._resolve()

    def _resolve(self):
        """Writes the names of Services into the hosts files of pods, in place, since they are mounted."""
        lines = {}
        for piece in self.plane.get("/apis/discovery.k8s.io/v1/endpointslices")["items"]:
            name, namespace = piece["metadata"]["labels"].get("kubernetes.io/service-name"), piece["metadata"]["namespace"]
            for endpoint in piece.get("endpoints") or []:
                if endpoint["conditions"].get("ready"):
                    lines.setdefault(namespace, []).append(f"{endpoint['addresses'][0]} {name}")
        for pod in list(self.pods.values()):
            text = "127.0.0.1 localhost\n" + "".join(f"{line}\n" for line in sorted(lines.get(pod.namespace, [])))
            if pod.hosts.exists() and pod.hosts.read_text() != text:
                pod.hosts.write_text(text)

    def kill(self, name):
        """Kills the process of a pod's first container, as the kernel does when memory runs out."""
        pod = next(pod for pod in self.pods.values() if pod.metadata["name"] == name)
        pod.containers[0].signal("KILL")
