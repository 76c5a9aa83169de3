"""LoRA adapters by name: over HTTP, gRPC and the OpenAI SDK, and in a cluster whose workers and groups come and go.

That their numbers are PEFT's is tested in Rust (worker/src/rank/tests/loras.rs)."""
import json
import shlex
import subprocess
import threading
import urllib.error
import urllib.request

import numpy
import openai
import pytest
from safetensors.numpy import save_file

from conftest import REPOSITORY, Server
from fleet import Fleet, Load, assert_unnoticed, request, targets, until
from test_cluster import resumed
from test_docs import addressed, blocks
from test_grpc import Client

FIXTURES = REPOSITORY / "tests/fixtures"
QWEN, QWEN_LORAS = FIXTURES / "models/qwen3", FIXTURES / "loras"
EXAMPLES = {note.removeprefix("test: lora "): code for _, code, note in blocks(REPOSITORY / "docs/howto/lora.md")}


def make_adapter(directory, seed, rank=4, gain=0.5):
    """An adapter of the demo model: attention, shared experts, and the experts of one layer."""
    directory.mkdir()
    config = {"peft_type": "LORA", "r": rank, "lora_alpha": rank, "base_model_name_or_path": "demo"}
    (directory / "adapter_config.json").write_text(json.dumps(config))
    random = numpy.random.default_rng(seed)
    tensors = {}

    def add(module, out, inp):
        name = f"base_model.model.model.layers.{module}"
        tensors[f"{name}.lora_A.weight"] = random.normal(0, inp**-0.5, (rank, inp)).astype("float32")
        tensors[f"{name}.lora_B.weight"] = random.normal(0, gain * rank**-0.5, (out, rank)).astype("float32")

    for layer in range(5):
        add(f"{layer}.self_attn.q_a_proj", 96, 192)
        add(f"{layer}.self_attn.o_proj", 192, 4 * 48)
        if layer > 0:
            add(f"{layer}.mlp.shared_experts.up_proj", 128, 192)
    for expert in range(8):
        add(f"3.mlp.experts.{expert}.gate_proj", 128, 192)
        add(f"3.mlp.experts.{expert}.down_proj", 192, 128)
    save_file(tensors, directory / "adapter_model.safetensors")
    return directory


def post(base, path, **body):
    """Status and body."""
    data, headers = json.dumps(body).encode(), {"content-type": "application/json"}
    try:
        with urllib.request.urlopen(urllib.request.Request(base + path, data, headers), timeout=60) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        return error.code, error.read().decode()


def load(base, name, path, **more):
    return post(base, "/v1/load_lora_adapter", lora_name=name, lora_path=str(path), **more)


def tokens(base, model, **more):
    status, body = post(base, "/v1/completions", model=model, prompt=[5, 6, 7, 8], max_tokens=16, temperature=0,
                        return_token_ids=True, **more)
    assert status == 200, body
    return json.loads(body)["choices"][0]["token_ids"]


def test_the_examples_of_the_docs():
    command = EXAMPLES["serve"]
    for name, adapter in [("sql", "qwen3_all"), ("support", "qwen3_patterns")]:
        command = command.replace(f"/adapters/{name}", str(QWEN_LORAS / adapter))
    program, serve, _, *options = shlex.split(command)
    assert (program, serve) == ("rein", "serve")
    server = Server(*options, "--lora-api", model=QWEN)
    try:
        with urllib.request.urlopen(f"{server.http}/v1/models") as answer:
            assert {model["id"] for model in json.load(answer)["data"]} == {"qwen3", "sql", "support"}
        script = addressed(EXAMPLES["api"], server).replace("/adapters/sql-v2", str(QWEN_LORAS / "qwen3_patterns"))
        done = subprocess.run(["bash", "-euc", script], capture_output=True, text=True, timeout=60)
        assert done.stdout.count("Success") == 2, done
    finally:
        server.stop()


@pytest.fixture(scope="module")
def server():
    server = Server("--lora", f"all={QWEN_LORAS / 'qwen3_all'}", "--lora-api", "--max-loras", "2", "--max-context", "96",
                    model=QWEN)
    yield server
    server.stop()


def test_an_adapter_is_a_model_of_its_own(server):
    client = openai.OpenAI(base_url=f"{server.http}/v1", api_key="none", max_retries=0)
    listed = {model.id: model for model in client.models.list()}
    assert set(listed) == {"all", "qwen3"}
    assert listed["all"].parent == "qwen3" and listed["all"].root.endswith("qwen3_all")
    assert listed["qwen3"].parent is None
    answers = [client.completions.create(model=model, prompt="abc", max_tokens=8, temperature=0) for model in listed]
    assert {answer.model for answer in answers} == {"all", "qwen3"}
    assert answers[0].choices[0].text != answers[1].choices[0].text
    assert answers[0].system_fingerprint != answers[1].system_fingerprint
    # With one model, its name may be left out, whatever adapters it has.
    status, body = post(server.http, "/v1/completions", prompt="abc", max_tokens=2)
    assert (status, json.loads(body)["model"]) == (200, "qwen3")
    grpc = Client(server.grpc)
    models = grpc.call("ListModels", grpc.message("ListModelsRequest")).models
    assert {(model.id, model.parent) for model in models} == {("all", "qwen3"), ("qwen3", "")}


def test_loading_and_unloading(server):
    base = server.http
    alone = tokens(base, "qwen3")
    assert load(base, "more", QWEN_LORAS / "qwen3_patterns") == (200, "Success: LoRA adapter 'more' added successfully.")
    first = tokens(base, "more")
    assert first not in (alone, tokens(base, "all"))
    # The same files again are no error, others are, unless they shall replace it.
    assert load(base, "more", QWEN_LORAS / "qwen3_patterns")[0] == 200
    status, body = load(base, "more", QWEN_LORAS / "qwen3_all")
    assert (status, json.loads(body)["error"]["code"]) == (400, "lora_exists")
    status, body = load(base, "third", QWEN_LORAS / "qwen3_patterns")
    assert status == 400 and "--max-loras" in body
    assert post(base, "/v1/unload_lora_adapter", lora_name="more")[0] == 200
    status, body = post(base, "/v1/unload_lora_adapter", lora_name="more")
    assert (status, json.loads(body)["error"]["code"]) == (404, "lora_not_found")
    status, body = post(base, "/v1/completions", model="more", prompt="a")
    assert status == 404 and "all, qwen3" in body
    # Its slot is free again, and its blocks are not those of the next one.
    assert load(base, "more", QWEN_LORAS / "qwen3_all")[0] == 200
    assert tokens(base, "more") == tokens(base, "all") != first
    grpc = Client(server.grpc)
    grpc.call("UnloadLora", grpc.message("UnloadLoraRequest", name="more"))
    path = str(QWEN_LORAS / "qwen3_patterns")
    assert grpc.call("LoadLora", grpc.message("LoadLoraRequest", name="more", path=path)).rank == 7
    assert tokens(base, "more") == first
    assert tokens(base, "qwen3") == alone
    grpc.call("UnloadLora", grpc.message("UnloadLoraRequest", name="more"))


def test_blocks_are_shared_with_sequences_of_the_same_adapter_alone(server):
    def cached(model):
        status, body = post(server.http, "/v1/completions", model=model, prompt=list(range(10, 60)), max_tokens=1)
        assert status == 200, body
        return json.loads(body)["usage"]["prompt_tokens_details"]["cached_tokens"]

    assert cached("all") == 0
    assert cached("qwen3") == 0
    assert cached("all") == cached("qwen3") == 48
    # What only an adapter's salt begins with is no way to its blocks.
    status, body = post(server.http, "/v1/completions", model="qwen3", prompt=list(range(10, 60)), max_tokens=1,
                        cache_salt="\0" + "0" * 16)
    assert status == 200 and json.loads(body)["usage"]["prompt_tokens_details"]["cached_tokens"] == 0


@pytest.mark.parametrize("change, words", [
    ({"peft_type": "IA3"}, ["peft_type", "LORA"]),
    ({"bias": "all"}, ["bias", "none"]),
    ({"use_dora": True}, ["use_dora", "merge"]),
    ({"modules_to_save": ["lm_head"]}, ["modules_to_save", "merge"]),
    ({"init_lora_weights": "pissa"}, ["init_lora_weights", "pissa"]),
    ({"lora_alpha": "8"}, ["lora_alpha", "number"]),
    ({"some_new_variant": {"k": 1}}, ["some_new_variant"]),
    ({"alpha_pattern": {"(": 1}}, ["alpha_pattern"]),
])
def test_what_changes_results_is_refused_by_its_key(server, tmp_path, change, words):
    source = QWEN_LORAS / "qwen3_all"
    config = json.loads((source / "adapter_config.json").read_text())
    (tmp_path / "adapter_config.json").write_text(json.dumps(config | change))
    (tmp_path / "adapter_model.safetensors").symlink_to(source / "adapter_model.safetensors")
    status, body = load(server.http, "bad", tmp_path)
    error = json.loads(body)["error"]
    assert (status, error["param"]) == (400, "lora_path")
    assert all(word in error["message"] for word in ["adapter_config.json", *words]), error["message"]


@pytest.mark.parametrize("edit, words", [
    (lambda t: t.pop("base_model.model.model.layers.0.self_attn.q_proj.lora_B.weight"), ["q_proj", "only one of"]),
    (lambda t: rename(t, "q_proj", "z_proj"), ["z_proj", "no linear module", "Qwen3ForCausalLM"]),
    (lambda t: rename(t, "base_model.model.model.layers.0.self_attn.q_proj", "base_model.model.lm_head"), ["lm_head", "target_modules"]),
    (lambda t: t.update({"base_model.model.model.norm.weight": numpy.ones(64, "float32")}), ["norm.weight"]),
    (lambda t: rename(t, "mlp.up_proj", "mlp.down_proj", only="layers.1."), ["mlp.down_proj", "[96, 64]", "[64, 96]"]),
    (lambda t: t.update({k: v[:, :3] for k, v in t.items() if "0.mlp.up_proj.lora_B" in k}), ["up_proj", "rank 4", "3"]),
    (lambda t: t.update({"x.lora_A.weight": numpy.ones((4, 4), "float32")}), ["x.lora_A.weight", "base_model.model."]),
])
def test_files_that_do_not_fit_are_clear_errors(server, tmp_path, edit, words):
    from safetensors.numpy import load_file

    source = QWEN_LORAS / "qwen3_all"
    tensors = load_file(source / "adapter_model.safetensors")
    edit(tensors)
    (tmp_path / "adapter_config.json").symlink_to(source / "adapter_config.json")
    save_file({name: numpy.ascontiguousarray(tensor) for name, tensor in tensors.items()}, tmp_path / "adapter_model.safetensors")
    status, body = load(server.http, "bad", tmp_path)
    message = json.loads(body)["error"]["message"]
    assert status == 400 and all(word in message for word in words), message


def rename(tensors, old, new, only=""):
    for name in [name for name in tensors if old in name and only in name]:
        tensors[name.replace(old, new)] = tensors.pop(name)


@pytest.mark.parametrize("body, param", [
    ({"lora_path": "/x"}, "lora_name"),
    ({"lora_name": "x"}, "lora_path"),
    ({"lora_name": 3, "lora_path": "/x"}, "lora_name"),
    ({"lora_name": "qwen3", "lora_path": "/x"}, "lora_name"),
    ({"lora_name": "x", "lora_path": "/x", "model": "all"}, "model"),
    ({"lora_name": "x" * 257, "lora_path": "/x"}, "lora_name"),
])
def test_bad_requests_name_their_field(server, body, param):
    status, answer = post(server.http, "/v1/load_lora_adapter", **body)
    assert (status, json.loads(answer)["error"]["param"]) == (400, param)


def test_the_api_is_off_by_default():
    server = Server("--lora", f"all={QWEN_LORAS / 'qwen3_all'}", model=QWEN)
    try:
        status, body = load(server.http, "more", QWEN_LORAS / "qwen3_patterns")
        assert status == 404 and "--lora-api" in body
        assert tokens(server.http, "all") != tokens(server.http, "qwen3")
    finally:
        server.stop()


@pytest.fixture(scope="module")
def adapters(tmp_path_factory):
    made = tmp_path_factory.mktemp("adapters")
    return {name: make_adapter(made / name, seed) for seed, name in enumerate(["own", "first", "second"])}


@pytest.fixture(scope="module")
def fleet(tmp_path_factory, adapters):
    # More blocks would hide a group that forms again behind the blocks of the other one.
    worker = ["--lora", f"own={adapters['own']}", "--max-loras", "4"]
    fleet = Fleet(tmp_path_factory.mktemp("fleet"), workers=4, group_size=2, worker_args=worker,
                  more={"REIN_LORA_API": "true", "REIN_DRAIN_SECONDS": "80"})
    try:
        fleet.whole(2)
        yield fleet
    finally:
        fleet.close()


def models(fleet, router):
    with urllib.request.urlopen(f"http://127.0.0.1:{fleet.ports[router][0]}/v1/models", timeout=30) as answer:
        return {model["id"] for model in json.loads(answer.read())["data"]}


def groups_with(fleet, name):
    """The number of groups that tell in etcd that they have an adapter."""
    found = fleet.etcdctl("get", "--prefix", "/rein/test/groups/", "--print-value-only").splitlines()
    records = [json.loads(line) for line in found if line.startswith("{")]
    return sum(any(lora["name"] == name for lora in record.get("loras", [])) for record in records)


def requests(model, count=8):
    return [{**request(i), "model": model} for i in range(count)]


def test_adapters_of_a_cluster_survive_its_groups(fleet, adapters):
    base = f"http://127.0.0.1:{fleet.ports['r0'][0]}"
    until("both groups have the workers' own", lambda: groups_with(fleet, "own") == 2)
    for name in ("first", "second"):
        assert load(base, name, adapters[name])[0] == 200
    # The other router hears of them from the groups.
    until("both routers list them", lambda: all(models(fleet, r) == {"demo", "own", "first", "second"} for r in ("r0", "r1")))
    bodies = [body for name in ("demo", "own", "first", "second") for body in requests(name, 4)]
    undisturbed = Load(targets(fleet), bodies).join()
    assert all(answer.ok for answer in undisturbed), [answer.error for answer in undisturbed]
    texts = {answer.text for answer in undisturbed}
    assert len(texts) == len(bodies)
    calls = [answer for answer in undisturbed if "|book_room{" in answer.text]
    assert len(calls) == len(bodies) // 2, "an adapter's calls are enforced as the model's"

    # A leader dies while all four stream: its sequences go on in the other group, which has the adapters.
    status = fleet.whole(2)
    leaders = [group["ranks"][0]["worker"] for group in status["groups"].values()]
    running = Load(targets(fleet), bodies)
    running.reach(0.3 * sum(len(answer.ids) for answer in undisturbed))
    before = resumed(fleet)
    fleet.kill(leaders[0])
    assert_unnoticed(running.join(), undisturbed)
    assert resumed(fleet) > before, "no sequence was resumed"
    fleet.start(leaders[0])
    fleet.whole(2)
    # The new group gets them without being asked.
    for name in ("own", "first", "second"):
        until(f"both groups have {name} again", lambda: groups_with(fleet, name) == 2)
    fleet.kill(leaders[1])
    assert_unnoticed(Load(targets(fleet, "r1"), bodies).join(), undisturbed)
    fleet.start(leaders[1])
    fleet.whole(2)
    until("both groups have all", lambda: all(groups_with(fleet, name) == 2 for name in ("own", "first", "second")))


def test_an_unloaded_adapter_leaves_all_groups_and_ends_no_stream(fleet, adapters):
    base = f"http://127.0.0.1:{fleet.ports['r1'][0]}"
    assert load(base, "first", adapters["first"])[0] == 200
    until("both groups have it", lambda: groups_with(fleet, "first") == 2)
    bodies = requests("first", 4)
    undisturbed = Load(targets(fleet), bodies).join()
    running = Load(targets(fleet), bodies)
    running.reach(1)
    unloaded = []
    thread = threading.Thread(target=lambda: unloaded.append(post(base, "/v1/unload_lora_adapter", lora_name="first")))
    thread.start()
    assert_unnoticed(running.join(), undisturbed)
    thread.join()
    assert unloaded == [(200, "Success: LoRA adapter 'first' removed successfully.")]
    until("no group has it", lambda: groups_with(fleet, "first") == 0)
    until("no router lists it", lambda: all("first" not in models(fleet, r) for r in ("r0", "r1")))
    assert "first" not in fleet.etcdctl("get", "--prefix", "/rein/test/loras/", "--print-value-only")
