"""A proxy before a server with the sim engine: it adds to each generation the tokens that the engine emits."""
import http.client
import http.server
import json
import threading
import urllib.parse

import tokenizers

from conftest import REPOSITORY

HOP_HEADERS = ("connection", "transfer-encoding", "content-length", "host", "accept-encoding")
TOKENIZER = tokenizers.Tokenizer.from_file(str(REPOSITORY / "models/demo/tokenizer.json"))


def script(text):
    """The tokens of an answer of the demo model. Markers in the text are special tokens."""
    return TOKENIZER.encode(text + "<|im_end|>", add_special_tokens=False).ids


def call(name, arguments, index=0):
    """An answer that calls a tool, in the format of the demo model."""
    return (f"<|tool_calls_section_begin|><|tool_call_begin|>functions.{name}:{index}<|tool_call_argument_begin|>"
            f"{json.dumps(arguments)}<|tool_call_end|><|tool_calls_section_end|>")


class ScriptProxy:
    """`answer` gets the body of each generation and returns the text that the engine is to emit; None: no script."""

    def __init__(self, target, path, answer):
        self.bodies, self.failures, self.ignored = [], [], []
        address = urllib.parse.urlsplit(target).netloc
        proxy = self

        class Handler(http.server.BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def log_message(self, *_):
                pass

            def do_HEAD(self):
                self.forward(None)

            def do_GET(self):
                self.forward(None)

            def do_POST(self):
                body = self.rfile.read(int(self.headers["content-length"]))
                if urllib.parse.urlsplit(self.path).path == path:
                    request = json.loads(body)
                    proxy.bodies.append(request)
                    text = answer(request)
                    if text is not None:
                        body = json.dumps({**request, "script": script(text)}).encode()
                self.forward(body)

            def forward(self, body):
                connection = http.client.HTTPConnection(address, timeout=60)
                headers = {name: value for name, value in self.headers.items() if name.lower() not in HOP_HEADERS}
                connection.request(self.command, self.path, body, headers)
                response = connection.getresponse()
                if body is not None:
                    proxy.ignored.append(response.headers.get("x-rein-ignored-fields", ""))
                self.send_response(response.status)
                for name, value in response.getheaders():
                    if name.lower() not in HOP_HEADERS:
                        self.send_header(name, value)
                self.send_header("connection", "close")
                self.end_headers()
                self.close_connection = True
                whole = b""
                try:
                    while piece := response.read1(65536):
                        whole += piece
                        self.wfile.write(piece)
                        self.wfile.flush()
                except OSError:
                    pass  # The client has left.
                finally:
                    connection.close()
                if response.status >= 400:
                    proxy.failures.append((self.path, response.status, whole.decode()))

        self.server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.server.daemon_threads = True
        self.url = f"http://127.0.0.1:{self.server.server_address[1]}"
        threading.Thread(target=self.server.serve_forever, daemon=True).start()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.server.shutdown()
        self.server.server_close()
