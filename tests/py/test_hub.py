"""Models by name: `rein pull` and `--model ORG/NAME`, from a hub on loopback, in the cache that huggingface_hub uses."""
import json
import os
import pathlib
import signal
import subprocess
import sys
import time
import urllib.request

import huggingface_hub
import pytest

from conftest import BIN, REPOSITORY, Server
from hub_server import COMMIT, Hub

DEMO = REPOSITORY / "models/demo"
NAME = "acme/small-model"
READ = {"config.json", "generation_config.json", "tokenizer.json", "tokenizer_config.json", "chat_template.jinja", "additional_chat_templates/rag.jinja"}
SHARDS = {f"model-0000{n}-of-00003.safetensors" for n in (1, 2, 3)}


def files(weights):
    of_demo = {name: (DEMO / name).read_bytes() for name in READ if (DEMO / name).exists()}
    of_demo["additional_chat_templates/rag.jinja"] = b"{{ messages }}"
    others = {"README.md": b"# A model", "pytorch_model.bin": b"x" * 1000, "original/consolidated.safetensors": b"y" * 1000, "vocab.json": b"{}"}
    return {**of_demo, **others, **weights}


def sharded():
    blocks = {name: bytes([n]) * (400_000 + n) for n, name in enumerate(sorted(SHARDS))}
    index = {"metadata": {}, "weight_map": {f"layer.{n}.weight": name for n, name in enumerate(sorted(SHARDS))}}
    return files({**blocks, "model.safetensors.index.json": json.dumps(index).encode(), "stray.safetensors": b"z" * 1000})


@pytest.fixture
def hub():
    hub = Hub(NAME, sharded())
    yield hub
    hub.close()


class Rein:
    def __init__(self, hub, home):
        kept = {key: value for key, value in os.environ.items() if not key.startswith("HF_") and "proxy" not in key.lower()}
        self.environment = {**kept, "HF_HOME": str(home), "HF_ENDPOINT": hub.url, "HOME": str(home)}
        self.cache = home / "hub"

    def start(self, *arguments, **variables):
        return subprocess.Popen([BIN, *arguments], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env={**self.environment, **variables})

    def run(self, *arguments, **variables):
        process = self.start(*arguments, **variables)
        out, log = process.communicate(timeout=120)
        return process.returncode, out.strip(), log

    def pull(self, *arguments, **variables):
        code, out, log = self.run("pull", *(arguments or [NAME]), **variables)
        assert code == 0, log
        return pathlib.Path(out)

    def refused(self, *arguments, **variables):
        code, _, log = self.run("pull", *(arguments or [NAME]), **variables)
        assert code == 1
        [error] = [line for line in log.splitlines() if line.startswith("rein: ")]
        return error


@pytest.fixture
def rein(hub, tmp_path):
    return Rein(hub, tmp_path / "home")


def contents(directory):
    return {str(path.relative_to(directory)): path.read_bytes() for path in directory.rglob("*") if path.is_file()}


def of_hub_client(rein, hub, **options):
    """What huggingface_hub itself finds or downloads, in a process of its own, because it reads the variables once."""
    program = f"import huggingface_hub, json, sys; print(huggingface_hub.snapshot_download({NAME!r}, **json.loads(sys.argv[1])))"
    run = subprocess.run([sys.executable, "-c", program, json.dumps(options)], env=rein.environment, capture_output=True, text=True, timeout=60)
    assert run.returncode == 0, run.stderr
    return pathlib.Path(run.stdout.strip().splitlines()[-1])


def test_what_is_read_is_downloaded_into_the_cache_of_the_hubs_tools(hub, rein):
    directory = rein.pull()
    wanted = READ | SHARDS | {"model.safetensors.index.json"}
    assert contents(directory) == {path: hub.files[path] for path in wanted}
    assert set(hub.fetched()) == wanted and len(hub.fetched()) == len(wanted)
    # Redirects went to another host: without the token.
    assert directory == rein.cache / "models--acme--small-model" / "snapshots" / COMMIT
    assert of_hub_client(rein, hub, local_files_only=True) == directory
    report = huggingface_hub.scan_cache_dir(rein.cache)
    assert not report.warnings
    [repository] = report.repos
    assert repository.repo_id == NAME and {file.file_name for revision in repository.revisions for file in revision.files} == {p.split("/")[-1] for p in wanted}
    # Again: one request for the list, no file.
    before = len(hub.requests)
    assert rein.pull() == directory and [path for _, path, _, _ in hub.requests[before:]] == ["listing"]


def test_what_the_hubs_tools_downloaded_is_found_without_a_network(hub, rein):
    directory = of_hub_client(rein, hub)
    assert "original/consolidated.safetensors" in contents(directory)
    before = len(hub.requests)
    assert rein.pull(HF_HUB_OFFLINE="1") == directory
    # Without the switch, and with a hub that nobody answers for.
    nowhere = {"HF_ENDPOINT": "http://127.0.0.1:9"}
    code, out, log = rein.run("check", "--model", NAME, "--json", **nowhere)
    assert code == 0 and json.loads(out)["model"], log
    assert "the cached files are used" in log and "Connection refused" in log
    assert "Connection refused" in rein.refused(NAME, **nowhere)
    # A commit in the cache is not asked for at all.
    code, _, log = rein.run("check", "--model", f"{NAME}@{COMMIT}", **nowhere)
    assert code == 0 and "hub" not in log.lower().replace(str(rein.cache).lower(), ""), log
    assert len(hub.requests) == before


def test_a_cache_that_lacks_a_file_is_not_whole(hub, rein):
    directory = rein.pull("--text-only", NAME)
    assert set(contents(directory)) == READ
    assert "is not whole in" in rein.refused(NAME, HF_HUB_OFFLINE="1")
    assert rein.pull("--text-only", NAME, HF_HUB_OFFLINE="1") == directory
    rein.pull()
    (directory / sorted(SHARDS)[1]).unlink()
    assert "HF_HUB_OFFLINE is set" in rein.refused(NAME, HF_HUB_OFFLINE="1")


@pytest.mark.parametrize("revision", ["v1.0", "refs/pr/7", COMMIT])
def test_a_revision_is_a_branch_a_tag_or_a_commit(hub, rein, revision):
    directory = rein.pull("--text-only", f"{NAME}@{revision}")
    assert directory.name == COMMIT
    assert of_hub_client(rein, hub, revision=revision, local_files_only=True) == directory


def test_a_cut_download_resumes_in_the_same_run_and_in_the_next(hub, rein):
    hub.cuts, hub.cut_at = 4, 150_000
    directory = rein.pull()
    assert {path: data for path, data in contents(directory).items() if path in SHARDS} == {path: hub.files[path] for path in SHARDS}
    resumed = [start for _, start in hub.fetched(full=True) if start]
    assert len(resumed) == 4 and set(resumed) <= {150_000, 300_000}

    rest = Rein(hub, rein.cache.parent.parent / "second")
    hub.slow.clear()
    killed = rest.start("pull", NAME)
    drafts = lambda: [path for path in rest.cache.rglob("*.incomplete") if path.stat().st_size >= 200_000]
    deadline = time.monotonic() + 30
    while len(drafts()) < len(SHARDS) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert len(drafts()) == len(SHARDS)
    killed.kill()
    killed.communicate(timeout=30)
    hub.slow.set()
    before = len(hub.requests)
    assert contents(rest.pull()) == contents(directory)
    assert sorted(start for _, path, start, _ in hub.requests[before:] if path in SHARDS) == [200_000, 200_000, 200_001]
    assert not list(rest.cache.rglob("*.incomplete"))


def test_a_server_without_ranges_sends_the_file_again(hub, rein):
    hub.cuts, hub.cut_at, hub.no_ranges = 2, 150_000, True
    assert {path: data for path, data in contents(rein.pull()).items() if path in SHARDS} == {path: hub.files[path] for path in SHARDS}


def test_a_download_that_brings_nothing_ends_and_says_what_is_kept(hub, rein):
    hub.cuts, hub.cut_at = 10_000, 1
    hub.files = {**hub.files, "config.json": hub.files["config.json"]}
    hub.refusals = [(503, {})] * 5
    error = rein.refused()
    assert "503 Service Unavailable: said by the body" in error and "/api/models/acme/small-model/revision/main" in error


def test_contents_are_compared_with_the_hubs_hashes(hub, rein):
    hub.flips = 1_000
    error = rein.refused()
    assert "SHA-256 is " in error and "but the Hub says " in error and ".safetensors" in error
    assert not [path for path in rein.cache.rglob("*") if path.is_file() and path.suffix == ".incomplete" and path.stat().st_size == 400_000]
    # Right from the next run on: what was wrong is not kept.
    hub.flips = 0
    assert contents(rein.pull())[sorted(SHARDS)[0]] == hub.files[sorted(SHARDS)[0]]
    # Small files have git's hash.
    other = Rein(hub, rein.cache.parent.parent / "second")
    right = hub.files["config.json"]
    listed = hub._sibling
    hub._sibling = lambda path: {**listed(path), "blobId": "ab" * 20} if path == "config.json" else listed(path)
    assert "config.json: git's SHA-1 is " in other.refused()
    assert hub.files["config.json"] == right


def test_what_another_download_left_does_not_spoil_a_file(hub, rein):
    shard = sorted(SHARDS)[0]
    blob = rein.cache / "models--acme--small-model/blobs" / hub.hash(shard)
    blob.parent.mkdir(parents=True)
    blob.with_name(f"{blob.name}.incomplete").write_bytes(b"of something else")
    assert contents(rein.pull())[shard] == hub.files[shard]
    # Longer than the file itself.
    blob.unlink()
    blob.with_name(f"{blob.name}.incomplete").write_bytes(b"!" * 500_000)
    assert contents(rein.pull())[shard] == hub.files[shard]


def test_a_token_is_sent_to_the_hub_alone(hub, rein):
    hub.token = "hf_secret"
    error = rein.refused()
    assert "401 Unauthorized (said by the header)" in error and "HF_TOKEN" in error
    rein.pull(HF_TOKEN="hf_secret")
    on_cdn = [token for _, path, _, token in hub.requests if path.endswith(hub.large)]
    assert on_cdn and set(on_cdn) == {None}
    # As `hf auth login` keeps it.
    (rein.cache.parent / "token").write_text("hf_secret\n")
    assert rein.pull().is_dir()
    error = rein.refused(HF_TOKEN="a\nb")
    assert error.startswith("rein: HF_TOKEN: ") and "\n" not in error


@pytest.mark.parametrize("status, says", [(403, "gated"), (404, "no such model or revision"), (410, "410 Gone (said by the body)")])
def test_refusals_are_told(hub, rein, status, says):
    hub.refusals = [(status, {})]
    error = rein.refused()
    assert says in error and NAME in error
    assert len(hub.requests) == 0


def test_too_many_requests_are_waited_for_as_the_hub_asks(hub, rein):
    hub.refusals = [(429, {"Retry-After": "2"}), (503, {})]
    began = time.monotonic()
    rein.pull("--text-only", NAME)
    assert time.monotonic() - began >= 2
    hub.refusals = [(429, {"Retry-After": "0"})] * 5
    assert "429 Too Many Requests" in rein.refused("--text-only", NAME)


def test_a_renamed_repository_and_a_mirror_without_hashes(hub, rein):
    assert rein.pull("--text-only", "former/name").parts[-3] == "models--former--name"
    hub.plain_list = True
    assert contents(rein.pull())["config.json"] == hub.files["config.json"]


def test_two_processes_download_each_file_once(hub, rein):
    hub.slow.clear()
    first, second = rein.start("pull", NAME), rein.start("pull", NAME)
    time.sleep(2)
    hub.slow.set()
    outs = [process.communicate(timeout=60) for process in (first, second)]
    assert outs[0][0] == outs[1][0] != "", outs
    fetched = [path for path in hub.fetched() if path in SHARDS]
    assert sorted(fetched) == sorted(SHARDS)


def test_a_full_disk_is_told_before_the_download(hub, rein):
    hub.sizes["model-00001-of-00003.safetensors"] = 10**18
    error = rein.refused()
    assert "more bytes and" in error and "set HF_HOME to a directory on a larger disk" in error
    assert not SHARDS & set(hub.fetched())


@pytest.mark.parametrize("path", ["../../outside", "/etc/outside", "a/../../b"])
def test_a_hub_cannot_write_outside_of_the_cache(hub, rein, path):
    hub.files = {**hub.files, path: b"x"}
    assert "outside of the repository" in rein.refused()
    index = json.dumps({"weight_map": {"a": path}}).encode()
    hub.files = {**sharded(), "model.safetensors.index.json": index}
    assert "outside of the repository" in rein.refused()


def test_a_repository_without_what_rein_reads_says_what_it_has(hub, rein):
    hub.files = files({"model-q4_k_m.gguf": b"GGUF"})
    error = rein.refused()
    assert "has no file model.safetensors, but pytorch_model.bin, original/consolidated.safetensors, model-q4_k_m.gguf; Rein reads safetensors" in error
    del hub.files["config.json"]
    assert "has no file config.json" in rein.refused()


def test_gguf_files_of_a_repository_are_downloaded_alone(hub, rein, tmp_path):
    fixtures = REPOSITORY / "tests/fixtures/models"
    parts = {f"q4/two-{part}": (fixtures / "gguf_qwen3_moe" / f"model-{part}").read_bytes() for part in ("00001-of-00002.gguf", "00002-of-00002.gguf")}
    hub.files = {"README.md": b"# GGUF", "one.gguf": (fixtures / "gguf_llama/model.gguf").read_bytes(), "other.gguf": b"GGUF", **parts}
    path = rein.pull(f"{NAME}/one.gguf")
    assert path.name == "one.gguf" and set(contents(path.parent)) == {"one.gguf"}
    first = rein.pull(f"{NAME}/q4/two-00001-of-00002.gguf@main")
    assert {file.name for file in first.parent.iterdir()} == {"two-00001-of-00002.gguf", "two-00002-of-00002.gguf"}
    # Without the server, from the cache; the model has the file's name.
    hub.close()
    code, out, log = rein.run("capacity", f"{NAME}/one.gguf", HF_HUB_OFFLINE="1", XDG_CACHE_HOME=str(tmp_path))
    assert code == 0 and "LlamaForCausalLM" in out, log


def test_a_gguf_file_that_a_repository_lacks_is_told_with_those_that_it_has(hub, rein):
    hub.files = {"one.gguf": b"GGUF"}
    assert "has no file two.gguf, but one.gguf" in rein.refused(f"{NAME}/two.gguf")
    assert "has no file config.json, but one.gguf; Rein reads safetensors and, as ORG/NAME/FILE.gguf, GGUF files" in rein.refused()


@pytest.mark.parametrize("value, says", [("nothing", "expected ORG/NAME"), ("a/b/c", "expected ORG/NAME"), ("../b", "expected ORG/NAME"), ("a/b@", "expected ORG/NAME")])
def test_names_that_are_none(rein, value, says):
    assert says in rein.refused(value)


@pytest.mark.parametrize("variables, says", [({"HF_ENDPOINT": "huggingface.co"}, "HF_ENDPOINT: expected a URL such as https://huggingface.co"),
                                             ({"HF_HOME": "", "HOME": ""}, "no home directory: set HF_HOME"),
                                             ({"HF_HOME": "/proc/none"}, "/proc/none")])
def test_variables_that_are_wrong(rein, variables, says):
    assert says in rein.refused(**variables)


def test_a_proxy_of_the_environment_is_used(hub, rein):
    assert "the proxy http://127.0.0.1:9" in rein.refused(NAME, HTTP_PROXY="http://127.0.0.1:9", http_proxy="http://127.0.0.1:9")
    assert rein.pull("--text-only", NAME, http_proxy="http://127.0.0.1:9", no_proxy="127.0.0.1").is_dir()


def test_a_model_by_name_is_served_under_its_name(hub, rein, tmp_path, monkeypatch):
    hub.files = files({"model.safetensors": (DEMO / "model.safetensors").read_bytes()})
    for key, value in rein.environment.items():
        monkeypatch.setenv(key, value)
    server = Server(model=NAME)
    try:
        with urllib.request.urlopen(f"{server.http}/v1/models", timeout=10) as answer:
            [model] = json.load(answer)["data"]
        assert model["id"] == NAME
        body = json.dumps({"model": NAME, "messages": [{"role": "user", "content": "Hi"}], "max_tokens": 4}).encode()
        ask = urllib.request.Request(f"{server.http}/v1/chat/completions", body, {"Content-Type": "application/json"})
        with urllib.request.urlopen(ask, timeout=30) as answer:
            assert json.load(answer)["model"] == NAME
    finally:
        server.stop()
    # Every command that takes a directory takes the name, and reads no more than it needs.
    conversation = json.dumps({"messages": [{"role": "user", "content": "Hi"}]})
    run = subprocess.run([BIN, "render", "--model", NAME], input=conversation, capture_output=True, text=True, timeout=60)
    assert run.returncode == 0 and "Hi" in json.loads(run.stdout)["prompt"], run.stderr
    empty = Rein(hub, tmp_path / "second")
    hub.requests.clear()
    code, out, log = empty.run("capacity", NAME)
    assert code == 0 and out.startswith(f"{NAME}: "), log
    assert hub.fetched() == ["config.json"]
    code, out, log = empty.run("check", "--model", "no-such/directory")
    assert code == 1 and "--model: no-such/directory is no directory, so a model of the Hub: " in log


def test_a_model_in_mistrals_own_layout_is_taken_as_it_is(hub, rein, tmp_path):
    native = REPOSITORY / "tests/fixtures/native/mistral_large3"
    tekken = REPOSITORY / "router/text/src/tokenize/fixtures/tekken/tekken.json"
    weights = (native / "consolidated.safetensors").read_bytes()
    template = "{{ bos_token }}{% for m in messages %}[INST]{{ m.content }}[/INST]{% endfor %}"
    hub.files = {
        "README.md": b"# A model", "params.json": (native / "params.json").read_bytes(), "tekken.json": tekken.read_bytes(),
        "chat_template.jinja": template.encode(), "consolidated.safetensors": weights, "SYSTEM_PROMPT.txt": b"Be good."}
    rein.environment["XDG_CACHE_HOME"] = str(tmp_path / "cache")
    directory = rein.pull()
    assert set(contents(directory)) == {"params.json", "tekken.json", "chat_template.jinja", "consolidated.safetensors"}
    # From here on without the server.
    hub.close()
    offline = {"HF_HUB_OFFLINE": "1"}
    code, out, log = rein.run("capacity", NAME, **offline)
    assert code == 0 and "MistralLarge3ForCausalLM, 3 layers" in out, log
    reference = json.loads((native / "reference.json").read_text())
    tokens = tmp_path / "tokens.json"
    tokens.write_text(json.dumps(reference["tokens"]))
    for model in (NAME, str(directory)):
        code, out, log = rein.run("score", "--model", model, "--tokens", str(tokens), "--dtype", "f32", **offline)
        assert code == 0, log
        assert json.loads(out)["logprobs"][1:] == pytest.approx(reference["logprobs"][1:], abs=1e-5)
    conversation = json.dumps({"messages": [{"role": "user", "content": "Hi"}]})
    run = subprocess.run([BIN, "render", "--model", NAME], input=conversation, capture_output=True, text=True, timeout=60,
                         env={**rein.environment, **offline})
    assert run.returncode == 0, run.stderr
    rendered = json.loads(run.stdout)
    assert rendered["prompt"] == "<s>[INST]Hi[/INST]"
    begin, end = rendered["token_ids"][:2], rendered["token_ids"][-1]
    assert begin == [1, 3] and end == 4


def test_a_key_of_mistrals_own_layout_that_would_change_results_is_refused(rein, tmp_path):
    native = REPOSITORY / "tests/fixtures/native/mistral_large3"
    params = json.loads((native / "params.json").read_text())
    (tmp_path / "params.json").write_text(json.dumps(params | {"moe": params["moe"] | {"renorm": True}}))
    code, _, log = rein.run("capacity", str(tmp_path))
    assert code == 1 and f"{tmp_path}/params.json: moe.renorm is not supported" in log, log
