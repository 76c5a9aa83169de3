"""Nodes without containers: pods that are scheduled on them turn ready at once, and end when they are deleted."""
import datetime
import itertools
import threading

from control_plane import ApiError

RESOURCES = {"cpu": "256", "memory": "4Ti", "pods": "500", "nvidia.com/gpu": "64", "rdma/ib": "64", "ephemeral-storage": "10Ti"}


def now():
    return datetime.datetime.now(datetime.timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ")


class HollowNodes:
    def __init__(self, plane, names=("node-1", "node-2")):
        self.plane, self.names, self.addresses = plane, names, itertools.count(2)
        # Images with this in their name never start.
        self.broken = "no-such-image"
        for number, name in enumerate(names):
            plane.post("/api/v1/nodes", {"metadata": {"name": name, "labels": {"kubernetes.io/hostname": name, "topology.kubernetes.io/zone": f"zone-{number}"}}})
            ready = {"type": "Ready", "status": "True", "reason": "Hollow", "message": "", "lastHeartbeatTime": now(), "lastTransitionTime": now()}
            plane.patch(f"/api/v1/nodes/{name}/status", {"status": {"capacity": RESOURCES, "allocatable": RESOURCES, "conditions": [ready]}})
        self.stopping = threading.Event()
        self.thread = threading.Thread(target=self._run)
        self.thread.start()

    def stop(self):
        self.stopping.set()
        self.thread.join()

    def _run(self):
        while not self.stopping.wait(0.1):
            try:
                for pod in self.plane.get("/api/v1/pods")["items"]:
                    if pod["spec"].get("nodeName") in self.names:
                        self._serve(pod)
            except (ApiError, OSError):
                # A pod was deleted meanwhile, or the API server is busy; the next round sees.
                continue

    def _serve(self, pod):
        path = f"/api/v1/namespaces/{pod['metadata']['namespace']}/pods/{pod['metadata']['name']}"
        if pod["metadata"].get("deletionTimestamp"):
            self.plane.delete(path, grace=0)
        elif pod["status"].get("phase") == "Pending" and not any(self.broken in container["image"] for container in pod["spec"]["containers"]):
            ends = pod["spec"].get("restartPolicy") == "Never"
            state = {"terminated": {"exitCode": 0, "finishedAt": now(), "startedAt": now()}} if ends else {"running": {"startedAt": now()}}
            statuses = [{"name": container["name"], "image": container["image"], "imageID": "", "ready": not ends, "started": not ends, "restartCount": 0, "state": state} for container in pod["spec"]["containers"]]
            conditions = [{"type": kind, "status": "True", "lastTransitionTime": now()} for kind in ("Initialized", "Ready", "ContainersReady", "PodScheduled")]
            address = f"10.0.0.{next(self.addresses)}"
            self.plane.patch(f"{path}/status", {"status": {"phase": "Succeeded" if ends else "Running", "podIP": address, "podIPs": [{"ip": address}], "startTime": now(), "conditions": conditions, "containerStatuses": statuses}})
