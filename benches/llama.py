"""Rein's CPU backend and llama.cpp's, in turn, with the same weights on 2 threads.

    make engines                                      # installs llama-server
    REIN_BIN=target/release/rein REIN_ENGINES_DIR=$(scripts/engines.sh) .venv/bin/python benches/llama.py [FILE.gguf ...]

Without a file, with random weights in bf16 and int8. Prints a table (docs/benchmarks/kernels.md)."""
import pathlib
import re
import statistics
import sys
import tempfile

TESTS = pathlib.Path(__file__).resolve().parents[1] / "tests"
sys.path[:0] = [str(TESTS / "engines"), str(TESTS / "py")]

import checkpoint  # noqa: E402
from engines import streamed  # noqa: E402
from fleet import BIN, free_ports  # noqa: E402
from gguf import GGMLQuantizationType  # noqa: E402
from processes import Concurrent, Process, start_llama  # noqa: E402

# 1.1 GB in bf16, of which a step reads all but the embedding. Three heads for each of keys and values.
SIZE = {"HIDDEN": 1536, "HEADS": 12, "HEAD": 128, "KV_HEADS": 4, "LAYERS": 22, "FEED_FORWARD": 4096}
TOKENS, ROUNDS, STREAMS, LONG = 33, 3, 8, 2048
FORMS = {"bf16": GGMLQuantizationType.BF16, "int8": GGMLQuantizationType.Q8_0}


def start_rein(directory, model, form):
    (port,) = free_ports(1)
    options = {"bf16": ["--dtype", "bf16"], "int8": ["--dtype", "bf16", "--quantize", "int8"]}.get(form, [])
    command = [
        BIN, "serve", "--model", model, "--served-name", "m", "--format", "hermes", "--threads", 2, *options,
        "--http", f"127.0.0.1:{port}", "--grpc", "127.0.0.1:0"]
    return Process("rein", command, directory, port, "/ready")


class Subject:
    """An engine that runs, and prompts that it has not seen."""

    def __init__(self, name, process):
        self.name, self.process, self.prompts = name, process, 0

    def prompt(self, length):
        self.prompts += 1
        return [100 + (self.prompts * 7919 + i * i) % 3900 for i in range(length)]

    def body(self, length, tokens):
        if self.name == "llama.cpp":
            return "/completion", {"prompt": self.prompt(length), "n_predict": tokens, "ignore_eos": True}
        return "/v1/completions", {"model": "m", "prompt": self.prompt(length), "max_tokens": tokens, "ignore_eos": True}

    def stream(self, streams, length):
        """Tokens per second of a prefill, and of the decoding of all streams."""
        bodies = [self.body(length, TOKENS) for _ in range(streams)]
        times = Concurrent([lambda body=body: streamed(self.process.url, *body) for body in bodies]).results()
        first, rest = (statistics.mean(column) for column in zip(*times))
        return length / first, streams * (TOKENS - 1) / rest


def measure(subject):
    (_, one), (_, several), (prefill, after) = subject.stream(1, 16), subject.stream(STREAMS, 16), subject.stream(1, LONG)
    return one, several, after, prefill


def random_weights(directory):
    """A file for llama.cpp and a model for Rein, by the form of the weights."""
    vars(checkpoint).update(SIZE)
    trained, tensors = checkpoint.tokenizer(), checkpoint.weights(1)
    checkpoint.write_hf(directory / "model", trained, tensors)
    for form, quantized in FORMS.items():
        checkpoint.write_gguf(directory / f"{form}.gguf", trained, tensors, quantized)
    return {form: (directory / f"{form}.gguf", directory / "model") for form in FORMS}


def resident(process):
    """Resident MiB of a process."""
    status = pathlib.Path(f"/proc/{process.pid}/status").read_text()
    return int(re.search(r"VmRSS:\s+(\d+)", status)[1]) / 1024


def main(directory, files):
    models = {file.stem: (file, file) for file in files} or random_weights(directory)
    print(f"output tokens/s, best of {ROUNDS}\n")
    print(f"| weights | engine | decode, 1 stream | {STREAMS} streams | 1 stream after {LONG} tokens | prefill of {LONG} tokens | MiB |")
    print("|---|---|---|---|---|---|---|")
    for form, (file, model) in models.items():
        processes = {
            "llama.cpp": start_llama(directory, file, "--no-warmup"),
            "Rein": start_rein(directory, model, form)}
        try:
            subjects = [Subject(name, process) for name, process in processes.items()]
            for subject in subjects:
                subject.process.wait()
                subject.stream(1, 16)
            # In turn, so that what others do to the machine's memory meets both.
            rounds = [[measure(subject) for subject in subjects] for _ in range(ROUNDS)]
            memory = [resident(subject.process.child) for subject in subjects]
        finally:
            for process in processes.values():
                process.stop()
        for subject, measured, mib in zip(subjects, zip(*rounds), memory):
            best = [max(column) for column in zip(*measured)]
            figures = [*(f"{figure:.1f}" for figure in best), f"{mib:.0f}"]
            print(f"| {form} | {subject.name} | " + " | ".join(figures) + " |", flush=True)


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as made:
        main(pathlib.Path(made), [pathlib.Path(file).resolve() for file in sys.argv[1:]])
