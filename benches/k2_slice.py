#!/usr/bin/env python3
"""Times one rank of Kimi K2 in PyTorch, as the yardstick for `rein selftest --sections slice,fast`.

    benches/k2_slice.py --out torch.json             on a GPU
    benches/k2_slice.py --device cpu --reduced       small widths: shows that it runs, and that decode equals prefill

The layer is that of `K2Slice` in src/selftest/weights.rs, in bf16: 8 of 64 heads, 48 of 384 experts of which each row
chooses one, the shared expert. Decode attends over the latents (as DeepSeek-V2's paper absorbs the weights), prefill
expands them. Rows of experts are multiplied by `torch._grouped_mm`. Eager, and compiled with CUDA graphs. Needs torch
2.8 or later, and nothing else.
"""
import argparse
import json
import pathlib
import statistics
import time

# (tokens of a sequence before it decodes, sequences), as in src/selftest/slice.rs.
DECODES = [(4096, (1, 8, 64, 256)), (1024, (1, 8, 64, 256)), (16384, (1, 8, 64))]
PREFILL = 8192
WIDTHS = {"hidden": 7168, "heads": 8, "q_rank": 1536, "experts": 48, "expert_width": 2048}
REDUCED = {"hidden": 256, "heads": 2, "q_rank": 128, "experts": 4, "expert_width": 256}
REDUCED_DECODES, REDUCED_PREFILL = [(64, (1, 3)), (8, (2,))], 24
NOPE, ROPE, VALUE, LATENT = 128, 64, 128, 512
SCALING, THETA = 2.827, 50_000.0
# [rows, columns of x] times [columns of x, columns of the result], as in the section `fast`.
PRODUCTS = [(64, 7168, 16384), (8192, 7168, 4096)]
REDUCED_PRODUCTS = [(32, 256, 256)]
RUNS, WARM_UP = 20, 3


class Layer:
    """Weights of one layer, and what a step of it computes."""

    def __init__(self, torch, widths, device, dtype):
        self.torch, self.widths = torch, widths
        hidden, heads, q_rank, experts, width = widths.values()
        generator = torch.Generator(device).manual_seed(1)

        def weight(*shape):
            numbers = torch.rand(*shape, generator=generator, device=device, dtype=torch.float32)
            return ((numbers * 2 - 1) * 0.035).to(dtype)

        self.q_a, self.q_b = weight(hidden, q_rank), weight(q_rank, heads * (NOPE + ROPE))
        self.kv_a = weight(hidden, LATENT + ROPE)
        self.k_up, self.v_up = weight(heads, NOPE, LATENT), weight(heads, LATENT, VALUE)
        self.o = weight(heads * VALUE, hidden)
        self.gate = weight(hidden, experts)
        self.gate_up, self.down = weight(experts, hidden, 2 * width), weight(experts, width, hidden)
        self.shared_gate_up, self.shared_down = weight(hidden, 2 * width), weight(width, hidden)
        self.frequencies = THETA ** (-torch.arange(0, ROPE, 2, device=device, dtype=torch.float32) / ROPE)

    def bytes(self, rows, context):
        """What a step of so many rows reads once: weights, the experts that are chosen if all are equally likely, and the cache."""
        def size(*tensors):
            return sum(tensor.numel() * tensor.element_size() for tensor in tensors)
        experts = self.widths["experts"]
        others = size(self.q_a, self.q_b, self.kv_a, self.k_up, self.v_up, self.o, self.gate, self.shared_gate_up, self.shared_down)
        chosen = 1 - (1 - 1 / experts) ** rows
        return others + size(self.gate_up, self.down) * chosen + rows * context * (LATENT + ROPE) * self.q_a.element_size()

    def norm(self, x):
        return self.torch.nn.functional.rms_norm(x, x.shape[-1:], eps=1e-6)

    def rotate(self, x, positions):
        """x: [rows, ..., ROPE], positions: [rows]."""
        angles = positions.float()[:, None] * self.frequencies
        angles = angles.view(-1, *[1] * (x.dim() - 2), ROPE // 2)
        even, odd = x[..., 0::2].float(), x[..., 1::2].float()
        cos, sin = angles.cos(), angles.sin()
        return self.torch.cat([even * cos - odd * sin, odd * cos + even * sin], -1).to(x.dtype)

    def project(self, x, positions):
        """Queries without and with rotation, latents, rotated keys."""
        heads = self.widths["heads"]
        q = (self.norm(x @ self.q_a) @ self.q_b).view(-1, heads, NOPE + ROPE)
        latent, rope = (x @ self.kv_a).split([LATENT, ROPE], -1)
        return q[..., :NOPE], self.rotate(q[..., NOPE:], positions), self.norm(latent), self.rotate(rope, positions)

    def attend_cached(self, x, positions, cache):
        """Each row is the next token of its own sequence. cache: [rows, context + 1, LATENT + ROPE]."""
        nope, roped, latent, rope = self.project(x, positions)
        cache[:, -1] = self.torch.cat([latent, rope], -1)
        query = self.torch.cat([self.torch.einsum("rhn,hnl->rhl", nope, self.k_up), roped], -1)
        scores = query @ cache.transpose(1, 2) * (NOPE + ROPE) ** -0.5
        found = scores.float().softmax(-1).to(x.dtype) @ cache[..., :LATENT]
        return self.torch.einsum("rhl,hlv->rhv", found, self.v_up).flatten(1) @ self.o

    def attend_whole(self, x, positions):
        """The rows are one sequence from its first token. Also what the cache would hold."""
        nope, roped, latent, rope = self.project(x, positions)
        keys = self.torch.einsum("rl,hnl->hrn", latent, self.k_up)
        keys = self.torch.cat([keys, rope.expand(keys.shape[0], -1, -1)], -1)
        values = self.torch.einsum("rl,hlv->hrv", latent, self.v_up)
        query = self.torch.cat([nope, roped], -1).transpose(0, 1)
        found = self.torch.nn.functional.scaled_dot_product_attention(query[None], keys[None], values[None], is_causal=True)
        return found[0].transpose(0, 1).flatten(1) @ self.o, self.torch.cat([latent, rope], -1)

    def experts(self, x):
        torch = self.torch
        chosen = (x.float() @ self.gate.float()).sigmoid().argmax(-1)
        order = chosen.argsort()
        counts = torch.zeros(self.widths["experts"], dtype=torch.int32, device=x.device)
        ends = counts.scatter_add(0, chosen, torch.ones_like(chosen, dtype=torch.int32)).cumsum(0).int()
        gate, up = torch._grouped_mm(x[order], self.gate_up, offs=ends).chunk(2, -1)
        of_experts = torch._grouped_mm(torch.nn.functional.silu(gate) * up, self.down, offs=ends)
        gate, up = (x @ self.shared_gate_up).chunk(2, -1)
        shared = (torch.nn.functional.silu(gate) * up) @ self.shared_down
        # The weight of a single expert is normalised to 1.
        return shared.index_add(0, order, of_experts * SCALING)

    def decode(self, x, positions, cache):
        x = x + self.attend_cached(self.norm(x), positions, cache)
        return x + self.experts(self.norm(x))

    def prefill(self, x, positions):
        found, cached = self.attend_whole(self.norm(x), positions)
        x = x + found
        return x + self.experts(self.norm(x)), cached


class Yardstick:
    def __init__(self, torch, args):
        self.torch, self.device = torch, args.device
        self.widths = REDUCED if args.reduced else WIDTHS
        self.layers = [Layer(torch, self.widths, args.device, torch.bfloat16) for _ in range(args.layers)]
        self.rows = []

    def add(self, name, value, **numbers):
        self.rows.append({"name": name, "value": value, "passed": True, "numbers": numbers})
        print(f"{name}: {value}", flush=True)

    def seconds(self, work):
        """The median of some runs, after some to warm up."""
        times = []
        for run in range(WARM_UP + RUNS):
            self.wait()
            begin = time.perf_counter()
            work()
            self.wait()
            if run >= WARM_UP:
                times.append(time.perf_counter() - begin)
        return statistics.median(times)

    def wait(self):
        if self.device == "cuda":
            self.torch.cuda.synchronize()

    def random(self, *shape, dtype=None):
        return self.torch.randn(*shape, device=self.device, dtype=dtype or self.torch.bfloat16)

    def compiled(self, step):
        """Compiled, and on a GPU recorded as a CUDA graph, as Rein's steps are."""
        step = self.torch.compile(step, dynamic=False, fullgraph=True)
        if self.device == "cpu":
            return step
        side = self.torch.cuda.Stream()
        side.wait_stream(self.torch.cuda.current_stream())
        with self.torch.cuda.stream(side):
            for _ in range(WARM_UP):
                step()
        self.torch.cuda.current_stream().wait_stream(side)
        graph = self.torch.cuda.CUDAGraph()
        with self.torch.cuda.graph(graph):
            step()
        return graph.replay

    def time(self, name, value, step, **numbers):
        """A step eager and compiled. A form that torch cannot run is reported, and the other one timed."""
        for form, prepare in ("eager", lambda step: step), ("compiled", self.compiled):
            try:
                prepared = prepare(step)
                layer_us = self.seconds(prepared) / len(self.layers) * 1e6
            except Exception as error:  # torch's compiler fails with many types
                self.rows.append({"name": f"{name}, {form}", "value": f"{type(error).__name__}: {error}"[:300], "passed": False})
                print(f"{name}, {form}: failed: {error}"[:300], flush=True)
                continue
            self.add(f"{name}, {form}", value(layer_us), **numbers, layer_us=layer_us)

    def decodes(self, decodes):
        torch = self.torch
        for context, batches in decodes:
            for rows in batches:
                caches = [self.random(rows, context + 1, LATENT + ROPE) for _ in self.layers]
                x, positions = self.random(rows, self.widths["hidden"]), torch.full((rows,), context, device=self.device)

                def step():
                    y = x
                    for layer, cache in zip(self.layers, caches):
                        y = layer.decode(y, positions, cache)
                    return y
                self.time(f"decode, {rows} rows after {context} tokens", lambda us: f"{us:.0f} us per layer", step,
                          rows=rows, context=context, layer_bytes=self.layers[0].bytes(rows, context))
                del caches, step
                torch.compiler.reset()

    def prefills(self, tokens):
        x, positions = self.random(tokens, self.widths["hidden"]), self.torch.arange(tokens, device=self.device)

        def step():
            y = x
            for layer in self.layers:
                y, _ = layer.prefill(y, positions)
            return y
        self.time(f"prefill of {tokens} tokens", lambda us: f"{us:.0f} us per layer", step, rows=tokens)

    def products(self, products):
        """bf16, and FP8 with a scale for each row and column: what the fast kernels' blockwise products stand beside."""
        torch = self.torch
        for rows, ins, outs in products:
            x, w = self.random(rows, ins), self.random(outs, ins)
            operations = 2 * rows * ins * outs
            name = f"[{rows}, {ins}] to {outs}"
            us = self.seconds(lambda: x @ w.t()) * 1e6
            self.add(f"Bf16: {name}", f"{us:.1f} us, {operations / us / 1e6:.1f} TFLOP/s", us=us, operations=operations)
            if self.device != "cuda":
                continue
            x8, w8 = x.to(torch.float8_e4m3fn), w.to(torch.float8_e4m3fn)
            scales = torch.ones(rows, 1, device="cuda"), torch.ones(1, outs, device="cuda")
            us = self.seconds(lambda: torch._scaled_mm(x8, w8.t(), *scales, out_dtype=torch.bfloat16, use_fast_accum=True)) * 1e6
            self.add(f"Fp8: {name}", f"{us:.1f} us, {operations / us / 1e6:.1f} TFLOP/s", us=us, operations=operations)

    def copies(self, count):
        x, y = self.random(count), self.random(count)
        rate = 2 * x.numel() * x.element_size() / self.seconds(lambda: y.copy_(x))
        self.add("copy on the device", f"{rate / 1e9:.1f} GB/s, reads and writes", bytes_per_s=rate)

    def compare(self, tokens):
        """The last token of a prefill is that of a decode after the others, in f32 on the CPU."""
        dtype = self.torch.float32
        layer = Layer(self.torch, REDUCED, "cpu", dtype)
        x = self.random(tokens, REDUCED["hidden"], dtype=dtype).cpu()
        positions = self.torch.arange(tokens)
        whole, cached = layer.prefill(x, positions)
        cached[-1] = 0
        step = layer.decode(x[-1:], positions[-1:], cached[None].clone())
        far = (whole[-1] - step[0]).abs().max().item() / whole[-1].abs().max().item()
        self.add("decode beside prefill", f"within {far:.1e} of the largest number", relative=far)
        if far > 1e-5:
            raise SystemExit("decode and prefill compute something else: the times would say nothing")


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=pathlib.Path, help="write the figures as JSON")
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    parser.add_argument("--layers", type=int, default=2, help="layers of a step (a time is that of one)")
    parser.add_argument("--reduced", action="store_true", help="small widths: the times say nothing")
    args = parser.parse_args()
    import torch
    torch.manual_seed(0)
    stick = Yardstick(torch, args)
    with torch.inference_mode():
        stick.compare(REDUCED_PREFILL)
        stick.copies(1 << (16 if args.reduced else 29))
        stick.products(REDUCED_PRODUCTS if args.reduced else PRODUCTS)
        stick.prefills(REDUCED_PREFILL if args.reduced else PREFILL)
        stick.decodes(REDUCED_DECODES if args.reduced else DECODES)
    device = torch.cuda.get_device_name() if args.device == "cuda" else "CPU"
    report = {"version": torch.__version__, "device": device,
              "sections": {"torch": {"passed": all(row["passed"] for row in stick.rows), "rows": stick.rows}}}
    if args.out:
        args.out.write_text(json.dumps(report, indent=1) + "\n")


if __name__ == "__main__":
    main()
