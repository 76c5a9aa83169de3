"""Streams that never stop: each request has a seed, and its answer must never change, whatever happens to the cluster."""
import http.client
import json
import threading
import time

TOOL = {"type": "function", "function": {"name": "get_weather", "description": "Get the current weather in a city", "parameters": {"type": "object", "properties": {"city": {"type": "string"}, "unit": {"enum": ["celsius", "fahrenheit"]}}, "required": ["city", "unit"], "additionalProperties": False}}}


def body(number, model="demo"):
    """Every second request is inside an enforced call for most of its answer."""
    request = {"model": model, "stream": True, "seed": number, "temperature": 1, "max_tokens": 160, "messages": [{"role": "user", "content": f"Tell me about number {number}."}]}
    if number % 2:
        request |= {"tools": [TOOL], "tool_choice": "required", "messages": [{"role": "user", "content": f"What is the weather in city {number}?"}]}
    else:
        request |= {"ignore_eos": True}
    return request


def ask(address, request, timeout=180, trust=None, key=None):
    """The whole answer of a stream; an error raises. With `trust`, the TLS context of the client, over HTTPS."""
    if trust:
        connection = http.client.HTTPSConnection(address, 8000, timeout=timeout, context=trust)
    else:
        connection = http.client.HTTPConnection(address, 8000, timeout=timeout)
    try:
        headers = {"content-type": "application/json"} | ({"authorization": f"Bearer {key}"} if key else {})
        connection.request("POST", "/v1/chat/completions", json.dumps(request), headers)
        answer = connection.getresponse()
        if answer.status != 200:
            raise RuntimeError(f"{answer.status}: {answer.read()[:300]}")
        text, calls, finish, done = "", {}, None, False
        for line in answer:
            line = line.strip()
            if line.startswith(b"event: error"):
                raise RuntimeError(f"in the stream: {answer.readline()[:300]}")
            if line == b"data: [DONE]":
                done = True
            elif line.startswith(b"data: "):
                for choice in json.loads(line[6:])["choices"]:
                    delta = choice["delta"]
                    text += (delta.get("reasoning_content") or "") + (delta.get("content") or "")
                    for call in delta.get("tool_calls") or []:
                        known = calls.setdefault(call["index"], ["", ""])
                        known[0] += call["function"].get("name") or ""
                        known[1] += call["function"].get("arguments") or ""
                    finish = choice.get("finish_reason") or finish
        if not done or finish is None:
            raise RuntimeError(f"the stream ended early: {text[-100:]!r}")
        return text, sorted(calls.items()), finish
    finally:
        connection.close()


class Load:
    """Threads that ask ready routers, as a proxy with a view that is up to a second old."""

    def __init__(self, routers, requests, threads=16, ask=ask):
        self.routers, self.requests, self.ask = routers, requests, ask
        self.expected = [ask(routers()[0], request) for request in requests]
        self.failures, self.changes, self.answers = [], [], 0
        self.stopping, self.lock = threading.Event(), threading.Lock()
        self.known, self.seen = routers(), time.monotonic()
        self.threads = [threading.Thread(target=self._run, args=(number,)) for number in range(threads)]
        for thread in self.threads:
            thread.start()

    def _router(self, number):
        with self.lock:
            if time.monotonic() - self.seen > 1:
                self.known, self.seen = self.routers(), time.monotonic()
            assert self.known, "no router was ready"
            return self.known[number % len(self.known)]

    def _run(self, number):
        turn = number
        while not self.stopping.is_set():
            index = turn % len(self.requests)
            try:
                router = self._router(turn)
                got = self.ask(router, self.requests[index])
                with self.lock:
                    self.answers += 1
                    if got != self.expected[index]:
                        self.changes.append((index, self.expected[index], got))
            except Exception as error:
                with self.lock:
                    self.failures.append(f"{time.strftime('%H:%M:%S')} request {index}: {type(error).__name__}: {error}")
                time.sleep(0.2)
            turn += len(self.threads) + 1

    def stop(self):
        self.stopping.set()
        for thread in self.threads:
            thread.join()
