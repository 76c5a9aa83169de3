"""A worker that forms a group alone loses etcd: no peer can report that it is alive, and still no stream may be disturbed."""
import time

import pytest

from fleet import Load, assert_unnoticed, request, targets, undisturbed_answers, until
from networks import Networks, possible

# Spread so that some streams are open whenever the lease ends.
REQUESTS = [{**request(2 * i + 1), "max_tokens": 400} for i in range(40)]
SPREAD = 7


@pytest.mark.skipif(not possible(), reason="network namespaces need root and ip")
def test_a_group_of_one_without_etcd_is_dropped_and_returns(tmp_path):
    networks = Networks(tmp_path, workers=2, group_size=1)
    try:
        before = networks.whole(2)
        undisturbed = undisturbed_answers(networks, REQUESTS)
        load = Load(targets(networks), REQUESTS, spread=SPREAD)
        load.reach(500)
        began = time.monotonic()
        networks.cut("w0", "etcd")
        networks.wait("w0 is dropped", lambda status: "w0" not in status["workers"] and len(status["groups"]) == 1)
        streams = sum(bool(answer.ids) and not answer.done for answer in load.answers)
        print(f"\ndropped after {time.monotonic() - began:.1f} s, {streams} streams open")
        assert streams, "all had ended by then"
        assert_unnoticed(load.join(), undisturbed)
        print(f"longest silence {load.silence:.2f} s")
        assert_unnoticed(Load(targets(networks), REQUESTS).join(), undisturbed)
        networks.mend("w0", "etcd")
        after = networks.whole(2)
        assert after["workers"]["w1"] == before["workers"]["w1"]
        for router in networks.ports:
            until("both serve", lambda: networks.metric(router, "rein_engines", standing="serving") == 2)
        assert_unnoticed(Load(targets(networks), REQUESTS).join(), undisturbed)
    finally:
        networks.close()
