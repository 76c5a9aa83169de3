"""Rein in front of real engines: vLLM, SGLang and llama-server, on a CPU, with random weights in f32."""
import collections
import json
import math
import random
import time

import grpc
import pytest
from jsonschema import Draft202012Validator
from tokenizers import Tokenizer

import checkpoint
from fleet import free_ports, until
from processes import BLOCK, Adapter, Concurrent, Router, http, mask_of, start_llama, start_sglang, start_vllm

GREEDY = 24
PROMPTS = [[5, 6, 7], [900, 17, 17, 2040, 33], list(range(300, 420))]


def greedy(adapter, prompt, **start):
    sequence = adapter.sequence(prompt, max_tokens=GREEDY, finish_is_proposal=True, **start)
    ids = list(sequence.tokens())
    assert len(ids) == GREEDY, sequence.finish
    return ids


def steered(adapter, prompt, at, mask, **start):
    """The tokens of a sequence that is steered once, when more than `at` tokens are there."""
    sequence = adapter.sequence(prompt, max_tokens=GREEDY, finish_is_proposal=True, **start)
    for _ in sequence.events():
        if sequence.epoch == 0 and len(sequence.ids) > at:
            sequence.steer(at, mask=mask)
    return sequence.ids


@pytest.mark.parametrize("prompt", PROMPTS, ids=lambda prompt: f"{len(prompt)} tokens")
def test_refusals_at_every_position_change_no_greedy_answer(adapter, prompt):
    """The mask refuses what is drawn, except the token that an undisturbed sequence has."""
    want = greedy(adapter, prompt)
    vocabulary = adapter.info.vocab_size
    rng = random.Random(len(prompt))
    calls = []
    for at in range(GREEDY):
        # Of one token, few, more than 700, more than 1024, and almost all.
        for width in (1, 5, 720, 1500, vocabulary - 3):
            mask = mask_of({want[at], *rng.sample(range(vocabulary), width - 1)}, vocabulary)
            calls.append(lambda at=at, mask=mask: steered(adapter, prompt, at, mask))
    got = [ids for start in range(0, len(calls), 8) for ids in Concurrent(calls[start : start + 8]).results()]
    assert [ids == want for ids in got] == [True] * len(got), [at for at, ids in enumerate(got) if ids != want]


def test_masks_hold_and_an_appended_token_needs_no_draw(adapter):
    vocabulary, rng = adapter.info.vocab_size, random.Random(3)
    for width in (2, 700, 1100, vocabulary - 1):
        allowed = set(rng.sample(range(vocabulary), width))
        ids = steered(adapter, PROMPTS[0], 4, mask_of(allowed, vocabulary), temperature=1.0, seed=width)
        assert ids[4] in allowed, width
    sequence = adapter.sequence(PROMPTS[0], max_tokens=GREEDY, finish_is_proposal=True)
    for _ in sequence.events():
        if sequence.epoch == 0 and len(sequence.ids) > 2:
            sequence.steer(2, append=[11, 12, 13])
    assert sequence.ids[2:5] == [11, 12, 13] and len(sequence.ids) == GREEDY


# The 99.9 % quantile of chi-square by degrees of freedom.
QUANTILE = {12: 32.91}
DRAWS = 600


def first_masked(adapter, prompt, mask, seed):
    sequence = adapter.sequence(prompt, max_tokens=2, temperature=1.0, seed=seed, finish_is_proposal=True)
    for _ in sequence.events():
        if sequence.epoch == 0 and sequence.ids:
            sequence.steer(0, mask=mask, hold=False)
        elif sequence.epoch == 1 and sequence.ids:
            break
    token = sequence.ids[0]
    if sequence.finish is None:
        sequence.steer(len(sequence.ids), stop=True)
    return token


def probabilities(engine, prompt, ids):
    """The engine's own probabilities of these tokens after the prompt, which sum to 1."""
    kind, process = engine
    if kind == "vllm":
        # Each token is scored as the last one of a prompt.
        def logprob(id):
            answer = http(f"{process.url}/v1/completions", {
                "model": "m", "prompt": [*prompt, id], "max_tokens": 1, "prompt_logprobs": 0, "return_token_ids": True, "temperature": 0})
            return answer["choices"][0]["prompt_logprobs"][-1][str(id)]["logprob"]
    elif kind == "sglang":
        answer = http(f"{process.url}/generate", {
            "input_ids": prompt, "sampling_params": {"max_new_tokens": 1, "temperature": 1.0}, "return_logprob": True, "token_ids_logprob": ids})
        known = {id: value for value, id, _ in answer["meta_info"]["output_token_ids_logprobs"][0]}
        logprob = known.__getitem__
    else:
        answer = http(f"{process.url}/completion", {
            "prompt": prompt, "n_predict": 1, "n_probs": checkpoint.VOCAB, "temperature": 1.0, "top_k": 0, "top_p": 1.0, "min_p": 0.0, "samplers": ["temperature"]})
        known = {top["id"]: top["logprob"] for top in answer["completion_probabilities"][0]["top_logprobs"]}
        logprob = known.__getitem__
    weights = [math.exp(logprob(id)) for id in ids]
    return [weight / sum(weights) for weight in weights]


def test_masked_draws_have_the_models_distribution(adapter, engine):
    """Draws under a mask after a refusal, against p(token) / sum of p over the mask."""
    vocabulary, prompt = adapter.info.vocab_size, PROMPTS[1]
    # Likely and unlikely tokens, each expected often enough.
    candidates = random.Random(5).sample(range(vocabulary), 400)
    likely = sorted(zip(probabilities(engine, prompt, candidates), candidates), reverse=True)[:13]
    allowed = [id for _, id in likely]
    expected = probabilities(engine, prompt, allowed)
    mask = mask_of(allowed, vocabulary)
    calls = [lambda seed=seed: first_masked(adapter, prompt, mask, seed) for seed in range(DRAWS)]
    drawn = collections.Counter(token for start in range(0, DRAWS, 16) for token in Concurrent(calls[start : start + 16]).results())
    assert set(drawn) <= set(allowed)
    statistic = sum((drawn[id] - DRAWS * p) ** 2 / (DRAWS * p) for id, p in zip(allowed, expected))
    print(f"chi-square {statistic:.1f} on {len(allowed) - 1} degrees of freedom")
    assert min(expected) * DRAWS > 5 and statistic < QUANTILE[len(allowed) - 1]


TEXTS = ["naïve façade", "日本語のテキスト", "\U0001f468\u200d\U0001f469\u200d\U0001f467 family", "한국어 ẞ ﷽", "a\u0301\u0323", "\u200b\ufeff\u00a0", "𝔘𝔫𝔦𝔠𝔬𝔡𝔢"]


def test_no_id_of_any_text_is_lost(adapter, model):
    """Whatever an engine's text of a token is, its id arrives: also those that end inside a character."""
    # Random tokens are often parts of characters.
    calls = [lambda seed=seed: adapter.sequence(PROMPTS[0], max_tokens=200, temperature=1.5, seed=seed).tokens() for seed in range(8)]
    for ids in Concurrent(calls).results():
        assert len(ids) == 200
    # Each token of these texts is drawn by the engine, from it and one other.
    tokenizer = Tokenizer.from_file(str(model[0] / "tokenizer.json"))
    for text in TEXTS:
        ids = tokenizer.encode(text).ids
        sequence = adapter.sequence(PROMPTS[0], max_tokens=len(ids) + 1, finish_is_proposal=True, hold=True)
        draw = lambda at: sequence.steer(at, mask=mask_of([ids[at], (ids[at] + 1) % 256], adapter.info.vocab_size), hold=True)  # noqa: E731, B023
        draw(0)
        for _ in sequence.events():
            if len(sequence.ids) == len(ids):
                break
            draw(len(sequence.ids))
        assert len(sequence.ids) == len(ids), text
        assert all(got in (want, (want + 1) % 256) for got, want in zip(sequence.ids, ids)), text
        sequence.answers.cancel()


TOOLS = [
    {"type": "function", "function": {"name": "get_weather", "parameters": {
        "type": "object", "properties": {"city": {"type": "string", "maxLength": 12}, "unit": {"enum": ["celsius", "fahrenheit"]}},
        "required": ["city", "unit"], "additionalProperties": False}}},
    {"type": "function", "function": {"name": "add", "parameters": {
        "type": "object", "properties": {"a": {"type": "integer"}, "b": {"type": "integer"}}, "required": ["a"], "additionalProperties": False}}}]
SCHEMAS = {tool["function"]["name"]: tool["function"]["parameters"] for tool in TOOLS}


def call(router, seed, choice):
    answer = router.chat(
        messages=[{"role": "user", "content": f"Question {seed}"}], tools=TOOLS, tool_choice=choice, temperature=1.0, seed=seed, max_tokens=300)
    return answer["choices"][0]


def checked(choice, required):
    """The number of calls in an answer; each must be valid."""
    calls = choice["message"].get("tool_calls") or []
    if choice["finish_reason"] != "length":
        for made in calls:
            Draft202012Validator(SCHEMAS[made["function"]["name"]]).validate(json.loads(made["function"]["arguments"]))
        assert calls or not required, choice
    return len(calls)


def test_32_calls_at_once_are_valid(router):
    """In `auto` the random model rarely begins a call; with `required` it must make one."""
    for choice in ("auto", "required"):
        answers = Concurrent([lambda seed=seed: call(router, seed, choice) for seed in range(32)]).results()
        calls = sum(checked(answer, choice == "required") for answer in answers)
        print(f"{choice}: {calls} calls in 32 answers")
        assert choice == "auto" or calls >= 16


@pytest.mark.parametrize("kind", ["vllm", "sglang"])
def test_streams_survive_an_engine_that_is_killed(directory, model, kind):
    """SIGKILL of an engine amid 16 enforced calls; llama-server, with the same model, finishes them."""
    import os
    import signal
    import subprocess

    start = {"vllm": start_vllm, "sglang": start_sglang}[kind]
    doomed, other = start(directory, model[0]), start_llama(directory, model[1])
    router = None
    try:
        doomed.wait()
        other.wait()
        router = Router(directory, model[0], [(kind, doomed), ("llama-server", other)], "--format", "hermes")
        calls = Concurrent([lambda seed=seed: call(router, seed, "required") for seed in range(16)])
        until("it draws", lambda: router.metric("rein_engine_requests_total", engine="engines/0") > 30, timeout=60)
        # The process that computes, not the one that answers HTTP.
        children = subprocess.run(["pgrep", "-g", str(doomed.child.pid)], capture_output=True, text=True).stdout.split()
        names = ("EngineCore", "spawn_main", "sglang::scheduler")
        cores = [pid for pid in children if any(name in open(f"/proc/{pid}/cmdline").read() for name in names)]
        assert cores, children
        for pid in cores:
            os.kill(int(pid), signal.SIGKILL)
        answers = calls.results()
        assert sum(checked(answer, True) for answer in answers) >= 8
        assert router.metric("rein_resumed_total") > 0, "no stream was resumed"
    finally:
        for process in (router, doomed, other):
            if process is not None:
                process.stop()


@pytest.mark.parametrize("kind", ["vllm", "sglang"])
def test_block_events_tell_what_the_cache_holds(directory, model, etcd, kind):
    """Of prompts that other clients sent, too; with the hashes that the adapter has for its own prompts. SGLang's pages have one token
    by default, of which the adapter makes blocks of 16."""
    (port,) = free_ports(1)
    settings = {"enable_kv_cache_events": True, "publisher": "zmq", "endpoint": f"tcp://*:{port}"}
    start = {"vllm": start_vllm, "sglang": start_sglang}[kind]
    engine = start(directory, model[0], "--kv-events-config", json.dumps(settings))
    started = [engine]
    try:
        engine.wait()
        told = Adapter(directory, model[0], kind, engine, etcd, events=port)
        guessing = Adapter(directory, model[0], kind, engine, etcd)
        started += [told, guessing]
        block = told.info.block_size
        assert block == {"vllm": BLOCK, "sglang": 16}[kind]
        prompt = list(range(500, 500 + 5 * block + 3))
        # A message that is published before the subscription is lost.
        time.sleep(2)
        if kind == "vllm":
            http(f"{engine.url}/v1/completions", {"model": "m", "prompt": prompt, "max_tokens": 2, "temperature": 0})
        else:
            http(f"{engine.url}/generate", {"input_ids": prompt, "sampling_params": {"max_new_tokens": 2, "temperature": 0}})
        reported = told.cached(5)
        assert len(reported) == 5 and guessing.cached(1, timeout=1) == set()
        guessing.sequence(prompt, max_tokens=2).tokens()
        assert guessing.cached(5) == reported
        # The blocks of an answer are cached, too.
        told.sequence(prompt, max_tokens=2 * block).tokens()
        assert len(told.cached(7)) >= 7
        # Those of a prompt with a salt have other hashes, with which the engine reports them, too.
        guessing.sequence(prompt, max_tokens=2, cache_salt="tenant").tokens()
        salted = guessing.cached(10) - reported
        assert len(salted) == 5 and salted <= told.cached(12)
    finally:
        for process in reversed(started):
            process.stop()


def test_routers_find_the_engine_that_has_the_conversation(directory, model):
    """Turns of conversations on 4 engines: the share of cached prompt tokens, beside that of turns in rotation."""
    engines = [start_llama(directory, model[1]) for _ in range(4)]
    try:
        for engine in engines:
            engine.wait()
        shares = {}
        for policy in ("cache-aware", "round-robin"):
            router = Router(directory, model[0], [("llama-server", engine) for engine in engines], "--format", "hermes", "--policy", policy)
            try:
                shares[policy] = conversations(router, policy)
            finally:
                router.stop()
        print(f"cached prompt tokens: {shares}")
        assert shares["cache-aware"] >= 1.8 * shares["round-robin"], shares
    finally:
        for engine in engines:
            engine.stop()


def conversations(router, name, turns=5, count=12):
    cached = prompts = 0
    histories = [[{"role": "user", "content": f"{name} {at}: " + " ".join(f"word{at * 31 + i * 7 % 97}" for i in range(120))}] for at in range(count)]
    for turn in range(turns):
        answers = Concurrent([lambda history=history: router.chat(messages=history, max_tokens=24, temperature=0) for history in histories]).results()
        for history, answer in zip(histories, answers):
            cached += answer["usage"]["prompt_tokens_details"]["cached_tokens"]
            prompts += answer["usage"]["prompt_tokens"]
            text = answer["choices"][0]["message"]["content"] or "."
            history += [{"role": "assistant", "content": text}, {"role": "user", "content": f"Turn {turn}: " + "and then? " * 12}]
        # Conversations do not take turns in one order.
        random.Random(turn).shuffle(histories)
    return cached / prompts


def test_bad_input_never_reaches_an_engine(adapter):
    vocabulary = adapter.info.vocab_size
    for wrong, said in (
        ({"prompt": [vocabulary]}, "vocab"),
        ({"prompt": [1], "temperature": 2.5}, "temperature"),
        ({"prompt": [1] * 4096, "max_tokens": 8}, "context"),
    ):
        with pytest.raises(grpc.RpcError) as refused:
            sequence = adapter.sequence(**wrong)
            sequence.tokens()
            assert False, sequence.finish
        assert refused.value.code() in (grpc.StatusCode.INVALID_ARGUMENT, grpc.StatusCode.OUT_OF_RANGE), refused.value
        assert said in refused.value.details(), refused.value.details()


def test_another_tokenizer_does_not_join(directory, model, etcd, engine):
    import shutil

    kind, process = engine
    other = directory / f"other-{kind}"
    shutil.copytree(model[0], other)
    tokenizer = json.loads((other / "tokenizer.json").read_text())
    # One merge less.
    tokenizer["model"]["merges"] = tokenizer["model"]["merges"][:-1]
    tokenizer["model"]["merges"].pop(0)
    (other / "tokenizer.json").write_text(json.dumps(tokenizer))
    with pytest.raises(AssertionError, match="its tokenizer differs"):
        Adapter(directory, other, kind, process, etcd)
