"""Readiness of workers and routers, as Kubernetes checks it: over grpc.health.v1 and HTTP."""
import http.client
import json
import re
import shutil
import signal
import time

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

from certificates import certificates
from fleet import DEMO, Fleet, Load, free_ports, request, targets, until

SERVING, NOT_SERVING = health_pb2.HealthCheckResponse.SERVING, health_pb2.HealthCheckResponse.NOT_SERVING
ENGINE = "rein.internal.v1.Engine"


@pytest.fixture
def fleet(tmp_path):
    fleet = Fleet(tmp_path, workers=3, group_size=2, routers=0, worker_args=["--http", "127.0.0.1:0"])
    try:
        yield fleet
    finally:
        fleet.close()


def health(fleet, worker, service=""):
    address = fleet.status()["workers"][worker]["address"]
    with grpc.insecure_channel(address) as channel:
        request = health_pb2.HealthCheckRequest(service=service)
        return health_pb2_grpc.HealthStub(channel).Check(request, timeout=10).status


def get(fleet, process, path):
    address = re.search(r"http listening on http://(\S+)", (fleet.directory / f"{process}.log").read_text())[1]
    connection = http.client.HTTPConnection(address, timeout=10)
    connection.request("GET", path)
    response = connection.getresponse()
    return response.status, response.read().decode()


def test_a_worker_is_ready_if_it_is_in_use_or_a_spare(fleet):
    status = fleet.whole(1)
    [group] = status["groups"].values()
    leader, follower = (rank["worker"] for rank in group["ranks"])
    [spare] = set(status["workers"]) - {leader, follower}
    # Without registered routers a leader does not wait for one. A spare is ready after some time without a seat.
    for worker in (leader, follower, spare):
        until(worker, lambda: health(fleet, worker) == SERVING)
        assert health(fleet, worker, ENGINE) == SERVING
        ready, why = get(fleet, worker, "/ready")
        assert ready == 200, why
    with pytest.raises(grpc.RpcError) as error:
        health(fleet, leader, "another")
    assert error.value.code() == grpc.StatusCode.NOT_FOUND
    # A registered router that does not connect.
    nobody = {"http": "", "grpc": "", "in_flight": 0, "draining": False}
    fleet.etcdctl("put", "/rein/test/routers/nobody", json.dumps(nobody))
    until("not ready without a router", lambda: health(fleet, leader, ENGINE) == NOT_SERVING)
    ready, why = get(fleet, leader, "/ready")
    assert ready == 503 and json.loads(why)["why"] == "leader, but no router is connected yet"
    assert health(fleet, follower) == SERVING and health(fleet, spare) == SERVING
    # One connected router is enough.
    fleet.ports["r0"] = tuple(free_ports(2))
    fleet.start("r0")
    until("ready with a router", lambda: health(fleet, leader) == SERVING)
    fleet.whole(1)
    status, metrics = get(fleet, leader, "/metrics")
    assert status == 200 and f'rein_worker_ready{{worker="{leader}",standing="leads"}} 1' in metrics
    assert f'rein_worker_routers{{worker="{leader}"}} 1' in metrics
    assert f'rein_worker_epoch{{worker="{leader}"}} {group["epoch"]}' in metrics
    assert get(fleet, follower, "/health")[0] == 200
    # The spare takes the follower's seat and becomes ready in its new role.
    fleet.kill(follower)
    until("the spare follows", lambda: 'standing="follows"} 1' in get(fleet, spare, "/metrics")[1])
    until("the leader is ready again", lambda: health(fleet, leader) == SERVING)
    assert health(fleet, spare) == SERVING


@pytest.mark.skipif(shutil.which("openssl") is None, reason="no openssl")
def test_with_mutual_tls_only_peers_can_check_health(tmp_path):
    fleet = Fleet(tmp_path, workers=1, group_size=1, routers=1, more=certificates(tmp_path))
    try:
        address = fleet.whole(1)["workers"]["w0"]["address"]
        ca, key, chain = ((tmp_path / name).read_bytes() for name in ("ca.pem", "peer.key", "peer.pem"))
        request = health_pb2.HealthCheckRequest(service=ENGINE)
        for mine, accepted in [((key, chain), True), ((None, None), False)]:
            credentials = grpc.ssl_channel_credentials(ca, *mine)
            name = [("grpc.ssl_target_name_override", "rein-peer")]
            with grpc.secure_channel(address, credentials, name) as channel:
                check = health_pb2_grpc.HealthStub(channel).Check
                if accepted:
                    until("ready", lambda: check(request, timeout=10).status == SERVING, timeout=5)
                else:
                    with pytest.raises(grpc.RpcError):
                        check(request, timeout=10)
    finally:
        fleet.close()


def test_a_router_is_ready_once_it_can_serve_and_stays_ready_if_one_of_its_models_is_removed(tmp_path):
    fleet = Fleet(tmp_path, workers=0, group_size=1, routers=1)
    try:
        until("it listens", lambda: fleet.get("r0", "/health") == 200)
        fleet.wait("it is registered", lambda status: "r0" in status["routers"] and status["controller"])
        assert fleet.get("r0", "/ready") == 503, "there is no worker"
        fleet.start("w0")
        fleet.whole(1)
        assert fleet.get("r0", "/ready") == 200
        # Removing one model does not make the router unready, because it still serves the other.
        fleet.model = shutil.copytree(DEMO, tmp_path / "retired")
        fleet.start("w1")
        fleet.whole(2)
        until("two models", lambda: fleet.metric("r0", "rein_engines", model="retired", standing="serving") == 1)
        assert fleet.get("r0", "/ready") == 200
        fleet.signal("w1", signal.SIGTERM)
        gone, not_ready = None, 0
        while gone is None or time.monotonic() < gone + 4:  # longer than a lease
            not_ready += fleet.get("r0", "/ready") != 200
            if gone is None and fleet.processes["w1"].poll() is not None:
                gone = time.monotonic()
            time.sleep(0.05)
        [answer] = Load(targets(fleet), [request(1)]).join()
        assert answer.ok, answer.error
        assert fleet.metric("r0", "rein_engines", model="retired", standing="serving") == 0
        assert not_ready == 0, f"not ready {not_ready} times"
    finally:
        fleet.close()
