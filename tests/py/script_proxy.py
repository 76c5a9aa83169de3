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


def tokens(text):
    """The tokens of a text of the demo model. Markers in the text are special tokens."""
    return TOKENIZER.encode(text, add_special_tokens=False).ids


def script(text):
    """The tokens of a whole answer."""
    return tokens(text + "<|im_end|>")


def calls(*named):
    """An answer with these calls: (name, arguments as an object, index in the conversation)."""
    form = "<|tool_call_begin|>functions.{}:{}<|tool_call_argument_begin|>{}<|tool_call_end|>"
    inner = "".join(form.format(name, index, json.dumps(arguments)) for name, arguments, index in named)
    return f"<|tool_calls_section_begin|>{inner}<|tool_calls_section_end|>"


def call(name, arguments, index=0):
    """An answer with one call."""
    return calls((name, arguments, index))


class ScriptProxy:
    """Forwards to a server. `answer` gets the body of each request to one of the paths and returns the text that the
    engine is to emit; fields that replace those of the body; or None."""

    def __init__(self, server, answer, paths=("/v1/messages", "/v1/responses")):
        self.bodies, self.failures, self.ignored, self.replies = [], [], [], []
        address = urllib.parse.urlsplit(server.http).netloc
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
                if urllib.parse.urlsplit(self.path).path in paths:
                    request = json.loads(body)
                    proxy.bodies.append(request)
                    text = answer(request)
                    if text is not None:
                        fields = text if isinstance(text, dict) else {"script": script(text)}
                        body = json.dumps({**request, **fields}).encode()
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
                if body is not None:
                    proxy.replies.append(whole.decode())
                if response.status >= 400:
                    proxy.failures.append((self.path, response.status, whole.decode()))

        self.server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.server.daemon_threads = True
        self.http = f"http://127.0.0.1:{self.server.server_address[1]}"
        threading.Thread(target=self.server.serve_forever, daemon=True).start()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.server.shutdown()
        self.server.server_close()
