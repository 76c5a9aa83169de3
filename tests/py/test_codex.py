"""Codex against the sim engine: it runs a shell tool, reads the result and finishes; it resumes; it calls an MCP server."""
import json
import os
import shutil
import subprocess
import sys
import time

import pytest

from conftest import REPOSITORY, Server
from fleet import kill_computing, sim_fleet, until
from script_proxy import ScriptProxy, calls
from test_docs import blocks

CODEX = REPOSITORY / ".node/node_modules/.bin/codex"
pytestmark = pytest.mark.skipif(not CODEX.exists(), reason="no Codex: scripts/setup.sh test installs it")
# Seconds that one run may take.
LIMIT = 10
CONTEXT = 131072
AGENTS = 32

# The configuration of the guide, and what a test needs beside it.
GUIDE = next(code for language, code, note in blocks(REPOSITORY / "docs/howto/codex.md") if note == "codex: configuration")
TEST = """
request_max_retries = 0
stream_max_retries = 0

[analytics]
enabled = false

[mcp_servers.notes]
command = {python}
args = [{server}]
"""

MCP = """
import json, sys
for line in sys.stdin:
    asked = json.loads(line)
    if "id" not in asked:
        continue
    tool = {"name": "lookup", "description": "Looks a note up", "inputSchema": {
        "type": "object", "properties": {"key": {"type": "string"}}, "required": ["key"]}}
    result = {
        "initialize": lambda: {"protocolVersion": asked["params"]["protocolVersion"], "capabilities": {"tools": {}},
                               "serverInfo": {"name": "notes", "version": "1"}},
        "tools/list": lambda: {"tools": [tool]},
        "tools/call": lambda: {"content": [{"type": "text", "text": "note " + asked["params"]["arguments"]["key"]}]},
    }.get(asked["method"], dict)()
    print(json.dumps({"jsonrpc": "2.0", "id": asked["id"], "result": result}), flush=True)
"""


@pytest.fixture(scope="module")
def roomy_model(tmp_path_factory):
    """The demo model's text files, with a context that holds an agent's prompt: its own holds 4,096 tokens."""
    model = tmp_path_factory.mktemp("model") / "demo"
    shutil.copytree(REPOSITORY / "models/demo", model, ignore=shutil.ignore_patterns("*.py"))
    config = json.loads((model / "config.json").read_text())
    (model / "config.json").write_text(json.dumps({**config, "max_position_embeddings": CONTEXT}))
    return model


@pytest.fixture(scope="module")
def roomy(roomy_model):
    server = Server("--engine", "sim", model=roomy_model)
    yield server
    server.stop()


class Codex:
    """Codex in a directory of its own, with nothing but this server."""

    def __init__(self, directory, http):
        self.home, self.work = directory / "home", directory / "work"
        (self.home / ".codex").mkdir(parents=True)
        self.work.mkdir()
        (directory / "mcp.py").write_text(MCP)
        test = TEST.format(python=json.dumps(sys.executable), server=json.dumps(str(directory / "mcp.py")))
        config = "check_for_update_on_startup = false\n" + GUIDE.replace("http://127.0.0.1:8000", http) + test
        (self.home / ".codex/config.toml").write_text(config)

    def start(self, *arguments, sandbox=("--dangerously-bypass-approvals-and-sandbox",)):
        # No address but the server's is reachable through this proxy, which does not exist.
        environment = {"PATH": os.environ["PATH"], "HOME": str(self.home), "HTTPS_PROXY": "http://127.0.0.1:9", "NO_PROXY": "127.0.0.1"}
        command = [CODEX, "exec", "--skip-git-repo-check", *sandbox, *arguments]
        streams = dict(stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        return subprocess.Popen(command, cwd=self.work, env=environment, **streams)

    def run(self, *arguments):
        """What it prints as its answer."""
        began = time.monotonic()
        printed = answered(self.start(*arguments))
        assert time.monotonic() - began < LIMIT
        return printed


def answered(agent):
    printed, log = agent.communicate(timeout=120)
    assert agent.returncode == 0, f"{printed}\n{log}"
    return printed.strip()


def usage(reply):
    """The usage of a stream's last event."""
    events = [json.loads(line.removeprefix("data: ")) for line in reply.splitlines() if line.startswith("data: ")]
    return events[-1]["response"]["usage"]


def outputs(body):
    return [item for item in body["input"] if item.get("type", "").endswith("_output")]


def test_codex_runs_a_shell_tool_reads_its_result_and_finishes_in_two_turns(roomy, tmp_path):
    def answer(body):
        if body["input"][-1].get("type") != "function_call_output":
            number = len(outputs(body))
            return "<think>I use the shell.</think>" + calls(("exec_command", {"cmd": f"echo made-{number} >> out.txt; cat out.txt"}, number))
        return "The file says " + body["input"][-1]["output"].rsplit("Output:", 1)[-1].strip().replace("\n", " ")

    with ScriptProxy(roomy, answer) as proxy:
        codex = Codex(tmp_path, proxy.http)
        assert codex.run("write the file") == "The file says made-0"
        assert (codex.work / "out.txt").read_text() == "made-0\n"
        assert codex.run("resume", "--last", "again") == "The file says made-0 made-1"
    assert len(proxy.bodies) == 4
    # The answers of the first turn come back, and the server takes them.
    kinds = [item.get("type") for item in proxy.bodies[-1]["input"]]
    assert kinds.count("function_call") == kinds.count("function_call_output") == 2
    sealed = [item for item in proxy.bodies[-1]["input"] if item.get("type") == "reasoning"]
    assert len(sealed) == 2 and all(item["encrypted_content"] for item in sealed)
    assert all("web_search" in names for names in proxy.ignored)
    # Each request finds the prompt of the one before in the prefix cache.
    usages = [usage(reply) for reply in proxy.replies]
    for earlier, later in zip(usages, usages[1:]):
        assert later["input_tokens_details"]["cached_tokens"] >= 0.99 * earlier["input_tokens"]


def test_codex_calls_an_mcp_server(roomy, tmp_path):
    def answer(body):
        if not outputs(body):
            return calls(("mcp__notes__lookup", {"key": "alpha"}, 0))
        return "The note is: " + json.dumps(outputs(body)[-1]["output"])

    with ScriptProxy(roomy, answer) as proxy:
        codex = Codex(tmp_path, proxy.http)
        assert "note alpha" in codex.run("look the note up")
    call = next(item for item in proxy.bodies[-1]["input"] if item.get("type") == "function_call")
    assert (call["namespace"], call["name"]) == ("mcp__notes", "lookup")


def test_many_at_once_finish_while_a_worker_is_killed(roomy_model, tmp_path):
    def answer(body):
        return "It is done. " * 200 if outputs(body) else calls(("exec_command", {"cmd": "echo hi"}, 0))

    with sim_fleet(tmp_path, roomy_model) as (fleet, router), ScriptProxy(router, answer) as proxy:
        agents = [Codex(tmp_path / str(number), proxy.http).start("say hi") for number in range(AGENTS)]
        until("answers have begun", lambda: len(proxy.bodies) > AGENTS, timeout=60)
        kill_computing(fleet)
        assert {answered(agent) for agent in agents} == {("It is done. " * 200).strip()}
        assert fleet.metric("r0", "rein_resumed_total") > 0
