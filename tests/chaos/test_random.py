"""Random overlapping faults under load, for REIN_CHAOS_SECONDS (60). REIN_SEED replays the same faults, except for their timing."""
import json
import os
import random
import threading
import time

import pytest

from certificates import certificates, needs_openssl
from faults import Faults, Sampler
from fleet import Answer, Fleet, Load, assert_unnoticed, request, targets, undisturbed_answers

WORKERS = 5
CLIENTS = 8
REQUESTS = [request(i) for i in range(16)]
# A request waits this long for an engine. If a group was available for half of that time, it must be answered.
WAIT = 10.0
ENOUGH = 5.0
TIER = ["restored_tokens", "damaged_blocks"]
ALLOWED = {"capacity_lost", "unavailable"}


class Client(threading.Thread):
    """Sends one request after the other, to routers that are not being restarted."""

    def __init__(self, test, seed):
        super().__init__(daemon=True)
        self.test, self.random = test, random.Random(seed)

    def run(self):
        while not self.test.over:
            now = time.monotonic()
            routers = [name for name in self.test.fleet.ports if not self.test.faults.spans.hit(name, now, now)]
            if not routers:
                time.sleep(0.05)
                continue
            number, router = self.random.randrange(len(REQUESTS)), self.random.choice(routers)
            answer = Answer()
            # One stream of a load, in this thread.
            load = Load([], [])
            try:
                load.stream(*targets(self.test.fleet, router)[0], REQUESTS[number], answer)
            except OSError as error:
                answer.error, answer.cut = repr(error), True
            self.test.judge(number, router, now, time.monotonic(), answer)


class Verdicts:
    def __init__(self, fleet, faults, sampler, undisturbed):
        self.fleet, self.faults, self.sampler, self.undisturbed = fleet, faults, sampler, undisturbed
        self.over, self.lock = False, threading.Lock()
        self.whole, self.failed, self.wrong, self.silence = 0, {}, [], 0.0

    def judge(self, number, router, began, ended, answer):
        whole = self.undisturbed[number]
        with self.lock:
            if answer.ok:
                self.whole, self.silence = self.whole + 1, max(self.silence, answer.silence)
                if answer.seen() != whole.seen():
                    self.wrong.append(("altered", number, answer.seen(), whole.seen()))
                return
            if not answer.is_prefix_of(whole):
                self.wrong.append(("altered before it failed", number, answer.seen(), whole.seen()))
            kind = self.failure(router, began, ended, answer)
            if kind is None:
                self.wrong.append((f"request {number} at {router} failed after {ended - began:.1f} s", answer.error, self.story(ended)))
            else:
                self.failed[kind] = self.failed.get(kind, 0) + 1

    def failure(self, router, began, ended, answer):
        """Why a failure is allowed, or None."""
        if self.faults.spans.hit(router, began, ended):
            return "its router was restarted"
        if code(answer.error) in ALLOWED and not self.group_was_left(ended):
            return code(answer.error)
        return None

    def group_was_left(self, ended):
        """Whether a group was available long enough without a break before this time."""
        run, step = 0.0, 0.25
        at = ended - WAIT
        while at <= ended:
            run = run + step if self.left(at) else 0.0
            if run >= ENOUGH:
                return True
            at += step
        return False

    def left(self, at):
        known = [sample for sample in list(self.sampler.samples) if sample[0] <= at]
        if not known:
            return True
        since, groups = known[-1]
        # No router can reach a group that consists of bad spares.
        disturbed = lambda worker: worker.startswith("a") or self.faults.spans.hit(worker, since, at)
        return any(not any(map(disturbed, members)) for members in groups)

    def story(self, ended):
        """The time before the failure: when a group was available, and the samples."""
        samples = [(round(at - ended, 2), [sorted(group) for group in groups]) for at, groups in self.sampler.samples if ended - 15 < at <= ended]
        left = "".join("x" if self.left(ended - WAIT + i / 4) else "." for i in range(int(WAIT * 4) + 1))
        return left, samples


def code(error):
    """The code of an error in a stream, or of an HTTP error before it."""
    if isinstance(error, dict):
        return error.get("code")
    text = str(error)
    if not text.startswith("503 b"):
        return None
    try:
        return json.loads(text[text.index("{") : text.rindex("}") + 1])["error"]["code"]
    except (ValueError, KeyError):
        return None


def all_whole(status):
    """Waits for two groups of two workers. The fifth worker is a spare, or serves alone after its group lost the other member."""
    groups = [[rank["worker"] for rank in group["ranks"]] for group in status["groups"].values()]
    serving = all(group["state"] == "serving" for group in status["groups"].values())
    return serving and len(status["workers"]) == WORKERS and sum(len(set(members)) == 2 for members in groups) == 2


# So little cache that prompts fall out of it and come back.
SMALL = ["--kv-memory", "1"]


@needs_openssl
@pytest.mark.parametrize("kv", ["plain", "file", "split"])
def test_random_faults(tmp_path, kv):
    arguments = {
        "plain": [],
        "file": [*SMALL, "--host-kv", "0.003", "--kv-file", str(tmp_path / "NAME.kv")],
        "split": [*SMALL, "--kv-parallel", "--kv-dtype", "fp8"],
    }[kv]
    seconds = float(os.environ.get("REIN_CHAOS_SECONDS", "60"))
    seed = int(os.environ.get("REIN_SEED") or random.SystemRandom().randrange(1 << 32))
    print(f"\nREIN_SEED={seed}, {seconds:.0f} s")
    fleet = Fleet(tmp_path, workers=WORKERS, group_size=2, routers=2, worker_args=arguments, more=certificates(tmp_path))
    try:
        fleet.whole(2)
        undisturbed = undisturbed_answers(fleet, REQUESTS)
        faults = Faults(fleet, random.Random(seed), [f"w{i}" for i in range(WORKERS)])
        faults.more = [faults.damaged_file] if kv == "file" else []
        sampler = Sampler(fleet)
        test = Verdicts(fleet, faults, sampler, undisturbed)
        clients = [Client(test, seed + i) for i in range(CLIENTS)]
        for client in clients:
            client.start()
        faults.run(seconds)
        test.over = True
        for client in clients:
            client.join(timeout=300)
            assert not client.is_alive(), "a request hangs"
        sampler.close()
        print(f"{sum(faults.counts.values())} faults: {faults.counts}")
        print(f"{test.whole} answers as undisturbed, longest silence {test.silence:.1f} s; failed: {test.failed}")
        print(f"bad spares that had a seat (worker, state of its group, members): {sorted(sampler.bad_seats) or 'none'}")
        assert not test.wrong, "\n".join(map(str, test.wrong[:5]))
        assert test.whole > seconds / 10, "too few requests were answered"
        # After all faults, the cluster must recover.
        fleet.wait("all good workers serve, or are spares of groups that do", all_whole, timeout=120)
        assert_unnoticed(Load(targets(fleet), REQUESTS).join(), undisturbed)
        tier = {name: sum(int(fleet.metric(router, f"rein_engine_{name}_total")) for router in fleet.ports) for name in TIER}
        print(f"tokens from the host tier and blocks damaged there, of engines that serve now: {tier}")
    finally:
        fleet.close()
