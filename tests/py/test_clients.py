"""Client libraries against a served demo model. The code is taken from docs/howto/clients.md."""
import os
import pathlib
import shutil
import subprocess
import sys

import pytest

from conftest import REPOSITORY
from test_docs import addressed, blocks

PAGE = REPOSITORY / "docs/howto/clients.md"
CLIENTS = {note.removeprefix("client:").strip(): (language, code) for language, code, note in blocks(PAGE) if note.startswith("client:")}
NODE_MODULES = REPOSITORY / ".node/node_modules"
GRPCURL = shutil.which("grpcurl", path=os.pathsep.join([str(REPOSITORY / ".tools/bin"), os.environ["PATH"]]))


def run(command, directory):
    environment = {**os.environ, "LITELLM_LOCAL_MODEL_COST_MAP": "True", "LANGSMITH_TRACING": "false"}
    done = subprocess.run(command, cwd=directory, env=environment, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr}"
    return done.stdout


@pytest.mark.parametrize("client", CLIENTS)
def test_the_example_calls_the_tool(client, demo, tmp_path):
    language, code = CLIENTS[client]
    code = addressed(code, demo)
    if language == "js":
        if not NODE_MODULES.is_dir():
            pytest.skip("no Node packages: scripts/setup.sh test installs them")
        (tmp_path / "node_modules").symlink_to(NODE_MODULES)
        (tmp_path / "client.mjs").write_text(code)
        output = run(["node", "client.mjs"], tmp_path)
    elif language == "python":
        output = run([sys.executable, "-c", code], tmp_path)
    else:
        if GRPCURL is None:
            pytest.skip("no grpcurl: scripts/setup.sh test installs it where there is Go")
        (tmp_path / "grpcurl").symlink_to(pathlib.Path(GRPCURL))
        output = run(["bash", "-euc", f"PATH=.:$PATH\n{code}"], tmp_path)
    assert "get_weather" in output and "Paris" in output, output


def test_every_client_of_the_page_has_an_example():
    table = PAGE.read_text().split("\n\n## ")[0]
    assert len(CLIENTS) == sum(1 for line in table.splitlines() if line.startswith("| ["))


def test_more_of_the_openai_sdk(demo, tmp_path):
    [code] = [code for _, code, note in blocks(PAGE) if note == "test: more with openai"]
    output = run([sys.executable, "-c", addressed(code, demo)], tmp_path)
    assert "parsed: reason=" in output and "certain=" in output, output
    assert "error: temperature 'temperature' must be" in output and "async: 4" in output, output
    reasoning = output.split("reasoning: ")[1].split(" answer: ")[0]
    assert reasoning not in ("", "None"), output
