"""Records what real engines answer to adapters, for the tests that need no engine:

    REIN_BIN=target/release/rein REIN_ENGINES_DIR=$(scripts/engines.sh) .venv/bin/python tests/engines/record.py vllm sglang llama-server

Writes adapter/src/dialect/recorded/KIND.json: what the engine tells about itself, and requests for tokens in order, each with its
status and the text of its answer."""
import http.client
import http.server
import json
import pathlib
import sys
import tempfile
import threading

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "py"))

import checkpoint  # noqa: E402
from engine_stub import PATHS  # noqa: E402
from fleet import REPOSITORY, Fleet  # noqa: E402
from processes import Adapter, mask_of, start_llama, start_sglang, start_vllm  # noqa: E402


# Of SGLang's settings.
SETTINGS = ("version", "context_length", "page_size", "max_total_num_tokens", "max_running_requests", "disable_radix_cache")


def shortened(path, page):
    """What adapters read of a page."""
    if path == "/metrics":
        return "".join(line + "\n" for line in page.split("\n") if "config" in line)
    if path == "/get_server_info":
        settings = json.loads(page)
        return json.dumps({name: settings[name] for name in SETTINGS if name in settings})
    return page


class Recorder(http.server.ThreadingHTTPServer):
    """Forwards requests to an engine, and keeps those for tokens with their answers."""

    daemon_threads = True

    def __init__(self, engine, path):
        super().__init__(("127.0.0.1", 0), Handler)
        self.engine, self.path, self.exchanges, self.pages = engine.url.removeprefix("http://"), path, [], {}
        self.url = f"http://127.0.0.1:{self.server_port}"
        threading.Thread(target=self.serve_forever, daemon=True).start()


class Handler(http.server.BaseHTTPRequestHandler):
    def log_message(self, *_):
        pass

    def forward(self):
        body = self.rfile.read(int(self.headers.get("content-length") or 0))
        connection = http.client.HTTPConnection(self.server.engine, timeout=60)
        connection.request(self.command, self.path, body, {"content-type": "application/json"})
        answer = connection.getresponse()
        text = answer.read()
        if self.path == self.server.path:
            self.server.exchanges.append({"request": json.loads(body), "status": answer.status, "answer": text.decode()})
        elif self.command == "GET" and answer.status == 200:
            self.server.pages[self.path] = shortened(self.path, text.decode())
        self.send_response(answer.status)
        self.send_header("content-type", answer.headers.get("content-type", "text/plain"))
        self.send_header("content-length", str(len(text)))
        self.end_headers()
        self.wfile.write(text)

    do_GET = do_POST = forward


def record(adapter):
    """One sequence of each kind that an engine answers in another form."""
    vocabulary = adapter.info.vocab_size
    adapter.sequence([5, 6, 7], max_tokens=4, finish_is_proposal=True).tokens()
    masked = adapter.sequence([5, 6, 7], max_tokens=5, temperature=1.0, finish_is_proposal=True)
    for _ in masked.events():
        if masked.epoch == 0:
            masked.steer(1, mask=mask_of([40, 50, 60], vocabulary))
    wide = adapter.sequence([5, 6, 7], max_tokens=3, temperature=1.0, finish_is_proposal=True)
    for _ in wide.events():
        if wide.epoch == 0:
            wide.steer(1, mask=mask_of(range(9, vocabulary), vocabulary))
    # A stop token ends it: the one that greedy decoding draws next.
    ids = adapter.sequence([5, 6, 7], max_tokens=3, finish_is_proposal=True).tokens()
    adapter.sequence([5, 6, 7], max_tokens=9, stop=[ids[-1]]).tokens()
    adapter.sequence([5, 6, 7, 8], max_tokens=3, logprobs=2, finish_is_proposal=True).tokens()


def main(directory):
    folder, file = checkpoint.write(directory)
    fleet = Fleet(directory, workers=0, group_size=1, routers=0)
    try:
        for kind in sys.argv[1:]:
            start = {"vllm": start_vllm, "sglang": start_sglang, "llama-server": start_llama}[kind]
            engine = start(directory, file if kind == "llama-server" else folder)
            recorder, adapter = Recorder(engine, PATHS[kind]), None
            try:
                engine.wait()
                adapter = Adapter(directory, folder, kind, recorder, fleet.etcd_url)
                record(adapter)
                out = REPOSITORY / f"adapter/src/dialect/recorded/{kind}.json"
                out.parent.mkdir(exist_ok=True)
                text = json.dumps({"pages": recorder.pages, "exchanges": recorder.exchanges}, indent=1)
                out.write_text(text.replace(str(directory), "/checkpoint") + "\n")
                print(f"{out}: {len(recorder.exchanges)} requests, {out.stat().st_size} bytes")
            finally:
                recorder.shutdown()
                for process in (adapter, engine):
                    if process is not None:
                        process.stop()
    finally:
        fleet.close()


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as made:
        main(pathlib.Path(made))
