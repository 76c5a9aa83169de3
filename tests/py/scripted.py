"""A proxy that answers chats with scripted chunks, and forwards all other requests to a server."""
import http.server
import json
import queue
import threading
import urllib.error
import urllib.request

HOP_HEADERS = ("connection", "transfer-encoding", "content-length")
DROP = "drop"


class Answer:
    """A scripted answer to a chat. `send` a delta, `finish`, or `drop` the connection."""

    def __init__(self, status=200, body=None, headers=None):
        self.status, self.body, self.headers = status, body, headers or {}
        self.chunks = queue.Queue()
        self.closed = threading.Event()  # the client closed the connection

    def send(self, **delta):
        self.chunks.put({"choices": [{"index": 0, "delta": delta, "finish_reason": None}]})
        return self

    def call(self, index, name, arguments, id=None):
        whole = {"index": index, "id": id or f"functions.{name}:{index}", "type": "function", "function": {"name": name, "arguments": arguments}}
        return self.send(tool_calls=[whole])

    def finish(self, reason="stop", delta=None, tokens=7, **choice):
        usage = {"prompt_tokens": 12, "completion_tokens": tokens, "total_tokens": 12 + tokens, "prompt_tokens_details": {"cached_tokens": 4}}
        self.chunks.put({"choices": [{"index": 0, "delta": delta or {}, "finish_reason": reason, **choice}]})
        self.chunks.put({"choices": [], "usage": usage})
        self.chunks.put(None)
        return self

    def drop(self):
        """Closes the connection before the end of the answer."""
        self.chunks.put(DROP)
        return self

    def fail(self, message):
        self.chunks.put({"error": {"message": message, "type": "server_error", "param": None, "code": None}})
        self.chunks.put(None)
        return self


class Scripted:
    def __init__(self, target):
        self.target, self.answers, self.requests = target, queue.Queue(), []
        scripted = self

        class Handler(http.server.BaseHTTPRequestHandler):
            def log_message(self, *_):
                pass

            def do_GET(self):
                self.forward(None)

            def do_POST(self):
                body = self.rfile.read(int(self.headers["content-length"]))
                if self.path != "/v1/chat/completions":
                    return self.forward(body)
                scripted.requests.append(json.loads(body))
                self.play(scripted.answers.get(timeout=60))

            def play(self, answer):
                self.send_response(answer.status)
                for name, value in {"content-type": "text/event-stream" if answer.body is None else "application/json", **answer.headers}.items():
                    self.send_header(name, value)
                self.end_headers()
                if answer.body is not None:
                    return self.wfile.write(json.dumps(answer.body).encode())
                try:
                    while (chunk := self.next(answer)) is not None:
                        if chunk == DROP:
                            return
                        self.wfile.write(b"data: " + json.dumps(chunk).encode() + b"\n\n" if chunk else b": waiting\n\n")
                        self.wfile.flush()
                    self.wfile.write(b"data: [DONE]\n\n")
                except OSError:
                    answer.closed.set()

            def next(self, answer):
                # Comments detect that the client has closed the connection.
                try:
                    return answer.chunks.get(timeout=0.1)
                except queue.Empty:
                    return {}

            def forward(self, body):
                request = urllib.request.Request(scripted.target + self.path, data=body)
                for name in ("authorization", "content-type"):
                    if self.headers[name]:
                        request.add_header(name, self.headers[name])
                try:
                    answer = urllib.request.urlopen(request, timeout=60)
                except urllib.error.HTTPError as error:
                    answer = error
                self.send_response(answer.status)
                for name, value in answer.headers.items():
                    if name.lower() not in HOP_HEADERS:
                        self.send_header(name, value)
                self.end_headers()
                self.wfile.write(answer.read())

        self.server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.server.daemon_threads = True
        self.http = f"http://127.0.0.1:{self.server.server_port}"
        threading.Thread(target=self.server.serve_forever, daemon=True).start()

    def answer(self, *given, **named):
        """The next chat's answer."""
        answer = Answer(*given, **named)
        self.answers.put(answer)
        return answer

    def stop(self):
        self.server.shutdown()
        self.server.server_close()
