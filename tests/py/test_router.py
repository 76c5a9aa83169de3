"""What a router does beyond one attempt per request, and what it hands on, seen in a cluster of real processes."""
import contextlib
import http.client
import itertools
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


def admitted(fleet, worker):
    """How many sequences a worker has taken so far, as it says itself at level debug."""
    return sum("admitted" in line for line in (fleet.directory / f"{worker}.log").read_text().splitlines())


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


def test_the_requests_of_a_session_go_to_one_worker(tmp_path):
    with cluster(tmp_path, 3, {"REIN_LOG": "info,rein_worker=debug"}) as (fleet, _):
        counter = itertools.count()

        def served(how, session):
            """The workers that took three requests, of which none begins like another."""
            before = {name: admitted(fleet, name) for name in alive}
            for _ in range(3):
                # With a salt of its own a prompt is in nobody's cache.
                body = {**request(1), "stream": False, "max_tokens": 2, "cache_salt": str(next(counter))}
                headers = {"content-type": "application/json"}
                (headers if how == "x-rein-session" else body)[how] = session
                host, port = targets(fleet)[0]
                connection = http.client.HTTPConnection(host, port, timeout=60)
                connection.request("POST", "/v1/chat/completions", json.dumps(body), headers)
                assert connection.getresponse().status == 200
            took = {name: admitted(fleet, name) - before[name] for name in alive}
            assert sum(took.values()) == 3
            return {name for name, count in took.items() if count}

        alive = ["w0", "w1", "w2"]
        homes = {session: served("x-rein-session", session) for session in map(str, range(8))}
        assert all(len(home) == 1 for home in homes.values()) and len(set.union(*homes.values())) == 3, homes
        # Whichever way a session is named, it is the same one.
        assert all(served("prompt_cache_key", session) == homes[session] for session in "012")
        assert all(served("user", session) == homes[session] for session in "345")
        # Without one, requests are spread.
        assert len(set.union(*(served("seed", seed) for seed in range(4)))) > 1
        # When a worker is gone, the sessions of others stay where they are.
        [gone] = homes["0"]
        fleet.kill(gone)
        alive.remove(gone)
        fleet.wait("a group is gone", lambda status: len(status["groups"]) == 2)
        for session, home in homes.items():
            now = served("x-rein-session", session)
            assert len(now) == 1 and (now == home or home == {gone}), (session, home, now)


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
