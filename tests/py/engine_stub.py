"""An engine with the HTTP interface of vLLM, llama-server or SGLang, and without a model. Its next token is a hash of all tokens
before: every stub gives the same answers, whatever was lost on the way, and to a grammar it is a random model."""
import contextlib
import hashlib
import http.server
import json
import socket
import ssl
import threading
import time

from tokenizers import Tokenizer

PATHS = {"vllm": "/v1/completions", "llama-server": "/completion", "sglang": "/generate"}
CONTEXT = 4096
# Biases of these sizes are masks.
EXCLUDED, RAISED = -100, 100


class EngineStub(http.server.ThreadingHTTPServer):
    daemon_threads = True

    def __init__(self, model, kind="vllm", step=0.002, certificate=None, address=("127.0.0.1", 0)):
        """`certificate`: files with a certificate and its key, for https."""
        super().__init__(address, Handler)
        self.connections = []
        self.kind, self.step, self.asked = kind, step, []
        self.tokenizer = Tokenizer.from_file(str(model / "tokenizer.json"))
        self.vocabulary = json.loads((model / "config.json").read_text())["vocab_size"]
        ends = json.loads((model / "generation_config.json").read_text())["eos_token_id"]
        self.ends = ends if isinstance(ends, list) else [ends]
        self.url = f"http://127.0.0.1:{self.server_port}"
        if certificate:
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            context.load_cert_chain(*certificate)
            self.socket = context.wrap_socket(self.socket, server_side=True)
            self.url = f"https://localhost:{self.server_port}"
        threading.Thread(target=self.serve_forever, daemon=True).start()

    def process_request(self, request, client_address):
        self.connections.append(request)
        super().process_request(request, client_address)

    def handle_error(self, request, client_address):
        """Closed connections are no news."""

    def close(self):
        """As when its process ends: connections are closed, too."""
        self.shutdown()
        self.server_close()
        for connection in self.connections:
            with contextlib.suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)

    def pages(self):
        metrics = 'vllm:cache_config_info{block_size="16",enable_prefix_caching="True",num_gpu_blocks="4096"} 1\n'
        return {
            "/health": {},
            "/v1/models": {"data": [{"id": "served", "max_model_len": CONTEXT}]},
            **{
                "vllm": {"/version": {"version": "0.32.0"}, "/metrics": metrics},
                "llama-server": {"/props": {"build_info": "b11434", "default_generation_settings": {"n_ctx": CONTEXT}, "total_slots": 8}},
                "sglang": {"/get_server_info": {"version": "0.5.23", "page_size": 16, "max_total_num_tokens": 65536}},
            }[self.kind],
        }

    def read(self, body):
        """(prompt, most tokens, allowed ids or an empty set, excluded ids, stop ids, whether to stream)"""
        if self.kind == "vllm":
            biases = {int(id): bias for id, bias in body.get("logit_bias", {}).items()}
            return body["prompt"], body["max_tokens"], set(body.get("allowed_token_ids", [])), excluded(biases), body["stop_token_ids"], body["stream"]
        if self.kind == "llama-server":
            biases = {id: EXCLUDED if bias is False else bias for id, bias in body["logit_bias"]}
            return body["prompt"], body["n_predict"], raised(biases), excluded(biases), self.ends, False
        settings = body["sampling_params"]
        biases = {int(id): bias for id, bias in settings.get("logit_bias", {}).items()}
        return body["input_ids"], settings["max_new_tokens"], raised(biases), excluded(biases), settings["stop_token_ids"], body["stream"]

    def draw(self, tokens, allowed, excluded):
        digest = hashlib.sha256(repr(tokens).encode()).digest()
        if allowed:
            left = sorted(allowed - excluded)
            return left[int.from_bytes(digest[:4]) % len(left)]
        for _ in range(10 * self.vocabulary):
            token = int.from_bytes(digest[:4]) % self.vocabulary
            if token not in excluded:
                return token
            digest = hashlib.sha256(digest).digest()
        raise AssertionError("the mask leaves nothing")

    def frame(self, ids, new, reason, stop):
        """One event of a stream, or the whole answer. `new`: how many of the ids no earlier frame had."""
        if self.kind == "vllm":
            return {"choices": [{"index": 0, "text": "", "token_ids": ids[len(ids) - new:], "finish_reason": reason, "stop_reason": stop}]}
        if self.kind == "llama-server":
            return {"content": "", "tokens": ids, "stop": True, "stop_type": {"stop": "eos", "length": "limit"}[reason], "timings": {"cache_n": 0}}
        finish = reason and {"type": reason, "matched": stop}
        return {"text": "", "output_ids": ids, "meta_info": {"completion_tokens": len(ids), "cached_tokens": 0, "finish_reason": finish}}


def raised(biases):
    return {id for id, bias in biases.items() if bias >= RAISED}


def excluded(biases):
    return {id for id, bias in biases.items() if bias <= EXCLUDED}


class Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    # Otherwise each small write waits for the acknowledgement of the one before.
    disable_nagle_algorithm = True

    def log_message(self, *_):
        pass

    def answer(self, value, status=200):
        body = value.encode() if isinstance(value, str) else json.dumps(value).encode()
        self.send_response(status)
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def do_GET(self):
        pages = self.server.pages()
        self.answer(pages.get(self.path, {}), 200 if self.path in pages else 404)

    def do_POST(self):
        body = json.loads(self.rfile.read(int(self.headers["content-length"])))
        stub = self.server
        if self.path == "/tokenize":
            text = body["content" if stub.kind == "llama-server" else "prompt"]
            return self.answer({"tokens": stub.tokenizer.encode(text, add_special_tokens=False).ids})
        assert self.path == PATHS[stub.kind], self.path
        stub.asked.append(body)
        prompt, most, allowed, banned, stops, streams = stub.read(body)
        if streams:
            self.send_response(200)
            self.send_header("content-type", "text/event-stream")
            self.send_header("transfer-encoding", "chunked")
            self.end_headers()
        tokens, ids, reason = list(prompt), [], None
        while not reason:
            time.sleep(stub.step)
            ids.append(stub.draw(tokens, allowed, banned))
            tokens.append(ids[-1])
            stop = ids[-1] if ids[-1] in stops else None
            reason = "stop" if stop is not None else "length" if len(ids) == most else None
            if streams and not self.chunk(f"data: {json.dumps(stub.frame(ids, 1, reason, stop))}\n\n"):
                return
        if streams:
            self.chunk("data: [DONE]\n\n")
            self.chunk("")
            return
        try:
            self.answer(stub.frame(ids, len(ids), reason, stop))
        except OSError:
            # The request was cancelled.
            self.close_connection = True

    def chunk(self, text):
        """Whether the client still reads. An empty chunk ends the answer."""
        data = text.encode()
        try:
            self.wfile.write(f"{len(data):x}\r\n".encode() + data + b"\r\n")
        except OSError:
            self.close_connection = True
            return False
        return True
