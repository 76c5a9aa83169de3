"""What a router does beyond one attempt per request, and what it hands on, seen in a cluster of real processes."""
import contextlib
import http.client
import json
import signal

from fleet import Fleet, Load, assert_unnoticed, request, targets, undisturbed_answers


@contextlib.contextmanager
def cluster(directory, workers, more):
    fleet = Fleet(directory, workers=workers, group_size=1, routers=1, more=more)
    try:
        yield fleet, fleet.whole(workers)
    finally:
        fleet.close()


def test_a_silent_worker_is_hedged_before_it_counts_as_dead(tmp_path):
    requests = [{**request(i), "max_tokens": 120} for i in range(6)]
    with cluster(tmp_path, 2, {"REIN_HEDGE_AFTER": "100", "REIN_POLICY": "round-robin"}) as (fleet, _):
        undisturbed = undisturbed_answers(fleet, requests)
        counted = fleet.metric("r0", "rein_generated_tokens_total")
        before = fleet.metric("r0", "rein_hedges_won_total")
        fleet.signal("w1", signal.SIGSTOP)
        assert_unnoticed(Load(targets(fleet), requests).join(), undisturbed)
        assert fleet.metric("r0", "rein_hedges_won_total") > before
        assert fleet.metric("r0", "rein_generated_tokens_total") == 2 * counted


def test_the_clients_trace_goes_on_without_a_collector(tmp_path):
    trace, parent = "4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7"
    with cluster(tmp_path, 1, {"REIN_LOG": "info,rein_worker=debug", "REIN_LOG_FORMAT": "json"}) as (fleet, _):
        host, port = targets(fleet)[0]
        connection = http.client.HTTPConnection(host, port, timeout=60)
        headers = {"content-type": "application/json", "traceparent": f"00-{trace}-{parent}-01"}
        connection.request("POST", "/v1/chat/completions", json.dumps({**request(1), "stream": False}), headers)
        assert connection.getresponse().status == 200
        for process, message in [("r0", "generation over"), ("w0", "admitted")]:
            lines = [json.loads(line) for line in fleet.log(process).splitlines() if line.startswith("{")]
            [line] = [line for line in lines if line["fields"].get("message") == message]
            assert line["span"]["trace_id"] == trace
