"""A proxy that adds a script to each request, so that the sim engine answers an agent as a test wants it."""
import http.client
import http.server
import json
import threading
import urllib.parse
import urllib.request

HOP_HEADERS = ("connection", "transfer-encoding", "content-length", "host")


def tokens(server, text):
    """The demo model's ids of an answer, markers included."""
    body = json.dumps({"model": "demo", "prompt": text, "add_special_tokens": False}).encode()
    request = urllib.request.Request(server.http + "/tokenize", data=body, headers={"content-type": "application/json"})
    with urllib.request.urlopen(request, timeout=60) as answer:
        return json.load(answer)["tokens"]


def calls(*named):
    """An answer with these calls: (name, arguments as an object, index in the conversation)."""
    call = "<|tool_call_begin|>functions.{}:{}<|tool_call_argument_begin|>{}<|tool_call_end|>"
    inner = "".join(call.format(name, index, json.dumps(arguments)) for name, arguments, index in named)
    return f"<|tool_calls_section_begin|>{inner}<|tool_calls_section_end|>"


class ScriptProxy:
    """Forwards to `server`. `answer(body)` returns the text that the model writes to a request, or None."""

    def __init__(self, server, answer):
        self.bodies, self.ignored, self.replies, target = [], [], [], urllib.parse.urlsplit(server.http)
        proxy = self

        class Handler(http.server.BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def log_message(self, *_):
                pass

            def do_GET(self):
                self.forward("GET", None)

            def do_POST(self):
                body = json.loads(self.rfile.read(int(self.headers["content-length"])))
                proxy.bodies.append(body)
                text = answer(body)
                if text is not None:
                    body["script"] = tokens(server, text)
                self.forward("POST", json.dumps(body).encode())

            def forward(self, method, body):
                connection = http.client.HTTPConnection(target.hostname, target.port, timeout=60)
                headers = {name: value for name, value in self.headers.items() if name.lower() not in HOP_HEADERS}
                connection.request(method, self.path, body, headers)
                reply = connection.getresponse()
                proxy.ignored.append(reply.headers.get("x-rein-ignored-fields", ""))
                self.send_response(reply.status)
                for name, value in reply.headers.items():
                    if name.lower() not in HOP_HEADERS:
                        self.send_header(name, value)
                self.send_header("connection", "close")
                self.end_headers()
                whole = b""
                while piece := reply.read1(65536):
                    whole += piece
                    self.wfile.write(piece)
                    self.wfile.flush()
                if method == "POST":
                    proxy.replies.append(whole.decode())
                self.close_connection = True
                connection.close()

        self.server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.server.daemon_threads = True
        self.http = f"http://127.0.0.1:{self.server.server_port}"
        threading.Thread(target=self.server.serve_forever, daemon=True).start()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.server.shutdown()
        self.server.server_close()
