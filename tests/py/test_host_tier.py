"""KV blocks that leave the cache: in memory of the host beside a GPU, in a file beside either, and with an FP8 cache."""
import random
import re
import subprocess
import urllib.request

import pytest

from test_cuda import BIN, FIXTURES, Server, ask, driver, server  # noqa: F401 (fixtures)

MODEL = FIXTURES / "qwen3"
LIMITS = ["--block-size", 16, "--max-sequences", 2, "--max-context", 128, "--token-budget", 64]


def prompts(count, length=72):
    numbers = random.Random(3)
    return [[numbers.randrange(3, 250) for _ in range(length)] for _ in range(count)]


def answers(one, asked):
    """Each prompt's tokens and their logprobs, and how many tokens were cached."""
    found = []
    for prompt in asked:
        status, body = ask(one, "completions", model="qwen3", prompt=prompt, max_tokens=6, ignore_eos=True, seed=1,
                           temperature=0.8, logprobs=1)
        assert status == 200, body
        logprobs = body["choices"][0]["logprobs"]
        cached = body["usage"]["prompt_tokens_details"]["cached_tokens"]
        found.append((logprobs["tokens"], logprobs["token_logprobs"], cached))
    return found


def metric(one, name):
    text = urllib.request.urlopen(f"{one.http}/metrics", timeout=10).read().decode()
    return sum(float(value) for value in re.findall(rf"^rein_engine_{name}\{{[^}}]*\}} (\S+)$", text, re.M))


def without_cached(found):
    return [answer[:2] for answer in found]


@pytest.mark.parametrize("kv", ["auto", "fp8"])
@pytest.mark.parametrize("where", ["memory", "file"])
def test_a_gpu_gets_its_blocks_back_with_the_same_bits(server, tmp_path, where, kv):
    asked = prompts(4) * 2
    file = ["--kv-file", tmp_path / "kv"] if where == "file" else []
    options = [*LIMITS, "--kv-memory", 1, "--kv-dtype", kv]
    plain = server(*options, "--no-prefix-cache", model=MODEL)
    wanted = answers(plain, asked)
    plain.stop()
    cuda = server(*options, "--host-kv", 0.01, *file, model=MODEL)
    found = answers(cuda, asked)
    # After these, nothing of the first prompts is left in a cache of 1 MiB, and all of it in 10 MiB of the host.
    answers(cuda, prompts(44 if kv == "auto" else 100, 110)[4:])
    before = metric(cuda, "restored_tokens_total")
    again = answers(cuda, asked[:4])
    assert without_cached(found) == without_cached(wanted)
    assert without_cached(again) == without_cached(wanted)[:4]
    assert [cached for *_, cached in again] == [64] * 4
    assert metric(cuda, "restored_tokens_total") == before + 4 * 64 and metric(cuda, "damaged_blocks_total") == 0
    cuda.stop()


def test_a_restarted_server_knows_its_prompts_and_not_what_was_damaged(tmp_path):
    file, asked = tmp_path / "kv", prompts(5)
    options = [*LIMITS, "--host-kv", 0.01, "--kv-file", file]

    def start():
        return Server("--engine", "cpu", *map(str, options), model=MODEL)

    first = start()
    wanted = answers(first, asked)
    first.process.kill()
    first.process.wait()
    second = start()
    found = answers(second, asked)
    assert without_cached(found) == without_cached(wanted) and [cached for *_, cached in found] == [64] * 5
    second.stop()
    # Numbers, not heads of records.
    data = bytearray(file.read_bytes())
    assert file.stat().st_mode & 0o077 == 0
    for at in range(4096 + 400, len(data), 4096):
        data[at] ^= 1
    file.write_bytes(data)
    third = start()
    assert without_cached(answers(third, asked)) == without_cached(wanted)
    assert metric(third, "damaged_blocks_total") > 0
    third.stop()


def test_places_that_cannot_be_had_are_told(tmp_path):
    def refused(*options):
        command = [BIN, "serve", "--model", MODEL, *LIMITS, *options]
        done = subprocess.run([*map(str, command)], capture_output=True, text=True, timeout=60)
        assert done.returncode != 0
        return done.stderr

    assert "add --kv-file" in refused("--host-kv", 1)
    assert "--host-kv" in refused("--kv-file", tmp_path / "kv")
    assert "--host-kv" in refused("--host-kv", 1, "--kv-file", "/nowhere/kv")
    assert "must be a number of GiB above 0" in refused("--host-kv", 0, "--kv-file", tmp_path / "kv")
