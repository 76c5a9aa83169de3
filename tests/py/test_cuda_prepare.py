"""What a server on a GPU has made before it is ready, over a driver that runs the kernels on the CPU."""
import random
import re
from concurrent.futures import ThreadPoolExecutor

import pytest

from fleet import DEMO
from test_cuda import FIXTURES, ask, driver, rein, server  # noqa: F401 (fixtures)
from test_host_tier import metric

# Calls that make every stream wait: memory that moves, steps that are recorded, code that is loaded.
STALLS = re.compile("cuMemAlloc|cuMemFree|cuMemHostAlloc|cuStreamBeginCapture|cuGraphInstantiate|cuModuleLoad")


LIMITS = ["--token-budget", 48, "--max-sequences", 4, "--max-context", 128]
DRAFTS = ["--draft-tokens", 3]


@pytest.mark.parametrize("model, kernels, count", [(FIXTURES / "qwen3", "fast", 30), (DEMO, "plain", 5)], ids=["qwen3", "demo"])
def test_a_server_that_is_ready_allocates_and_records_nothing(server, tmp_path, monkeypatch, model, kernels, count):
    monkeypatch.delenv("REIN_NO_PREPARE")
    trace = tmp_path / "trace"
    cuda = server(*LIMITS, *DRAFTS, "--gpu-kernels", kernels, model=model, trace=trace)
    before = trace.read_text().splitlines()
    assert any("cuStreamBeginCapture" in line for line in before)
    random_prompt = random.Random(5)

    def body(i):
        prompt = [random_prompt.randrange(3, 250) for _ in range(random_prompt.choice([1, 7, 30, 47, 90]))]
        kinds = [{"logprobs": 5, "logit_bias": {"9": 100}, "presence_penalty": 0.1}, {"frequency_penalty": 0.5, "repetition_penalty": 1.2},
                 {"echo": True, "logprobs": 3}, {"logit_bias": {"9": -5}, "temperature": 1.0, "top_k": 3, "min_p": 0.1},
                 {"n": 2, "temperature": 1.0}]
        return {"model": model.name, "prompt": prompt, "max_tokens": 12, "ignore_eos": True, "seed": i, **kinds[i % len(kinds)]}

    with ThreadPoolExecutor(9) as pool:
        answers = list(pool.map(lambda i: ask(cuda, "completions", **body(i)), range(count)))
    # With masks, held rows, and as many alternatives as there may be.
    schema = {"type": "object", "properties": {"a": {"enum": ["red", "green"]}}, "required": ["a"], "additionalProperties": False}
    form = {"type": "json_schema", "json_schema": {"name": "a", "strict": True, "schema": schema}}
    chat = {"model": model.name, "messages": [{"role": "user", "content": "a"}], "max_tokens": 12, "response_format": form,
            "logprobs": True, "top_logprobs": 20}
    with ThreadPoolExecutor(4) as pool:
        answers += pool.map(lambda seed: ask(cuda, "chat/completions", **chat, seed=seed), range(3))
    # Alone, so that steps have room for drafts: it repeats a token.
    answers.append(ask(cuda, "completions", **body(0) | {"prompt": [9] * 8, "presence_penalty": 0}))
    assert [answer for status, answer in answers if status != 200] == []
    calls = trace.read_text().splitlines()[len(before):]
    assert [line for line in calls if STALLS.search(line)] == []
    assert sum("cuGraphLaunch" in line for line in calls) > 10
    assert metric(cuda, "accepted_tokens_total") > 0
    cuda.stop()


# An emulated step of 1,024 tokens takes 15 s of one core, and another test has the other.
TIGHT = ["--token-budget", 1024, "--max-sequences", 32, "--step-deadline", 300]


def test_the_kv_cache_gets_what_the_largest_steps_leave(server, monkeypatch):
    """Without preparation, an activation that finds no memory ends the process in service."""
    monkeypatch.delenv("REIN_NO_PREPARE")
    cuda = server(*TIGHT, model=FIXTURES / "qwen3", memory=6 << 20)
    body = {"model": "qwen3", "max_tokens": 4, "ignore_eos": True, "logprobs": 2, "echo": True}
    with ThreadPoolExecutor(32) as pool:
        answers = list(pool.map(lambda i: ask(cuda, "completions", prompt=[5 + i] * 100, **body)[0], range(32)))
    assert answers == [200] * 32
    cuda.stop()


@pytest.mark.parametrize("options, memory, message", [
    ([], 3 << 20, "a step of 1024 tokens for 32 sequences does not fit beside the weights (device memory is exhausted: "),
    (["--kv-memory", 2], 6 << 20, "--kv-memory: a KV cache of 2.0 MiB does not fit beside the activations of a step of 1024 tokens"),
])
def test_steps_that_would_not_fit_are_refused_at_the_start(driver, monkeypatch, options, memory, message):
    monkeypatch.delenv("REIN_NO_PREPARE")
    code, out, err = rein("serve", "--model", FIXTURES / "qwen3", *TIGHT, *options, library_path=driver, memory=memory)
    assert (code, out) == (1, "") and message in err and "lower --token-budget or --max-sequences" in err, err


def test_penalties_read_the_history_that_the_device_keeps(server, monkeypatch):
    """Without preparation, histories travel with each step. Refused tokens take histories back."""
    schema = {"type": "object", "properties": {"a": {"enum": ["red", "green"]}, "b": {"enum": [1, 2]}}, "required": ["a", "b"],
              "additionalProperties": False}
    form = {"type": "json_schema", "json_schema": {"name": "a", "strict": True, "schema": schema}}

    def answers(cuda):
        def one(i):
            body = {"model": "qwen3", "messages": [{"role": "user", "content": "ab" * (i % 5)}], "max_tokens": 40, "seed": i,
                    "repetition_penalty": [1.3, 1.0, 0.8][i % 3], "presence_penalty": 0.7, "frequency_penalty": 0.2,
                    "temperature": 1.0, "logprobs": True, **({"logit_bias": {"9": 20}} if i % 4 == 3 else {})}
            return ask(cuda, "chat/completions", **body, **({"response_format": form} if i % 2 else {"ignore_eos": True}))

        def alone(i):
            body = {"model": "qwen3", "prompt": [9, 11, 9, 12] * 3, "max_tokens": 40, "seed": i, "temperature": 1.0, "ignore_eos": True,
                    "frequency_penalty": 0.3, "presence_penalty": 0.2, "logprobs": 1, "logit_bias": {"9": 12, "11": 12, "12": 12}}
            return ask(cuda, "completions", **body)
        with ThreadPoolExecutor(6) as pool:
            found = list(pool.map(one, range(18)))
        # A step has room for drafts where fewer sequences run than may. Some are drawn then, and some are not.
        found += map(alone, range(2))
        return [(status, answer.get("choices", answer)) for status, answer in found]

    plain = server(*LIMITS, model=FIXTURES / "qwen3")
    wanted = answers(plain)
    plain.stop()
    assert {status for status, _ in wanted} == {200}
    monkeypatch.delenv("REIN_NO_PREPARE")
    prepared = server(*LIMITS, *DRAFTS, model=FIXTURES / "qwen3")
    assert answers(prepared) == wanted
    assert 0 < metric(prepared, "accepted_tokens_total") < metric(prepared, "draft_tokens_total")
    prepared.stop()
