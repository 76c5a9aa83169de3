"""What LoRA adapters cost on the CPU backend, against the same server without one, on 2 threads.

    REIN_BIN=target/release/rein .venv/bin/python benches/loras.py MODEL RANK

MODEL is a directory of a Qwen2 or Qwen3 model without experts. Prints a table (docs/benchmarks/serve.md): adapters by
seed of all linear modules, one stream, and eight with one adapter and with eight."""
import json
import pathlib
import sys
import tempfile

import numpy
from safetensors.numpy import save_file

sys.path.insert(0, str(pathlib.Path(__file__).parent))

from llama import BIN, STREAMS, TOKENS, Concurrent, Process, free_ports, streamed  # noqa: E402

ROUNDS, PROMPT, LONG = 3, 16, 1024


def make_adapter(directory, config, seed, rank):
    directory.mkdir()
    text = {"peft_type": "LORA", "r": rank, "lora_alpha": rank}
    (directory / "adapter_config.json").write_text(json.dumps(text))
    hidden, heads = config["hidden_size"], config["num_attention_heads"]
    head = config.get("head_dim") or hidden // heads
    queries, keys, inter = heads * head, config["num_key_value_heads"] * head, config["intermediate_size"]
    modules = {"self_attn.q_proj": (queries, hidden), "self_attn.k_proj": (keys, hidden), "self_attn.v_proj": (keys, hidden),
               "self_attn.o_proj": (hidden, queries), "mlp.gate_proj": (inter, hidden), "mlp.up_proj": (inter, hidden),
               "mlp.down_proj": (hidden, inter)}
    random, tensors = numpy.random.default_rng(seed), {}
    for layer in range(config["num_hidden_layers"]):
        for module, (out, inp) in modules.items():
            name = f"base_model.model.model.layers.{layer}.{module}"
            tensors[f"{name}.lora_A.weight"] = random.normal(0, inp**-0.5, (rank, inp)).astype("float32")
            tensors[f"{name}.lora_B.weight"] = random.normal(0, 0.02, (out, rank)).astype("float32")
    save_file(tensors, directory / "adapter_model.safetensors")


class Bench:
    def __init__(self, url):
        self.url, self.prompts = url, 0

    def body(self, model, length, tokens):
        self.prompts += 1
        prompt = [100 + (self.prompts * 7919 + i * i) % 3900 for i in range(length)]
        return {"model": model, "prompt": prompt, "max_tokens": tokens, "ignore_eos": True}

    def decode(self, models):
        """Tokens per second of all streams."""
        bodies = [self.body(model, PROMPT, TOKENS) for model in models]
        times = Concurrent([lambda b=body: streamed(self.url, "/v1/completions", b) for body in bodies]).results()
        return len(models) * (TOKENS - 1) / (sum(rest for _, rest in times) / len(times))

    def prefill(self, model):
        first, _ = streamed(self.url, "/v1/completions", self.body(model, LONG, 2))
        return LONG / first


def main(model, rank):
    with tempfile.TemporaryDirectory() as made:
        made = pathlib.Path(made)
        config = json.loads((model / "config.json").read_text())
        names = [f"a{i}" for i in range(STREAMS)]
        for i, name in enumerate(names):
            make_adapter(made / name, config, i, rank)
        (port,) = free_ports(1)
        loras = ",".join(f"{name}={made / name}" for name in names)
        server = Process("rein", [BIN, "serve", "--model", model, "--served-name", "m", "--format", "hermes", "--threads", 2,
                                  "--lora", loras, "--http", f"127.0.0.1:{port}", "--grpc", "127.0.0.1:0"], made, port, "/ready")
        try:
            server.wait()
            bench = Bench(server.url)
            bench.decode(["m"])
            cases = {
                "no adapter": (["m"], ["m"] * STREAMS, "m"),
                "one adapter": (["a0"], ["a0"] * STREAMS, "a0"),
                "an adapter for each stream": (["a1"], names, "a1"),
                "half of the streams": (["m"], [*names[:4], *["m"] * 4], "m"),
            }
            rounds = [{name: (bench.decode(one), bench.decode(all), bench.prefill(prompt))
                       for name, (one, all, prompt) in cases.items()} for _ in range(ROUNDS)]
        finally:
            server.stop()
    best = {name: [max(column) for column in zip(*(found[name] for found in rounds))] for name in cases}
    print(f"tokens/s, best of {ROUNDS}; rank {rank}\n")
    print(f"| | 1 stream | {STREAMS} streams | prompt of {LONG} |\n|---|---|---|---|")
    base = best["no adapter"]
    for name, found in best.items():
        print(f"| {name} | " + " | ".join(f"{a:.1f} ({a / b:.2f})" for a, b in zip(found, base)) + " |")


if __name__ == "__main__":
    main(pathlib.Path(sys.argv[1]).resolve(), int(sys.argv[2]))
