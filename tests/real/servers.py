"""Starts Rein and llama-server on free ports of 127.0.0.1, and asks both in the same way: whole and streamed, chats and responses.

An answer is a dict: `text`, `reasoning`, `calls` (name and arguments as text), `incomplete`, `malformed`, `finish`, `prompt_tokens`,
`tokens`, `seconds`, or `status` and `error` if the server refused."""
import concurrent.futures
import contextlib
import ctypes
import json
import os
import re
import signal
import subprocess
import time
import urllib.request

import openai

START_SECONDS = 300
REQUEST_SECONDS = 900
CLIENTS = 8
CONTEXT = 8192
PR_SET_PDEATHSIG = 1
LIBC = ctypes.CDLL(None)


def end_with_parent():
    """Runs in a server's process: the kernel kills it when this program ends, however it ends."""
    LIBC.prctl(PR_SET_PDEATHSIG, signal.SIGKILL)


class Server:
    """A process that serves the model "m", with its log in a file."""

    def __init__(self, command, directory, listening, probe):
        self.log = directory / f"{os.path.basename(command[0])}-{time.time_ns()}.log"
        with open(self.log, "w") as log:
            self.child = subprocess.Popen(
                [str(part) for part in command], stdout=log, stderr=log, start_new_session=True, preexec_fn=end_with_parent)
        self.url, self.probe, end = None, probe, time.monotonic() + START_SECONDS
        while not self.ready():
            if self.child.poll() is not None or time.monotonic() > end:
                self.stop()
                raise RuntimeError(f"{command[0]} does not start:\n{self.log.read_text()[-3000:]}")
            found = re.search(listening, self.log.read_text())
            self.url = found and found.group(1)
            time.sleep(0.2)
        self.client = openai.OpenAI(base_url=f"{self.url}/v1", api_key="none", timeout=REQUEST_SECONDS, max_retries=0)

    def ready(self):
        with contextlib.suppress(OSError):
            return self.url is not None and urllib.request.urlopen(self.url + self.probe, timeout=5).status == 200
        return False

    def stop(self):
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.child.pid, signal.SIGKILL)
        self.child.wait()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.stop()

    def post(self, path, body):
        request = urllib.request.Request(self.url + path, json.dumps(body).encode(), {"content-type": "application/json"})
        with urllib.request.urlopen(request, timeout=REQUEST_SECONDS) as answer:
            return json.loads(answer.read())

    def chat(self, stream=False, **body):
        """The answer to a chat, at temperature 0."""
        return answered(lambda: self.completion(stream, {"temperature": 0, **body}))

    def completion(self, stream, body):
        messages = body.pop("messages")
        if not stream:
            completion = self.client.chat.completions.create(model="m", messages=messages, extra_body=body).model_dump()
            choice = completion["choices"][0]
            return {**message(choice["message"]), "finish": choice["finish_reason"], **usage(completion["usage"]), **ids(completion, choice)}
        whole, finish, used = {"content": "", "reasoning_content": "", "tool_calls": []}, None, None
        body["stream_options"] = {"include_usage": True}
        for chunk in self.client.chat.completions.create(model="m", messages=messages, stream=True, extra_body=body):
            chunk = chunk.model_dump()
            used = chunk.get("usage") or used
            for choice in chunk["choices"]:
                finish = choice.get("finish_reason") or finish
                merge(whole, choice["delta"])
        return {**message(whole), "finish": finish, **usage(used)}

    def respond(self, stream=False, **body):
        """The answer to the same chat over /v1/responses."""
        return answered(lambda: self.response(stream, body))

    def response(self, stream, body):
        body = {
            "model": "m", "temperature": 0, "store": False, "input": body["messages"], "max_output_tokens": body["max_tokens"],
            "tools": [{"type": "function", "strict": False, **tool["function"]} for tool in body["tools"]],
            "tool_choice": body.get("tool_choice", "auto")}
        if stream:
            final = None
            for event in self.client.responses.create(stream=True, **body):
                if event.type in ("response.completed", "response.incomplete"):
                    final = event.response
                elif event.type in ("response.failed", "error"):
                    raise RuntimeError(f"the stream failed: {event}")
        else:
            final = self.client.responses.create(**body)
        final = final.model_dump()
        calls = [item for item in final["output"] if item["type"] == "function_call"]
        texts = [part["text"] for item in final["output"] if item["type"] == "message" for part in item["content"]]
        thoughts = [part["text"] for item in final["output"] if item["type"] == "reasoning" for part in item.get("content") or []]
        length = (final.get("incomplete_details") or {}).get("reason") == "max_output_tokens"
        whole = [call for call in calls if call["status"] == "completed"]
        finish = "length" if length else "tool_calls" if whole else "stop"
        cut = [call for call in calls if call["status"] != "completed"] + (final.get("incomplete_tool_calls") or [])
        return {
            "text": "".join(texts), "reasoning": "".join(thoughts), "calls": [called(call) for call in whole],
            "incomplete": [called(call) for call in cut], "malformed": final.get("malformed") or [], "finish": finish,
            "prompt_tokens": final["usage"]["input_tokens"], "tokens": final["usage"]["output_tokens"]}


def answered(ask):
    began = time.monotonic()
    try:
        answer = ask()
    except openai.APIStatusError as error:
        answer = {"status": error.status_code, "error": error.message}
    except (openai.APIError, RuntimeError) as error:
        answer = {"status": 0, "error": f"{type(error).__name__}: {error}"}
    return {**answer, "seconds": round(time.monotonic() - began, 3)}


def called(call):
    call = call.get("function") or call
    return {"name": call["name"], "arguments": call["arguments"]}


def message(fields):
    return {
        "text": fields.get("content") or "", "reasoning": fields.get("reasoning_content") or "",
        "calls": [called(call) for call in fields.get("tool_calls") or []],
        "incomplete": [called(call) for call in fields.get("incomplete_tool_calls") or []], "malformed": fields.get("malformed") or []}


def usage(used):
    return {"prompt_tokens": used["prompt_tokens"], "tokens": used["completion_tokens"]}


def ids(completion, choice):
    """The ids that Rein returns to a request with `return_token_ids`."""
    prompt = completion.get("prompt_token_ids") or choice.get("prompt_token_ids")
    return {"prompt_ids": prompt, "ids": choice.get("token_ids")} if prompt else {}


def merge(whole, delta):
    """Adds a chunk to the message so far. A stream lists a call that it has begun and that was cut in `incomplete_tool_calls`."""
    for name in ("content", "reasoning_content"):
        whole[name] += delta.get(name) or ""
    for part in delta.get("tool_calls") or []:
        while len(whole["tool_calls"]) <= part["index"]:
            whole["tool_calls"].append({"id": None, "name": "", "arguments": ""})
        call, function = whole["tool_calls"][part["index"]], part.get("function") or {}
        call["id"] = part.get("id") or call["id"]
        call["name"] += function.get("name") or ""
        call["arguments"] += function.get("arguments") or ""
    if delta.get("malformed"):
        whole["malformed"] = delta["malformed"]
    for cut in delta.get("incomplete_tool_calls") or []:
        begun = [call for call in whole["tool_calls"] if call["id"] == cut.get("id")]
        whole["tool_calls"] = [call for call in whole["tool_calls"] if call["id"] != cut.get("id")]
        function = cut.get("function") or {}
        cut = {"name": function.get("name") or "", "arguments": function.get("arguments") or ""}
        whole.setdefault("incomplete_tool_calls", []).extend(begun or [cut])


def start_rein(directory, model, *options):
    command = [
        os.environ["REIN_BIN"], "serve", "--model", model, "--served-name", "m", "--http", "127.0.0.1:0", "--grpc", "127.0.0.1:0",
        # A step with the prompts of all clients takes long on a loaded machine.
        "--max-context", CONTEXT, "--step-deadline", 900, *options]
    return Server(command, directory, r"listening on (http://\S+)", "/ready")


def start_llama(directory, binary, file, *options):
    command = [
        binary, "--model", file, "--alias", "m", "--host", "127.0.0.1", "--port", 0, "--ctx-size", CONTEXT * CLIENTS, "--parallel", CLIENTS,
        "--jinja", "--no-webui", *options]
    return Server(command, directory, r"listening on (http://\S+)", "/health")


def at_once(ask, cases):
    """The answers to all cases, asked by CLIENTS clients, in the order of the cases."""
    with concurrent.futures.ThreadPoolExecutor(CLIENTS) as pool:
        return list(pool.map(ask, cases))
