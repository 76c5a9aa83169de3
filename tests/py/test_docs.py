"""The docs match the program: code blocks run, names exist, generated pages and plots are current.

tests/it/tidy checks links and the width of lines."""
import json
import os
import pathlib
import re
import subprocess
import sys
import textwrap
import tomllib

import pytest

from conftest import BIN, REPOSITORY, Server

DOCS = REPOSITORY / "docs"
PAGES = [REPOSITORY / "README.md", *sorted(DOCS.rglob("*.md"))]
# Every command block of these pages runs here or in another test (see ELSEWHERE), or says in a comment why it does not.
RUN = [REPOSITORY / "README.md", *sorted((DOCS / "start").glob("*.md")), *sorted((DOCS / "howto").glob("*.md")), DOCS / "reference/grpc.md"]
COMMANDS = ("sh", "python")
# The first words of comments before blocks that other tests run: test_clients.py, test_dist.py, and tests below.
ELSEWHERE = ("client:", "dist:", "test:")
MOST_NOT_RUN = 22
BLOCK = re.compile(r"(?:<!-- (?P<note>[^>]*?) -->\n)?(?P<indent> *)```(?P<language>\w*)\n(?P<code>.*?)\n *```", re.S)


def name(page):
    return str(page.relative_to(REPOSITORY))


def blocks(page):
    for match in BLOCK.finditer(page.read_text()):
        yield match["language"], textwrap.dedent(match["code"]), match["note"] or ""


def command_blocks(skipped):
    """The blocks that run, or those that do not."""
    for page in RUN:
        for number, (language, code, note) in enumerate(blocks(page), 1):
            if language in COMMANDS and note.startswith("not run:") == skipped and not note.startswith(ELSEWHERE):
                yield pytest.param(page, language, code, note, id=f"{name(page)}:{number}")


def environment():
    path = os.pathsep.join([str(pathlib.Path(BIN).resolve().parent), str(pathlib.Path(sys.executable).parent), os.environ["PATH"]])
    return {**os.environ, "PATH": path, "REIN_LOG": "warn"}


def addressed(code, server):
    """Replaces the default addresses in the code with those of this server."""
    return code.replace("http://127.0.0.1:8000", server.http).replace("127.0.0.1:50051", server.grpc)


@pytest.fixture(scope="module")
def clone(tmp_path_factory):
    """A directory in which relative paths of the docs exist and files can be written."""
    directory = tmp_path_factory.mktemp("clone")
    (directory / "models").symlink_to(REPOSITORY / "models")
    return directory


@pytest.mark.parametrize("page, language, code, note", list(command_blocks(skipped=False)))
def test_a_command_block_runs(page, language, code, note, demo, clone):
    command = [sys.executable, "-c"] if language == "python" else ["bash", "-euo", "pipefail", "-c"]
    done = subprocess.run([*command, addressed(code, demo)], cwd=clone, env=environment(), capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, f"{code}\n{done.stdout}\n{done.stderr}"
    assert '"error":{' not in done.stdout, done.stdout


def test_blocks_that_do_not_run_say_why_and_are_few():
    skipped = list(command_blocks(skipped=True))
    for page, _, code, note in (one.values for one in skipped):
        assert len(note.removeprefix("not run:").split()) >= 3, (name(page), code)
    assert len(skipped) <= MOST_NOT_RUN, [one.id for one in skipped]


def test_make_targets_of_the_docs_exist():
    targets = {target for page in RUN for language, code, _ in blocks(page) if language == "sh" for target in re.findall(r"^make ([\w-]+)", code, flags=re.M)}
    assert {"serve", "test", "cluster"} <= targets
    for target in targets:
        done = subprocess.run(["make", "-n", target], cwd=REPOSITORY, capture_output=True, text=True)
        assert done.returncode == 0, (target, done.stderr)


def stub(path, script):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(0o755)


def readme_block(note):
    return next(code for language, code, found in blocks(REPOSITORY / "README.md") if found == f"test: {note}")


def test_the_readme_puts_the_binary_on_the_path(tmp_path):
    stub(tmp_path / "target/release/rein", "echo started")
    done = subprocess.run(["bash", "-euc", readme_block("path") + "\nrein"], cwd=tmp_path, capture_output=True, text=True)
    assert done.stdout == "started\n", done.stderr


def test_make_serves_the_checkpoint_that_the_readme_names(tmp_path):
    """With a cargo that builds a stub in place of the release binary."""
    (tmp_path / "Makefile").symlink_to(REPOSITORY / "Makefile")
    stub(tmp_path / "scripts/setup.sh", "")
    build = 'echo "#!/bin/sh\necho rein \\"\\$@\\"" > target/release/rein; chmod +x target/release/rein'
    stub(tmp_path / ".tools/bin/cargo", f"mkdir -p target/release; {build}")
    done = subprocess.run(["bash", "-euc", readme_block("own checkpoint")], cwd=tmp_path, capture_output=True, text=True)
    command = "rein serve --engine cpu --model /path/to/checkpoint --http 127.0.0.1:8000 --grpc 127.0.0.1:50051"
    assert command in done.stdout.splitlines(), done


def test_the_quick_start_returns_the_call_on_the_page(demo, clone):
    page = DOCS / "start/quickstart.md"
    code = [code for language, code, _ in blocks(page) if language == "sh" and "get_weather" in code]
    shown = next(json.loads(code) for language, code, _ in blocks(page) if language == "json")
    answers = []
    for block in code:
        done = subprocess.run(["bash", "-c", addressed(block, demo)], capture_output=True, text=True, timeout=60, check=True)
        answers.append(json.loads(done.stdout)["choices"][0])
    assert answers[0]["finish_reason"] == "tool_calls" and answers[0]["message"]["tool_calls"] == [shown]
    call = answers[1]["message"]["tool_calls"][0]["function"]
    assert json.loads(call["arguments"])["city"] in ("Rome", "Oslo") and answers[1]["grammar"]["checked"] > 0


def test_the_example_config_file_works(clone):
    text = next(code for language, code, _ in blocks(DOCS / "reference/config-file.md") if language == "toml")
    config = tomllib.loads(text)
    path = clone / "rein.toml"
    path.write_text(text)
    server = Server("--config", str(path), model=REPOSITORY / config["model"])
    server.stop()
    path.write_text(text + "\nno-such-option = 1\n")
    done = subprocess.run([BIN, "serve", "--config", str(path)], cwd=clone, capture_output=True, text=True)
    assert done.returncode != 0 and "no-such-option" in done.stderr


@pytest.mark.parametrize("script", ["reference.py", "plot_benchmarks.py", "chart.py"])
def test_generated_pages_and_plots_are_current(script):
    done = subprocess.run([sys.executable, str(REPOSITORY / "scripts" / script), "--check"], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_the_index_lists_every_page():
    index = (DOCS / "README.md").read_text()
    inner = [DOCS / "benchmarks", DOCS / "decisions"]
    missing = [name(page) for page in PAGES[1:] if page.parent not in inner and page.name != "README.md" and f"({page.relative_to(DOCS)})" not in index]
    assert not missing


# --- Names

def sources(*folders, suffix=".rs"):
    for folder in folders:
        for path in sorted((REPOSITORY / folder).rglob(f"*{suffix}")):
            parts = path.relative_to(REPOSITORY).parts
            if "target" not in parts and not any("test" in part or part == "benches" for part in parts):
                yield path.read_text()


def first_cells(page, heading=None, until=None):
    """Code spans in the first cell of each row of the page's tables."""
    text = page.read_text()
    if heading:
        text = text.split(f"\n{heading}\n", 1)[1]
        text = re.split(r"\n## ", text, maxsplit=1)[0] if until is None else text.split(until, 1)[0]
    for line in text.splitlines():
        if line.startswith("|"):
            yield from re.findall(r"`([^`]+)`", line.split("|")[1])


def test_the_page_lists_exactly_the_error_codes():
    code = "\n".join(re.sub(r"\n#\[cfg\(test\)\]\nmod \w+ \{.*", "", text, flags=re.S) for text in sources("router/src", "router/text/src"))
    written = set(re.findall(r'(?:code: Some\(|InvalidRequest::new\()\s*"([a-z0-9_]+)"', code)) | set(re.findall(r'=> "(grammar_[a-z_]+)"', code))
    assert len(written) > 30, written
    assert set(first_cells(DOCS / "reference/errors.md", "## Codes")) == written


def test_log_messages_in_the_docs_exist():
    code = " ".join(" ".join(sources("router", "worker", "adapter", "control-plane", "hub", "src", "proto", "kernels")).split())
    messages = list(first_cells(DOCS / "reference/log-messages.md"))
    alarms = re.findall(r"[Ll]og:? ((?:`[^`]+`(?:, )?)+)", (DOCS / "howto/watch.md").read_text())
    messages += [message.removesuffix(" ...") for spans in alarms for message in re.findall(r"`([^`]+)`", spans)]
    assert len(alarms) > 5
    assert not [message for message in messages if message not in code]


def log_arguments(text, at):
    """The arguments of a log macro whose opening parenthesis is before `at`."""
    found, start, depth = [], at, 0
    while depth >= 0:
        if text[at] == '"':
            at = re.compile(r'"(?:\\.|[^"\\])*"', re.S).match(text, at).end() - 1
        depth += {**dict.fromkeys("([{", 1), **dict.fromkeys(")]}", -1)}.get(text[at], 0)
        if depth < 0 or (depth == 0 and text[at] == ","):
            found.append(text[start:at].strip())
            start = at + 1
        at += 1
    return found


def test_log_lines_are_explained():
    page, missing, found = (DOCS / "reference/log-messages.md").read_text(), [], 0
    for text in sources("router/src", "router/text/src", "worker/src", "adapter/src", "control-plane/src", "hub/src", "src"):
        for macro in re.finditer(r"tracing::(?:info|warn|error)!\(", text):
            message = next(argument for argument in log_arguments(text, macro.end()) if argument.startswith('"'))
            parts = re.split(r"\{[^}]*\}", re.sub(r"\\\n\s*", "", message[1:-1]))
            parts = [part.split(";")[0].strip(" :,.`") for part in parts]
            # A message that is written entirely from variables has no part to look for.
            parts = [part for part in parts if len(part) > 5]
            found += 1
            if parts and not any(part in page for part in parts):
                missing.append(message)
    assert found > 50 and not missing, missing


def test_the_page_lists_exactly_the_architectures():
    table = (REPOSITORY / "worker/src/model/arch/mod.rs").read_text()
    written = set(re.findall(r'\bname: "(\w+)"', table))
    listed = set(first_cells(DOCS / "reference/models.md", "## Architectures"))
    assert listed == written
    counted = f"{len(written)} "
    assert f"can execute {counted}architectures" in " ".join((REPOSITORY / "README.md").read_text().split())
    assert f"{counted}architectures run" in (DOCS / "start/what-rein-is.md").read_text()


def test_the_page_lists_the_architectures_of_gguf_files():
    table = (REPOSITORY / "gguf/src/families.rs").read_text()
    written = set(re.findall(r'\bgguf: "([^"]+)"', table))
    section = (DOCS / "reference/models.md").read_text().split("\n## GGUF files\n", 1)[1].split("\n## ", 1)[0]
    cells = re.findall(r"^\| (`[^|]+) \|", section, flags=re.M)
    listed = {name for cell in cells for name in re.findall(r"`([^`]+)`", cell) if name != "general.architecture"}
    assert listed == written


def test_the_page_of_the_fixtures_lists_each():
    fixtures = REPOSITORY / "tests/fixtures"
    models = (fixtures / "README.md").read_text().split("\n## models\n", 1)[1].split("\n## ", 1)[0]
    listed = [name for names in re.findall(r"^\| ([a-z0-9_, ]+) \|", models, flags=re.M) for name in names.split(", ")]
    assert sorted(listed) == sorted(["name", *(path.name for path in (fixtures / "models").iterdir())])


def test_the_number_of_formats_is_right():
    formats = json.loads(subprocess.run([BIN, "formats", "--json"], capture_output=True, text=True, check=True).stdout)
    number = sum(1 for one in formats if one["name"] != "plain")
    for page in [REPOSITORY / "README.md", DOCS / "start/what-rein-is.md"]:
        assert set(re.findall(r"(\d+) (?:tool-call )?formats", page.read_text())) == {str(number)}, page


def options():
    """Every option of every command, from the help texts."""
    help_text = subprocess.run([BIN, "--help"], capture_output=True, text=True, check=True).stdout
    commands = re.findall(r"^  ([a-z]+)  ", help_text, flags=re.M)
    assert "serve" in commands and "verify" in commands
    help_of = lambda *words: subprocess.run([BIN, *words, "--help"], capture_output=True, text=True).stdout
    texts = {(one,): help_of(one) for one in commands}
    inner = {(*words, one): help_of(*words, one) for words, text in texts.items() if "\nCommands:" in text for one in re.findall(r"^  ([a-z]+)  ", text, flags=re.M)}
    assert ("key", "create") in inner
    return set(re.findall(r"--[a-z0-9-]+", "".join([help_text, *texts.values(), *inner.values()])))


# Options of other programs in the docs, and of the scripts of tests/real and benches: etcd, curl, cargo, pytest, pip, hf, grpcurl, systemctl.
FOREIGN = {"--test", "--auto-compaction-mode", "--auto-compaction-retention", "--cacert", "--locked", "--release", "--bin", "--bench", "--example", "--lib",
           "--profile", "--timings", "--workspace", "--no-run", "--local-dir", "--check", "--now", "--nocapture",
           "--enable-deterministic-inference", "--enable-prompt-tokens-details", "--parallel", "--set", "--incremental-streaming-output", "--attention-backend",
           "--conversations", "--api", "--incremental-streaming-output", "--values", "--previous", "--features", "--delete-emptydir-data", "--overwrite", "--dry-run", "--from-file",
           "--namespace", "--create-namespace", "--wait", "--retry", "--retry-connrefused", "--retry-all-errors", "--retry-delay",
           "--data-dir", "--log-level", "--listen-client-urls", "--advertise-client-urls", "--cert-file", "--key-file", "--client-cert-auth", "--trusted-ca-file",
           "--kv-events-config", "--disable-radix-cache", "--no-enable-prefix-caching",
           "--models", "--parts", "--modes", "--cases", "--again", "--answers", "--prompts", "--tool-tokens", "--no-llama", "--weights",
           "--ssl-certfile", "--ssl-keyfile", "--sum-us", "--link-gbs", "--data"}


def test_options_in_the_docs_exist():
    known, unknown = options() | FOREIGN, set()
    for page in PAGES:
        if page.name in ("cli.md", "glossary.md", "architecture.md"):
            continue
        text = page.read_text()
        if page.name == "from-vllm.md":
            # The second column has Rein's options.
            text = "\n".join(line.split("|")[2] for line in text.split("## Request fields")[0].splitlines() if line.startswith("|"))
            text = text.replace("`--enable-auto-tool-choice --tool-call-parser kimi_k2`", "")
        spans = re.findall(r"`([^`\n]+)`", text) + [code for language, code, _ in blocks(page) if language == "sh" and page.name != "from-vllm.md"]
        named = {option for span in spans for option in re.findall(r"(?<![\w-])--[a-z][a-z0-9-]+", span)}
        unknown |= {(name(page), option) for option in named - known}
    assert not unknown


def test_the_table_of_vllm_fields_is_correct():
    document = json.loads(next(REPOSITORY.glob("router/**/openapi.json")).read_text())["components"]["schemas"]
    read = {field for one in ("ChatRequest", "CompletionRequest") for field in document[one]["properties"]}
    refused = {field for one in ("ChatRequest", "CompletionRequest") for field in document[one]["x-refused-fields"]}
    section = (DOCS / "howto/from-vllm.md").read_text().split("## Request fields")[1].split("\n## ")[0]
    for line in section.splitlines():
        cells = [cell.strip() for cell in line.split("|")]
        if line.startswith("| `") and "in answers" not in cells[1]:
            fields = set(re.findall(r"`(\w+)`", cells[1]))
            assert fields <= (refused if cells[2].startswith("400") else read), line


FOLDERS = ("src/", "router/", "worker/", "kernels/", "proto/", "control-plane/", "tests/", "scripts/", "benches/", "docs/", "models/", "packaging/")


@pytest.mark.parametrize("page", PAGES, ids=name)
def test_paths_in_the_docs_exist(page):
    spans = re.findall(r"`([^`\n]+)`", re.sub(r"```.*?```", "", page.read_text(), flags=re.S))
    paths = [span.split("::")[0] for span in spans if span.startswith(FOLDERS) and re.fullmatch(r"[\w./-]+(::\w+)?", span)]
    assert not [path for path in paths if not (REPOSITORY / path).exists() and not (REPOSITORY / f"{path}.rs").exists()]


def test_metrics_in_the_docs_exist():
    listed = set(first_cells(DOCS / "reference/metrics.md"))
    assert len(listed) > 45
    used = {metric for page in PAGES for metric in re.findall(r"\brein_[a-z_]+(?=[`{\[ (])", page.read_text())}
    used = {metric.removesuffix("_bucket") for metric in used if metric not in ("rein_proto", "rein_router")}
    assert used <= listed, used - listed


def test_the_formula_for_memory_per_token_is_correct(tmp_path):
    page = " ".join((DOCS / "howto/size-memory.md").read_text().split())
    assert "the demo model needs 5 x (64 + 16) x 2 = 800 bytes per token" in page
    done = subprocess.Popen([BIN, "serve", "--model", str(REPOSITORY / "models/demo"), "--http", "127.0.0.1:0", "--grpc", "127.0.0.1:0"],
                            stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env={**os.environ, "REIN_LOG": "info"})
    try:
        while "grpc" not in done.stdout.readline():
            assert done.poll() is None
    finally:
        done.terminate()
        _, log = done.communicate(timeout=60)
    assert "800 bytes per token" in log


# Of a machine, not of a setting.
MEASURED = re.compile(r"\d[\d,.]*(?: to \d[\d,.]*)? (?:minutes on|times the time|tokens/s|requests/s|GB/s|TFLOP/s)")


@pytest.mark.parametrize("page", [page for page in PAGES if "benchmarks" not in page.parts and "decisions" not in page.parts], ids=name)
def test_a_figure_in_prose_is_that_of_the_benchmark_that_it_names(page):
    rows = re.split(r"\n\s*\n|\n(?=[|-])", page.read_text())
    for row in rows:
        for figure in MEASURED.findall(" ".join(row.split())):
            linked = [(page.parent / target).resolve() for target in re.findall(r"\]\(([^)#]*\.md)", row)]
            named = [target for target in linked if "benchmarks" in target.parts]
            assert named, f"{figure}: no link to a page of docs/benchmarks beside it"
            assert any(figure in " ".join(target.read_text().split()) for target in named), f"{figure}: not in {named}"
