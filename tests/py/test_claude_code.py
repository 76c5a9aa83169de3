"""Claude Code against a server with the sim engine, whose answers the test writes. Nothing leaves the machine: the agent
has a home directory of its own, an API on loopback, and its other traffic turned off."""
import json
import os
import re
import shutil
import subprocess
import sys
import time

import pytest

from conftest import REPOSITORY, Server
from fleet import kill_computing, sim_fleet, until
from script_proxy import ScriptProxy, call

# The wrapper finds the program without the package's install script, which npm may be told not to run.
CLAUDE = REPOSITORY / ".node/node_modules/@anthropic-ai/claude-code/cli-wrapper.cjs"
# The variables that the guide sets.
GUIDE = (REPOSITORY / "docs/howto/claude-code.md").read_text()
VARIABLES = re.findall(r"(?<= )([A-Z_]+)=(\S+)", "\n".join(re.findall(r"^export .*", GUIDE, flags=re.M)))
# Tokens of the longest prompt and answer: the agent's own instructions take most of it.
CONTEXT = 100_000
# Seconds of a turn, with room for a busy machine; idle, it takes about three.
TURN_TIME = 60
# Agents at once.
AGENTS = 32

MCP_SERVER = '''
import json, sys
for line in sys.stdin:
    request = json.loads(line)
    method, answer = request.get("method"), None
    if method == "initialize":
        answer = {"protocolVersion": request["params"]["protocolVersion"], "capabilities": {"tools": {}},
                  "serverInfo": {"name": "stock", "version": "1"}}
    elif method == "tools/list":
        answer = {"tools": [{"name": "count", "description": "Counts items in stock",
                             "inputSchema": {"type": "object", "properties": {"item": {"type": "string"}}, "required": ["item"]}}]}
    elif method == "tools/call":
        answer = {"content": [{"type": "text", "text": "17 " + request["params"]["arguments"]["item"]}]}
    if "id" in request:
        result = {"result": answer} if answer is not None else {"error": {"code": -32601, "message": "unknown method"}}
        print(json.dumps({"jsonrpc": "2.0", "id": request["id"], **result}), flush=True)
'''


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    """The demo model's text with a larger context; the sim engine needs no weights."""
    model = tmp_path_factory.mktemp("model") / "demo"
    shutil.copytree(REPOSITORY / "models/demo", model, ignore=shutil.ignore_patterns("*.safetensors", "*.py"))
    config = json.loads((model / "config.json").read_text())
    (model / "config.json").write_text(json.dumps({**config, "max_position_embeddings": CONTEXT}))
    return model


@pytest.fixture(scope="module")
def server(model):
    server = Server("--engine", "sim", "--sim-step-us", "200", model=model)
    yield server
    server.stop()


class Agent:
    """A home directory, and turns of the agent in it."""

    def __init__(self, directory, url):
        assert CLAUDE.exists(), f"{CLAUDE} is missing: scripts/setup.sh test installs it (tests/node/package.json)"
        self.directory, self.work = directory, directory / "work"
        for path in (directory / "home", self.work):
            path.mkdir(parents=True)
        self.environment = {
            "PATH": os.environ["PATH"], "HOME": str(directory / "home"), "TMPDIR": str(directory),
            # A proxy that does not exist: requests to other machines fail.
            "HTTPS_PROXY": "http://127.0.0.1:9", "HTTP_PROXY": "http://127.0.0.1:9", "NO_PROXY": "127.0.0.1",
            **{name: value.replace("http://127.0.0.1:8000", url).replace("my-model", "demo") for name, value in VARIABLES},
        }

    def start(self, prompt, *options):
        command = ["node", str(CLAUDE), "-p", prompt, "--output-format", "json", *options]
        streams = dict(stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        self.process = subprocess.Popen(command, cwd=self.work, env=self.environment, **streams)
        return self

    def answer(self, within=TURN_TIME):
        """What the turn that was started has given."""
        printed, log = self.process.communicate(timeout=within)
        assert self.process.returncode == 0, f"{printed}\n{log}"
        answer = json.loads(printed)
        assert answer["subtype"] == "success" and not answer["is_error"], answer
        return answer

    def turn(self, prompt, *options):
        return self.start(prompt, *options).answer()


def thinking(answer):
    """The model reasons first, as the template of a request with `thinking` asks it to."""
    def whole(body):
        thinks = body.get("thinking", {}).get("type") in ("adaptive", "enabled")
        return ("I think so.</think>" if thinks else "") + answer(body)
    return whole


def results(body):
    """The results of tools in a request, in order."""
    blocks = [block for message in body["messages"] if isinstance(message["content"], list) for block in message["content"]]
    return [block for block in blocks if block["type"] == "tool_result"]


def text_of(result):
    content = result["content"]
    return content if isinstance(content, str) else "".join(block.get("text", "") for block in content)


def prompts(proxy):
    """Of each request of the conversation: the tokens of its prompt, and how many of them were cached."""
    found = []
    for reply in proxy.replies:
        start = next((line for line in reply.splitlines() if line.startswith('data: {"type":"message_start"')), None)
        if start is not None:
            usage = json.loads(start.removeprefix("data: "))["message"]["usage"]
            found.append((usage["input_tokens"] + usage["cache_read_input_tokens"], usage["cache_read_input_tokens"]))
    return found


def extends(turns):
    """Each request finds the prompt of the one before in the prefix cache."""
    assert len(turns) > 1
    for (earlier, _), (_, cached) in zip(turns, turns[1:]):
        assert cached >= 0.99 * earlier, turns


def run_a_command(body):
    """Runs a command, then says what it printed."""
    if not any(tool.get("name") == "Bash" for tool in body.get("tools", [])):
        return "A title"
    found = results(body)
    if not found:
        return call("Bash", {"command": "echo marker-$((40 + 2))", "description": "Print a marker"})
    return f"The command printed {text_of(found[-1]).strip()}."


def test_it_runs_a_command_and_reads_its_result(server, tmp_path):
    with ScriptProxy(server, thinking(run_a_command)) as proxy:
        agent = Agent(tmp_path, proxy.http)
        answer = agent.turn("Run the command.", "--allowedTools", "Bash")
    assert answer["result"] == "The command printed marker-42." and answer["num_turns"] == 2, (answer, proxy.failures)
    assert proxy.failures == []
    turns = [body for body in proxy.bodies if body.get("tools")]
    first, second = turns[0], turns[-1]
    assert first["system"][0]["text"].startswith("x-anthropic-billing-header:"), "the header that the server takes out"
    assert len(first["tools"]) >= 9
    # The id of a call comes back as it was sent.
    blocks = [block for message in second["messages"] if message["role"] == "assistant" for block in message["content"]]
    used = next(block for block in blocks if block["type"] == "tool_use")
    assert used["id"].startswith("toolu_") and results(second)[0]["tool_use_id"] == used["id"]
    # The agent asks for signatures without the text of the reasoning; the server finds the reasoning in them.
    thought = next(block for block in blocks if block["type"] == "thinking")
    assert thought["thinking"] == "" and thought["signature"]
    assert not any("content" in ignored for ignored in proxy.ignored), proxy.ignored
    extends(prompts(proxy))


def test_a_second_turn_resumes_the_first(server, tmp_path):
    def answer(body):
        said = json.dumps(body["messages"])
        return "You said blue." if "colour did I" in said and "like blue" in said else "Noted."

    with ScriptProxy(server, thinking(answer)) as proxy:
        agent = Agent(tmp_path, proxy.http)
        first = agent.turn("I like blue.")
        second = agent.turn("Which colour did I name?", "--resume", first["session_id"])
    assert (first["result"], second["result"]) == ("Noted.", "You said blue.")
    assert proxy.failures == []
    extends(prompts(proxy))


def test_it_calls_a_tool_of_an_mcp_server(server, tmp_path):
    """The agent does not send such tools before its tool search has named them (`defer_loading`)."""
    name = "mcp__stock__count"

    def answer(body):
        found = results(body)
        loaded = any(tool.get("name") == name and not tool.get("defer_loading") for tool in body.get("tools", []))
        searched = any("tool_reference" in json.dumps(result) for result in found)
        if not loaded and not searched:
            return call("ToolSearch", {"query": f"select:{name}"})
        if not found or text_of(found[-1]).strip() != "17 bolts":
            return call(name, {"item": "bolts"}, index=len(found))
        return "There are 17 bolts."

    (tmp_path / "server.py").write_text(MCP_SERVER)
    config = {"mcpServers": {"stock": {"type": "stdio", "command": sys.executable, "args": [str(tmp_path / "server.py")]}}}
    (tmp_path / "mcp.json").write_text(json.dumps(config))
    with ScriptProxy(server, thinking(answer)) as proxy:
        agent = Agent(tmp_path / "agent", proxy.http)
        answer = agent.turn("How many bolts are there?", "--mcp-config", str(tmp_path / "mcp.json"), "--strict-mcp-config",
                            "--allowedTools", f"{name},ToolSearch")
    assert answer["result"] == "There are 17 bolts.", (answer, [json.dumps(results(body)) for body in proxy.bodies])
    assert proxy.failures == []


def test_a_turn_is_quick(server, tmp_path):
    with ScriptProxy(server, thinking(run_a_command)) as proxy:
        agent = Agent(tmp_path, proxy.http)
        began = time.monotonic()
        answer = agent.turn("Run the command.", "--allowedTools", "Bash")
    # What the server takes of it; the rest is the agent's own start.
    assert answer["duration_api_ms"] < 10_000, answer
    assert time.monotonic() - began < TURN_TIME


def test_many_at_once_finish_while_a_worker_is_killed(model, tmp_path):
    def answer(body):
        if not any(tool.get("name") == "Bash" for tool in body.get("tools", [])):
            return "A title"
        return ("It is done. " * 200).strip() if results(body) else call("Bash", {"command": "echo hi", "description": "Say hi"})

    with sim_fleet(tmp_path, model) as (fleet, router), ScriptProxy(router, thinking(answer)) as proxy:
        agents = [Agent(tmp_path / str(number), proxy.http).start("say hi", "--allowedTools", "Bash") for number in range(AGENTS)]
        until("answers have begun", lambda: len(proxy.bodies) > AGENTS, timeout=120)
        kill_computing(fleet)
        assert {agent.answer(within=240)["result"] for agent in agents} == {("It is done. " * 200).strip()}
        assert fleet.metric("r0", "rein_resumed_total") > 0
