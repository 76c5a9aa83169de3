"""Embeddings: the openai SDKs, transformers' numbers, and a cluster that loses workers."""
import base64
import json
import math
import os
import struct
import subprocess
import threading
import time
import urllib.error
import urllib.request

import openai
import pytest
from openai.types import CreateEmbeddingResponse

from conftest import BIN, REPOSITORY, Server
from fleet import Fleet, until
from test_cuda import driver, server  # noqa: F401 (fixtures)
from test_docs import addressed, blocks
from test_openai_sdk import strict

MODEL = REPOSITORY / "tests/fixtures/models/qwen3_embedding"
WANTED = json.loads((MODEL / "embeddings.json").read_text())
TEXTS = [row["text"] for row in WANTED]
PAGE = REPOSITORY / "docs/howto/embeddings.md"
NODE_MODULES = REPOSITORY / ".node/node_modules"
EXAMPLES = {note.removeprefix("test: embeddings").strip(): code for _, code, note in blocks(PAGE) if note.startswith("test: embeddings")}


@pytest.fixture(scope="module")
def embedder():
    served = Server("--task", "embed", "--dtype", "f32", "--token-budget", "100", model=MODEL)
    yield served
    served.stop()


@pytest.fixture(scope="module")
def client(embedder):
    return openai.OpenAI(base_url=embedder.http + "/v1", api_key="none", max_retries=0)


def ask(http, path, **body):
    """Status and body."""
    request = urllib.request.Request(f"{http}/v1/{path}", json.dumps(body).encode(), {"content-type": "application/json"})
    try:
        with urllib.request.urlopen(request, timeout=120) as answer:
            return answer.status, json.load(answer)
    except urllib.error.HTTPError as error:
        return error.code, json.load(error)


def vectors(http, texts, **more):
    status, body = ask(http, "embeddings", model="qwen3_embedding", input=texts, **more)
    assert status == 200, body
    return [item["embedding"] for item in body["data"]]


def apart(one, other):
    """The largest difference of a number, and 1 minus the cosine."""
    dot = lambda a, b: sum(x * y for x, y in zip(a, b))
    return max(abs(a - b) for a, b in zip(one, other)), 1 - dot(one, other) / math.sqrt(dot(one, one) * dot(other, other))


def test_the_numbers_are_those_of_transformers(client):
    answer = client.embeddings.create(model="qwen3_embedding", input=TEXTS)
    strict(CreateEmbeddingResponse, answer)
    assert [item.index for item in answer.data] == list(range(len(TEXTS)))
    assert answer.usage.prompt_tokens == answer.usage.total_tokens == sum(len(row["ids"]) for row in WANTED)
    for row, item in zip(WANTED, answer.data):
        number, angle = apart(item.embedding, row["vector"])
        assert number <= 2e-7 and angle <= 1e-12, (row["text"], number, angle)


def test_texts_alone_ids_and_both_encodings_have_the_same_bits(embedder, client):
    together = vectors(embedder.http, TEXTS)
    assert [vectors(embedder.http, text)[0] for text in TEXTS] == together
    assert vectors(embedder.http, [row["ids"] for row in WANTED]) == together
    assert vectors(embedder.http, WANTED[0]["ids"]) == together[:1]
    packed = vectors(embedder.http, TEXTS, encoding_format="base64")
    floats = lambda text: list(struct.unpack(f"<{64}f", base64.b64decode(text)))
    assert [floats(text) for text in packed] == [list(struct.unpack("<64f", struct.pack("<64f", *vector))) for vector in together]
    # The SDK asks for base64 by default.
    assert client.embeddings.create(model="qwen3_embedding", input=TEXTS[0]).data[0].embedding == floats(packed[0])


def test_dimensions_are_cut_and_scaled(embedder, client):
    whole = vectors(embedder.http, TEXTS[2])[0]
    cut = client.embeddings.create(model="qwen3_embedding", input=TEXTS[2], dimensions=16).data[0].embedding
    length = math.sqrt(sum(x * x for x in whole[:16]))
    assert len(cut) == 16 and apart(cut, [x / length for x in whole[:16]])[0] < 1e-7
    with pytest.raises(openai.BadRequestError) as wrong:
        client.embeddings.create(model="qwen3_embedding", input="a", dimensions=65)
    assert (wrong.value.param, wrong.value.type) == ("dimensions", "invalid_request_error")


def test_a_model_has_one_task(client, demo):
    with pytest.raises(openai.BadRequestError, match="computes embeddings and does not generate"):
        client.chat.completions.create(model="qwen3_embedding", messages=[{"role": "user", "content": "hi"}])
    chats = openai.OpenAI(base_url=demo.http + "/v1", api_key="none", max_retries=0)
    with pytest.raises(openai.BadRequestError, match="served with --task embed"):
        chats.embeddings.create(model="demo", input="hi")


@pytest.mark.parametrize("language", ["python", "js"])
def test_the_examples_of_the_page(language, embedder, tmp_path):
    code = addressed(EXAMPLES[language], embedder)
    if language == "python":
        scope = {}
        exec(compile(code, str(PAGE), "exec"), scope)
        assert len(scope["passages"]) == 2 and len(scope["query"]) == 64
    else:
        (tmp_path / "node_modules").symlink_to(NODE_MODULES)
        (tmp_path / "client.mjs").write_text(code)
        done = subprocess.run(["node", "client.mjs"], cwd=tmp_path, capture_output=True, text=True, timeout=60, env={"PATH": os.environ["PATH"]})
        assert done.stdout.split() == ["2", "32", "4"], done.stdout + done.stderr


def test_a_model_without_head_cannot_chat_and_another_pooling_is_refused(tmp_path):
    def start(directory, *options):
        done = subprocess.run([BIN, "serve", "--model", directory, "--http", "127.0.0.1:0", "--grpc", "127.0.0.1:0", *options],
                              capture_output=True, text=True, timeout=60)
        assert done.returncode == 1
        return done.stderr

    assert "lm_head.weight" in start(MODEL)
    for file in MODEL.iterdir():
        if file.is_file():
            (tmp_path / file.name).symlink_to(file)
    (tmp_path / "1_Pooling").mkdir()
    (tmp_path / "1_Pooling/config.json").write_text('{"pooling_mode_mean_tokens": true}')
    assert "the pooling mode must be lasttoken, got mean_tokens" in start(tmp_path, "--task", "embed")


def test_ranks_agree(embedder):
    one = vectors(embedder.http, TEXTS)
    ranks = Server("--task", "embed", "--dtype", "f32", "--tp", "2", model=MODEL)
    for a, b in zip(one, vectors(ranks.http, TEXTS)):
        assert apart(a, b)[0] < 1e-6
    ranks.stop()


def test_cuda_computes_embeddings(server):  # noqa: F811
    cuda = server("--task", "embed", "--token-budget", "32", model=MODEL)
    # Texts of several chunks, too.
    for row, vector in zip(WANTED, vectors(cuda.http, TEXTS[:-1])):
        number, angle = apart(vector, row["bf16"])
        assert number < 1.5e-2 and angle < 5e-4, (row["text"], number, angle)
    cuda.stop()


def test_embeddings_of_a_lost_group_come_from_another(tmp_path):
    fleet = Fleet(tmp_path, workers=4, group_size=2, routers=1, model=MODEL, worker_args=["--task", "embed", "--dtype", "f32"])
    try:
        fleet.whole(2)
        http = f"http://127.0.0.1:{fleet.ports['r0'][0]}"
        texts = [f"{i} {text}" for i in range(6) for text in TEXTS]
        wanted, failures, rounds, ended = vectors(http, texts), [], [], threading.Event()
        for row, vector in zip(WANTED, vectors(http, TEXTS)):
            assert apart(vector, row["vector"])[0] <= 1e-6

        def run():
            while not ended.is_set():
                # With a salt of its own, so that nothing is cached and each input takes some time.
                salt = f"{threading.get_ident()} {time.monotonic()}"
                status, body = ask(http, "embeddings", model="qwen3_embedding", input=texts, cache_salt=salt)
                if status == 200 and [item["embedding"] for item in body["data"]] == wanted:
                    rounds.append(time.monotonic())
                else:
                    failures.append(body)

        threads = [threading.Thread(target=run) for _ in range(4)]
        [thread.start() for thread in threads]
        until("requests run", lambda: len(rounds) > 4 or failures)
        fleet.kill("w0")
        killed = len(rounds)
        until("requests run", lambda: len(rounds) > killed + 12 or failures, timeout=90)
        ended.set()
        [thread.join() for thread in threads]
        assert not failures, failures[0]
        assert fleet.metric("r0", "rein_resumed_total") >= 1
        # The routers learn from the workers what the model is for.
        status, body = ask(http, "chat/completions", model="qwen3_embedding", messages=[{"role": "user", "content": "a"}])
        assert status == 400 and "does not generate" in body["error"]["message"]
    finally:
        fleet.close()
