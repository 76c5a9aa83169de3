"""What Rein costs in front of an engine, in steps of the engine: its time per token, asked directly, in the same run.

    make engines                                      # installs the engines
    REIN_BIN=target/release/rein REIN_ENGINES_DIR=$(scripts/engines.sh) .venv/bin/python benches/engines.py

Prints one table per engine (docs/benchmarks/engines.md), or only those of the kinds that are named. `stub` is a table of the router's
processor time in front of stubs, which send a token each 5 ms and leave the processors to the router; it needs no engine."""
import http.client
import json
import pathlib
import random
import statistics
import sys
import tempfile
import time

TESTS = pathlib.Path(__file__).resolve().parents[1] / "tests"
sys.path[:0] = [str(TESTS / "engines"), str(TESTS / "py")]

import checkpoint  # noqa: E402
from engine_stub import EngineStub  # noqa: E402
from fleet import DEMO, Fleet  # noqa: E402
from processes import Adapter, Concurrent, Router, http as post, mask_of, start_llama, start_sglang, start_vllm  # noqa: E402

TOKENS, ROUNDS, STREAMS = 128, 3, (1, 8)
# 190 MB of weights: a step takes 10 ms and more, so that the time of a request is not all that there is.
SIZE = {"HIDDEN": 1024, "HEADS": 16, "HEAD": 64, "KV_HEADS": 4, "LAYERS": 4, "FEED_FORWARD": 2816}
PROMPT = list(range(300, 500))
# Tokens that the adapter asks llama-server for at once.
CHUNK = 8


def prompt(stream):
    """Each stream has its own, which every round repeats: its blocks are cached."""
    return [1000 + stream, *PROMPT]


def streamed(url, path, body):
    """The time until the first token, and that of all others."""
    connection = http.client.HTTPConnection(url.removeprefix("http://"), timeout=300)
    began = time.perf_counter()
    connection.request("POST", path, json.dumps({"temperature": 0, "stream": True, **body}), {"content-type": "application/json"})
    answer = connection.getresponse()
    assert answer.status == 200, answer.read()
    first = None
    for line in answer:
        if line.startswith(b"data: ") and first is None:
            first = time.perf_counter()
    connection.close()
    return first - began, time.perf_counter() - first


def direct(kind, engine, stream):
    if kind == "llama-server":
        return streamed(engine.url, "/completion", {"prompt": prompt(stream), "n_predict": TOKENS, "ignore_eos": True})[1]
    if kind == "sglang":
        return streamed(engine.url, "/generate", generate(prompt(stream), TOKENS, ignore_eos=True))[1]
    return through_router(engine, stream)


def generate(tokens, most, **params):
    """A request of SGLang."""
    return {"input_ids": tokens, "sampling_params": {"max_new_tokens": most, "temperature": 0, **params}}


def through_router(router, stream, tokens=None):
    body = {"model": "m", "prompt": tokens or prompt(stream), "max_tokens": TOKENS, "ignore_eos": True}
    return streamed(router.url, "/v1/completions", body)[1]


def refused(adapter, stream, positions, want):
    """A sequence that is steered at these positions to the token that it would have drawn."""
    sequence = adapter.sequence(prompt(stream), max_tokens=TOKENS, finish_is_proposal=True)
    left, first = list(positions), None
    for _ in sequence.events():
        first = first or time.perf_counter()
        if left and len(sequence.ids) > left[0]:
            at = left.pop(0)
            sequence.steer(at, mask=mask_of([want[at], want[at] ^ 1], adapter.info.vocab_size))
    # Two nearly equal logits may be rounded otherwise in a batch of another size.
    assert len(sequence.ids) == len(want)
    return time.perf_counter() - first


def refused_by_hand(kind, engine, stream, positions, want):
    """The same without Rein: a client that knows the tokens closes its stream, asks for one token under the mask, and
    for the rest. What it takes is the least that a refusal costs with this engine."""
    left, done, first = list(positions), 0, None
    while done < TOKENS:
        stop = left[0] if left else TOKENS
        for count in drawn_by_hand(kind, engine, prompt(stream) + want[:done], TOKENS - done):
            first = first or time.perf_counter()
            if done + count > stop:
                break
        done += count
        if left and done > stop:
            left.pop(0)
            masked_by_hand(kind, engine, prompt(stream) + want[:stop], [want[stop], want[stop] ^ 1])
            done = stop + 1
    return time.perf_counter() - first


def drawn_by_hand(kind, engine, tokens, most):
    """How many tokens have been drawn so far, after each event or answer. vLLM and SGLang stream, llama-server answers in chunks."""
    if kind == "llama-server":
        for before in range(0, most, CHUNK):
            count = min(CHUNK, most - before)
            body = {"prompt": tokens, "n_predict": count, "temperature": 0, "ignore_eos": True, "cache_prompt": True, "return_tokens": True}
            tokens = tokens + post(f"{engine.url}/completion", body)["tokens"]
            yield before + count
        return
    connection = http.client.HTTPConnection(engine.url.removeprefix("http://"), timeout=300)
    path, body = "/v1/completions", {
        "model": "m", "prompt": tokens, "max_tokens": most, "temperature": 0, "ignore_eos": True, "return_token_ids": True}
    if kind == "sglang":
        path, body = "/generate", generate(tokens, most, ignore_eos=True)
    connection.request("POST", path, json.dumps({**body, "stream": True}), {"content-type": "application/json"})
    count = 0
    try:
        for line in connection.getresponse():
            if not line.startswith(b"data: {"):
                continue
            event = json.loads(line[6:])
            if kind == "sglang":
                count = event["meta_info"]["completion_tokens"]
            else:
                choices = event["choices"]
                count += len((choices[0].get("token_ids") or []) if choices else [])
            yield count
    finally:
        connection.close()


def masked_by_hand(kind, engine, tokens, allowed):
    if kind == "llama-server":
        body = {"prompt": tokens, "n_predict": 1, "temperature": 0, "cache_prompt": True, "logit_bias": [[id, 100] for id in allowed]}
        post(f"{engine.url}/completion", body)
    elif kind == "sglang":
        post(f"{engine.url}/generate", generate(tokens, 1, logit_bias={str(id): 100 for id in allowed}))
    else:
        post(f"{engine.url}/v1/completions", {"model": "m", "prompt": tokens, "max_tokens": 1, "temperature": 0, "allowed_token_ids": allowed})


def held(adapter, stream):
    """A sequence whose tokens are all confirmed one by one."""
    count = 64
    sequence = adapter.sequence(prompt(stream), max_tokens=TOKENS, finish_is_proposal=True, hold=True)
    # The first token, which computes the prompt, is not counted.
    sequence.steer(0, hold=True)
    first = None
    for _ in sequence.events():
        first = first or time.perf_counter()
        if len(sequence.ids) > count:
            break
        sequence.steer(len(sequence.ids), hold=True)
    taken = time.perf_counter() - first
    assert len(sequence.ids) == count + 1
    sequence.answers.cancel()
    return taken / count


def start_incremental(directory, folder):
    """Otherwise each event of SGLang repeats the whole answer."""
    return start_sglang(directory, folder, "--incremental-streaming-output")


def cpu_seconds(process):
    """Processor time of all threads, in nanoseconds' resolution."""
    return sum(int((task / "schedstat").read_text().split()[0]) for task in pathlib.Path(f"/proc/{process.child.pid}/task").iterdir()) / 1e9


def switches(process):
    """Of threads, which wait for something."""
    tasks = pathlib.Path(f"/proc/{process.child.pid}/task").iterdir()
    return sum(int((task / "status").read_text().split("\nvoluntary_ctxt_switches:")[1].split()[0]) for task in tasks)


def at_once(streams, call):
    """The mean time of one stream."""
    return statistics.mean(Concurrent([lambda stream=stream: call(stream) for stream in range(streams)]).results())


def measure(kind, engine, adapter, router):
    print(f"\n{kind}, {TOKENS} tokens after a prompt of {len(prompt(0))}, median of {ROUNDS} rounds in turn\n")
    print("| streams | step | no refusal, adapter | no refusal, router | a refusal | by hand | 1 % refused | a held token | CPU of the router |")
    print("|---|---|---|---|---|---|---|---|---|")
    for streams in STREAMS:
        want = {stream: adapter.sequence(prompt(stream), max_tokens=TOKENS, finish_is_proposal=True).tokens() for stream in range(streams)}
        rows = []
        for number in range(ROUNDS):
            rng = random.Random(number)
            steps = TOKENS - 1
            alone = at_once(streams, lambda stream: direct(kind, engine, stream))
            calm = at_once(streams, lambda stream: refused(adapter, stream, [], want[stream]))
            few = sorted(rng.sample(range(8, TOKENS), 8))
            some = at_once(streams, lambda stream: refused(adapter, stream, few, want[stream]))
            plain = at_once(streams, lambda stream: refused_by_hand(kind, engine, stream, [], want[stream]))
            bare = at_once(streams, lambda stream: refused_by_hand(kind, engine, stream, few, want[stream]))
            seldom = {stream: sorted(at for at in range(8, TOKENS) if random.Random(number * 99 + stream * 7 + at).random() < 0.01) for stream in range(streams)}
            percent = at_once(streams, lambda stream: refused(adapter, stream, seldom[stream], want[stream]))
            holding = at_once(streams, lambda stream: held(adapter, stream))
            before = cpu_seconds(router.process)
            routed = at_once(streams, lambda stream: through_router(router, stream))
            cpu = (cpu_seconds(router.process) - before) / (streams * TOKENS)
            step = alone / steps
            rows.append((step, alone / calm, alone / routed, (some - calm) / len(few) / step, (bare - plain) / len(few) / step, calm / percent, holding / step, cpu))
        step, calm, routed, refusal, bare, percent, holding, cpu = (statistics.median(column) for column in zip(*rows))
        print(f"| {streams} | {step * 1e3:.2f} ms | {calm:.3f} of the direct rate | {routed:.3f} | {refusal:.1f} steps | {bare:.1f} steps | {percent:.3f} of the rate without | {holding:.1f} steps | {cpu * 1e6:.0f} us a token |", flush=True)


def measure_stubs(directory):
    print("| a stub of | streams | CPU of the router | switches between threads |")
    print("|---|---|---|---|")
    for kind in ("vllm", "sglang"):
        stub = EngineStub(DEMO, kind, step=0.005)
        router = Router(directory, DEMO, [(kind, stub)])
        try:
            for streams in STREAMS:
                rows = []
                for _ in range(ROUNDS + 1):
                    cpu, switched = cpu_seconds(router.process), switches(router.process)
                    at_once(streams, lambda stream: through_router(router, stream, [50 + stream, *range(60, 80)]))
                    rows.append([cpu_seconds(router.process) - cpu, switches(router.process) - switched])
                # The first round opens connections.
                cpu, switched = (statistics.median(column) / (streams * TOKENS) for column in zip(*rows[1:]))
                print(f"| {kind} | {streams} | {cpu * 1e6:.0f} us a token | {switched:.1f} a token |", flush=True)
        finally:
            router.stop()
            stub.close()


def main(directory):
    if not sys.argv[1:] or "stub" in sys.argv[1:]:
        measure_stubs(directory)
    vars(checkpoint).update(SIZE)
    folder, file = checkpoint.write(directory)
    fleet, started = Fleet(directory, workers=0, group_size=1, routers=0), []
    try:
        for kind, start, source in (("llama-server", start_llama, file), ("vllm", start_vllm, folder), ("sglang", start_incremental, folder)):
            if sys.argv[1:] and kind not in sys.argv[1:]:
                continue
            engine = start(directory, source)
            started.append(engine)
            engine.wait()
            adapter = Adapter(directory, folder, kind, engine, fleet.etcd_url)
            router = Router(directory, folder, [(kind, engine)], "--format", "hermes")
            started += [adapter, router]
            list(drawn_by_hand(kind, engine, [1, 2, 3], 4))
            measure(kind, engine, adapter, router)
            for process in (router, adapter, engine):
                process.stop()
    finally:
        for process in reversed(started):
            process.stop()
        fleet.close()


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as made:
        main(pathlib.Path(made))
