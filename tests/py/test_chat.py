"""`rein chat` on a pseudo-terminal and from a pipe, and `rein run` in scripts."""
import json
import os
import pty
import re
import select
import subprocess
import time

import pytest

from conftest import BIN, REPOSITORY
from scripted import Answer, Scripted

DEMO = str(REPOSITORY / "models/demo")
WEATHER = [{"name": "get_weather", "description": "Get the current weather in a city",
            "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}}]


class Terminal:
    """A chat on a terminal of its own."""

    def __init__(self, home, *arguments, **variables):
        master, end = pty.openpty()
        environment = {"HOME": str(home), "PATH": os.environ["PATH"], "TERM": "xterm", **variables}
        self.process = subprocess.Popen([BIN, "chat", *arguments], stdin=end, stdout=end, stderr=end, env=environment, start_new_session=True,
                                        preexec_fn=lambda: __import__("fcntl").ioctl(0, __import__("termios").TIOCSCTTY, 0))
        os.close(end)
        self.master, self.seen = master, ""

    def read(self, seconds=0.2):
        if not select.select([self.master], [], [], seconds)[0]:
            return False
        try:
            self.seen += os.read(self.master, 1 << 16).decode(errors="replace")
        except OSError:
            return False
        return True

    def until(self, pattern, seconds=60):
        """Waits for a text that comes after what was waited for before."""
        end = time.monotonic() + seconds
        while not (found := re.search(pattern, self.seen)):
            assert time.monotonic() < end and (self.read() or self.process.poll() is None), f"{pattern} does not come: {self.seen!r}"
        self.seen = self.seen[found.end():]
        return found

    def prompt(self):
        """Waits for the next question: what is typed before is not the chat's."""
        self.until(r"\x1b\[K> ")

    def type(self, text):
        os.write(self.master, text.encode())

    def end(self):
        self.type("\x04")
        code = self.process.wait(timeout=60)
        os.close(self.master)
        return code


@pytest.fixture
def scripted(sim):
    server = Scripted(sim.http)
    yield server
    server.stop()


def test_a_model_is_started_chatted_with_and_ended(tmp_path):
    chat = Terminal(tmp_path, DEMO, "--temperature", "0", "--tools", str(tools(tmp_path)))
    chat.until(r"demo at http://127\.0\.0\.1:\d+/v1\. /help lists the commands")
    chat.prompt()
    chat.type("What is the weather in Paris?\r")
    chat.until(r"→ get_weather ")
    chat.until(r"\d+ tokens, [\d.]+ s")
    chat.until("result of get_weather> ")
    chat.type('{"temperature": 21}\r')
    chat.until(r"\d+ tokens, [\d.]+ s")
    chat.type("/undo\r")
    chat.until("taken back; 0 messages")
    chat.prompt()
    engine = children(chat.process.pid)
    assert len(engine) == 1
    assert chat.end() == 0
    gone(engine)
    # The next chat has the lines of this one.
    assert "What is the weather in Paris?" in (tmp_path / ".local/state/rein/chat_history").read_text()


def test_an_engine_ends_with_a_chat_that_is_killed(tmp_path):
    chat = Terminal(tmp_path, DEMO)
    chat.prompt()
    engine = children(chat.process.pid)
    chat.process.kill()
    chat.process.wait()
    gone(engine)


def children(pid):
    run = subprocess.run(["ps", "-o", "pid=", "--ppid", str(pid)], capture_output=True, text=True)
    return [int(one) for one in run.stdout.split()]


def gone(pids):
    end = time.monotonic() + 30
    while any(os.path.exists(f"/proc/{pid}") and "Z" not in open(f"/proc/{pid}/stat").read().split()[2] for pid in pids):
        assert time.monotonic() < end, "the engine lives on"
        time.sleep(0.05)


def tools(tmp_path):
    path = tmp_path / "tools.json"
    path.write_text(json.dumps(WEATHER))
    return path


def test_reasoning_is_dim_and_ctrl_c_ends_an_answer(tmp_path, scripted):
    chat = Terminal(tmp_path, "--base-url", scripted.http)
    chat.prompt()
    answer = Answer().send(reasoning_content="Let me think.").send(content="\n\nIt ").send(content="is so.")
    scripted.answers.put(answer)
    chat.type("Why?\r")
    chat.until(re.escape("\x1b[2mLet me think.\x1b[0m\r\nIt is so."))
    chat.type("\x03")
    chat.until(r"\(ended\)")
    assert answer.closed.wait(10)
    chat.prompt()
    scripted.answers.put(Answer().send(content="Yes.").finish())
    chat.type("Sure?\\\rReally?\r")
    chat.until(r"Yes\.")
    chat.prompt()
    # What had arrived of the ended answer is part of the history.
    sent = scripted.requests[-1]["messages"]
    assert [message["content"] for message in sent] == ["Why?", "\n\nIt is so.", "Sure?\nReally?"] and sent[1]["reasoning_content"] == "Let me think."
    chat.type("\x03")
    chat.prompt()
    chat.type("/exit\r")
    assert chat.process.wait(timeout=30) == 0


def test_example_tools_run_by_themselves(tmp_path, scripted):
    chat = Terminal(tmp_path, "--base-url", scripted.http + "/v1", "--example-tools")
    chat.prompt()
    scripted.answers.put(Answer().call(0, "roll_dice", '{"count": 3, "sides": 6}').call(1, "current_time", "{}").finish("tool_calls"))
    scripted.answers.put(Answer().send(content="A throw.").finish())
    chat.type("Throw dice\r")
    rolled = json.loads(chat.until(r"← (\{\"dice\".*?\})")[1])
    assert len(rolled["dice"]) == 3 and rolled["sum"] == sum(rolled["dice"])
    assert re.fullmatch(r"\w+day, \d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\+00:00", json.loads(chat.until(r"← (\{\"time\".*?\})")[1])["time"])
    chat.until("A throw")
    chat.prompt()
    first, second = scripted.requests
    assert [tool["function"]["name"] for tool in first["tools"]] == ["current_time", "roll_dice"]
    assert [message["role"] for message in second["messages"]] == ["user", "assistant", "tool", "tool"]
    assert json.loads(second["messages"][2]["content"]) == rolled
    assert chat.end() == 0


def test_an_error_is_shown_and_the_question_can_be_asked_again(tmp_path, scripted):
    chat = Terminal(tmp_path, "--base-url", scripted.http)
    chat.prompt()
    scripted.answers.put(Answer(429, {"error": {"message": "too much"}}))
    chat.type("Hi\r")
    chat.until("too much")
    chat.prompt()
    scripted.answers.put(Answer().send(content="Cut he").drop())
    chat.type("/retry\r")
    chat.until("Cut he")
    chat.until("\x1b\\[31m")
    chat.prompt()
    scripted.answers.put(Answer().send(content="Hello.").finish())
    chat.type("/retry\r")
    chat.until("Hello")
    chat.prompt()
    assert [request["messages"] for request in scripted.requests] == [[{"role": "user", "content": "Hi"}]] * 3
    assert chat.end() == 0


def piped(arguments, text, **variables):
    environment = {**{key: value for key, value in os.environ.items() if not key.startswith("OPENAI")}, "HOME": "/nonexistent", **variables}
    return subprocess.run([BIN, *arguments], input=text, capture_output=True, text=True, timeout=120, env=environment)


def test_a_chat_reads_a_pipe(demo):
    run = piped(["chat", "--base-url", demo.http, "--temperature", "0"], "hello\n/set\n/exit\nnot sent\n")
    assert run.returncode == 0 and run.stdout.endswith('{"temperature":0.0}\n') and "\x1b" not in run.stdout, run
    first = run.stdout.splitlines()[0]
    assert first and first == piped(["run", "--base-url", demo.http, "--temperature", "0", "hello"], "").stdout.strip().splitlines()[0]


def test_run_answers_in_scripts(demo, tmp_path):
    ask = ["run", "--base-url", demo.http, "--temperature", "0"]
    run = piped([*ask, "What is the weather in Paris?", "--tools", str(tools(tmp_path))], "")
    assert run.returncode == 0, run.stderr
    call = json.loads(run.stdout.splitlines()[-1])
    assert call["name"] == "get_weather" and set(call["arguments"]) == {"city"}
    whole = json.loads(piped([*ask, "--json", "hello"], "").stdout)
    assert whole["model"] == "demo" and whole["message"]["content"] and whole["finish_reason"] == "stop"
    schema = tmp_path / "schema.json"
    schema.write_text(json.dumps({"type": "object", "properties": {"b": {"enum": [1]}, "a": {"type": "boolean"}}, "required": ["a", "b"], "additionalProperties": False}))
    run = piped([*ask, "Well?", "--schema", str(schema), "--max-tokens", "400"], "")
    assert run.returncode == 0 and list(json.loads(run.stdout)) == ["b", "a"], run
    cut = piped([*ask, "--max-tokens", "1", "hello"], "")
    assert cut.returncode == 0 and "cut by its length" in cut.stderr


def test_run_takes_what_standard_input_has(scripted):
    for arguments, text, prompt in [(["Sum up:"], "a\nb\n", "Sum up:\n\na\nb"), (["-"], "all of it\n", "all of it"), (["Hi"], "", "Hi")]:
        scripted.answers.put(Answer().send(reasoning_content="Hm.").send(content="So.").finish())
        run = piped(["run", "--base-url", scripted.http, "--reasoning", "--system", "Be brief.", "--extra", '{"top_k": 3}', *arguments], text)
        assert (run.returncode, run.stdout, run.stderr) == (0, "So.\n", "Hm."), run
        sent = scripted.requests[-1]
        assert sent["messages"] == [{"role": "system", "content": "Be brief."}, {"role": "user", "content": prompt}] and sent["top_k"] == 3


def test_run_starts_a_model():
    run = piped(["run", DEMO, "hello", "--temperature", "0", "--", "--max-context", "512"], "")
    assert run.returncode == 0 and run.stdout.strip() and run.stderr == "", run


@pytest.mark.parametrize("arguments, says", [
    (["run", "hello"], "no server at http://127.0.0.1:8000"),
    (["run", "http://127.0.0.1:1", "hello"], "cannot list the models at http://127.0.0.1:1/v1/models: cannot connect"),
    (["run", "--base-url", "http://127.0.0.1:9", "a", "b"], "expected PROMPT alone"),
    (["run", "--base-url", "http://127.0.0.1:9", "a"], "127.0.0.1:9"),
    (["run", "/no/such/model", "a"], "the model is not served; see above"),
    (["run", "--base-url", "http://127.0.0.1:9", "-"], "the prompt is empty"),
    (["run", "--base-url", "ftp://a", "a"], "must start with http"),
    (["chat", "--base-url", "http://127.0.0.1:9", "--tools", "/no/such/file"], "--tools: /no/such/file: "),
    (["chat", "--base-url", "http://127.0.0.1:9", "--", "--tp", "2"], "need a MODEL to start"),
])
def test_errors_say_what_is_missing(arguments, says):
    run = piped(arguments, "")
    assert run.returncode == 1 and says in run.stderr.splitlines()[-1], run


def test_without_a_server_a_chat_says_how_to_start_one():
    # A network of its own: nothing listens at the default port.
    run = subprocess.run(["unshare", "-rn", BIN, "chat"], input="", capture_output=True, text=True, timeout=60)
    if "unshare" in run.stderr:
        pytest.skip(f"no network namespaces here: {run.stderr}")
    assert run.returncode == 1 and "give a model (`rein chat Qwen/Qwen3-0.6B`), or --base-url of a server" in run.stderr, run
