"""Whether workers say that they are ready, asked as Kubernetes asks: over grpc.health.v1, and over HTTP."""
import http.client
import json
import re
import shutil
import subprocess
import time

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

from fleet import Fleet, free_ports
from test_cluster import certificates

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


def until(what, holds, timeout=30):
    end = time.monotonic() + timeout
    while not holds():
        assert time.monotonic() < end, what
        time.sleep(0.1)


def test_ready_means_of_use(fleet):
    status = fleet.whole(1)
    [group] = status["groups"].values()
    leader, follower = (rank["worker"] for rank in group["ranks"])
    [spare] = set(status["workers"]) - {leader, follower}
    # No router is there, and nobody waits for one; a spare is ready when it has had no seat for a while.
    for worker in (leader, follower, spare):
        until(worker, lambda: health(fleet, worker) == SERVING)
        assert health(fleet, worker, ENGINE) == SERVING
        ready, why = get(fleet, worker, "/ready")
        assert ready == 200, why
    with pytest.raises(grpc.RpcError) as error:
        health(fleet, leader, "another")
    assert error.value.code() == grpc.StatusCode.NOT_FOUND
    # A router that is registered, and follows nobody.
    nobody = {"http": "", "grpc": "", "in_flight": 0, "draining": False}
    fleet.etcdctl("put", "/rein/test/routers/nobody", json.dumps(nobody))
    until("not ready without a router", lambda: health(fleet, leader, ENGINE) == NOT_SERVING)
    ready, why = get(fleet, leader, "/ready")
    assert ready == 503 and json.loads(why)["why"] == "it leads, and no router follows yet"
    assert health(fleet, follower) == SERVING and health(fleet, spare) == SERVING
    # One that follows: that is enough.
    fleet.ports["r0"] = tuple(free_ports(2))
    fleet.start("r0")
    until("ready with a router", lambda: health(fleet, leader) == SERVING)
    fleet.whole(1)
    status, metrics = get(fleet, leader, "/metrics")
    assert status == 200 and f'rein_worker_ready{{worker="{leader}",standing="leads"}} 1' in metrics
    assert f'rein_worker_routers{{worker="{leader}"}} 1' in metrics
    assert f'rein_worker_epoch{{worker="{leader}"}} {group["epoch"]}' in metrics
    assert get(fleet, follower, "/health")[0] == 200
    # The spare takes the follower's seat: what it is changes, and it is ready again.
    fleet.kill(follower)
    until("the spare follows", lambda: 'standing="follows"} 1' in get(fleet, spare, "/metrics")[1])
    until("the leader is ready again", lambda: health(fleet, leader) == SERVING)
    assert health(fleet, spare) == SERVING


@pytest.mark.skipif(shutil.which("openssl") is None, reason="no openssl")
def test_behind_mutual_tls_health_is_for_peers(tmp_path):
    fleet = Fleet(tmp_path, workers=1, group_size=1, routers=1, more=certificates(tmp_path))
    try:
        address = fleet.whole(1)["workers"]["w0"]["address"]
        ca, key, chain = ((tmp_path / name).read_bytes() for name in ("ca.pem", "peer.key", "peer.pem"))
        request = health_pb2.HealthCheckRequest(service=ENGINE)
        for mine, welcome in [((key, chain), True), ((None, None), False)]:
            credentials = grpc.ssl_channel_credentials(ca, *mine)
            name = [("grpc.ssl_target_name_override", "rein-peer")]
            with grpc.secure_channel(address, credentials, name) as channel:
                check = health_pb2_grpc.HealthStub(channel).Check
                if welcome:
                    until("ready", lambda: check(request, timeout=10).status == SERVING, timeout=5)
                else:
                    with pytest.raises(grpc.RpcError):
                        check(request, timeout=10)
    finally:
        fleet.close()
