"""What draft tokens give on the CPU backend, with a real model on 2 threads: servers with --draft-tokens 0, 8 and 16, in turn.

    REIN_BIN=target/release/rein .venv/bin/python benches/drafts.py MODEL [OPTION ...]

MODEL is a directory or a GGUF file, an OPTION one of rein serve. Prints three tables (docs/benchmarks/drafts.md), and stops if
two servers give different texts."""
import json
import pathlib
import sys
import tempfile
import time
import urllib.request

ROOT = pathlib.Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT / "tests/engines"), str(ROOT / "tests/py")]

from fleet import BIN, free_ports  # noqa: E402
from processes import Concurrent, Process  # noqa: E402

DRAFTS, ROUNDS, STREAMS = [0, 8, 16], 3, 8
CODE = "\n".join((ROOT / "worker/src/tables.rs").read_text().splitlines()[:40])
CASES = {
    "edit a file": f"Here is a file:\n```rust\n{CODE}\n```\nRename the struct SlotLists to Lists everywhere. Answer with the whole file.",
    "a story": "Tell a long story about a fisherman who finds a bottle in the sea.",
    "a list of squares": "List the first 60 numbers with their squares, one per line, like '3 -> 9'.",
    "a new class": "Write a Python class for a bank account with deposit, withdraw, transfer and history, with docstrings and tests.",
}


def answer(url, prompt, tokens, temperature, seed):
    """The text of an answer, its tokens, and the seconds after its first one."""
    body = {"model": "m", "messages": [{"role": "user", "content": prompt}], "max_tokens": tokens, "temperature": temperature,
            "seed": seed, "stream": True, "stream_options": {"include_usage": True}}
    request = urllib.request.Request(f"{url}/v1/chat/completions", json.dumps(body).encode(), {"content-type": "application/json"})
    text, first, count = "", None, 0
    with urllib.request.urlopen(request) as lines:
        for line in lines:
            if not line.startswith(b"data: {"):
                continue
            chunk = json.loads(line[6:])
            count = (chunk.get("usage") or {}).get("completion_tokens", count)
            for choice in chunk["choices"]:
                if choice["delta"].get("content"):
                    first = first or time.monotonic()
                    text += choice["delta"]["content"]
    return text, count, time.monotonic() - first


def together(url, prompt, temperature):
    """The texts of several streams, and their tokens per second, prompts included."""
    began = time.monotonic()
    calls = [lambda i=i: answer(url, f"{prompt} ({i})", 96, temperature, i) for i in range(STREAMS)]
    found = Concurrent(calls).results()
    return [text for text, _, _ in found], sum(count for _, count, _ in found) / (time.monotonic() - began)


def alone(url, prompt, temperature):
    text, count, seconds = answer(url, prompt, 256, temperature, 7)
    return [text], (count - 1) / seconds


def rates(servers, measure, temperature):
    for name, prompt in CASES.items():
        texts, best = None, {}
        for _ in range(ROUNDS):
            for drafts, server in servers.items():
                found, rate = measure(server.url, prompt, temperature)
                texts = texts or found
                assert found == texts, f"{name}, {drafts} draft tokens: {found}, without drafts {texts}"
                best[drafts] = max(rate, best.get(drafts, 0))
        yield name, best


def main(model, options):
    with tempfile.TemporaryDirectory() as made:
        servers = {}
        try:
            for drafts, port in zip(DRAFTS, free_ports(len(DRAFTS))):
                command = [BIN, "serve", "--model", model, "--served-name", "m", "--threads", 2, "--draft-tokens", drafts,
                           "--http", f"127.0.0.1:{port}", "--grpc", "127.0.0.1:0", *options]
                directory = pathlib.Path(made) / str(drafts)
                directory.mkdir()
                servers[drafts] = Process("rein", command, directory, port, "/ready")
            for server in servers.values():
                server.wait()
            one, many = "1 stream, after its first token", f"{STREAMS} streams, prompts included"
            for what, measure, temperature in [(one, alone, 0), (one, alone, 1), (many, together, 0)]:
                print(f"\n| {what}, temperature {temperature} | " + " | ".join(f"{n} drafts" for n in DRAFTS) + " |\n" + "|---" * 4 + "|")
                for name, best in rates(servers, measure, temperature):
                    print(f"| {name} | " + " | ".join(f"{best[n]:.1f} ({best[n] / best[0]:.2f})" for n in DRAFTS) + " |", flush=True)
        finally:
            for server in servers.values():
                server.stop()


if __name__ == "__main__":
    main(pathlib.Path(sys.argv[1]).resolve(), sys.argv[2:])
